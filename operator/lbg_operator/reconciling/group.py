"""The story of a LoadBalancedGroup: parse, observe, plan, apply, one status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lbg_broker.provisioning import ProvisioningError

from ..cluster.kinds import AUTOSCALER, DEPLOYMENT, GROUP, STATEFUL_SET
from ..cluster.seam import Forbidden, Invalid
from ..errors import ManifestError
from ..manifests import GroupManifest
from ..status.conditions import Reason
from ..status.judging import Facts, Refusal
from .burying import Burying
from .finalizing import has_finalizer, with_finalizer
from .planning import Object as Child
from .planning import children_of, obsolete, refusal_of, workload_of
from .provisioning import Provisioning
from .reporting import Reporting
from .scaling import Scaling
from .scheduling import Scheduling
from .session_scaling import SessionScaling
from .store import Key, Object
from .world import Reach, World, broker_key

AGAIN_S = 600.0
"""A round without any cause, after which whatever was missed is seen."""
FORBIDDEN_S = 60.0
"""A quota may have room again, and a policy may be changed: nothing tells of it."""


class Groups:
    """Rounds of groups, one at a time for each. A round returns in how many seconds it wants the next one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._provisioning = Provisioning(world)
        self._burying = Burying(world)
        self._scaling = Scaling(world)
        self._session_scaling = SessionScaling(world)
        self._scheduling = Scheduling(world.wall_clock)
        self._reporting = Reporting(world)
        self._uids: dict[Key, str] = {}
        self._unmade: dict[Key, Object] = {}
        """Groups that nothing was ever made for on a broker."""

    async def round(self, key: Key) -> float | None:
        """Raises ClusterError: the round is to be made again later."""
        world = self._world
        manifest = world.store.get(GROUP, key)
        if manifest is None:
            self._forget(key)
            return None
        self._notice(key, manifest)
        try:
            group = world.group(manifest)
        except ManifestError as error:
            await self._not_followed(key, manifest, str(error))
            return None
        if group.metadata.deleting:
            return await self._burying.round(key, group)
        group = self._scheduling.at_present(key, group)
        facts, children = self._judged(key, group)
        reach = world.reach.get(broker_key(group))
        was_done = self._provisioning.was_done(key, group.metadata.uid)
        if was_done or (facts.refusal is None and reach is not None):
            if not await self._held(key, manifest):
                return None
        else:
            self._notice_unmade(key, manifest)
        is_tried = facts.refusal is not None or broker_key(group) in world.checked
        again_s = AGAIN_S
        if facts.refusal is None:
            if is_tried:
                facts = await self._provisioned(key, group, facts, reach)
            if was_done or self._provisioning.is_done(key):
                facts, again_s = await self._applied(key, group, facts, children)
                again_s = min(again_s, self._scheduling.due_in_s(key))
        if not is_tried:
            return again_s  # woken when the broker was tried: until then the status says what is known
        if facts.refusal is None and reach is not None and self._waits_for_a_look(key, manifest):
            return again_s
        again_s = min(again_s, await self._reporting.write(key, group, facts))
        if facts.forbidden:
            again_s = min(again_s, FORBIDDEN_S)
        return 0.0 if facts.failure is not None and facts.failure.retryable else again_s

    def _notice(self, key: Key, manifest: Object) -> None:
        """A group that was deleted and made again before a round saw it gone is another one."""
        uid = manifest["metadata"].get("uid", "")
        if self._uids.setdefault(key, uid) != uid:
            self._forget(key)
            self._uids[key] = uid

    async def _held(self, key: Key, manifest: Object) -> bool:
        """Whether the group has its finalizer, without which nothing may be made for it on a broker; False for one that
        is gone."""
        self._unmade.pop(key, None)
        if has_finalizer(manifest):
            return True
        answer = await self._world.cluster.merge(GROUP, key.namespace, key.name, with_finalizer(manifest))
        if answer is not None:
            self._world.store.update(GROUP, answer)
        return answer is not None

    def _notice_unmade(self, key: Key, manifest: Object) -> None:
        """A group without the finalizer goes as soon as it is deleted: what there is to say is said when it is gone."""
        if not has_finalizer(manifest):
            self._unmade[key] = manifest

    async def _not_followed(self, key: Key, manifest: Object, why: str) -> None:
        if "deletionTimestamp" in manifest["metadata"]:
            nothing = "its manifest cannot be followed, and nothing is known of its broker side"
            await self._burying.let_go(key, nothing)
        else:
            if not self._provisioning.was_done(key, manifest["metadata"].get("uid", "")):
                self._notice_unmade(key, manifest)
            await self._reporting.write(key, None, Facts(Refusal(Reason.INVALID, why)))

    async def _provisioned(self, key: Key, group: GroupManifest, facts: Facts, reach: Reach | None) -> Facts:
        """The broker's side, and what is seen of it."""
        if reach is None:
            return self._observed(key, group, facts, broker_ready=False)
        try:
            failure = await self._provisioning.bring_about(group, reach)
        except Forbidden as error:
            failure = ProvisioningError(str(error))
            facts = replace(facts, forbidden=str(error))
        return self._observed(key, group, facts, failure=failure)

    async def _applied(
        self, key: Key, group: GroupManifest, facts: Facts, children: list[Child]
    ) -> tuple[Facts, float]:
        """The cluster's side, and in how many seconds there is more to do."""
        world, again_s = self._world, AGAIN_S
        world.looks.watch(key, broker_key(group), group.spec)
        try:
            again_s = await self._apply(key, group, children)
        except Invalid as error:
            facts = replace(facts, refusal=Refusal(Reason.INVALID, str(error)))
        except Forbidden as error:
            facts = replace(facts, forbidden=str(error))
        return self._observed(key, group, facts), again_s

    def _waits_for_a_look(self, key: Key, manifest: Object) -> bool:
        """An operator that has just begun knows less than the status that the former one left."""
        is_known = manifest.get("status", {}).get("observedGeneration") == manifest["metadata"]["generation"]
        return is_known and self._provisioning.is_done(key) and self._world.looks.latest(key) is None

    def _judged(self, key: Key, group: GroupManifest) -> tuple[Facts, list[Child]]:
        """Whether the manifest is followed, and what it asks for in the cluster."""
        world = self._world
        refusal = None
        if not world.is_unreadable(broker_key(group)):
            refusal = refusal_of(group, world.broker(broker_key(group)), world.namesakes(group))
        if refusal is not None:
            return Facts(refusal=refusal), []
        try:
            children = children_of(
                group,
                world.settings,
                has_ca=world.has_authority(broker_key(group)),
                scalers=world.autoscaling.scalers_of(group),
            )
        except ManifestError as error:
            return Facts(refusal=Refusal(Reason.INVALID, str(error))), []
        return Facts(floor=self._scheduling.floor(key)), children

    def _observed(self, key: Key, group: GroupManifest, facts: Facts, **more: Any) -> Facts:
        """With what the watches and the last look show."""
        store, look = self._world.store, self._world.looks.latest(key)
        workload, autoscaler = store.get(*workload_of(group)), store.get(AUTOSCALER, key)
        keda = self._world.autoscaling.keda_status(group)
        return replace(
            facts,
            description=None if look is None else look.description,
            unread="" if look is None else look.why,
            workload=None if workload is None else workload["status"],
            autoscaler=keda if autoscaler is None else autoscaler["status"],
            metrics=self._world.autoscaling.ailment,
            pods=tuple(store.pods(key).values()) if group.has_sessions else (),
            scale_in=self._session_scaling.waiting(key),
            now_s=self._world.wall_clock().timestamp(),
            **more,
        )

    async def _apply(self, key: Key, group: GroupManifest, children: list[Child]) -> float:
        """Returns in how many seconds there is more to do."""
        world, again_s = self._world, AGAIN_S
        # First, since KEDA takes no ScaledObject beside a HorizontalPodAutoscaler of the same group.
        for kind, name in obsolete(group, children, autoscalers=world.autoscaling.kinds):
            await world.applied.remove(key, kind, name)
        workload, _ = workload_of(group)
        for child in children:
            if child["kind"] == workload.kind and not self._provisioning.has_given(group):
                continue
            if child["kind"] == DEPLOYMENT.kind:
                child, wait_s = await self._scaling.paced(key, child)
                again_s = min(again_s, wait_s)
            elif child["kind"] == STATEFUL_SET.kind:
                child, wait_s = await self._session_scaling.paced(key, group, child)
                again_s = min(again_s, wait_s)
            await world.applied.apply(key, child, now=world.now())
        return again_s

    def _forget(self, key: Key) -> None:
        """It is gone."""
        if (unmade := self._unmade.pop(key, None)) is not None:
            message = "nothing of it is on a broker, as it was never provisioned"
            self._world.announce(unmade, type="Normal", reason="Deleted", message=message)
        self._world.forget(key)
        self._provisioning.forget(key)
        self._reporting.forget(key)
        self._scaling.forget(key)
        self._session_scaling.forget(key)
        self._scheduling.forget(key)
        self._uids.pop(key, None)
