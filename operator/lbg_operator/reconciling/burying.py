"""The end of a group: its members work off what waits, then consumers and queues go. It always ends."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime

from lbg_broker.group import differences
from lbg_broker.provisioning import GroupNotFound, ProvisioningError, StillInUse
from lbg_broker.provisioning.planning import recorded
from lbg_broker.provisioning.provisioner import delete_group

from ..children.naming import sessions_name
from ..cluster.kinds import AUTOSCALER, BROKER, DEPLOYMENT, GROUP, STATEFUL_SET
from ..manifests import GroupManifest
from ..status.conditions import Reason
from ..status.seen import lag_of
from .finalizing import has_finalizer, without_finalizer
from .planning import refusal_of
from .store import Key
from .world import Reach, World, broker_key

log = logging.getLogger("lbg.operator")

STEP_S = 2.0
BROKER_GONE_S = 10.0
"""A Broker that is deleted with its groups takes their queues along: nobody waits for it long."""
TRY_S = 60.0
"""Longer than one try to reach a broker."""
LIMIT_S = 30.0
"""For deleting one group on a broker, once."""


class Burying:
    def __init__(self, world: World) -> None:
        self._world = world
        self._told: set[tuple[Key, str]] = set()
        self._began: dict[Key, float] = {}

    async def round(self, key: Key, group: GroupManifest) -> float | None:
        """Returns in how many seconds to go on, None when it is over. Raises ClusterError."""
        manifest = self._world.store.get(GROUP, key)
        if manifest is None or not has_finalizer(manifest):
            return None
        if group.deletion_policy == "Retain":
            return await self.let_go(
                key, f"queues and user of {group.spec.name} stay on the broker, as deletionPolicy says"
            )
        if (anothers := self._anothers(group)) is not None:
            return await self.let_go(key, f"nothing of it is on the broker: {anothers}")
        gone_s = self._since_deletion_s(manifest["metadata"]["deletionTimestamp"])
        if self._world.store.get(BROKER, broker_key(group)) is None and gone_s >= BROKER_GONE_S:
            return await self.let_go(
                key, f"Broker {broker_key(group)} is gone: {group.spec.name} was not deleted there"
            )
        is_late = gone_s >= group.drain_timeout_s
        reach = self._world.reach.get(broker_key(group))
        if reach is None:
            if is_late and self._was_tried(key, group):
                return await self.let_go(
                    key,
                    f"the broker could not be reached within {group.drain_timeout_s} s: what it has of "
                    f"{group.spec.name} is left there",
                )
            if self._was_tried(key, group):
                why = f"the broker cannot be used now: {group.drain_timeout_s} s are waited for it"
                self._tell(key, "DeletionWaits", why, type="Warning")
            return STEP_S
        if not is_late and not await self._is_drained(key, group, reach):
            return STEP_S
        await self._end_consumers(key)
        if self._world.store.pods(key) and not is_late:
            return STEP_S
        return await self._delete(key, group, reach, is_late=is_late)

    async def let_go(self, key: Key, message: str) -> float | None:
        """Take the finalizer away; what is in the cluster goes with the group, its owner. Raises ClusterError."""
        manifest = self._world.store.get(GROUP, key)
        if manifest is None:
            return None
        log.info("%s: deleted; %s", key, message)
        self._told = {one for one in self._told if one[0] != key}
        self._began.pop(key, None)
        if has_finalizer(manifest):
            cluster = self._world.cluster
            answer = await cluster.merge(GROUP, key.namespace, key.name, without_finalizer(manifest))
            if answer is not None:
                self._world.store.update(GROUP, answer)
            self._world.announce(manifest, type="Normal", reason="Deleted", message=message)
        return None

    def _was_tried(self, key: Key, group: GroupManifest) -> bool:
        """Whether the broker had its chance: an operator that has just begun has reached none yet, and a group may have
        been deleted long before."""
        began = self._began.setdefault(key, self._world.now())
        return broker_key(group) in self._world.checked or self._world.now() - began >= TRY_S

    def _anothers(self, group: GroupManifest) -> str | None:
        """Why the group of this name on the broker is not this one's, None where it is."""
        refusal = refusal_of(group, self._world.broker(broker_key(group)), self._world.namesakes(group))
        is_never_made = refusal is not None and refusal.reason in (
            Reason.NAME_TAKEN,
            Reason.BROKER_NOT_ALLOWED,
        )
        return refusal.message if refusal is not None and is_never_made else None

    async def _differs(self, group: GroupManifest, reach: Reach) -> str:
        """How the group on the broker differs: one that was never taken over is not to be deleted either."""
        there = recorded(group.spec.name, await reach.admin.observe(group.spec.name))
        return "" if there is None else "; ".join(map(str, differences(there, group.spec)))

    async def _is_drained(self, key: Key, group: GroupManifest, reach: Reach) -> bool:
        """Whether nothing waits any more, or nobody is there who could work it off."""
        self._tell(key, "Draining", f"members have {group.drain_timeout_s} s to work off what waits")
        self._world.looks.watch(key, broker_key(group), group.spec)
        look = await self._world.looks.fresh(key)
        if look is None or look.is_missing:
            return True
        if look.description is None:
            return False
        there = look.description.spec
        if there is not None and differences(there, group.spec):
            return True  # it stays, with what waits in it
        if not self._world.store.pods(key) and not look.description.members:
            return True
        return lag_of(look.description) == 0

    async def _end_consumers(self, key: Key) -> None:
        for kind, name in (
            (AUTOSCALER, key.name),
            (DEPLOYMENT, key.name),
            (STATEFUL_SET, sessions_name(key.name)),
        ):
            await self._world.applied.remove(key, kind, name)

    async def _delete(self, key: Key, group: GroupManifest, reach: Reach, *, is_late: bool) -> float | None:
        look = self._world.looks.latest(key)
        left = None if look is None or look.description is None else lag_of(look.description)
        try:
            async with asyncio.timeout(LIMIT_S):
                if diff := await self._differs(group, reach):
                    return await self.let_go(
                        key,
                        f"{group.spec.name} stays on the broker, as it is not what the manifest says: {diff}",
                    )
                await delete_group(reach.admin, group.spec.name, force=is_late)
        except GroupNotFound:
            return await self.let_go(key, f"nothing of {group.spec.name} is on the broker")
        except (TimeoutError, ProvisioningError) as error:
            why = str(error) or f"the broker did not finish within {LIMIT_S:g} s"
            if is_late and not isinstance(error, StillInUse):
                return await self.let_go(key, f"{group.spec.name} could not be deleted on the broker: {why}")
            self._tell(key, "DeletionWaits", why, type="Warning")
            return STEP_S
        said = "" if not left else f"; {left} messages that waited were deleted with it"
        return await self.let_go(key, f"queues and user of {group.spec.name} are deleted on the broker{said}")

    def _tell(self, key: Key, reason: str, message: str, *, type: str = "Normal") -> None:
        """Once for each reason."""
        manifest = self._world.store.get(GROUP, key)
        if manifest is not None and (key, reason) not in self._told:
            self._told.add((key, reason))
            self._world.announce(manifest, type=type, reason=reason, message=message)

    def _since_deletion_s(self, timestamp: str) -> float:
        return (self._world.wall_clock() - datetime.fromisoformat(timestamp)).total_seconds()
