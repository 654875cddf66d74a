"""Main loop of the operator. All state can be rebuilt from the cluster and the brokers."""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
import time
from collections.abc import Collection, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import kopf
from pythonjsonlogger.json import JsonFormatter

from lbg_core.admin import ProvisioningError
from lbg_core.admin.problem_kinds import Kind as ProblemKind
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.group.sizing import TOLERANCE, published
from lbg_operator.crds import GroupManifest
from lbg_operator.errors import ClusterSetBack, GroupNotFound, ManifestError, MetricUnknown, OperatorError
from lbg_operator.kube.api import Cluster, ClusterError, Forbidden
from lbg_operator.kube.client import KubernetesCluster, connected
from lbg_operator.kube.kinds import BROKER, GROUP, NAMESPACE, Kind
from lbg_operator.metrics_api import PORT as METRICS_PORT
from lbg_operator.metrics_api import Keda, MetricReader, MetricsApi, Service, serve
from lbg_operator.reconcile.broker import BrokerReconciler
from lbg_operator.reconcile.broker_pool import BrokerAddresses, BrokerPool
from lbg_operator.reconcile.context import ReconcileContext, broker_key
from lbg_operator.reconcile.ending_namespaces import EndingNamespaces
from lbg_operator.reconcile.group import GroupReconciler
from lbg_operator.reconcile.metrics_provider import MetricsProviders
from lbg_operator.reconcile.object_cache import Key, ObjectCache, WatchedObject
from lbg_operator.reconcile.pod_watch import BrokerPods
from lbg_operator.reconcile.secret_cache import SecretCache
from lbg_operator.reconcile.server_side_apply import ServerSideApply
from lbg_operator.reconcile.survey_cache import SurveyCache
from lbg_operator.resources.autoscaler import WANTED_METRIC
from lbg_operator.resources.names import MANAGER
from lbg_operator.runtime.events import EventRecorder
from lbg_operator.runtime.metrics import PORT, Metrics, health_server
from lbg_operator.runtime.watches import (
    SELECTORS,
    SILENT_S,
    WatchLiveness,
    WatchReadiness,
    list_all,
    missed,
    owner_of,
    paths_of,
    registry_of,
    settings_of,
    take,
)
from lbg_operator.runtime.work_queue import WorkQueue
from lbg_operator.settings import OperatorSettings
from lbg_operator.status.condition_rules import is_provisioned_in

MAX_AGE_S = 0.5
"""Several autoscalers that read the lag at once share one read of their broker."""

LOG_FIELDS = "{levelname}{name}{message}"
LOG_NAMES = {"levelname": "level", "name": "logger"}
LOG_TIME = "time"
"""RFC 3339, in UTC."""


def configure_logging(settings: OperatorSettings) -> None:
    """Log to standard error, as one object a line or as text."""
    handler = logging.StreamHandler()
    if settings.log_format == "json":
        handler.setFormatter(
            JsonFormatter(LOG_FIELDS, style="{", rename_fields=LOG_NAMES, timestamp=LOG_TIME)
        )
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    for name in ("kopf", "aiohttp", "kubernetes"):  # they log every event
        logging.getLogger(name).setLevel(max(logging.getLogger().level, logging.WARNING))


def metric_reader(context: ReconcileContext) -> MetricReader:
    """Reads the lag from the broker, and the wanted replicas from the last surveys."""

    async def read(metric: str, namespace: str, name: str) -> float:
        manifest = context.store.get(GROUP, Key(namespace, name))
        if manifest is None:
            raise GroupNotFound(namespace, name)
        if not is_provisioned_in(manifest):
            raise MetricUnknown(f"group {namespace}/{name} has no group of its own on the broker")
        try:
            group = GroupManifest.without_template(manifest)
        except ManifestError as error:
            raise MetricUnknown(f"the manifest of group {namespace}/{name} is invalid: {error}") from None
        _require_calls(context, Key(namespace, name))
        if metric == WANTED_METRIC:
            return _wanted(context, manifest, group)
        reach = context.reach.get(broker_key(group))
        if reach is None:
            raise MetricUnknown(f"the broker of group {namespace}/{name} cannot be reached")
        try:
            counts = await reach.admin.lag_reader.lags({name: group.spec}, max_age_s=MAX_AGE_S)
        except ProvisioningError as error:
            raise MetricUnknown(str(error)) from error
        lag = counts[name]
        if lag is UNKNOWN:
            raise MetricUnknown(f"not every queue of group {namespace}/{name} could be counted")
        return lag

    return read


