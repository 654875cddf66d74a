"""What every round works with: the cluster, the brokers, and what is known of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from lbg_broker.provisioning.live import LiveAdmin

from ..brokers.access import Access
from ..cluster.kinds import BROKER, GROUP, Kind
from ..cluster.seam import Cluster
from ..errors import ManifestError
from ..manifests import BrokerManifest, BrokerRef, GroupManifest, has_authority
from ..settings import OperatorSettings
from .applied import Applied
from .autoscaling import Autoscaling
from .looks import Looks
from .pod_watch import BrokerPods
from .secret_cache import SecretCache
from .store import Key, Object, Store


class Announce(Protocol):
    """A Kubernetes Event about an object: `type` is Normal or Warning, `reason` one word, `message` for people."""

    def __call__(self, about: Object, *, type: str, reason: str, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Reach:
    """A broker that is ready for groups."""

    admin: LiveAdmin
    access: Access


@dataclass(slots=True)
class World:
    """`wake_group` has a group gone through again soon. `now` is a monotonic clock in seconds, `wall_clock` the
    time of day for people."""

    cluster: Cluster
    settings: OperatorSettings
    store: Store
    applied: Applied
    looks: Looks
    secrets: SecretCache
    broker_pods: BrokerPods
    autoscaling: Autoscaling
    announce: Announce
    wake_group: Callable[[Key], None]
    wrote: Callable[[Kind, Object], None] = lambda kind, answer: None
    """Told of each status written, with what the API server answered."""
    reach: dict[Key, Reach] = field(default_factory=dict)
    """By Broker; a broker that cannot be reached has none."""
    checked: set[Key] = field(default_factory=set)
    """The Brokers that were tried since the operator began: before that nothing is known of them."""
    now: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _parsed: dict[Key, tuple[str, int, GroupManifest | ManifestError]] = field(default_factory=dict)
    _namesakes: dict[tuple[BrokerRef, str], set[Key]] = field(default_factory=dict)
    """By broker and name there, of all that was parsed: neither of the two can change."""

    @property
    def timestamp(self) -> str:
        """RFC 3339, in whole seconds, as Kubernetes writes times."""
        return self.wall_clock().strftime("%Y-%m-%dT%H:%M:%SZ")

    def group(self, manifest: Mapping[str, Any]) -> GroupManifest:
        """Parsed once for each generation. Raises ManifestError."""
        key, metadata = Key.of(manifest), manifest["metadata"]
        version = (metadata.get("uid", ""), metadata.get("generation", 0))
        known = self._parsed.get(key)
        if known is None or known[:2] != version or "deletionTimestamp" in metadata:
            try:
                parsed: GroupManifest | ManifestError = GroupManifest.parse(manifest)
            except ManifestError as error:
                parsed = error
            if isinstance(parsed, GroupManifest):
                self._namesakes.setdefault((parsed.broker, parsed.spec.name), set()).add(key)
            known = self._parsed[key] = (*version, parsed)
        if isinstance(known[2], ManifestError):
            raise known[2]
        return known[2]

    def namesakes(self, group: GroupManifest) -> Iterator[GroupManifest]:
        """The other groups that want to be the same one on the same broker."""
        if len(self._parsed) < self.store.count(GROUP):
            for _ in self.groups():
                pass
        for key in tuple(self._namesakes.get((group.broker, group.spec.name), ())):
            manifest = self.store.get(GROUP, key)
            if manifest is None or manifest["metadata"].get("uid", "") == group.metadata.uid:
                continue
            other = self.group(manifest)
            if (other.broker, other.spec.name) == (group.broker, group.spec.name):
                yield other

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
        """Whether it is there, and its manifest cannot be followed: its own conditions say why."""
        manifest = self.store.get(BROKER, broker)
        is_there = manifest is not None and "deletionTimestamp" not in manifest["metadata"]
        return is_there and self.broker(broker) is None

    def has_authority(self, broker: Key) -> bool:
        """True if its manifest gives clients an authority to trust; False where there is no such Broker."""
        manifest = self.store.get(BROKER, broker)
        return manifest is not None and has_authority(manifest)

    def forget(self, group: Key) -> None:
        """It is gone; who was refused for having its name may have the name now."""
        _, _, former = self._parsed.pop(group, ("", 0, None))
        if isinstance(former, GroupManifest):
            for other in self.namesakes(former):
                self.wake_group(Key(other.metadata.namespace, other.metadata.name))
            namesakes = self._namesakes[former.broker, former.spec.name]
            namesakes.discard(group)
            if not namesakes:
                del self._namesakes[former.broker, former.spec.name]
        self.applied.forget(group)
        self.looks.forget(group)


def broker_key(group: GroupManifest) -> Key:
    return Key(group.broker.namespace, group.broker.name)
