"""Stamps messages with publisher, epoch and sequence number, and encodes their content header.

Measured (bench/publish_group.py): a template takes a fifth of the time of BasicProperties with a table of
headers.

The same input from the same start gives the same stamps, so that a publisher which was killed can read its
input again and give every message the sequence it had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from zlib import crc32

from lbg_core.amqp import BasicProperties
from lbg_core.group import (
    HEADER_KEY,
    HEADER_PUBLISHER,
    HEADER_SEQ,
    HEADER_TS,
    KEY_MAX_BYTES,
    KEY_RULE,
    GroupSpec,
    Key,
    SpecError,
    hash_of,
    key_text,
    queue_of,
    routing_key,
)
from lbg_core.publisher.errors import MessageTooLarge


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """Options of one message beside key and body: its own headers, and a content type in place of its publisher's."""

    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None

    @property
    def size_bytes(self) -> int:
        """Of names and values, in characters: it counts towards `PublishingSettings.read_ahead_bytes`."""
        return sum(len(name) + len(value) for name, value in self.headers.items())


@dataclass(slots=True, eq=False)
class StampedMessage:
    """One accepted message. What is stamped on it (hash, sequence, routing key) never changes again.

    `position` counts accepted messages from 0; `digest` is a checksum over this message and all before it.
    """

    key: str | None
    hash: int
    queue: int
    seq: int
    position: int
    routing_key: str
    body: bytes
    digest: int
    accepted: bool | None = None  # the broker's answer to the last attempt; None while it is open
    unknown: bool = False  # an attempt ended without an answer: the message may be there twice
    inverted: bool = False  # accepted while an earlier message of its key is still to come
    confirmed: bool = False
    sends: int = 0
    sent_at_us: int = 0  # the first time
    body_bytes: int = 0
    weight_bytes: int = 0
    extra: MessageOptions | None = None


# Property flags (AMQP 0-9-1, section 4.2.6.1): content-type, headers, delivery-mode, message-id.
_FLAGS = Struct(">H").pack(0x8000 | 0x2000 | 0x1000 | 0x0080)
_PERSISTENT = b"\x02"
_LONG = Struct(">I").pack
_SEQ_AND_TS = Struct(f">q{2 + len(HEADER_TS)}sq").pack

# With hash and sequence it is a message id, which has 255 bytes (AMQP 0-9-1, section 4.2.5.3).
_TEXT_MAX_BYTES = 180

_OURS = frozenset({HEADER_KEY, HEADER_PUBLISHER, HEADER_SEQ, HEADER_TS})


def _name(field: str, kind: bytes) -> bytes:
    name = field.encode()
    return bytes([len(name)]) + name + kind


class HeaderEncoder:
    """Headers of one publisher: lbg-key, lbg-publisher, lbg-seq, lbg-ts; persistent; message-id from the
    sequence.

    `publisher` and `content_type` take at most 255 bytes of UTF-8 each; ValueError else.
    """

    def __init__(self, publisher: str, content_type: str) -> None:
        texts = [text.encode() for text in (publisher, content_type)]
        if any(len(text) > _TEXT_MAX_BYTES for text in texts):
            raise ValueError(
                f"a publisher's name and a content type take at most {_TEXT_MAX_BYTES} bytes each"
            )
        self.publisher = publisher
        self._content_type = content_type
        self._start = _start_with(texts[1])
        self._key = _name(HEADER_KEY, b"S")
        # Everything between the key's text and the sequence number.
        self._middle = (
            _name(HEADER_PUBLISHER, b"S") + _LONG(len(texts[0])) + texts[0] + _name(HEADER_SEQ, b"l")
        )
        self._ts = _name(HEADER_TS, b"l")
        self._fixed_bytes = len(self._middle) + 8 + len(self._ts) + 8

    def of_epoch(self, publisher: str) -> HeaderEncoder:
        """The same for another epoch of the publisher."""
        return HeaderEncoder(publisher, self._content_type)

    def of(self, message: StampedMessage) -> bytes:
        """The header; `lbg-ts` is the time at which the message was first sent. Raises EncodeError for headers or a
        content type that do not fit into AMQP."""
        start, more = self._start, b""
        extra = message.extra
        if extra is not None:
            properties_of(message, self.publisher, self._content_type).encode()  # it judges what fits
            start = _start_with((extra.content_type or self._content_type).encode())
            more = b"".join(_text(name, value) for name, value in extra.headers.items() if name not in _OURS)
        numbers = _SEQ_AND_TS(message.seq, self._ts, message.sent_at_us)
        message_id = f"{self.publisher}-{message.hash}-{message.seq}".encode()
        tail = more + _PERSISTENT + bytes((len(message_id),)) + message_id
        size = self._fixed_bytes + len(more)
        if message.key is None:
            return b"".join((start, _LONG(size), self._middle, numbers, tail))
        key = message.key.encode()
        size += len(self._key) + 4 + len(key)
        return b"".join((start, _LONG(size), self._key, _LONG(len(key)), key, self._middle, numbers, tail))