def _require_calls(context: ReconcileContext, key: Key) -> None:
    """A lag that grows because no call can succeed needs no more members. Raises MetricUnknown, with which autoscalers
    keep their number."""
    survey = context.surveys.latest(key)
    problems = () if survey is None or survey.description is None else survey.description.problems
    if any(one.kind is ProblemKind.CALLS_HELD for one in problems):
        raise MetricUnknown(f"members of group {key} hold their calls until what they depend on is back")


def _wanted(context: ReconcileContext, manifest: WatchedObject, group: GroupManifest) -> float:
    """Raises MetricUnknown."""
    key = Key(group.metadata.namespace, group.metadata.name)
    demand = context.surveys.demands.latest(key)
    if group.scaling is None or group.scaling.target_delay_s is None:
        raise MetricUnknown(f"group {key} has no spec.scaling.targetDelay")
    if demand is None or demand.wanted is None:
        raise MetricUnknown(
            f"the demand of group {key} is unknown: it is measured while members run, from two reports on"
        )
    is_exact = (
        context.settings.has_tolerance
        and group.scaling.is_by_delay_alone
        and not isinstance(context.autoscaling.provider, Keda)
    )
    current = manifest.get("status", {}).get("replicas", 0)
    return published(demand.wanted, current, 0.0 if is_exact else TOLERANCE)


async def follow(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    *,
    namespaces: tuple[str, ...],
    until: Coroutine[Any, Any, None],
) -> None:
    """`namespaces` empty: all. Until a signal. Raises what ended `until`, and ClusterError where a watch of kopf ended.

    `kopf.operator` gives every task of the process that it has not seen before 5 s to end after a signal, and an open
    connection to our own listeners is such a task. Cancelled, it ends at once.
    """
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    stopping = asyncio.create_task(stopped.wait(), name="signals")
    ending = asyncio.create_task(until, name="end")
    ours = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=settings,
        standalone=True,
        # A name of its own kopf would make of the user's, and the image's user has none.
        identity=MANAGER,  # type: ignore[arg-type]  # a NewType that kopf does not export
        clusterwide=not namespaces,
        namespaces=namespaces,
    )
    for number in (signal.SIGTERM, signal.SIGINT):  # in place of kopf's
        loop.add_signal_handler(number, stopped.set)
    running = asyncio.create_task(kopf.run_tasks(tasks, ignored=ours), name="kopf")
    try:
        done, _ = await asyncio.wait((*tasks, ending, stopping), return_when=asyncio.FIRST_COMPLETED)
        if done & set(tasks):
            await _end(asyncio.all_tasks() - ours)
    finally:
        for task in (stopping, ending, running):
            task.cancel()
        await asyncio.gather(stopping, ending, running, return_exceptions=True)
    for task in done - {stopping}:
        if isinstance(error := task.exception(), OperatorError):
            raise error
        raise ClusterError(
            "watch the cluster", str(error.args[0] if error and error.args else error)
        ) from error


