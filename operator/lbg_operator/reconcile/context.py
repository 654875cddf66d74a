"""Context of every reconcile: the cluster, the brokers, the caches, and failures of the API server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from lbg_core.admin.live import LiveAdmin
from lbg_core.group import group_name_of
from lbg_operator.crds import BrokerManifest, BrokerRef, GroupManifest, has_authority
from lbg_operator.errors import ManifestError
from lbg_operator.kube.api import Cluster, ClusterError, Forbidden, Invalid, Terminating
from lbg_operator.kube.kinds import BROKER, GROUP, Kind
from lbg_operator.reconcile.broker_pool import Access
from lbg_operator.reconcile.metrics_provider import MetricsProviders
from lbg_operator.reconcile.object_cache import Key, ObjectCache, WatchedObject
from lbg_operator.reconcile.pod_watch import BrokerPods
from lbg_operator.reconcile.secret_cache import SecretCache
from lbg_operator.reconcile.server_side_apply import ServerSideApply
from lbg_operator.reconcile.survey_cache import SurveyCache
from lbg_operator.settings import OperatorSettings
from lbg_operator.status.condition_rules import Unapplied
from lbg_operator.status.conditions import Type

log = logging.getLogger("lbg.operator")

PATIENCE_S = 1.0
"""A fault that has passed by then (a conflict, a lost connection) is not reported."""


@dataclass(frozen=True, slots=True)
class _Failure:
    error: ClusterError
    since: float


@dataclass(slots=True)
class _Rounds:
    now: dict[str, _Failure] = field(default_factory=dict)
    before: dict[str, _Failure] = field(default_factory=dict)


class ApiFailures:
    """By the object that is reconciled. `now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rounds: dict[Key, _Rounds] = {}

    def begin(self, owner: Key) -> None:
        """A reconcile begins: what does not fail in it fails no longer."""
        former = self._rounds.get(owner)
        self._rounds[owner] = _Rounds() if former is None else _Rounds(before=former.now)

    @contextmanager
    def caught(self, owner: Key, kind: Kind, name: str) -> Iterator[None]:
        """Catch a ClusterError about this object, so that the reconcile goes on with the others."""
        began = self._now()
        try:
            yield
        except Terminating as error:  # the namespace goes, with all that is in it
            log.debug("%s: %s", owner, error)
        except ClusterError as error:
            rounds, what = self._rounds.setdefault(owner, _Rounds()), f"{kind.kind} {name}"
            last = rounds.before.get(what)
            if last is None or str(last.error) != str(error):
                log.warning("%s: %s; trying again", owner, error)
            rounds.now.setdefault(what, _Failure(error, began if last is None else last.since))

    def of(self, owner: Key) -> Unapplied:
        """Failures of the reconcile that have lasted long enough to be shown."""
        shown = [one for one in self._all(owner) if not self._is_young(one)]

        def words(error: type[ClusterError]) -> tuple[str, ...]:
            return tuple(str(one.error) for one in shown if _class_of(one) is error)

        return Unapplied(mistakes=words(Invalid), refusals=words(Forbidden), faults=words(ClusterError))

    def words(self, owner: Key, kind: Kind, name: str) -> str:
        """The API server's error message about one object, empty for none."""
        rounds = self._rounds.get(owner, _Rounds())
        failure = rounds.now.get(f"{kind.kind} {name}")
        return "" if failure is None else str(failure.error)

    def is_refused(self, owner: Key, kind: Kind, name: str) -> bool:
        """True if the API server refused this object: sending the same again does not help now."""
        failure = self._rounds.get(owner, _Rounds()).now.get(f"{kind.kind} {name}")
        return failure is not None and _class_of(failure) is not ClusterError

    def are_any(self, owner: Key) -> bool:
        return bool(self._all(owner))

    def may_pass(self, owner: Key) -> bool:
        """True if trying again soon may help with one of them."""
        return any(_class_of(one) is ClusterError for one in self._all(owner))

    def forget(self, owner: Key) -> None:
        self._rounds.pop(owner, None)

    def _all(self, owner: Key) -> list[_Failure]:
        rounds = self._rounds.get(owner)
        return [] if rounds is None else list(rounds.now.values())

    def _is_young(self, failure: _Failure) -> bool:
        return _class_of(failure) is ClusterError and self._now() - failure.since < PATIENCE_S


def _class_of(failure: _Failure) -> type[ClusterError]:
    """The class of an error for whoever waits: ClusterError itself is what may pass."""
    return next((one for one in (Invalid, Forbidden) if isinstance(failure.error, one)), ClusterError)


class Announce(Protocol):
    """A Kubernetes Event about an object: `type` is Normal or Warning, `reason` one word, `message` for people."""

    def __call__(self, about: WatchedObject, *, type: str, reason: str, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Reach:
    """A broker that is ready for groups."""

    admin: LiveAdmin
    access: Access


class _Version(NamedTuple):
    """Version of an object, by which its parsed manifest is valid."""

    uid: str
    generation: int
    spec: object
    """By itself: another default of the CRD, or a restored snapshot, changes it under the same generation."""
    group_name: str
    queue_count: int | None


@dataclass(slots=True)
class ReconcileContext:
    """`wake_group` has a group reconciled soon. `now` is a monotonic clock in seconds, `wall_clock` the time of day for
    people."""

    cluster: Cluster
    settings: OperatorSettings
    store: ObjectCache
    applied: ServerSideApply
    surveys: SurveyCache
    secrets: SecretCache
    broker_pods: BrokerPods
    autoscaling: MetricsProviders
    announce: Announce
    wake_group: Callable[[Key], None]
    on_status_written: Callable[[Kind, WatchedObject], None] = lambda kind, answer: None
    """Called after each written status with the API server's answer."""
    reach: dict[Key, Reach] = field(default_factory=dict)
    """By Broker; a broker that cannot be reached has none."""
    checked: set[Key] = field(default_factory=set)
    """The Brokers that were tried since the operator began: before that nothing is known of them."""
    now: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _parsed: dict[Key, tuple[_Version, GroupManifest | ManifestError]] = field(default_factory=dict)
    _namesakes: dict[tuple[BrokerRef, str], set[Key]] = field(default_factory=dict)
    """By broker and name there, of all that was parsed. Neither of the two changes, unless somebody edits the
    annotation with the name: then there is one entry too many."""

    @property
    def timestamp(self) -> str:
        """RFC 3339, in whole seconds, as Kubernetes writes times."""
        return self.wall_clock().strftime("%Y-%m-%dT%H:%M:%SZ")

    def group(self, manifest: Mapping[str, Any]) -> GroupManifest:
        """Parsed once for each generation and spec, name on the broker and number of queues. Raises ManifestError."""
        key, metadata = Key.of(manifest), manifest["metadata"]
        version = _Version(
            metadata.get("uid", ""),
            metadata.get("generation", 0),
            manifest.get("spec"),
            group_name_of(manifest),
            manifest.get("status", {}).get("queueCount"),
        )
        known = self._parsed.get(key)
        if known is None or known[0] != version or "deletionTimestamp" in metadata:
            try:
                parsed: GroupManifest | ManifestError = GroupManifest.parse(manifest)
            except ManifestError as error:
                parsed = error
            if isinstance(parsed, GroupManifest):
                self._namesakes.setdefault((parsed.broker, parsed.spec.name), set()).add(key)
            known = self._parsed[key] = (version, parsed)
        if isinstance(known[1], ManifestError):
            raise known[1]
        return known[1]

    def namesakes(self, group: GroupManifest) -> Iterator[GroupManifest]:
        """The other groups that want to be the same one on the same broker."""
        if len(self._parsed) < self.store.count(GROUP):
            for _ in self.groups():
                pass
        for key in tuple(self._namesakes.get((group.broker, group.spec.name), ())):
            manifest = self.store.get(GROUP, key)
            if manifest is None or manifest["metadata"].get("uid", "") == group.metadata.uid:
                continue
            try:
                other = self.group(manifest)
            except ManifestError:
                continue
            if (other.broker, other.spec.name) == (group.broker, group.spec.name):
                yield other

    def rivals(self, group: GroupManifest) -> Iterator[GroupManifest]:
        """The namesakes that take precedence: those whose status is Provisioned before those that are Accepted, these
        before others, then older objects.

        So a namespace that a Broker allows later, or again, cannot take a name from the group that has it.
        """
        rank = self._rank(group)
        return (other for other in self.namesakes(group) if self._rank(other) < rank)

    def _rank(self, group: GroupManifest) -> tuple[bool, bool, str, str]:
        metadata = group.metadata
        manifest = self.store.get(GROUP, Key(metadata.namespace, metadata.name))
        conditions = ((manifest or {}).get("status") or {}).get("conditions") or ()
        true = {one.get("type") for one in conditions if one.get("status") == "True"}
        return Type.PROVISIONED not in true, Type.ACCEPTED not in true, metadata.created, metadata.uid

    def groups(self) -> Iterator[GroupManifest]:
        """All that can be followed."""
        for _, manifest in self.store.all(GROUP):
            try:
                yield self.group(manifest)
            except ManifestError:
                continue

    def broker(self, key: Key) -> BrokerManifest | None:
        """None for one that is not there, or is no more."""
        manifest = self.store.get(BROKER, key)
        if manifest is None or "deletionTimestamp" in manifest["metadata"]:
            return None
        try:
            return BrokerManifest.parse(manifest)
        except ManifestError:
            return None

    def is_unreadable(self, broker: Key) -> bool:
        """True if it exists, and its manifest is invalid: its own conditions have the reason."""
        manifest = self.store.get(BROKER, broker)
        is_there = manifest is not None and "deletionTimestamp" not in manifest["metadata"]
        return is_there and self.broker(broker) is None

    def has_authority(self, broker: Key) -> bool:
        """True if its manifest gives clients an authority to trust; False where there is no such Broker."""
        manifest = self.store.get(BROKER, broker)
        return manifest is not None and has_authority(manifest)

    async def write_status(
        self, kind: Kind, manifest: WatchedObject, status: Mapping[str, Any]
    ) -> WatchedObject | None:
        """A merge patch of the status of `manifest`, which is refused for an object that has changed meanwhile. The API
        server's answer; None if the object is gone. Raises ClusterError."""
        metadata = manifest["metadata"]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": dict(status)}
        answer = await self.cluster.merge(
            kind, metadata["namespace"], metadata["name"], patch, subresource="status"
        )
        if answer is not None:
            self.store.update(kind, answer)
            self.on_status_written(kind, answer)
        return answer

    def forget(self, group: Key) -> None:
        """It is gone; who was refused for having its name may have the name now."""
        _, former = self._parsed.pop(group, (None, None))
        if isinstance(former, GroupManifest):
            for other in self.namesakes(former):
                self.wake_group(Key(other.metadata.namespace, other.metadata.name))
            namesakes = self._namesakes[former.broker, former.spec.name]
            namesakes.discard(group)
            if not namesakes:
                del self._namesakes[former.broker, former.spec.name]
        self.applied.forget(group)
        self.surveys.forget(group)
        self.autoscaling.forget(group)


def broker_key(group: GroupManifest) -> Key:
    return Key(group.broker.namespace, group.broker.name)
