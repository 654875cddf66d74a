"""The operator on a cluster and a broker in memory: its rounds, looks and workers as the process wires them, with
watches whose delay a test sets, and in virtual time."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self, cast

from lbg_operator.kube.api import Object
from lbg_operator.kube.kinds import BROKER, GROUP, Kind
from lbg_operator.reconcile.broker import BrokerReconciler
from lbg_operator.reconcile.broker_pool import BrokerPool
from lbg_operator.reconcile.context import ReconcileContext
from lbg_operator.reconcile.ending_namespaces import EndingNamespaces
from lbg_operator.reconcile.group import GroupReconciler
from lbg_operator.reconcile.metrics_provider import MetricsProviders
from lbg_operator.reconcile.object_cache import Key, ObjectCache
from lbg_operator.reconcile.object_cache import WatchedObject as Seen
from lbg_operator.reconcile.pod_watch import BrokerPods
from lbg_operator.reconcile.secret_cache import SecretCache
from lbg_operator.reconcile.server_side_apply import ServerSideApply
from lbg_operator.reconcile.survey_cache import SurveyCache
from lbg_operator.runtime.watches import SELECTORS, list_all, owner_of, take
from lbg_operator.runtime.work_queue import WorkQueue
from lbg_operator.settings import OperatorSettings
from testing.kubernetes.fake_cluster import FakeCluster, matches, merged
from testing.kubernetes.manifests import broker_manifest, consumer, fill_in, group_manifest, schema_of
from testing.operator.operated_broker import OperatedBroker, OperatedPool
from testing.operator.operated_pods import Pods

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = OperatorSettings(
    sidecar_image="lbg-sidecar:1", broker_image="lbg-broker:1", namespace="lbg", service="lbg-operator"
)
SPEC = schema_of("loadbalancedgroups")["properties"]["spec"]
MAIN = Key("shop", "main")
ORDERS = Key("shop", "orders")


def wall_clock() -> datetime:
    return BEGAN + timedelta(seconds=asyncio.get_running_loop().time())


SETTLED_S = 10.0
"""Of virtual time: by then nothing more happens by itself."""
MOVING_S = 60.0
"""For keys to be on their way: the operator looks at them every second."""


@dataclass
class Told:
    """An event that the operator announced."""

    about: str
    type: str
    reason: str
    message: str


@dataclass
class Place:
    """`delay_s`: how late the watches tell, `is_mute`: not at all.

    `events`: what was announced, also by former lives of the operator."""

    cluster: FakeCluster = field(default_factory=lambda: FakeCluster(wall_clock))
    broker: OperatedBroker = field(default_factory=OperatedBroker)
    settings: OperatorSettings = SETTINGS
    delay_s: float = 0.02
    is_mute: bool = False
    events: list[Told] = field(default_factory=list)
    operator: Operator | None = None
    brokers: dict[Any, OperatedBroker] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pods = Pods(self.cluster)
        self.broker.members_of = self.pods.members
        self.brokers[MAIN] = self.broker

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self.operator = Operator(self)
        await self.operator.start()

    async def stop(self) -> None:
        if self.operator is not None:
            await self.operator.close()
            self.operator = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def apply_broker(self, name: str = "main", namespace: str = "shop", **spec: Any) -> None:
        """A RabbitMQ, and its administrator's Secret."""
        self.give_secret("main-admin", namespace, username="admin", password="admin")
        told = {"rabbitmq": {"uris": ["amqp://rabbit"], "adminSecretName": "main-admin"}, **spec}
        manifest = broker_manifest(told, name=name, namespace=namespace)
        self.cluster.put(manifest | {"metadata": manifest["metadata"] | {"uid": f"uid-of-broker-{name}"}})

    def apply_group(
        self, name: str = "orders", namespace: str = "shop", *, consumes: bool = True, **spec: Any
    ) -> None:
        """With a consumer of two replicas. `groupName` None: without a name on the broker."""
        named = {"groupName": f"{namespace}-{name}", "replicas": 2}
        given = {**named, **({"consumer": consumer()} if consumes else {}), **spec}
        told = {field: value for field, value in given.items() if value is not None}
        manifest = group_manifest(told, name=name, namespace=namespace)
        manifest["metadata"].update(uid=f"uid-of-{namespace}-{name}-{wall_clock():%H%M%S%f}")
        self.cluster.put(manifest)

    def edit_group(self, spec: Mapping[str, Any], key: Key = ORDERS) -> None:
        """As the API server takes it: with the defaults of what is new."""
        fill_in(patched := merged(self.seen(GROUP, key.name, key.namespace)["spec"], dict(spec)), SPEC)
        self.cluster.edit(GROUP, *key, {"spec": {**dict(spec), **patched}})

    def delete_group(self, key: Key = ORDERS) -> None:
        self.cluster.take_away(GROUP, *key)

    def give_secret(self, name: str, namespace: str = "shop", **told: str) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in told.items()}
        metadata = {"name": name, "namespace": namespace}
        self.cluster.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    def has(self, kind: Kind, name: str = "orders", namespace: str = "shop") -> bool:
        return (kind, namespace, name) in self.cluster.objects

    def seen(self, kind: Kind, name: str = "orders", namespace: str = "shop") -> Object:
        return self.cluster.objects[kind, namespace, name]

    def status(self, key: Key = ORDERS, kind: Kind = GROUP) -> Object:
        return cast(Object, self.seen(kind, key.name, key.namespace).get("status", {}))

    def conditions(self, key: Key = ORDERS, kind: Kind = GROUP) -> dict[str, tuple[str, str]]:
        """Status and reason, by type."""
        told = self.status(key, kind).get("conditions", ())
        return {one["type"]: (one["status"], one["reason"]) for one in told}

    def message(self, condition: str, key: Key = ORDERS) -> str:
        (found,) = (one for one in self.status(key)["conditions"] if one["type"] == condition)
        return str(found["message"])

    def reasons(self, about: str = "orders") -> list[str]:
        return [one.reason for one in self.events if one.about == about]

    async def ready(self, **spec: Any) -> None:
        """A broker, the operator and group orders, which has settled."""
        self.apply_broker()
        await self.start()
        self.apply_group(**spec)
        await asyncio.sleep(SETTLED_S)

    def last_words(self) -> str:
        """Of the group that was deleted."""
        (deleted,) = (one.message for one in self.events if one.reason == "Deleted")
        return deleted

    def running(self) -> dict[Any, Any]:
        """Objects that consumers need: all but those of users, and statuses."""
        kinds = ("Deployment", "Pod", "ConfigMap", "Secret", "PodDisruptionBudget", "NetworkPolicy")
        return {
            where: {key: value for key, value in one.items() if key not in ("status", "metadata")}
            for where, one in self.cluster.objects.items()
            if one["kind"] in kinds
        }


