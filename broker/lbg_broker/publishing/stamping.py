"""Stamping: which hash, queue, sequence and routing key a message has. Pure and repeatable.

The same input from the same start gives the same stamps, so that a publisher which was killed can read its
input again and give every message the sequence it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from zlib import crc32

from lbg_broker.group import GroupSpec, SpecError, hash_of, queue_of, routing_key

from .errors import MessageTooLarge
from .message import Stamped

# All headers of a message have to fit in one frame, of 128 KiB as a rule (AMQP 0-9-1, section 4.2.6).
KEY_MAX_BYTES = 16 * 1024

_WORD = (1 << 64) - 1
_ROUTING_KEYS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Where stamping starts: by default at nothing; else at what a state file says was done.

    `position`, `digest`, `next_seq` describe the first message that was not confirmed (with all before it);
    `confirmed_seq[h]` is the next sequence of hash h whose message was not confirmed, which may lie further
    on; messages at positions below `sent_position` may have been sent.

    `is_resumed`: it is an earlier run's, or a copy of an earlier run's. Its sequences are not used from `sent_position`
    on, where a new epoch begins: other messages may have been given them since, and nothing here would show it.
    """

    position: int = 0
    digest: int = 0
    next_seq: Sequence[int] = ()
    confirmed_seq: Sequence[int] = ()
    sent_position: int = 0
    is_resumed: bool = False


@dataclass(slots=True)
class Stamper:
    """Stamps messages of one publisher to one group. `seed` decides the hashes of messages without a key.

    `body_max_bytes`: the largest message that the broker takes, None where that is not known.
    """

    spec: GroupSpec
    seed: int = 0
    start: StartingPoint = field(default_factory=StartingPoint)
    body_max_bytes: int | None = None
    position: int = field(init=False)
    digest: int = field(init=False)
    next_seq: list[int] = field(init=False)
    _queues: list[int] = field(init=False)
    _routing_keys: dict[tuple[int, str], str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.position = self.start.position
        self.digest = self.start.digest
        self.next_seq = list(self.start.next_seq) or [0] * self.spec.hash_count
        self._queues = [queue_of(hash_, self.spec.queue_count) for hash_ in range(self.spec.hash_count)]

    def stamp(self, key: str | None, topic: str, body: bytes) -> Stamped:
        """The next message. Raises SpecError, and is as before, for a key, a topic or a size that cannot be used."""
        if self.body_max_bytes is not None and len(body) > self.body_max_bytes:
            raise MessageTooLarge(len(body), self.body_max_bytes)
        position = self.position
        if key:
            hash_ = self._hash(key)
        else:
            key = None
            hash_ = _mixed(self.seed, position) % self.spec.hash_count
        route = self._routing_keys.get((hash_, topic))
        if route is None:
            route = self._route(hash_, topic)
        digest = chained(self.digest, key, topic, body)
        seq = self.next_seq[hash_]
        self.next_seq[hash_] = seq + 1
        self.position = position + 1
        self.digest = digest
        return Stamped(key, hash_, self._queues[hash_], seq, position, route, body, digest)

    def begin_epoch(self) -> None:
        """The sequences of every hash begin at 0."""
        self.next_seq = [0] * self.spec.hash_count

    def repartition(self, spec: GroupSpec) -> None:
        """The same group with another number of queues."""
        self.spec = spec
        self._queues = [queue_of(hash_, spec.queue_count) for hash_ in range(spec.hash_count)]

    def queue_of(self, hash_: int) -> int:
        return self._queues[hash_]

    def require_usable(self, key: str | None, topic: str, body: bytes) -> None:
        """Raises SpecError for what `stamp` would refuse."""
        if self.body_max_bytes is not None and len(body) > self.body_max_bytes:
            raise MessageTooLarge(len(body), self.body_max_bytes)
        hash_ = self._hash(key) if key else 0
        if (hash_, topic) not in self._routing_keys:
            self._route(hash_, topic)

    def _hash(self, key: str) -> int:
        if len(key) > KEY_MAX_BYTES // 4 and len(key.encode("utf-8", "surrogatepass")) > KEY_MAX_BYTES:
            raise SpecError("key", key[:40] + "…", f"takes more than {KEY_MAX_BYTES} bytes of UTF-8")
        return hash_of(key, self.spec.hash_count, self.spec.hash_function)

    def _route(self, hash_: int, topic: str) -> str:
        route = routing_key(self.spec.hash_prefix, hash_, topic)
        if len(self._routing_keys) >= _ROUTING_KEYS_KEPT:
            self._routing_keys.clear()
        self._routing_keys[hash_, topic] = route
        return route


def chained(digest: int, key: str | None, topic: str, body: bytes) -> int:
    """The checksum (CRC-32) of an input that is one message longer; the lengths keep its fields apart."""
    head = f"{len(body)} {len(topic)} {topic}{key or ''}\n".encode("utf-8", "surrogatepass")
    return crc32(body, crc32(head, digest))


def _mixed(seed: int, position: int) -> int:
    """Sixty-four well mixed bits of `seed` and `position` (the finaliser of SplitMix64).

    A function of the position, not a stream: a publisher that goes on from position n needs no history of
    draws.
    """
    bits = (seed + (position + 1) * 0x9E3779B97F4A7C15) & _WORD
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _WORD
    return bits ^ (bits >> 31)
