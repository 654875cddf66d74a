"""A LoadBalancedGroup, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import getitem
from typing import Any

from lbg_core.group import (
    ATTRIBUTES,
    SESSIONS,
    STATIC,
    UNCOUNTED_MODES,
    GroupSpec,
    SpecError,
    group_name_of,
    recounted,
)
from lbg_core.group.spec import BYTES_PER_MB
from lbg_operator.crds.consumer import Consumer, bytes_in, consumer_of
from lbg_operator.crds.scaling import Floor, Scaling, floor_at
from lbg_operator.errors import ManifestError


@dataclass(frozen=True, slots=True)
class Metadata:
    """`created` is the API server's text (RFC 3339), which sorts as time does. `deleting`: somebody has asked for its
    deletion, and a finalizer keeps it."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: str = ""
    deleting: bool = False

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Metadata:
        metadata = manifest["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            generation=metadata.get("generation", 0),
            created=metadata.get("creationTimestamp", ""),
            deleting="deletionTimestamp" in metadata,
        )


def old_crds(missing: KeyError) -> ManifestError:
    """The error of a field that is missing although the API server fills in what its CRD knows."""
    return ManifestError(
        "spec", f"{missing} is missing: the cluster's CRDs are older than this operator, upgrade them"
    )


_FIELDS = {one.name: f"spec.{one.manifest}" for one in ATTRIBUTES.values() if one.manifest} | {
    "name": "spec.groupName"
}
"""Field of a manifest for each attribute of a group."""

INGRESS_OPEN, INGRESS_PAUSED = "Open", "Paused"

SHARED, ADDITIONAL, EXCLUSIVE = "Shared", "Additional", "Exclusive"
"""User of a group's publishers: the group's; one of their own; one of their own, and members may not publish."""

BLOCK, PARK = "Block", "Park"
"""Fates of a message that uses up its attempts: it is retried; it and all later ones of its key are parked."""

NO_TEMPLATE: Mapping[str, Any] = {"spec": {"containers": [{"name": "app"}]}}
"""Stands for a pod template that is not read."""

REPLICAS_MAX = 4_096
"""The CRD's."""