class Operator:
    """One life of it. `process.running.Process` wires the same parts, to kopf."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._store = ObjectCache()
        loop = asyncio.get_running_loop()
        cluster = place.cluster
        looks = SurveyCache(
            lambda key: self._groups.wake(key), now=loop.time, timestamp=lambda: self.world.timestamp
        )
        self.world = ReconcileContext(
            cluster=cluster,
            settings=place.settings,
            store=self._store,
            applied=ServerSideApply(cluster, self._store, EndingNamespaces(self._store)),
            surveys=looks,
            secrets=SecretCache(cluster, self._store, changed=lambda key: self._brokers.wake(key)),
            broker_pods=BrokerPods(cluster, changed=lambda key: self._brokers.wake(key)),
            autoscaling=MetricsProviders(
                cluster,
                place.settings,
                self._store,
                serving_config=lambda: None,
                wake_group=lambda key: self._groups.wake(key),
            ),
            announce=self._announce,
            wake_group=lambda key: self._groups.wake(key),
            now=loop.time,
            wall_clock=wall_clock,
        )
        self.failures: list[str] = []
        self._groups = WorkQueue(GroupReconciler(self.world).reconcile, name="group", done=self._done)
        pool = cast(BrokerPool, OperatedPool(place.brokers))
        self._brokers = WorkQueue(
            BrokerReconciler(self.world, pool).reconcile, name="broker", done=self._done
        )

    async def start(self) -> None:
        self._place.cluster.watchers.append(self._told)
        await list_all(self._place.cluster, self._store, ())
        await self.world.autoscaling.try_refresh()
        for key, _ in self._store.all(BROKER):
            self._brokers.wake(key)
        self.wake_groups()

    async def close(self) -> None:
        self._place.cluster.watchers.remove(self._told)
        await self._groups.close()
        await self._brokers.close()
        await self.world.surveys.close()
        await self.world.secrets.close()
        await self.world.broker_pods.close()

    def wake_groups(self) -> None:
        for key, _ in self._store.all(GROUP):
            self._groups.wake(key)

    def _announce(self, about: Seen, *, type: str, reason: str, message: str) -> None:
        self._place.events.append(Told(about["metadata"]["name"], type, reason, message))

    def _done(self, outcome: str, seconds: float) -> None:
        if outcome == "error":
            self.failures.append(outcome)

    def _told(self, kind: Kind, seen: Object, is_gone: bool) -> None:
        if kind in SELECTORS and matches(SELECTORS[kind], seen) and not self._place.is_mute:
            asyncio.get_running_loop().call_later(self._place.delay_s, self._hear, kind, seen, is_gone)

    def _hear(self, kind: Kind, seen: Object, is_gone: bool) -> None:
        take(self._store, kind, seen, is_gone=is_gone)
        owner = owner_of(kind, seen)
        if owner is None:
            return
        (self._groups if owner[0] is GROUP else self._brokers).wake(owner[1])
        if kind is BROKER:
            for group in self.world.groups():
                if (group.broker.namespace, group.broker.name) == Key.of(seen):
                    self._groups.wake(Key(group.metadata.namespace, group.metadata.name))
        elif kind not in (GROUP, BROKER):
            self.world.surveys.soon(owner[1])
