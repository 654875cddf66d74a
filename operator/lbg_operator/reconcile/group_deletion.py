"""Deletion of a group: drain, then consumers, then queues; and the finalizer that waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from lbg_core.admin import (
    Busy,
    GroupDiffers,
    GroupNotFound,
    NotOwned,
    ProvisioningError,
    RecordUnavailable,
    StillInUse,
)
from lbg_core.admin.groups import check_owned, delete_own
from lbg_core.admin.problems import sentence_of
from lbg_core.counted_nouns import counted
from lbg_core.group import GROUP_NAME_ANNOTATION, conflicts, group_name_of
from lbg_operator.crds import GroupManifest
from lbg_operator.kube.kinds import AUTOSCALER, BROKER, DEPLOYMENT, GROUP, STATEFUL_SET
from lbg_operator.reconcile.context import Reach, ReconcileContext, broker_key
from lbg_operator.reconcile.object_cache import Key, WatchedObject
from lbg_operator.reconcile.provision import Provisioner
from lbg_operator.resources.names import credentials_name, sessions_name

FINALIZER = "lbg.dev/finalizer"
NEVER_PROVISIONED = "it has no objects on a broker, because it was never provisioned"
"""Last message about a group for which no change on a broker was begun."""


def has_finalizer(manifest: Mapping[str, Any]) -> bool:
    return FINALIZER in manifest["metadata"].get("finalizers", ())


def is_claimed(manifest: Mapping[str, Any]) -> bool:
    """True if the object has all that it needs before its group is made: the finalizer, and the group's name."""
    return has_finalizer(manifest) and not _is_nameless(manifest)