async def _end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """kopf waits for its other watches when one has failed, and a watch survives a cancellation that comes together
    with that of the task that pauses it."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=1)


log = logging.getLogger("lbg.operator")

NATIVE_SIDECARS_SINCE = (1, 29)
"""The first version of Kubernetes that starts them without a feature gate."""
TOLERANCE_SINCE = (1, 35)
"""The first version whose HorizontalPodAutoscaler has `behavior.*.tolerance` without a feature gate (KEP 4951)."""
SECURITY_CONSTRAINTS = "security.openshift.io/v1"
"""API group of a cluster that assigns users to pods."""
CLUSTER_NAMESPACE = "kube-system"
"""Its UID is that of the cluster."""
NEW_CRDS_S = 30.0
NOT_SERVED_YET = frozenset({404, 429})
"""Answers of the API server for a CRD that it has just accepted: it is not there, or its storage is initialising."""
LIST_EVERY_S = 600.0
RELIST_S = 1.0
"""Watches of all kinds begin anew at about the same time: one look for all of them."""
RELIST_RETRY_S = 30.0
REVISION_EVERY_S = 10.0
"""A snapshot is older than this in practice. The revision stays behind until the cluster has written as much as was
lost."""
STUCK_S = 300.0
"""A reconcile has limits of its own, all shorter: one that takes this long hangs because of a bug of ours."""


async def run(
    settings: OperatorSettings,
    *,
    host: str = "0.0.0.0",
    port: int = PORT,
    metrics_port: int = METRICS_PORT,
) -> None:
    """Until SIGTERM or SIGINT. Raises ClusterError when the API server does not answer at the start, OSError when
    a port is taken, and ClusterSetBack."""
    async with AsyncExitStack() as stack:
        cluster = await connected()
        stack.push_async_callback(cluster.close)
        settings = await suited(settings, cluster)
        process = OperatorProcess(settings, cluster, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.push_async_callback(process.close)
        await stack.enter_async_context(
            health_server(
                process.metrics.registry, dead=process.dead, unready=process.unready, host=host, port=port
            )
        )
        if settings.service and settings.namespace:
            service = Service(settings.namespace, settings.service)
            process.metrics_api = await stack.enter_async_context(
                serve(metric_reader(process.context), cluster, service, host=host, port=metrics_port)
            )
        await process.work()


async def suited(settings: OperatorSettings, cluster: KubernetesCluster) -> OperatorSettings:
    """With what the cluster can do. Raises ClusterError."""
    version = await cluster.version()
    return replace(
        settings,
        native_sidecars=version >= NATIVE_SIDECARS_SINCE,
        has_tolerance=version >= TOLERANCE_SINCE,
        assigns_users=await cluster.serves(SECURITY_CONSTRAINTS),
        cluster_uid=await _cluster_uid(cluster),
    )


async def _cluster_uid(cluster: Cluster) -> str:
    """Empty where the operator's rules are older than its code. Raises ClusterError."""
    try:
        found = await cluster.read(NAMESPACE, None, CLUSTER_NAMESPACE)
    except Forbidden as error:
        log.warning("the cluster's UID is unknown, groups are owned by their objects' UIDs alone: %s", error)
        return ""
    return "" if found is None else str(found["metadata"]["uid"])