def _start_with(content_type: bytes) -> bytes:
    return _FLAGS + bytes([len(content_type)]) + content_type


def _text(name: str, value: str) -> bytes:
    text = value.encode()
    return _name(name, b"S") + _LONG(len(text)) + text


def properties_of(message: StampedMessage, publisher: str, content_type: str) -> BasicProperties:
    """The same as an object: what `HeaderEncoder` has to agree with. Ours come first, where members read them."""
    extra = message.extra or MessageOptions()
    ours: dict[str, str | int] = {
        **({} if message.key is None else {HEADER_KEY: message.key}),
        HEADER_PUBLISHER: publisher,
        HEADER_SEQ: message.seq,
        HEADER_TS: message.sent_at_us,
    }
    message_id = f"{publisher}-{message.hash}-{message.seq}"
    return BasicProperties(
        content_type=extra.content_type or content_type,
        headers={**ours, **extra.headers, **ours},
        delivery_mode=2,
        message_id=message_id,
    )


_WORD = (1 << 64) - 1
_ROUTING_KEYS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Start of the numbering: by default at nothing; else after what is done by a state file.

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

    def stamp(self, key: Key | None, topic: str, body: bytes) -> StampedMessage:
        """The next message. Raises SpecError, and is as before, for a key, a topic or a size that cannot be used."""
        if self.body_max_bytes is not None and len(body) > self.body_max_bytes:
            raise MessageTooLarge(len(body), self.body_max_bytes)
        position = self.position
        key = _usable(key)
        hash_ = self._hash(key) if key is not None else _mixed(self.seed, position) % self.spec.hash_count
        route = self._routing_keys.get((hash_, topic))
        if route is None:
            route = self._route(hash_, topic)
        digest = chained(self.digest, key, topic, body)
        seq = self.next_seq[hash_]
        self.next_seq[hash_] = seq + 1
        self.position = position + 1
        self.digest = digest
        return StampedMessage(key, hash_, self._queues[hash_], seq, position, route, body, digest)

    def begin_epoch(self) -> None:
        """The sequences of every hash begin at 0."""
        self.next_seq = [0] * self.spec.hash_count

    def repartition(self, spec: GroupSpec) -> None:
        """The same group with another number of queues."""
        self.spec = spec
        self._queues = [queue_of(hash_, spec.queue_count) for hash_ in range(spec.hash_count)]

    def queue_of(self, hash_: int) -> int:
        return self._queues[hash_]

    def require_usable(self, key: Key | None, topic: str, body: bytes) -> None:
        """Raises SpecError for what `stamp` would refuse."""
        if self.body_max_bytes is not None and len(body) > self.body_max_bytes:
            raise MessageTooLarge(len(body), self.body_max_bytes)
        text = _usable(key)
        hash_ = self._hash(text) if text is not None else 0
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


def _usable(key: Key | None) -> str | None:
    """The text of a key, None without one. Raises SpecError."""
    if key is None or key == "" or key == b"":
        return None
    text = key_text(key)
    if text is None:
        raise SpecError("key", key, KEY_RULE)
    return text


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
