"""A LoadBalancedGroup, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from lbg_broker.group import PARTITIONED, SESSIONS, UNCOUNTED_MODES, GroupSpec, SpecError
from lbg_broker.group.spec import BYTES_PER_MB

from ..errors import ManifestError
from .metadata import Metadata
from .quantities import bytes_in
from .scaling import Floor, Scaling, floor_at

_FIELDS = {
    "name": "spec.groupName",
    "hash_prefix": "spec.hash.prefix",
    "hash_count": "spec.hash.count",
    "hash_function": "spec.hash.function",
    "queue_count": "spec.queues.count",
    "queue_size_mb": "spec.queues.size",
    "mode": "spec.mode",
    "rebalance_delay_s": "spec.rebalanceDelaySeconds",
    "max_handoff_s": "spec.maxHandoffSeconds",
}
"""Where a manifest says the attribute of a group."""

REPLICAS_MAX = 4_096
"""The CRD's."""


@dataclass(frozen=True, slots=True)
class BrokerRef:
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Batch:
    size: int
    linger_ms: int
    requests: int


@dataclass(frozen=True, slots=True)
class App:
    """How messages reach the application; words as the manifest has them."""

    channel: str
    container: str | None
    port: int | None
    path: str
    health_path: str | None
    positions_path: str | None
    order: str
    concurrency: int | None
    call_timeout_s: int
    max_attempts: int
    when_exhausted: str
    batch: Batch | None


@dataclass(frozen=True, slots=True)
class Sidecar:
    image: str | None
    resources: Mapping[str, Any] | None
    log_format: str
    republish: bool


@dataclass(frozen=True, slots=True)
class Storage:
    """What a consumer pod keeps its session's position on. No `storage_class`: the cluster's."""

    size_bytes: int = 2**30
    storage_class: str | None = None


@dataclass(frozen=True, slots=True)
class Consumer:
    """`template` is a PodTemplateSpec as it was written; the API server judges it when a Deployment is made of it."""

    template: Mapping[str, Any] = field(hash=False)
    app: App
    guarantee: str
    sidecar: Sidecar
    storage: Storage


@dataclass(frozen=True, slots=True)
class GroupManifest:
    """`spec` is the group as the broker knows it."""

    metadata: Metadata
    broker: BrokerRef
    spec: GroupSpec
    assignment: str
    rebalance_delay_s: int
    max_handoff_s: int
    release_period_s: int
    replicas: int
    consumer: Consumer | None
    scaling: Scaling | None
    deletion_policy: str
    drain_timeout_s: int

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> GroupManifest:
        """From an object as the API server gives it. Raises ManifestError."""
        try:
            return cls._parse(manifest)
        except KeyError as error:  # the API server fills in what its CRD knows
            raise ManifestError(
                "spec", f"{error} is not there: the cluster's CRDs are older than this operator, upgrade them"
            ) from None

    @classmethod
    def _parse(cls, manifest: Mapping[str, Any]) -> GroupManifest:
        metadata, told = Metadata.of(manifest), manifest["spec"]
        scaling = Scaling.parse(told["scaling"]) if "scaling" in told else None
        return cls(
            metadata=metadata,
            broker=BrokerRef(
                told["brokerRef"].get("namespace", metadata.namespace), told["brokerRef"]["name"]
            ),
            spec=_spec(metadata, told),
            assignment=told["assignment"],
            rebalance_delay_s=told["rebalanceDelaySeconds"],
            max_handoff_s=told["maxHandoffSeconds"],
            release_period_s=told["releasePeriodSeconds"],
            replicas=told["replicas"],
            consumer=_consumer(told["consumer"]) if "consumer" in told else None,
            scaling=scaling,
            deletion_policy=told["deletionPolicy"],
            drain_timeout_s=told["drainTimeoutSeconds"],
        )

    @property
    def has_sessions(self) -> bool:
        """Whether each consumer is a session, and so has a name and a volume of its own."""
        return self.spec.mode == SESSIONS

    @property
    def replicas_max(self) -> int:
        """The most consumer pods that there may be: as many as can have something to do."""
        most = REPLICAS_MAX if self.spec.mode in UNCOUNTED_MODES else self.spec.queue_count
        return most if self.scaling is None else min(most, self.scaling.max_replicas)

    @property
    def pods_wanted(self) -> int:
        """How many consumer pods there are to be. A schedule alone lifts `replicas` as an autoscaler would, and leaves
        0 alone as one does."""
        scaling = self.scaling
        if scaling is None or scaling.has_target or self.replicas == 0:
            return min(self.replicas, self.replicas_max)
        return min(max(self.replicas, scaling.min_replicas), self.replicas_max)

    def at(self, now: datetime) -> tuple[GroupManifest, Floor | None]:
        """With the fewest consumers as the schedule has them at `now`, and what that is; None without a schedule."""
        scaling = self.scaling
        if scaling is None or scaling.schedule is None:
            return self, None
        floor = floor_at(scaling, now, most=self.replicas_max)
        return replace(self, scaling=replace(scaling, min_replicas=floor.min_replicas)), floor


def _spec(metadata: Metadata, told: Mapping[str, Any]) -> GroupSpec:
    """Without maxReplicas: the group's record cannot be changed, and scaling can."""
    name = told.get("groupName", f"{metadata.namespace}-{metadata.name}")
    size_bytes = bytes_in("spec.queues.size", told["queues"]["size"])
    is_partitioned = told["mode"] == PARTITIONED
    try:
        return GroupSpec(
            name,
            told["hash"].get("prefix", name),
            hash_count=told["hash"]["count"],
            queue_count=told["queues"]["count"],
            queue_size_mb=size_bytes // BYTES_PER_MB,
            client_username=name,
            hash_function=told["hash"]["function"],
            mode=told["mode"],
            # In other modes it is the members that have these, each for itself.
            rebalance_delay_s=told["rebalanceDelaySeconds"] if is_partitioned else None,
            max_handoff_s=told["maxHandoffSeconds"] if is_partitioned else None,
        )
    except SpecError as error:
        where = _FIELDS.get(error.field, error.field)
        if error.field == "name" and "groupName" not in told:
            raise ManifestError(
                where, f"{name}, its default, {error.rule}: set it to a shorter name"
            ) from None
        raise ManifestError(where, f"{error.value!r} {error.rule}") from None


def _consumer(told: Mapping[str, Any]) -> Consumer:
    app, sidecar = told["app"], told["sidecar"]
    return Consumer(
        template=told["template"],
        app=App(
            channel=app["channel"],
            container=app.get("container"),
            port=app.get("port"),
            path=app["path"],
            health_path=app.get("healthPath"),
            positions_path=app.get("positionsPath"),
            order=app["order"],
            concurrency=app.get("concurrency"),
            call_timeout_s=app["callTimeoutSeconds"],
            max_attempts=app["maxAttempts"],
            when_exhausted=app["whenExhausted"],
            batch=_batch(app["batch"]) if "batch" in app else None,
        ),
        guarantee=told["guarantee"],
        sidecar=Sidecar(
            image=sidecar.get("image"),
            resources=sidecar.get("resources"),
            log_format=sidecar["logFormat"],
            republish=sidecar.get("republish", False),
        ),
        storage=_storage(told["storage"]) if "storage" in told else Storage(),
    )


def _storage(told: Mapping[str, Any]) -> Storage:
    return Storage(bytes_in("spec.consumer.storage.size", told["size"]), told.get("storageClassName"))


def _batch(told: Mapping[str, Any]) -> Batch:
    return Batch(size=told["size"], linger_ms=told["lingerMilliseconds"], requests=told["requests"])