class OperatorProcess:
    """The parts, wired."""

    def __init__(self, settings: OperatorSettings, cluster: KubernetesCluster, directory: Path) -> None:
        self.settings = settings
        self._cluster = cluster
        self._set_back: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._store = ObjectCache(self._on_set_back)
        self._liveness = WatchLiveness()
        ending = EndingNamespaces(self._store)
        self._event_recorder = EventRecorder(cluster, ending)
        self._pool = BrokerPool(directory, BrokerAddresses(settings.broker_networks))
        self._surveys = SurveyCache(
            lambda key: self._groups.wake(key),
            now=time.monotonic,
            timestamp=lambda: self.context.timestamp,
        )
        self.metrics = Metrics(
            self._store, self._surveys, lambda kind: self._liveness.silent_s(kind, time.monotonic())
        )
        self._metrics_providers = MetricsProviders(
            cluster,
            settings,
            self._store,
            serving_config=lambda: None if self.metrics_api is None else self.metrics_api.serving_config,
            wake_group=lambda key: self._groups.wake(key),
        )
        self.metrics_api: MetricsApi | None = None
        self.context = ReconcileContext(
            cluster=cluster,
            settings=settings,
            store=self._store,
            applied=ServerSideApply(cluster, self._store, ending),
            surveys=self._surveys,
            secrets=SecretCache(cluster, self._store, changed=lambda key: self._brokers.wake(key)),
            broker_pods=BrokerPods(cluster, changed=lambda key: self._brokers.wake(key)),
            autoscaling=self._metrics_providers,
            announce=self._event_recorder,
            wake_group=lambda key: self._groups.wake(key),
            on_status_written=self._on_status_written,
        )
        self._groups = WorkQueue(
            GroupReconciler(self.context).reconcile, name="group", done=self.metrics.done(GROUP)
        )
        self._brokers = WorkQueue(
            BrokerReconciler(self.context, self._pool).reconcile,
            name="broker",
            done=self.metrics.done(BROKER),
        )
        self._readiness = WatchReadiness(paths_of(SELECTORS, settings.watched))
        self._background_tasks: list[asyncio.Task[None]] = []

    async def work(self) -> None:
        """List everything, reconcile everything, and then follow the events of the watches."""
        await self._list_all()
        await self._metrics_providers.try_refresh()
        self._background_tasks = [
            asyncio.create_task(self._event_recorder.run(), name="events"),
            asyncio.create_task(self._list_regularly(), name="lists"),
            asyncio.create_task(self._compare_revisions(), name="revisions"),
            asyncio.create_task(
                self._metrics_providers.refresh_regularly(self._wake_all), name="provider of metrics"
            ),
        ]
        for key, _ in self._store.all(BROKER):
            self._brokers.wake(key)
        self._wake_all()
        try:
            await follow(
                registry_of(self._on_event, self._readiness),
                settings_of(),
                namespaces=self.settings.watched,
                until=self._until_set_back(),
            )
        finally:
            for task in self._background_tasks:
                task.cancel()
            await asyncio.gather(*self._background_tasks, return_exceptions=True)

    async def close(self) -> None:
        await self._groups.close()
        await self._brokers.close()
        await self._surveys.close()
        await self.context.secrets.close()
        await self.context.broker_pods.close()
        await self._pool.close()

    def dead(self) -> str:
        """For the liveness probe: what only a restart mends."""
        if self._set_back.done():
            return str(ClusterSetBack(self._set_back.result()))
        for kind in (GROUP, BROKER):
            silent_s = self._liveness.silent_s(kind, time.monotonic())
            if silent_s > SILENT_S:
                return f"the watch of {kind.plural} has not reported a write for {silent_s:.0f} s"
        for workers in (self._groups, self._brokers):
            if workers.longest_reconcile_s > STUCK_S:
                return f"a reconciliation has been running for {workers.longest_reconcile_s:.0f} s"
        for task in self._background_tasks:
            if task.done():  # for a bug of ours: none of them ends
                return f"the task of {task.get_name()} has ended"
        return ""

    def unready(self) -> str:
        return self._readiness.unready(time.monotonic())

    async def _list_all(self) -> None:
        """A chart's CRDs are a moment older than its operator, and not served yet. Raises ClusterError."""
        until = time.monotonic() + NEW_CRDS_S
        while True:
            try:
                return await list_all(self._cluster, self._store, self.settings.watched)
            except ClusterError as error:
                if error.status not in NOT_SERVED_YET or time.monotonic() > until:
                    raise
            await asyncio.sleep(1)

    def _wake_all(self) -> None:
        for key, _ in self._store.all(GROUP):
            self._groups.wake(key)

    async def _list_regularly(self) -> None:
        wait_s, relisted = LIST_EVERY_S, self._readiness.relisted
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(relisted.wait(), wait_s)
                await asyncio.sleep(RELIST_S)
            relisted.clear()
            try:
                for kind, seen in await missed(self._cluster, self._store, self.settings.watched):
                    self._on_event(kind, Key.of(seen), seen, True)
            except ClusterError as error:
                log.warning("deleted objects are unknown: %s; trying again", error)
                wait_s = RELIST_RETRY_S
            else:
                wait_s = LIST_EVERY_S

    async def _compare_revisions(self) -> None:
        """A watch of a version that is not there yet waits without a word (Kubernetes: "API Concepts", unavailable
        resource versions), and that is where a restored snapshot leaves each of them."""
        latest, namespace = 0, next(iter(self.settings.watched), None)
        while True:
            with suppress(ClusterError):  # the API server's absence shows in every other request
                revision = await self._cluster.revision(GROUP, namespace)
                if revision < latest:
                    self._on_set_back(f"its revision is {revision} after {latest}")
                latest = revision
            await asyncio.sleep(REVISION_EVERY_S)

    def _on_set_back(self, evidence: str) -> None:
        if not self._set_back.done():
            self._set_back.set_result(evidence)

    async def _until_set_back(self) -> None:
        """Raises ClusterSetBack, after which nothing is written that was concluded from before."""
        evidence = await self._set_back
        await self._groups.close()
        await self._brokers.close()
        raise ClusterSetBack(evidence)

    def _on_event(self, kind: Kind, key: Key, seen: WatchedObject, is_gone: bool) -> None:
        take(self._store, kind, seen, is_gone=is_gone)
        if is_gone:
            self._liveness.gone(kind, key)
        elif kind in (GROUP, BROKER):
            self._liveness.saw(kind, key, seen["metadata"]["resourceVersion"])
        owner = owner_of(kind, seen)
        if owner is None:
            return
        (self._groups if owner[0] is GROUP else self._brokers).wake(owner[1])
        if kind is BROKER:
            for group in self.context.groups():
                if (group.broker.namespace, group.broker.name) == key:
                    self._groups.wake(Key(group.metadata.namespace, group.metadata.name))
        elif kind not in (GROUP, BROKER):
            self._surveys.soon(owner[1])

    def _on_status_written(self, kind: Kind, answer: WatchedObject) -> None:
        key = Key.of(answer)
        if self._store.get(kind, key) is not None:  # else the watch has reported its deletion
            self._liveness.wrote(kind, key, answer["metadata"]["resourceVersion"], time.monotonic())
