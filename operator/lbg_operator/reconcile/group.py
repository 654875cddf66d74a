"""Reconciles a LoadBalancedGroup."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lbg_operator.crds import GroupManifest
from lbg_operator.errors import ManifestError
from lbg_operator.kube.kinds import AUTOSCALER, DEPLOYMENT, GROUP, SECRET, STATEFUL_SET, kind_of
from lbg_operator.reconcile.context import ApiFailures, Reach, ReconcileContext, broker_key
from lbg_operator.reconcile.desired import Object as Child
from lbg_operator.reconcile.desired import children_of, obsolete, refusal_of, workload_of
from lbg_operator.reconcile.group_deletion import NEVER_MADE, GroupDeletion, has_finalizer, with_finalizer
from lbg_operator.reconcile.object_cache import Key, WatchedObject
from lbg_operator.reconcile.pod_watch import Shortages
from lbg_operator.reconcile.provision import Provisioner
from lbg_operator.reconcile.scale import DeploymentScaling, SessionScaling
from lbg_operator.reconcile.schedule import Schedules
from lbg_operator.reconcile.status_writer import StatusWriter
from lbg_operator.resources.names import credentials_name
from lbg_operator.status.condition_rules import Observation, Refusal, is_ready, stranded_in_s
from lbg_operator.status.conditions import Reason
from lbg_operator.status.pods import NO_MOUNTS, changes_in_s, mounts_of

AGAIN_S = 600.0
"""A round without any cause, after which whatever was missed is seen."""
REFUSED_S = 60.0
"""A quota may have room again, and a policy or the cluster's version may be changed: nothing tells of it."""


