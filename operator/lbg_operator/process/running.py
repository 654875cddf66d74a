"""The operator from start to end: list, then watch; rounds; looks; health. It holds nothing that is lost with it."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from ..brokers.pool import Pool
from ..cluster.kinds import BROKER, GROUP, Kind
from ..cluster.live import LiveCluster, connected
from ..cluster.seam import ClusterError
from ..metrics_api import PORT as METRICS_PORT
from ..metrics_api import MetricsApi, Service, serve
from ..reconciling.applied import Applied
from ..reconciling.autoscaling import Autoscaling
from ..reconciling.broker import Brokers
from ..reconciling.group import Groups
from ..reconciling.looks import Looks
from ..reconciling.pod_watch import BrokerPods
from ..reconciling.secret_cache import SecretCache
from ..reconciling.store import Key, Object, Store
from ..reconciling.world import World
from ..settings import OperatorSettings
from .announcing import Announcing
from .counting import lag_reader
from .following import follow
from .metrics import Metrics
from .observing import PORT, observed
from .openness import Openness, paths_of
from .silence import SILENT_S, Silence
from .watching import SELECTORS, list_all, missed, owner_of, registry_of, settings_of, take
from .working import Workers

log = logging.getLogger("lbg.operator")

NATIVE_SIDECARS_SINCE = (1, 29)
"""The first version of Kubernetes that starts them without a feature gate."""
SECURITY_CONSTRAINTS = "security.openshift.io/v1"
"""What a cluster serves that assigns users to pods."""
NEW_CRDS_S = 30.0
NOT_SERVED_YET = frozenset({404, 429})
"""What the API server says of a CRD that it has just taken: it is not there, or its storage is initialising."""
LIST_EVERY_S = 600.0
STUCK_S = 300.0
"""A round has limits of its own, all shorter: one that takes this long hangs for a bug of ours."""


async def run(
    settings: OperatorSettings,
    *,
    host: str = "0.0.0.0",
    port: int = PORT,
    metrics_port: int = METRICS_PORT,
) -> None:
    """Until SIGTERM or SIGINT. Raises ClusterError when the API server cannot be asked at the start, and OSError when
    a port is taken."""
    async with AsyncExitStack() as stack:
        cluster = await connected()
        stack.push_async_callback(cluster.close)
        settings = await suited(settings, cluster)
        process = Process(settings, cluster, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.push_async_callback(process.close)
        await stack.enter_async_context(
            observed(
                process.metrics.registry, dead=process.dead, unready=process.unready, host=host, port=port
            )
        )
        if settings.service and settings.namespace:
            service = Service(settings.namespace, settings.service)
            process.metrics_api = await stack.enter_async_context(
                serve(lag_reader(process.world), cluster, service, host=host, port=metrics_port)
            )
        await process.work()


async def suited(settings: OperatorSettings, cluster: LiveCluster) -> OperatorSettings:
    """With what the cluster can do. Raises ClusterError."""
    return replace(
        settings,
        native_sidecars=await cluster.version() >= NATIVE_SIDECARS_SINCE,
        assigns_users=await cluster.serves(SECURITY_CONSTRAINTS),
    )


class Process:
    """The parts, wired."""

    def __init__(self, settings: OperatorSettings, cluster: LiveCluster, directory: Path) -> None:
        self.settings = settings
        self._cluster = cluster
        self._store = Store()
        self._silence = Silence()
        self._announcing = Announcing(cluster)
        self._pool = Pool(directory)
        self._looks = Looks(
            lambda key: self._groups.wake(key),
            now=time.monotonic,
            timestamp=lambda: self.world.timestamp,
        )
        self.metrics = Metrics(
            self._store, self._looks, lambda kind: self._silence.silent_s(kind, time.monotonic())
        )
        self._autoscaling = Autoscaling(
            cluster,
            settings,
            self._store,
            standing=lambda: None if self.metrics_api is None else self.metrics_api.standing,
            wake_group=lambda key: self._groups.wake(key),
        )
        self.metrics_api: MetricsApi | None = None
        self.world = World(
            cluster=cluster,
            settings=settings,
            store=self._store,
            applied=Applied(cluster, self._store),
            looks=self._looks,
            secrets=SecretCache(cluster, self._store, changed=lambda key: self._brokers.wake(key)),
            broker_pods=BrokerPods(cluster, changed=lambda key: self._brokers.wake(key)),
            autoscaling=self._autoscaling,
            announce=self._announcing,
            wake_group=lambda key: self._groups.wake(key),
            wrote=self._wrote,
        )
        self._groups = Workers(Groups(self.world).round, name="group", done=self.metrics.done(GROUP))
        self._brokers = Workers(
            Brokers(self.world, self._pool).round, name="broker", done=self.metrics.done(BROKER)
        )
        self._openness = Openness(paths_of(SELECTORS, settings.watched))
        self._beside: list[asyncio.Task[None]] = []

    async def work(self) -> None:
        """List everything, go through everything, and then follow what the watches tell."""
        await self._list_all()
        await self._autoscaling.try_look()
        self._beside = [
            asyncio.create_task(self._announcing.run(), name="events"),
            asyncio.create_task(self._keep_listing(), name="lists"),
            asyncio.create_task(self._autoscaling.keep_looking(self._wake_all), name="provider of metrics"),
        ]
        for key, _ in self._store.all(BROKER):
            self._brokers.wake(key)
        self._wake_all()
        try:
            await follow(
                registry_of(self._told, self._openness),
                settings_of(),
                namespaces=self.settings.watched,
            )
        finally:
            for task in self._beside:
                task.cancel()
            await asyncio.gather(*self._beside, return_exceptions=True)

    async def close(self) -> None:
        await self._groups.close()
        await self._brokers.close()
        await self._looks.close()
        await self.world.secrets.close()
        await self.world.broker_pods.close()
        await self._pool.close()

    def dead(self) -> str:
        """For the liveness probe: what only a restart mends."""
        for kind in (GROUP, BROKER):
            silent_s = self._silence.silent_s(kind, time.monotonic())
            if silent_s > SILENT_S:
                return f"the watch of {kind.plural} has not told of a write for {silent_s:.0f} s"
        for workers in (self._groups, self._brokers):
            if workers.longest_round_s > STUCK_S:
                return f"a round hangs for {workers.longest_round_s:.0f} s"
        for task in self._beside:
            if task.done():  # for a bug of ours: none of them ends
                return f"what looks after {task.get_name()} has ended"
        return ""

    def unready(self) -> str:
        return self._openness.unready(time.monotonic())

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

    async def _keep_listing(self) -> None:
        while True:
            await asyncio.sleep(LIST_EVERY_S)
            try:
                for kind, seen in await missed(self._cluster, self._store, self.settings.watched):
                    self._told(kind, Key.of(seen), seen, True)
            except ClusterError as error:
                log.warning("what is gone is not known: %s", error)

    def _told(self, kind: Kind, key: Key, seen: Object, is_gone: bool) -> None:
        take(self._store, kind, seen, is_gone=is_gone)
        if is_gone:
            self._silence.gone(kind, key)
        elif kind in (GROUP, BROKER):
            self._silence.saw(kind, key, seen["metadata"]["resourceVersion"])
        owner = owner_of(kind, seen)
        if owner is None:
            return
        (self._groups if owner[0] is GROUP else self._brokers).wake(owner[1])
        if kind is BROKER:
            for group in self.world.groups():
                if (group.broker.namespace, group.broker.name) == key:
                    self._groups.wake(Key(group.metadata.namespace, group.metadata.name))
        elif kind not in (GROUP, BROKER):
            self._looks.soon(owner[1])

    def _wrote(self, kind: Kind, answer: Object) -> None:
        key = Key.of(answer)
        if self._store.get(kind, key) is not None:  # of what is gone the watch has told the last
            self._silence.wrote(kind, key, answer["metadata"]["resourceVersion"], time.monotonic())
