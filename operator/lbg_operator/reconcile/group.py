"""Reconciles a LoadBalancedGroup."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from lbg_core.admin import ProvisioningError
from lbg_core.group import group_name_of
from lbg_operator.crds import GroupManifest
from lbg_operator.errors import ManifestError
from lbg_operator.kube.kinds import AUTOSCALER, BROKER, DEPLOYMENT, GROUP, SECRET, Kind, kind_of
from lbg_operator.reconcile.context import ApiFailures, Reach, ReconcileContext, broker_key
from lbg_operator.reconcile.desired import OF_PERMISSION, children_of, obsolete, refusal_of, workload_of
from lbg_operator.reconcile.desired import Object as Child
from lbg_operator.reconcile.group_deletion import (
    NEVER_PROVISIONED,
    GroupDeletion,
    has_finalizer,
    is_claimed,
    removal_of,
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
        metadata, ending = manifest["metadata"], context.applied.ending
        if "deletionTimestamp" not in metadata and ending.has(metadata.get("uid", "")):
            return None  # its deletion is an event
        refusal = None
        try:
            group = context.group(manifest)
        except ManifestError as error:
            refusal = Refusal(Reason.INVALID, str(error))
            try:
                group = GroupManifest.without_template(manifest)
            except ManifestError:
                await self._reject(key, manifest, refusal)
                return None
        if group.metadata.deleting:
            return await self._deletion.reconcile(key, group)
        self._failures.begin(key)
        group = self._schedules.at_present(key, group)
        observation, children = self._desired_state(key, group, refusal)
        reach = context.reach.get(broker_key(group))
        was_provisioned = self._provisioner.was_provisioned(key, group.metadata.uid)
        if was_provisioned or (observation.refusal is None and reach is not None):
            if not await self._ensure_finalizer(key, manifest):
                return None
            if why := self._failures.words(key, GROUP, key.name):
                observation = self._observe(key, group, observation, not_begun=why)
                if not was_provisioned:
                    return await self._write_status(key, group, manifest, observation, RESYNC_S)
        else:
            self._remember_unprovisioned(key, manifest)
        is_refused = observation.refusal is not None
        has_broker = context.store.get(BROKER, broker_key(group)) is not None
        is_tried = broker_key(group) in context.checked
        is_tried |= is_refused and not (was_provisioned and has_broker)
        requeue_in_s = RESYNC_S
        if is_refused and was_provisioned:
            if is_tried:
                observation, requeue_in_s = await self._retain(key, group, observation, children, reach)
        elif not is_refused:
            if is_tried and not observation.not_begun:
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
            else:
                requeue_in_s = await self._scale(key, group)
        requeue_in_s = min(requeue_in_s, self._schedules.due_in_s(key))
        # Woken when the broker was checked and surveyed: until then the status stays as it is.
        waits_for_survey = reach is not None and self._waits_for_survey(key, manifest)
        if not is_tried or waits_for_survey:
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

    async def _reject(self, key: Key, manifest: WatchedObject, refusal: Refusal) -> None:
        """Of a manifest in which not even the group on the broker can be read."""
        if "deletionTimestamp" in manifest["metadata"]:
            name = group_name_of(manifest)
            message = "its manifest is invalid, so nothing was deleted on the broker"
            await self._deletion.remove_finalizer(key, f"{message}; {removal_of(name)}")
        else:
            if not self._provisioner.was_provisioned(key, manifest["metadata"].get("uid", "")):
                self._remember_unprovisioned(key, manifest)
            await self._status_writer.write(
                key, None, Observation(refusal), generation=manifest["metadata"]["generation"]
            )

    async def _retain(
        self,
        key: Key,
        group: GroupManifest,
        observation: Observation,
        children: list[Child] | None,
        reach: Reach | None,
    ) -> tuple[Observation, float]:
        """Reconciles a group that was provisioned and whose manifest is refused since: its Secret, its consumers and
        their number. Nothing is created or changed on the broker."""
        owned: GroupManifest | None = group
        secret, lost = credentials_name(key.name), ""
        with self._failures.caught(key, SECRET, secret):
            lost = "" if await self._provisioner.restore(group) else secret
            if reach is not None:
                with suppress(TimeoutError, ProvisioningError):  # the next survey reports it
                    owned = await self._provisioner.retained(key, group, reach)
        observation = replace(
            observation, is_retained=owned is not None, broker_ready=reach is not None, lost_secret=lost
        )
        requeue_in_s = RESYNC_S
        if owned is not None and self._provisioner.is_retained(key):
            self._watch(key, owned)
        if children:
            requeue_in_s = await self._apply(key, group, children)
        elif children is not None:
            requeue_in_s = await self._scale(key, group)
        return self._observe(key, group, observation), requeue_in_s

    def _watch(self, key: Key, group: GroupManifest) -> None:
        delay_s = None if group.scaling is None else group.scaling.target_delay_s
        self._context.surveys.demands.watch(key, group.spec, delay_s, queues_max=group.queues_max)
        self._context.surveys.watch(key, broker_key(group), group.spec)

    async def _scale(self, key: Key, group: GroupManifest) -> float:
        """Applies the number of consumers to the workload that is there, and nothing else of it; in how many seconds
        there is more to do."""
        kind, place = workload_of(group)
        there = self._context.store.get(kind, place)
        if there is None or group.consumer is None or group.metadata.uid not in there["owners"]:
            return RESYNC_S
        scale: Child = {"metadata": {"name": place.name}, "spec": {"replicas": group.pods_wanted}}
        requeue_in_s = RESYNC_S
        with self._failures.caught(key, kind, place.name):
            scale, requeue_in_s = await self._paced(key, group, kind, scale)
            if scale["spec"]["replicas"] != there["replicas"]:
                patch = {"spec": scale["spec"]}
                if (answer := await self._context.cluster.merge(kind, *place, patch)) is not None:
                    self._context.store.update(kind, answer)
        return min(requeue_in_s, RESYNC_S)

    async def _paced(self, key: Key, group: GroupManifest, kind: Kind, child: Child) -> tuple[Child, float]:
        """The workload to apply now, and in how many seconds to ask again or infinity. Raises ClusterError."""
        if kind is DEPLOYMENT:
            return await self._deployment_scale.paced(key, child)
        return await self._session_scale.paced(key, group, child)

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
        self._watch(key, group)
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
        is_known = self._provisioner.is_provisioned(key) or self._provisioner.is_retained(key)
        return was_seen and is_known and self._context.surveys.latest(key) is None

    def _desired_state(
        self, key: Key, group: GroupManifest, refusal: Refusal | None = None
    ) -> tuple[Observation, list[Child] | None]:
        """The verdict on the manifest, and the objects that it asks for; None for those that are there, and none where
        they cannot be rendered. `refusal`: there is one already."""
        context = self._context
        if refusal is None and not context.is_unreadable(broker_key(group)):
            refusal = refusal_of(group, context.broker(broker_key(group)), context.rivals(group))
        has_parking = self._provisioner.has_parking(key)
        if refusal is None and (group.parks or has_parking) and group.unfit_for_parking:
            refusal = Refusal(Reason.INVALID, group.unfit_for_parking)
        if refusal is not None and refusal.reason not in OF_PERMISSION:
            return Observation(refusal=refusal), []
        source = self._source(key, group)
        if self._settled.get(key) == source and context.applied.are_untouched(key, now=context.now()):
            return Observation(refusal, floor=self._schedules.floor(key)), None
        try:
            children = children_of(
                group,
                context.settings,
                has_ca=context.has_authority(broker_key(group)),
                scalers=context.autoscaling.scalers_of(group),
                has_parking=has_parking,
            )
        except ManifestError as error:
            return Observation(refusal=refusal or Refusal(Reason.INVALID, str(error))), []
        return Observation(refusal, floor=self._schedules.floor(key)), children

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
            kind, name = kind_of(child["apiVersion"], child["kind"]), child["metadata"]["name"]
            if kind is workload and not self._provisioner.has_credentials(group):
                requeue_in_s = min(requeue_in_s, await self._scale(key, group))
                continue
            with self._failures.caught(key, kind, name):
                if kind is workload:
                    child, wait_s = await self._paced(key, group, kind, child)
                    requeue_in_s = min(requeue_in_s, wait_s)
                await context.applied.apply(key, child, now=context.now())
            if kind is workload and self._failures.is_refused(key, kind, name):
                requeue_in_s = min(requeue_in_s, await self._scale(key, group))
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
