"""The story of a LoadBalancedGroup: parse, observe, plan, apply, one status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..children.naming import credentials_name
from ..cluster.kinds import AUTOSCALER, DEPLOYMENT, GROUP, SECRET, STATEFUL_SET, kind_of
from ..errors import ManifestError
from ..manifests import GroupManifest
from ..status.conditions import Reason
from ..status.judging import Facts, Refusal, is_ready
from ..status.pods import NO_MOUNTS, changes_in_s, mounts_of
from .burying import Burying
from .failures import Failures
from .finalizing import has_finalizer, with_finalizer
from .planning import Object as Child
from .planning import children_of, obsolete, refusal_of, workload_of
from .pod_watch import Shortages
from .provisioning import Provisioning
from .reporting import Reporting
from .scaling import Scaling
from .scheduling import Scheduling
from .session_scaling import SessionScaling
from .store import Key, Object
from .world import Reach, World, broker_key

AGAIN_S = 600.0
"""A round without any cause, after which whatever was missed is seen."""
REFUSED_S = 60.0
"""A quota may have room again, and a policy or the cluster's version may be changed: nothing tells of it."""


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
        self._failures = Failures(world.now)
        self._shortages = Shortages()
        self._whole: dict[Key, int] = {}
        """The generation of each group that the broker and the cluster had all of."""
        self._uids: dict[Key, str] = {}
        self._settled: dict[Key, tuple[object, ...]] = {}
        """Inputs from which each group's objects were rendered, where all were applied.

        The objects are rendered again when that or one of them changes."""
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
        self._failures.begin(key)
        group = self._scheduling.at_present(key, group)
        facts, children = self._judged(key, group)
        reach = world.reach.get(broker_key(group))
        was_done = self._provisioning.was_done(key, group.metadata.uid)
        if was_done or (facts.refusal is None and reach is not None):
            if not await self._held(key, manifest):
                return None
            if why := self._failures.words(key, GROUP, key.name):
                facts = self._observed(key, group, facts, not_begun=why)
                return await self._concluded(key, group, manifest, facts, AGAIN_S)
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
        # Woken when the broker was tried and looked at: until then the status says what is known.
        waits_for_a_look = reach is not None and self._waits_for_a_look(key, manifest)
        if not is_tried or (facts.refusal is None and waits_for_a_look):
            return 0.0 if self._failures.may_pass(key) else again_s
        return await self._concluded(key, group, manifest, facts, again_s)

    async def _concluded(
        self, key: Key, group: GroupManifest, manifest: Object, facts: Facts, again_s: float
    ) -> float:
        """Write the status of the round; in how many seconds the next one is wanted. Raises ClusterError."""
        failures, generation = self._failures, group.metadata.generation
        if self._is_whole(key, group, facts) or is_ready(manifest):
            self._whole[key] = generation
        unapplied = failures.of(key)
        if failures.may_pass(key) and not unapplied.words:
            return 0.0
        facts = replace(facts, unapplied=unapplied, is_applied=self._whole.get(key) == generation)
        again_s = min(again_s, await self._reporting.write(key, group, facts, generation=generation))
        again_s = min(
            again_s,
            changes_in_s(facts.pods, facts.now_s, facts.mounts),
            self._shortages.due_in_s(key, now=self._world.now()),
            REFUSED_S if failures.are_any(key) else AGAIN_S,
        )
        is_again = failures.may_pass(key) or (facts.failure is not None and facts.failure.retryable)
        return 0.0 if is_again else again_s

    def _is_whole(self, key: Key, group: GroupManifest, facts: Facts) -> bool:
        """True if the broker and the cluster have all that this generation asks for."""
        is_refused = facts.refusal is not None or facts.failure is not None or self._failures.are_any(key)
        is_done = facts.broker_ready and not facts.not_begun and self._provisioning.is_done(key)
        return is_done and not is_refused and (group.consumer is None or self._provisioning.has_given(group))

    def _notice(self, key: Key, manifest: Object) -> None:
        """A group that was deleted and made again before a round saw it gone is another one."""
        uid = manifest["metadata"].get("uid", "")
        if self._uids.setdefault(key, uid) != uid:
            self._forget(key)
            self._uids[key] = uid

    async def _held(self, key: Key, manifest: Object) -> bool:
        """False for a group that is gone. A finalizer that could not be written is among the failures: without it
        nothing may be made for the group on a broker."""
        self._unmade.pop(key, None)
        if has_finalizer(manifest):
            return True
        answer: Object | None = manifest
        with self._failures.caught(key, GROUP, key.name):
            patch = with_finalizer(manifest)
            answer = await self._world.cluster.merge(GROUP, key.namespace, key.name, patch)
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
            facts = Facts(Refusal(Reason.INVALID, why))
            await self._reporting.write(key, None, facts, generation=manifest["metadata"]["generation"])

    async def _provisioned(self, key: Key, group: GroupManifest, facts: Facts, reach: Reach | None) -> Facts:
        """The broker's side, and what is seen of it."""
        if reach is None:
            return self._observed(key, group, facts, broker_ready=False)
        failure, secret = None, credentials_name(key.name)
        with self._failures.caught(key, SECRET, secret):
            failure = await self._provisioning.bring_about(group, reach)
        why = self._failures.words(key, SECRET, secret)
        if why and self._whole.get(key) != group.metadata.generation:
            facts = replace(facts, not_begun=why)
        return self._observed(key, group, facts, failure=failure)

    async def _applied(
        self, key: Key, group: GroupManifest, facts: Facts, children: list[Child] | None
    ) -> tuple[Facts, float]:
        """The cluster's side, and in how many seconds there is more to do."""
        self._world.looks.watch(key, broker_key(group), group.spec)
        again_s = AGAIN_S
        if children is not None:
            self._settled.pop(key, None)
            source = self._source(group)
            again_s = await self._apply(key, group, children)
            is_all = again_s == AGAIN_S and not self._failures.are_any(key)
            # Sessions are looked at in each round, and pods that wait for their Secret are not applied yet.
            if is_all and not group.has_sessions and self._provisioning.has_given(group):
                self._settled[key] = source
        return self._observed(key, group, facts), again_s

    def _waits_for_a_look(self, key: Key, manifest: Object) -> bool:
        """An operator that has just begun knows less than the status that the former one left."""
        is_known = manifest.get("status", {}).get("observedGeneration") == manifest["metadata"]["generation"]
        return is_known and self._provisioning.is_done(key) and self._world.looks.latest(key) is None

    def _judged(self, key: Key, group: GroupManifest) -> tuple[Facts, list[Child] | None]:
        """The verdict on the manifest, and the objects that it asks for; None for those that are there."""
        world = self._world
        refusal = None
        if not world.is_unreadable(broker_key(group)):
            refusal = refusal_of(group, world.broker(broker_key(group)), world.namesakes(group))
        if refusal is not None:
            return Facts(refusal=refusal), []
        source = self._source(group)
        if self._settled.get(key) == source and world.applied.are_untouched(key, now=world.now()):
            return Facts(floor=self._scheduling.floor(key)), None
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

    def _source(self, group: GroupManifest) -> tuple[object, ...]:
        autoscaling = self._world.autoscaling
        has_ca = self._world.has_authority(broker_key(group))
        return group, has_ca, autoscaling.scalers_of(group), autoscaling.kinds

    def _observed(self, key: Key, group: GroupManifest, facts: Facts, **more: Any) -> Facts:
        """With what the watches and the last look show."""
        store, look = self._world.store, self._world.looks.latest(key)
        workload, autoscaler = store.get(*workload_of(group)), store.get(AUTOSCALER, key)
        keda = self._world.autoscaling.keda_status(group)
        sessions = workload if group.has_sessions else None
        return replace(
            facts,
            description=None if look is None else look.description,
            unread="" if look is None else look.why,
            workload=None if workload is None else workload["status"],
            autoscaler=keda if autoscaler is None else autoscaler["status"],
            metrics=self._world.autoscaling.ailment,
            pods=tuple(store.pods(key).values()),
            mounts=NO_MOUNTS if group.consumer is None else mounts_of(group.consumer.template),
            missing=self._shortages.seen(key, sessions, now=self._world.now()),
            scale_in=self._session_scaling.waiting(key),
            now_s=self._world.wall_clock().timestamp(),
            **more,
        )

    async def _apply(self, key: Key, group: GroupManifest, children: list[Child]) -> float:
        """Returns in how many seconds there is more to do."""
        world, again_s = self._world, AGAIN_S
        # First, since KEDA takes no ScaledObject beside a HorizontalPodAutoscaler of the same group.
        for kind, name in obsolete(group, children, autoscalers=world.autoscaling.kinds):
            with self._failures.caught(key, kind, name):
                await world.applied.remove(key, kind, name)
        workload, _ = workload_of(group)
        for child in children:
            if child["kind"] == workload.kind and not self._provisioning.has_given(group):
                continue
            kind = kind_of(child["apiVersion"], child["kind"])
            with self._failures.caught(key, kind, child["metadata"]["name"]):
                if kind is DEPLOYMENT:
                    child, wait_s = await self._scaling.paced(key, child)
                    again_s = min(again_s, wait_s)
                elif kind is STATEFUL_SET:
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
        self._failures.forget(key)
        self._shortages.forget(key)
        self._whole.pop(key, None)
        self._settled.pop(key, None)
        self._uids.pop(key, None)