class GroupReconciler:
    """Rounds of groups, one at a time for each. A round returns in how many seconds it wants the next one."""

    def __init__(self, world: ReconcileContext) -> None:
        self._context = world
        self._provisioner = Provisioner(world)
        self._deletion = GroupDeletion(world, self._provisioner)
        self._deployment_scale = DeploymentScaling(world)
        self._session_scale = SessionScaling(world)
        self._schedules = Schedules(world.wall_clock)
        self._status_writer = StatusWriter(world)
        self._failures = ApiFailures(world.now)
        self._shortages = Shortages()
        self._whole: dict[Key, int] = {}
        """The generation of each group that the broker and the cluster had all of."""
        self._uids: dict[Key, str] = {}
        self._settled: dict[Key, tuple[object, ...]] = {}
        """Inputs from which each group's objects were rendered, where all were applied.

        The objects are rendered again when that or one of them changes."""
        self._unmade: dict[Key, WatchedObject] = {}
        """Groups that nothing was ever made for on a broker."""

    async def round(self, key: Key) -> float | None:
        """Raises ClusterError: the round is to be made again later."""
        world = self._context
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
            return await self._deletion.round(key, group)
        self._failures.begin(key)
        group = self._schedules.at_present(key, group)
        facts, children = self._judged(key, group)
        reach = world.reach.get(broker_key(group))
        was_done = self._provisioner.was_done(key, group.metadata.uid)
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
            if was_done or self._provisioner.is_done(key):
                facts, again_s = await self._applied(key, group, facts, children)
                again_s = min(again_s, self._schedules.due_in_s(key))
        # Woken when the broker was tried and looked at: until then the status says what is known.
        waits_for_a_look = reach is not None and self._waits_for_a_look(key, manifest)
        if not is_tried or (facts.refusal is None and waits_for_a_look):
            return 0.0 if self._failures.may_pass(key) else again_s
        return await self._concluded(key, group, manifest, facts, again_s)

    async def _concluded(
        self, key: Key, group: GroupManifest, manifest: WatchedObject, facts: Observation, again_s: float
    ) -> float:
        """Write the status of the round; in how many seconds the next one is wanted. Raises ClusterError."""
        failures, generation = self._failures, group.metadata.generation
        if self._is_whole(key, group, facts) or is_ready(manifest):
            self._whole[key] = generation
        unapplied = failures.of(key)
        if failures.may_pass(key) and not unapplied.words:
            return 0.0
        facts = replace(facts, unapplied=unapplied, is_applied=self._whole.get(key) == generation)
        again_s = min(again_s, await self._status_writer.write(key, group, facts, generation=generation))
        again_s = min(
            again_s,
            changes_in_s(facts.pods, facts.now_s, facts.mounts),
            stranded_in_s(facts.description, facts.now_s),
            self._shortages.due_in_s(key, now=self._context.now()),
            REFUSED_S if failures.are_any(key) else AGAIN_S,
        )
        is_again = failures.may_pass(key) or (facts.failure is not None and facts.failure.retryable)
        return 0.0 if is_again else again_s

    def _is_whole(self, key: Key, group: GroupManifest, facts: Observation) -> bool:
        """True if the broker and the cluster have all that this generation asks for."""
        is_refused = facts.refusal is not None or facts.failure is not None or self._failures.are_any(key)
        is_done = facts.broker_ready and not facts.not_begun and self._provisioner.is_done(key)
        return is_done and not is_refused and (group.consumer is None or self._provisioner.has_given(group))

    def _notice(self, key: Key, manifest: WatchedObject) -> None:
        """A group that was deleted and made again before a round saw it gone is another one."""
        uid = manifest["metadata"].get("uid", "")
        if self._uids.setdefault(key, uid) != uid:
            self._forget(key)
            self._uids[key] = uid

    async def _held(self, key: Key, manifest: WatchedObject) -> bool:
        """False for a group that is gone. A finalizer that could not be written is among the failures: without it
        nothing may be made for the group on a broker."""
        self._unmade.pop(key, None)
        if has_finalizer(manifest):
            return True
        answer: WatchedObject | None = manifest
        with self._failures.caught(key, GROUP, key.name):
            patch = with_finalizer(manifest)
            answer = await self._context.cluster.merge(GROUP, key.namespace, key.name, patch)
            if answer is not None:
                self._context.store.update(GROUP, answer)
        return answer is not None

    def _notice_unmade(self, key: Key, manifest: WatchedObject) -> None:
        """A group without the finalizer goes as soon as it is deleted: what there is to say is said when it is gone."""
        if not has_finalizer(manifest):
            self._unmade[key] = manifest

    async def _not_followed(self, key: Key, manifest: WatchedObject, why: str) -> None:
        if "deletionTimestamp" in manifest["metadata"]:
            nothing = "its manifest is invalid, and its state on the broker is unknown"
            await self._deletion.let_go(key, nothing)
        else:
            if not self._provisioner.was_done(key, manifest["metadata"].get("uid", "")):
                self._notice_unmade(key, manifest)
            facts = Observation(Refusal(Reason.INVALID, why))
            await self._status_writer.write(key, None, facts, generation=manifest["metadata"]["generation"])

    async def _provisioned(
        self, key: Key, group: GroupManifest, facts: Observation, reach: Reach | None
    ) -> Observation:
        """The broker's side, and what is seen of it."""
        failure, secret = None, credentials_name(key.name)
        if reach is None:
            lost = ""
            with self._failures.caught(key, SECRET, secret):
                lost = "" if await self._provisioner.restore(group) else secret
            return self._observed(key, group, facts, broker_ready=False, lost_secret=lost)
        with self._failures.caught(key, SECRET, secret):
            failure = await self._provisioner.bring_about(group, reach)
        why = self._failures.words(key, SECRET, secret)
        if why and self._whole.get(key) != group.metadata.generation:
            facts = replace(facts, not_begun=why)
        return self._observed(key, group, facts, failure=failure)

    async def _applied(
        self, key: Key, group: GroupManifest, facts: Observation, children: list[Child] | None
    ) -> tuple[Observation, float]:
        """The cluster's side, and in how many seconds there is more to do."""
        self._context.looks.watch(key, broker_key(group), group.spec)
        again_s = AGAIN_S
        if children is not None:
            self._settled.pop(key, None)
            source = self._source(group)
            again_s = await self._apply(key, group, children)
            is_all = again_s == AGAIN_S and not self._failures.are_any(key)
            # Sessions are looked at in each round, and pods that wait for their Secret are not applied yet.
            if is_all and not group.has_sessions and self._provisioner.has_given(group):
                self._settled[key] = source
        return self._observed(key, group, facts), again_s

    def _waits_for_a_look(self, key: Key, manifest: WatchedObject) -> bool:
        """An operator that has just begun knows less than the status that the former one left."""
        is_known = manifest.get("status", {}).get("observedGeneration") == manifest["metadata"]["generation"]
        return is_known and self._provisioner.is_done(key) and self._context.looks.latest(key) is None

    def _judged(self, key: Key, group: GroupManifest) -> tuple[Observation, list[Child] | None]:
        """The verdict on the manifest, and the objects that it asks for; None for those that are there."""
        world = self._context
        refusal = None
        if not world.is_unreadable(broker_key(group)):
            refusal = refusal_of(group, world.broker(broker_key(group)), world.namesakes(group))
        if refusal is not None:
            return Observation(refusal=refusal), []
        source = self._source(group)
        if self._settled.get(key) == source and world.applied.are_untouched(key, now=world.now()):
            return Observation(floor=self._schedules.floor(key)), None
        try:
            children = children_of(
                group,
                world.settings,
                has_ca=world.has_authority(broker_key(group)),
                scalers=world.autoscaling.scalers_of(group),
            )
        except ManifestError as error:
            return Observation(refusal=Refusal(Reason.INVALID, str(error))), []
        return Observation(floor=self._schedules.floor(key)), children

    def _source(self, group: GroupManifest) -> tuple[object, ...]:
        autoscaling = self._context.autoscaling
        has_ca = self._context.has_authority(broker_key(group))
        return group, has_ca, autoscaling.scalers_of(group), autoscaling.kinds

    def _observed(self, key: Key, group: GroupManifest, facts: Observation, **more: Any) -> Observation:
        """With what the watches and the last look show."""
        store, look = self._context.store, self._context.looks.latest(key)
        workload, autoscaler = store.get(*workload_of(group)), store.get(AUTOSCALER, key)
        keda = self._context.autoscaling.keda_status(group)
        sessions = workload if group.has_sessions else None
        return replace(
            facts,
            description=None if look is None else look.description,
            unread="" if look is None else look.why,
            workload=None if workload is None else workload["status"],
            autoscaler=keda if autoscaler is None else autoscaler["status"],
            metrics=self._context.autoscaling.ailment_of(group),
            pods=tuple(store.pods(key).values()),
            mounts=NO_MOUNTS if group.consumer is None else mounts_of(group.consumer.template),
            missing=self._shortages.seen(key, sessions, now=self._context.now()),
            scale_in=self._session_scale.waiting(key),
            now_s=self._context.wall_clock().timestamp(),
            **more,
        )

    async def _apply(self, key: Key, group: GroupManifest, children: list[Child]) -> float:
        """Returns in how many seconds there is more to do."""
        world, again_s = self._context, AGAIN_S
        # First, since KEDA takes no ScaledObject beside a HorizontalPodAutoscaler of the same group.
        for kind, name in obsolete(group, children, autoscalers=world.autoscaling.kinds):
            with self._failures.caught(key, kind, name):
                await world.applied.remove(key, kind, name)
        workload, _ = workload_of(group)
        for child in children:
            if child["kind"] == workload.kind and not self._provisioner.has_given(group):
                continue
            kind = kind_of(child["apiVersion"], child["kind"])
            with self._failures.caught(key, kind, child["metadata"]["name"]):
                if kind is DEPLOYMENT:
                    child, wait_s = await self._deployment_scale.paced(key, child)
                    again_s = min(again_s, wait_s)
                elif kind is STATEFUL_SET:
                    child, wait_s = await self._session_scale.paced(key, group, child)
                    again_s = min(again_s, wait_s)
                await world.applied.apply(key, child, now=world.now())
        return again_s

    def _forget(self, key: Key) -> None:
        """It is gone."""
        if (unmade := self._unmade.pop(key, None)) is not None:
            self._context.announce(unmade, type="Normal", reason="Deleted", message=NEVER_MADE)
        self._context.forget(key)
        self._provisioner.forget(key)
        self._status_writer.forget(key)
        self._deployment_scale.forget(key)
        self._session_scale.forget(key)
        self._schedules.forget(key)
        self._failures.forget(key)
        self._shortages.forget(key)
        self._whole.pop(key, None)
        self._settled.pop(key, None)
        self._uids.pop(key, None)