def with_claim(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A merge patch with the finalizer and, unless the manifest gives it, the group's name on the broker.

    It names the resourceVersion that it was made for: a list is replaced as a whole, and somebody else's finalizer that
    came in between must not get lost.
    """
    others = [one for one in manifest["metadata"].get("finalizers", ()) if one != FINALIZER]
    patch = _patch(manifest, [*others, FINALIZER])
    if _is_nameless(manifest):
        patch["metadata"]["annotations"] = {GROUP_NAME_ANNOTATION: group_name_of(manifest)}
    return patch


def _is_nameless(manifest: Mapping[str, Any]) -> bool:
    annotations = manifest["metadata"].get("annotations") or {}
    return "groupName" not in manifest["spec"] and not annotations.get(GROUP_NAME_ANNOTATION)


def without_finalizer(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return _patch(manifest, [one for one in manifest["metadata"].get("finalizers", ()) if one != FINALIZER])


def _patch(manifest: Mapping[str, Any], finalizers: list[str]) -> dict[str, Any]:
    version = manifest["metadata"]["resourceVersion"]
    return {"metadata": {"finalizers": finalizers, "resourceVersion": version}}


log = logging.getLogger("lbg.operator")

STEP_S = 2.0
BROKER_GONE_S = 10.0
"""A Broker that is deleted with its groups takes their queues along: nobody waits for it long."""
TRY_S = 60.0
"""Longer than one try to reach a broker."""
LIMIT_S = 30.0
"""For deleting one group on a broker, once."""
FOREGROUND = "foregroundDeletion"
"""A finalizer of Kubernetes' own ("Foreground cascading deletion")."""


class GroupDeletion:
    def __init__(self, context: ReconcileContext, provisioning: Provisioner) -> None:
        self._context = context
        self._provisioner = provisioning
        self._announced: set[tuple[Key, str]] = set()
        self._owned: set[Key] = set()
        """Groups whose objects on the broker are known to be all their own."""
        self._began: dict[Key, float] = {}

    async def reconcile(self, key: Key, group: GroupManifest) -> float | None:
        """Returns the seconds until the next step, None when it is over. Raises ClusterError."""
        manifest = self._context.store.get(GROUP, key)
        if manifest is None or not has_finalizer(manifest):
            return None
        if group.deletion_policy == "Retain":
            return await self.remove_finalizer(
                key,
                f"queues and user of {group.spec.name} stay on the broker, because of deletionPolicy; "
                f"{removal_of(group.spec.name)}",
            )
        deleted_for_s = self._since_deletion_s(manifest["metadata"]["deletionTimestamp"])
        if self._context.store.get(BROKER, broker_key(group)) is None and deleted_for_s >= BROKER_GONE_S:
            return await self.remove_finalizer(
                key,
                f"Broker {broker_key(group)} is gone: {group.spec.name} was not deleted there; if the broker runs on, "
                f"{removal_of(group.spec.name)}",
            )
        is_late = deleted_for_s >= group.drain_timeout_s
        reach = self._context.reach.get(broker_key(group))
        is_made = self._provisioner.was_provisioned(key, group.metadata.uid)
        if reach is None:
            if not is_made and not await self._may_be_on_broker(key, manifest):
                return await self.remove_finalizer(key, NEVER_PROVISIONED)
            if is_late and self._was_broker_tried(key, group):
                return await self.remove_finalizer(
                    key,
                    f"the broker could not be reached within {group.drain_timeout_s} s: what it has of "
                    f"{group.spec.name} is left there; {removal_of(group.spec.name)}",
                )
            if self._was_broker_tried(key, group):
                why = f"the broker cannot be used now: waiting up to {group.drain_timeout_s} s for it"
                self._announce_once(key, "DeletionWaits", why, type="Warning")
            return STEP_S
        # Its own is deleted whatever the manifest asks for by now, and whether that is accepted.
        with suppress(TimeoutError, ProvisioningError):  # what follows fails in the same way
            if (owned := await self._provisioner.as_owned(group, reach)) is not None:
                group, is_made = owned, True
        if why := await self._not_owned(key, group, reach, is_made=is_made):
            return await self.remove_finalizer(key, why)
        if not is_late and not await self._is_drained(key, group):
            return STEP_S
        await self._end_consumers(key)
        if self._context.store.pods(key) and not is_late:
            return STEP_S
        return await self._delete(key, group, reach, is_made=is_made, is_late=is_late)

    async def remove_finalizer(self, key: Key, message: str) -> float | None:
        """Removes the finalizer; what is in the cluster goes with the group, its owner. Raises ClusterError."""
        manifest = self._context.store.get(GROUP, key)
        if manifest is None:
            return None
        log.info("%s: deleted; %s", key, message)
        self._announced = {one for one in self._announced if one[0] != key}
        self._began.pop(key, None)
        self._owned.discard(key)
        if has_finalizer(manifest):
            cluster = self._context.cluster
            answer = await cluster.merge(GROUP, key.namespace, key.name, without_finalizer(manifest))
            if answer is not None:
                self._context.store.update(GROUP, answer)
            self._context.announce(manifest, type="Normal", reason="Deleted", message=message)
        return None

    def _was_broker_tried(self, key: Key, group: GroupManifest) -> bool:
        """True if the broker had its chance: an operator that has just begun has reached none yet, and a group may have
        been deleted long before."""
        began = self._began.setdefault(key, self._context.now())
        return broker_key(group) in self._context.checked or self._context.now() - began >= TRY_S

    async def _may_be_on_broker(self, key: Key, manifest: WatchedObject) -> bool:
        """False if nothing can be on a broker: the Secret of a group's user comes before its first queue.

        Raises ClusterError.
        """
        if FOREGROUND in manifest["metadata"].get("finalizers", ()):
            return True  # what is owned by the group goes before it
        return await self._context.secrets.own(key.namespace, credentials_name(key.name)) is not None

    async def _not_owned(self, key: Key, group: GroupManifest, reach: Reach, *, is_made: bool) -> str:
        """Reason why nothing on the broker is the group's: empty if it may be, and where this process has made it.

        That the group's ConfigMap is there says less: anybody in the namespace may have made that.
        Raises ClusterError.
        """
        if key in self._owned or self._provisioner.is_provisioned(key):
            return ""
        claim = await self._provisioner.claim(group)
        try:
            async with asyncio.timeout(LIMIT_S):
                await check_owned(reach.admin, group.spec, claim=claim, is_made=is_made)
        except NotOwned as error:
            return _left(group, error)
        except (GroupNotFound, GroupDiffers) as error:
            if not is_made:
                return _left(group, error)
            self._owned.add(key)
        except (TimeoutError, ProvisioningError) as error:
            log.debug("%s: its owner on the broker is unknown: %s", key, error)
        else:
            self._owned.add(key)
        return ""

    async def _is_drained(self, key: Key, group: GroupManifest) -> bool:
        """True if no messages wait, or there is no consumer that could process them."""
        self._announce_once(
            key, "Draining", f"members have {group.drain_timeout_s} s to process the remaining messages"
        )
        self._context.surveys.watch(key, broker_key(group), group.spec)
        survey = await self._context.surveys.fresh(key)
        if survey is None or survey.is_missing:
            return True
        if survey.description is None:
            return False
        existing = survey.description.spec
        if existing is not None and conflicts(existing, group.spec):
            return True  # it stays, with what waits in it
        if not self._context.store.pods(key) and not survey.description.members:
            return True
        return survey.description.lag == 0

    async def _end_consumers(self, key: Key) -> None:
        for kind, name in (
            (AUTOSCALER, key.name),
            (DEPLOYMENT, key.name),
            (STATEFUL_SET, sessions_name(key.name)),
        ):
            await self._context.applied.remove(key, kind, name)

    async def _delete(
        self, key: Key, group: GroupManifest, reach: Reach, *, is_made: bool, is_late: bool
    ) -> float | None:
        survey = self._context.surveys.latest(key)
        left = None if survey is None or survey.description is None else survey.description.lag
        try:
            async with asyncio.timeout(LIMIT_S):
                await delete_own(
                    reach.admin,
                    group.spec,
                    claim=await self._provisioner.claim(group),
                    is_made=is_made,
                    force=is_late,
                )
        except (GroupNotFound, GroupDiffers, NotOwned) as error:
            return await self.remove_finalizer(key, _left(group, error))
        except (TimeoutError, ProvisioningError) as error:
            why = str(error) or f"the broker did not finish within {LIMIT_S:g} s"
            if is_late and not isinstance(error, StillInUse | Busy | RecordUnavailable):
                return await self.remove_finalizer(
                    key,
                    f"{group.spec.name} could not be deleted on the broker: {why}; {removal_of(group.spec.name)}",
                )
            self._announce_once(key, "DeletionWaits", why, type="Warning")
            return STEP_S
        details = (
            ""
            if not left
            else f"; {counted(left, 'waiting message was', 'waiting messages were')} deleted with it"
        )
        return await self.remove_finalizer(
            key, f"queues and user of {group.spec.name} are deleted on the broker{details}"
        )

    def _announce_once(self, key: Key, reason: str, message: str, *, type: str = "Normal") -> None:
        """Announces once for each reason."""
        manifest = self._context.store.get(GROUP, key)
        if manifest is not None and (key, reason) not in self._announced:
            self._announced.add((key, reason))
            self._context.announce(manifest, type=type, reason=reason, message=message)

    def _since_deletion_s(self, timestamp: str) -> float:
        return (self._context.wall_clock() - datetime.fromisoformat(timestamp)).total_seconds()


def removal_of(group: str) -> str:
    """The commands by which what stays on a broker without its object is removed."""
    return f"`lbg group adopt {group}` and `lbg group delete {group}` remove it"


def _left(group: GroupManifest, error: GroupNotFound | GroupDiffers | NotOwned) -> str:
    """Last message about a group that has nothing of its own on the broker."""
    name = group.spec.name
    match error:
        case GroupDiffers():
            diff = sentence_of("{diff:;}", error.problem.figures)
            return f"{name} stays on the broker, because it differs from the manifest: {diff}"
        case NotOwned():
            return f"it has no objects on the broker: {name} there has another owner, and stays as it is"
    return f"nothing of {name} is on the broker"