@dataclass(frozen=True, slots=True)
class BrokerRef:
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class GroupManifest:
    """`spec` is the group as the broker knows it, with its present number of queues, which is from `queues_min`
    (spec.queues.count) to `queues_max`."""

    metadata: Metadata
    broker: BrokerRef
    spec: GroupSpec
    rebalance_delay_s: int
    max_handoff_s: int
    release_interval_s: int
    replicas: int
    consumer: Consumer | None
    scaling: Scaling | None
    deletion_policy: str
    drain_timeout_s: int
    queues_min: int
    queues_max: int
    publisher_user: str = ADDITIONAL
    adopts: bool = False
    """It asks for a group of another owner; the Broker has to allow that."""
    paused: bool = False
    """Members are to start no new calls, and nothing adds consumers meanwhile."""
    is_ingress_paused: bool = False
    """Publishers are to wait."""

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> GroupManifest:
        """From an object as the API server gives it. Raises ManifestError."""
        try:
            return cls._parse(manifest)
        except KeyError as error:
            raise old_crds(error) from None

    @classmethod
    def without_template(cls, manifest: Mapping[str, Any]) -> GroupManifest:
        """The same without what its consumers' pods are made of, which may be invalid: the group can be scaled and
        deleted. Raises ManifestError."""
        spec = manifest["spec"]
        if "consumer" in spec:
            rest = {name: value for name, value in spec["consumer"].items() if name != "storage"}
            app = {name: value for name, value in rest.get("app", {}).items() if name != "parking"}
            spec = {**spec, "consumer": {**rest, "app": app, "template": NO_TEMPLATE}}
        return cls.parse({**manifest, "spec": spec})

    @classmethod
    def _parse(cls, manifest: Mapping[str, Any]) -> GroupManifest:
        metadata, spec = Metadata.of(manifest), manifest["spec"]
        queues_min = spec["queues"]["count"]
        queues_max = max(min(spec["queues"].get("max", 0), spec["hash"]["count"]), queues_min)
        queue_count = min(max(manifest.get("status", {}).get("queueCount", 0), queues_min), queues_max)
        scaling = Scaling.parse(spec["scaling"]) if "scaling" in spec else None
        return cls(
            metadata=metadata,
            broker=BrokerRef(
                spec["brokerRef"].get("namespace", metadata.namespace), spec["brokerRef"]["name"]
            ),
            spec=_spec(group_name_of(manifest), spec, queue_count),
            rebalance_delay_s=spec["rebalanceDelaySeconds"],
            max_handoff_s=spec["maxHandoffSeconds"],
            release_interval_s=spec["releaseIntervalSeconds"],
            replicas=spec["replicas"],
            consumer=consumer_of(spec["consumer"]) if "consumer" in spec else None,
            scaling=scaling,
            deletion_policy=spec["deletionPolicy"],
            drain_timeout_s=spec["drainTimeoutSeconds"],
            queues_min=queues_min,
            queues_max=queues_max,
            publisher_user=spec.get("publisherUser", ADDITIONAL),
            adopts=spec.get("adopt", False),
            paused=spec.get("paused", False),
            is_ingress_paused=spec.get("ingress") == INGRESS_PAUSED,
        )

    @property
    def has_publisher_user(self) -> bool:
        """True if publishers have a user of their own, and a Secret with it."""
        return self.publisher_user != SHARED

    @property
    def parks(self) -> bool:
        """True if its consumers are to park keys, for which it needs a parking queue."""
        return self.consumer is not None and self.consumer.app.when_exhausted == PARK

    @property
    def unfit_for_parking(self) -> str:
        """Field by which its consumers could not follow parked keys, with the remedy; empty without one."""
        if self.consumer is None:
            return ""
        if self.consumer.app.order == "Queue":
            return (
                "spec.consumer.app.order must be Key in a group with a parking queue, which it keeps, because a parked "
                "key leaves its queue: set it to Key, or create another group"
            )
        if self.consumer.sidecar.republish:
            return (
                "spec.consumer.sidecar.republish must be false in a group with a parking queue, which it keeps, as "
                "`lbg validate` would count parked messages twice: set it to false, or create another group"
            )
        return ""

    def without_parking(self) -> GroupManifest:
        """The same, with consumers that block keys instead of parking them."""
        if self.consumer is None or not self.parks:
            return self
        app = replace(self.consumer.app, when_exhausted=BLOCK)
        return replace(self, consumer=replace(self.consumer, app=app))

    @property
    def has_sessions(self) -> bool:
        """True if each consumer is a session, and so has a name and a volume of its own."""
        return self.spec.mode == SESSIONS

    @property
    def may_raise_queues(self) -> bool:
        """True if the operator may raise the number of queues (spec.queues.max)."""
        return self.queues_max > self.queues_min

    def with_queues(self, count: int) -> GroupManifest:
        """The same with `count` queues, or the nearest number that the manifest permits."""
        permitted = min(max(count, self.queues_min), self.queues_max)
        if permitted == self.spec.queue_count:
            return self
        return replace(self, spec=recounted(self.spec, permitted))

    @property
    def queues_wanted(self) -> int:
        """Number of queues for the wanted consumers: the present one, doubled as often as needed, because then half of
        the keys stay in their queues. A number that is too high stays."""
        count = self.spec.queue_count
        while self.consumers_wanted > count < self.queues_max:
            count = min(2 * count, self.queues_max)
        return count

    @property
    def replicas_max(self) -> int:
        """The most consumer pods that there may ever be: as many as can have something to do."""
        most = REPLICAS_MAX if self.spec.mode in UNCOUNTED_MODES else self.queues_max
        return most if self.scaling is None else min(most, self.scaling.max_replicas)

    @property
    def consumers_wanted(self) -> int:
        """Desired number of consumers. A schedule alone lifts `replicas` as an autoscaler would, and leaves 0 alone as
        one does."""
        scaling = self.scaling
        if scaling is None or scaling.has_target or self.replicas == 0:
            return min(self.replicas, self.replicas_max)
        return min(max(self.replicas, scaling.min_replicas), self.replicas_max)

    @property
    def pods_wanted(self) -> int:
        """Desired number of consumer pods, at most one for each present queue."""
        wanted = self.consumers_wanted
        return wanted if self.spec.mode in UNCOUNTED_MODES else min(wanted, self.spec.queue_count)

    def at(self, now: datetime) -> tuple[GroupManifest, Floor | None]:
        """With the fewest consumers as the schedule has them at `now`, and what that is; None without a schedule, and
        for a group that is paused."""
        scaling = self.scaling
        if scaling is None or scaling.schedule is None or self.paused:
            return self, None
        floor = floor_at(scaling, now, most=self.replicas_max)
        return replace(self, scaling=replace(scaling, min_replicas=floor.min_replicas)), floor


def _spec(name: str, spec: Mapping[str, Any], queue_count: int) -> GroupSpec:
    """With maxReplicas where the assignment counts members."""
    given: dict[str, Any] = {}
    for one in ATTRIBUTES.values():
        # In other modes it is the members that have some of these, each for itself.
        if one.manifest and one.counts_in(spec["mode"]):
            *parents, last = one.manifest.split(".")
            fields = reduce(getitem, parents, spec)
            if one.default is not None or last in fields:
                given[one.name] = fields[last]
    if spec.get("assignment") == STATIC and "scaling" in spec:
        given["max_clients"] = min(spec["scaling"]["maxReplicas"], queue_count)
    given["queue_size_mb"] = bytes_in("spec.queues.size", given["queue_size_mb"]) // BYTES_PER_MB
    try:
        return GroupSpec(name, **given | {"queue_count": queue_count, "client_username": name})
    except SpecError as error:
        where = _FIELDS.get(error.field, error.field)
        if error.field == "name" and "groupName" not in spec:
            raise ManifestError(
                where, f"{name}, the name without it, {error.rule}: set it to another name"
            ) from None
        raise ManifestError(where, f"{error.value!r} {error.rule}") from None
