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
from lbg_operator.reconcile.group_deletion import (
    NEVER_PROVISIONED,
    GroupDeletion,
    has_finalizer,
    is_claimed,
    with_claim,
)
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

RESYNC_S = 600.0
"""Interval of the reconcile that needs no event: it finds what was missed."""
REFUSED_S = 60.0
"""A quota may have room again, and a policy or the cluster's version may change: there is no event for it."""


class GroupReconciler:
    """Reconciles groups, one at a time for each. A reconcile returns the seconds until the next one, or None."""

    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._provisioner = Provisioner(context)
        self._deletion = GroupDeletion(context, self._provisioner)
        self._deployment_scale = DeploymentScaling(context)
        self._session_scale = SessionScaling(context)
        self._schedules = Schedules(context.wall_clock)
        self._status_writer = StatusWriter(context)
        self._failures = ApiFailures(context.now)
        self._shortages = Shortages()
        self._whole: dict[Key, int] = {}
        """The generation of each group that the broker and the cluster had all of."""
        self._uids: dict[Key, str] = {}
        self._settled: dict[Key, tuple[object, ...]] = {}
        """Inputs from which each group's objects were rendered, where all were applied.

        The objects are rendered again when that or one of them changes."""
        self._unprovisioned: dict[Key, WatchedObject] = {}
        """Groups that nothing was ever made for on a broker."""

    async def reconcile(self, key: Key) -> float | None:
        """Raises ClusterError: reconcile again later."""
        context = self._context
        manifest = context.store.get(GROUP, key)
        if manifest is None:
            self._forget(key)
            return None
        self._detect_recreation(key, manifest)
        try:
            group = context.group(manifest)
        except ManifestError as error:
            await self._reject(key, manifest, str(error))
            return None
        if group.metadata.deleting:
            return await self._deletion.reconcile(key, group)
        self._failures.begin(key)
        group = self._schedules.at_present(key, group)
        observation, children = self._desired_state(key, group)
        reach = context.reach.get(broker_key(group))
        was_provisioned = self._provisioner.was_provisioned(key, group.metadata.uid)
        if was_provisioned or (observation.refusal is None and reach is not None):
            if not await self._ensure_finalizer(key, manifest):
                return None
            if why := self._failures.words(key, GROUP, key.name):
                observation = self._observe(key, group, observation, not_begun=why)
                return await self._write_status(key, group, manifest, observation, RESYNC_S)
        else:
            self._remember_unprovisioned(key, manifest)
        is_tried = observation.refusal is not None or broker_key(group) in context.checked
        requeue_in_s = RESYNC_S
        if observation.refusal is None:
            if is_tried:
                had_parking = self._provisioner.has_parking(key)
                observation = await self._provision(key, group, observation, reach)
                provisioned = self._provisioner.as_provisioned(key, group)
                # With another number of queues there may be more consumers, and with parking they are others.
                if provisioned is not group or self._provisioner.has_parking(key) != had_parking:
                    group = provisioned
                    desired, children = self._desired_state(key, group)
                    observation = replace(observation, refusal=desired.refusal)
            is_known = was_provisioned or self._provisioner.is_provisioned(key)
            is_ours = observation.refusal is None and not self._provisioner.is_of_another_owner(key)
            if is_known and is_ours:
                observation, requeue_in_s = await self._apply_children(key, group, observation, children)
                requeue_in_s = min(requeue_in_s, self._schedules.due_in_s(key))
        # Woken when the broker was checked and surveyed: until then the status stays as it is.
        waits_for_survey = reach is not None and self._waits_for_survey(key, manifest)
        if not is_tried or (observation.refusal is None and waits_for_survey):
            return 0.0 if self._failures.may_pass(key) else requeue_in_s
        return await self._write_status(key, group, manifest, observation, requeue_in_s)

    async def _write_status(
        self,
        key: Key,
        group: GroupManifest,
        manifest: WatchedObject,
        observation: Observation,
        requeue_in_s: float,
    ) -> float:
        """Writes the status; returns the seconds until the next reconcile. Raises ClusterError."""
        failures, generation = self._failures, group.metadata.generation
        if self._is_whole(key, group, observation) or is_ready(manifest):
            self._whole[key] = generation
        unapplied = failures.of(key)
        if failures.may_pass(key) and not unapplied.words:
            return 0.0
        observation = replace(observation, unapplied=unapplied, is_applied=self._whole.get(key) == generation)
        requeue_in_s = min(
            requeue_in_s, await self._status_writer.write(key, group, observation, generation=generation)
        )
        requeue_in_s = min(
            requeue_in_s,
            changes_in_s(observation.pods, observation.now_s, observation.mounts),
            stranded_in_s(observation.description, observation.now_s),
            self._shortages.due_in_s(key, now=self._context.now()),
            REFUSED_S if failures.are_any(key) else RESYNC_S,
        )
        is_retry = failures.may_pass(key) or (
            observation.failure is not None and observation.failure.retryable
        )
        return 0.0 if is_retry else requeue_in_s

    def _is_whole(self, key: Key, group: GroupManifest, observation: Observation) -> bool:
        """True if the broker and the cluster have all that this generation asks for."""
        is_refused = (
            observation.refusal is not None or observation.failure is not None or self._failures.are_any(key)
        )
        is_done = (
            observation.broker_ready and not observation.not_begun and self._provisioner.is_provisioned(key)
        )
        return (
            is_done
            and not is_refused
            and (group.consumer is None or self._provisioner.has_credentials(group))
        )

    def _detect_recreation(self, key: Key, manifest: WatchedObject) -> None:
        """A group that was deleted and created again before a reconcile saw it gone is another one."""
        uid = manifest["metadata"].get("uid", "")
        if self._uids.setdefault(key, uid) != uid:
            self._forget(key)
            self._uids[key] = uid

    async def _ensure_finalizer(self, key: Key, manifest: WatchedObject) -> bool:
        """False for a group that is gone. The finalizer goes with the group's name on the broker. Where they could not
        be written, that is among the failures: without them nothing may be made for the group on a broker."""
        self._unprovisioned.pop(key, None)
        if is_claimed(manifest):
            return True
        answer: WatchedObject | None = manifest
        with self._failures.caught(key, GROUP, key.name):
            patch = with_claim(manifest)
            answer = await self._context.cluster.merge(GROUP, key.namespace, key.name, patch)
            if answer is not None:
                self._context.store.update(GROUP, answer)
        return answer is not None

    def _remember_unprovisioned(self, key: Key, manifest: WatchedObject) -> None:
        """A group without the finalizer goes as soon as it is deleted: its event is sent when it is gone."""
        if not has_finalizer(manifest):
            self._unprovisioned[key] = manifest

    async def _reject(self, key: Key, manifest: WatchedObject, why: str) -> None:
        if "deletionTimestamp" in manifest["metadata"]:
            message = "its manifest is invalid, and its state on the broker is unknown"
            await self._deletion.remove_finalizer(key, message)
        else:
            if not self._provisioner.was_provisioned(key, manifest["metadata"].get("uid", "")):
                self._remember_unprovisioned(key, manifest)
            observation = Observation(Refusal(Reason.INVALID, why))
            await self._status_writer.write(
                key, None, observation, generation=manifest["metadata"]["generation"]
            )

    async def _provision(
        self, key: Key, group: GroupManifest, observation: Observation, reach: Reach | None
    ) -> Observation:
        """The broker's side, and what is seen of it."""
        failure, secret = None, credentials_name(key.name)
        if reach is None:
            lost = ""
            with self._failures.caught(key, SECRET, secret):
                lost = "" if await self._provisioner.restore(group) else secret
            return self._observe(key, group, observation, broker_ready=False, lost_secret=lost)
        with self._failures.caught(key, SECRET, secret):
            failure = await self._provisioner.provision(group, reach)
        why = self._failures.words(key, SECRET, secret)
        if why and self._whole.get(key) != group.metadata.generation:
            observation = replace(observation, not_begun=why)
        return self._observe(key, group, observation, failure=failure)

    async def _apply_children(
        self, key: Key, group: GroupManifest, observation: Observation, children: list[Child] | None
    ) -> tuple[Observation, float]:
        """The cluster's side, and in how many seconds there is more to do."""
        delay_s = None if group.scaling is None else group.scaling.target_delay_s
        self._context.surveys.demands.watch(key, group.spec, delay_s, queues_max=group.queues_max)
        self._context.surveys.watch(key, broker_key(group), group.spec)
        requeue_in_s = RESYNC_S
        if children is not None:
            self._settled.pop(key, None)
            source = self._source(key, group)
            requeue_in_s = await self._apply(key, group, children)
            is_all = requeue_in_s == RESYNC_S and not self._failures.are_any(key)
            # Sessions are read in each reconcile, and pods that wait for their Secret are not applied yet.
            if is_all and not group.has_sessions and self._provisioner.has_credentials(group):
                self._settled[key] = source
        return self._observe(key, group, observation), requeue_in_s

    def _waits_for_survey(self, key: Key, manifest: WatchedObject) -> bool:
        """True if there is no survey since the operator's start: the status of the former process is better."""
        was_seen = manifest.get("status", {}).get("observedGeneration", -1) > 0
        return (
            was_seen and self._provisioner.is_provisioned(key) and self._context.surveys.latest(key) is None
        )

    def _desired_state(self, key: Key, group: GroupManifest) -> tuple[Observation, list[Child] | None]:
        """The verdict on the manifest, and the objects that it asks for; None for those that are there."""
        context = self._context
        refusal = None
        if not context.is_unreadable(broker_key(group)):
            refusal = refusal_of(group, context.broker(broker_key(group)), context.rivals(group))
        has_parking = self._provisioner.has_parking(key)
        if refusal is None and (group.parks or has_parking) and group.unfit_for_parking:
            refusal = Refusal(Reason.INVALID, group.unfit_for_parking)
        if refusal is not None:
            return Observation(refusal=refusal), []
        source = self._source(key, group)
        if self._settled.get(key) == source and context.applied.are_untouched(key, now=context.now()):
            return Observation(floor=self._schedules.floor(key)), None
        try:
            children = children_of(
                group,
                context.settings,
                has_ca=context.has_authority(broker_key(group)),
                scalers=context.autoscaling.scalers_of(group),
                has_parking=has_parking,
            )
        except ManifestError as error:
            return Observation(refusal=Refusal(Reason.INVALID, str(error))), []
        return Observation(floor=self._schedules.floor(key)), children

    def _source(self, key: Key, group: GroupManifest) -> tuple[object, ...]:
        autoscaling = self._context.autoscaling
        has_ca = self._context.has_authority(broker_key(group))
        has_parking = self._provisioner.has_parking(key)
        return group, has_parking, has_ca, autoscaling.scalers_of(group), autoscaling.kinds

    def _observe(self, key: Key, group: GroupManifest, observation: Observation, **more: Any) -> Observation:
        """Adds what the watches and the last survey show."""
        store, survey = self._context.store, self._context.surveys.latest(key)
        workload, autoscaler = store.get(*workload_of(group)), store.get(AUTOSCALER, key)
        keda = self._context.autoscaling.keda_status(group)
        sessions = workload if group.has_sessions else None
        queue_count = self._provisioner.queue_count(key)
        if queue_count is None:
            queue_count = (store.get(GROUP, key) or {}).get("status", {}).get("queueCount")
        return replace(
            observation,
            queue_count=queue_count,
            description=None if survey is None else survey.description,
            unread="" if survey is None else survey.why,
            workload=None if workload is None else workload["status"],
            autoscaler=keda if autoscaler is None else autoscaler["status"],
            metrics=self._context.autoscaling.problem_of(group),
            pods=tuple(store.pods(key).values()),
            mounts=NO_MOUNTS if group.consumer is None else mounts_of(group.consumer.template),
            missing=self._shortages.seen(key, sessions, now=self._context.now()),
            scale_in=self._session_scale.waiting(key),
            demand=self._context.surveys.demands.latest(key),
            now_s=self._context.wall_clock().timestamp(),
            **more,
        )

    async def _apply(self, key: Key, group: GroupManifest, children: list[Child]) -> float:
        """Returns in how many seconds there is more to do."""
        context, requeue_in_s = self._context, RESYNC_S
        # First, since KEDA takes no ScaledObject beside a HorizontalPodAutoscaler of the same group.
        for kind, name in obsolete(group, children, autoscalers=context.autoscaling.kinds):
            with self._failures.caught(key, kind, name):
                await context.applied.remove(key, kind, name)
        workload, _ = workload_of(group)
        for child in children:
            if child["kind"] == workload.kind and not self._provisioner.has_credentials(group):
                continue
            kind = kind_of(child["apiVersion"], child["kind"])
            with self._failures.caught(key, kind, child["metadata"]["name"]):
                if kind is DEPLOYMENT:
                    child, wait_s = await self._deployment_scale.paced(key, child)
                    requeue_in_s = min(requeue_in_s, wait_s)
                elif kind is STATEFUL_SET:
                    child, wait_s = await self._session_scale.paced(key, group, child)
                    requeue_in_s = min(requeue_in_s, wait_s)
                await context.applied.apply(key, child, now=context.now())
        return requeue_in_s

    def _forget(self, key: Key) -> None:
        """It is gone."""
        if (unprovisioned := self._unprovisioned.pop(key, None)) is not None:
            self._context.announce(unprovisioned, type="Normal", reason="Deleted", message=NEVER_PROVISIONED)
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
