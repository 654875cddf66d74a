"""Arguments of queues, exchanges and consumers, and the queue type that they declare."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from lbg_broker.core.errors import ChannelRefusal
from lbg_broker.core.queue_types.session_headers import EPOCH
from lbg_core.amqp import ReplyCode

INERT: Final = frozenset(
    (
        "x-queue-mode",
        "x-queue-version",
        "x-queue-master-locator",
        "x-queue-leader-locator",
        "x-quorum-initial-group-size",
        "x-quorum-target-group-size",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
    )
)
"""Arguments of RabbitMQ about where and how it keeps a queue: accepted, they change nothing a client can see."""


class ArgumentReader:
    """Reads typed arguments, each once, and refuses with 406 what is out of range or unknown.

    `where` is the owner of the arguments: "queue 'x' in vhost '/'".
    """

    def __init__(self, arguments: Mapping[str, object], where: str) -> None:
        self._arguments = arguments
        self._where = where
        self._read_names: set[str] = set()

    def value(self, name: str) -> object:
        """Value of any type; None when it is absent."""
        return self._get(name)

    def text(self, name: str) -> str | None:
        """A string, or None."""
        value = self._get(name)
        if value is None or isinstance(value, str):
            return value
        raise self.invalid(name, f"{described(value)} is not a string")

    def number(self, name: str, *, least: int = 0, most: int | None = None) -> int | None:
        """An integer of at least `least` and at most `most`, or None."""
        value = self._get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, f"{described(value)} is not a number")
        if value < least:
            raise self.invalid(name, f"{value} is less than {least}")
        if most is not None and value > most:
            raise self.invalid(name, f"{value} is more than {most}")
        return value

    def numbers(self, name: str) -> list[int] | None:
        """A list of integers from 0, or None."""
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value
        ):
            raise self.invalid(name, f"{described(value)} is not a list of numbers")
        return value

    def flag(self, name: str) -> bool:
        """A boolean; False when it is absent."""
        value = self._get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.invalid(name, f"{described(value)} is not a boolean")

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        """One of `choices`, or None."""
        value = self.text(name)
        if value is not None and value not in choices:
            raise self.unsupported(name, f"'{value}' is not one of {', '.join(choices)}")
        return value

    def finish(self) -> None:
        """Refuses unknown arguments: the client relies on every argument."""
        for name in self._arguments:
            if name.startswith("x-") and name not in self._read_names and name not in INERT:
                raise self.unsupported(name, "")

    def invalid(self, name: str, reason: str) -> ChannelRefusal:
        """A value that no argument of this name may have."""
        return ChannelRefusal(
            ReplyCode.PRECONDITION_FAILED, f"invalid arg '{name}' for {self._where}: {reason}"
        )

    def refused(self, reason: str) -> ChannelRefusal:
        """Arguments that do not go together."""
        return ChannelRefusal(ReplyCode.PRECONDITION_FAILED, f"invalid arguments for {self._where}: {reason}")

    def unsupported(self, name: str, reason: str) -> ChannelRefusal:
        """An argument, or a value of one, that this broker does not have."""
        text = f"arg '{name}' for {self._where} is not supported"
        return ChannelRefusal(ReplyCode.PRECONDITION_FAILED, f"{text}: {reason}" if reason else text)

    def not_of_type(self, name: str, queue_type: str) -> ChannelRefusal:
        """An argument that queues of this type do not have, in RabbitMQ's words."""
        return ChannelRefusal(
            ReplyCode.PRECONDITION_FAILED,
            f"invalid arg '{name}' for {self._where} of queue type {queue_type}",
        )

    def _get(self, name: str) -> object:
        self._read_names.add(name)
        return self._arguments.get(name)


def described(value: object) -> str:
    """A value in a reply text."""
    if isinstance(value, bool):
        return "'true'" if value else "'false'"
    return f"'{value}'"


HEADER: Final = "x-group-header"
QPID_HEADER: Final = "qpid.group_header_key"
QPID_SHARED: Final = "qpid.shared_msg_group"

NAME_MAX_BYTES: Final = 128
"""Of a header's name: AMQP 0-9-1 section 4.2.5.5 limits field names to 128 characters."""

LAST_VALUE: Final = (
    "qpid.last_value_queue",
    "qpid.last_value_queue_no_browse",
    "qpid.last_value_queue_key",
    "x-last-value-key",
)
PRIORITY: Final = (
    "x-max-priority",
    "qpid.priorities",
    "x-qpid-priorities",
    "qpid.fairshare",
    "x-qpid-fairshare",
)


@dataclass(slots=True, frozen=True)
class MessageGroupsArguments:
    """`header`: the name of the header that holds a message's group."""

    header: str
    kind: str = "message group"


def read_grouped(reader: ArgumentReader, _queue_type: str) -> MessageGroupsArguments | None:
    """The rules of a queue of message groups; None for another. Raises `ChannelRefusal` 406."""
    ours, theirs = reader.text(HEADER), reader.text(QPID_HEADER)
    shared = reader.value(QPID_SHARED)
    if ours is None and theirs is None:
        if shared is not None:
            raise reader.refused(f"{QPID_SHARED} needs {QPID_HEADER}, the header that holds the group")
        return None
    name, header = (HEADER, ours) if ours is not None else (QPID_HEADER, theirs)
    assert header is not None
    if ours is not None and theirs is not None and ours != theirs:
        raise reader.refused(f"{HEADER} is '{ours}' and {QPID_HEADER} is '{theirs}': give only one of them")
    if not 0 < len(header.encode()) <= NAME_MAX_BYTES:
        raise reader.invalid(name, f"the name of a header must have 1 to {NAME_MAX_BYTES} bytes")
    if shared not in (None, 1):  # True is 1
        raise reader.unsupported(QPID_SHARED, f"'{shared}' is not 1, which shares groups among consumers")
    if shared is None and ours is None:
        raise reader.refused(
            f"{QPID_HEADER} needs {QPID_SHARED} 1: groups that are not shared are not supported"
        )
    for names, conflict in (
        (LAST_VALUE, "keeps only the last message of a key"),
        (PRIORITY, "orders by priority"),
    ):
        for other in names:
            if reader.value(other) not in (None, False):
                raise reader.refused(
                    f"message groups must keep their order, but a queue with {other} {conflict}"
                )
    return MessageGroupsArguments(header)


def group_header(rules: object) -> str:
    """The header of a queue's groups, by either argument; "none" where it has no groups."""
    return rules.header if isinstance(rules, MessageGroupsArguments) else "none"


QUEUE_TYPE: Final = "partitioned"
PARTITIONS_MAX: Final = 4096
HASHES: Final = ("crc32", "java", "murmur2", "modulo")
COUNT, DELAY, HANDOFF, HASH, HASH_COUNT = ARGUMENTS = (
    "x-partition-count",
    "x-rebalance-delay",
    "x-max-handoff-time",
    "x-partition-hash",
    "x-partition-hash-count",
)


@dataclass(slots=True, frozen=True)
class PartitionedArguments:
    """`hash_count` None: partition = hash mod count; else (hash mod hash_count) mod count. The times default to
    those of «Configuring Partitioned Queues»."""

    count: int
    rebalance_delay_ms: int = 5000
    max_handoff_ms: int = 3000
    hash: str = "crc32"
    hash_count: int | None = None

    kind: str = "partitioned"


def read_partitioned(reader: ArgumentReader, queue_type: str) -> PartitionedArguments | None:
    """The rules of a partitioned queue; None for one of another type. Raises `ChannelRefusal` 406."""
    if queue_type != QUEUE_TYPE:
        return None
    count = reader.number(COUNT, least=1)
    if count is None:
        raise reader.refused(f"a partitioned queue needs {COUNT}, from 1 to {PARTITIONS_MAX}")
    if count > PARTITIONS_MAX:
        raise reader.invalid(COUNT, f"{count} is more than {PARTITIONS_MAX}")
    delay, handoff = reader.number(DELAY), reader.number(HANDOFF)
    return PartitionedArguments(
        count=count,
        rebalance_delay_ms=5000 if delay is None else delay,
        max_handoff_ms=3000 if handoff is None else handoff,
        hash=reader.choice(HASH, HASHES) or "crc32",
        hash_count=reader.number(HASH_COUNT, least=1),
    )


SESSION: Final = "x-session"
COMMITTED: Final = "x-session-committed"
NAME_MAX: Final = 128


@dataclass(slots=True, frozen=True)
class SessionsArguments:
    """There is nothing to choose."""

    kind: str = "sessions"


@dataclass(slots=True, frozen=True)
class SessionRequest:
    """Session that a consumer requests. `committed`: the last sequence number that it has processed; None when its
    acknowledgements decide. `epoch`: that of the number; None if it is not given."""

    name: str
    committed: int | None
    epoch: str | None = None


def read_sessions(reader: ArgumentReader, queue_type: str) -> SessionsArguments | None:
    """The rules of a sessions queue; None for any other."""
    return SessionsArguments() if queue_type == "sessions" else None


def read_session_request(reader: ArgumentReader, *, where: str) -> SessionRequest:
    """A consumer's arguments. Raises `ChannelRefusal` 406."""
    name = reader.text(SESSION)
    if name is None:
        raise ChannelRefusal(
            ReplyCode.PRECONDITION_FAILED,
            f"a consumer of {where} needs argument {SESSION}, the name of its session",
        )
    if not 1 <= len(name) <= NAME_MAX:
        raise reader.invalid(
            SESSION, f"a name must have 1 to {NAME_MAX} characters, and this one has {len(name)}"
        )
    epoch = reader.text(EPOCH)
    if epoch is not None and len(epoch) > NAME_MAX:
        raise reader.invalid(
            EPOCH, f"an epoch must have at most {NAME_MAX} characters, and this one has {len(epoch)}"
        )
    return SessionRequest(name, reader.number(COMMITTED), epoch)


STREAM: Final = "stream"
SERVED_ALIKE: Final = (
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
    "x-queue-leader-locator",
)
"""Arguments of a stream that RabbitMQ accepts and that change nothing here."""

NOT_OF_STREAMS: Final = (
    "x-message-ttl",
    "x-expires",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-overflow",
    "x-single-active-consumer",
    "x-delivery-limit",
    "x-max-priority",
    *sorted(INERT - {"x-queue-leader-locator"}),
)
"""Arguments that RabbitMQ refuses for a stream."""

AGE_S: Final = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1}
"""Units of `x-max-age`: "7D"."""


@dataclass(slots=True, frozen=True)
class StreamArguments:
    """Retention of a stream. None and infinity: no limit."""

    max_length_bytes: int | None = None
    max_age_s: float = math.inf
    kind: str = STREAM


def read_stream(reader: ArgumentReader) -> StreamArguments:
    """The rules of a stream. Raises `ChannelRefusal` 406."""
    for name in NOT_OF_STREAMS:
        if reader.value(name) is not None:
            raise reader.not_of_type(name, "rabbit_stream_queue")
    for name in SERVED_ALIKE:
        reader.value(name)
    age = reader.text("x-max-age")
    if age is not None and not (age[:-1].isascii() and age[:-1].isdigit() and age[-1] in AGE_S):
        raise reader.invalid("x-max-age", "invalid_max_age")
    return StreamArguments(
        reader.number("x-max-length-bytes"), math.inf if age is None else float(age[:-1]) * AGE_S[age[-1]]
    )


class QueueTypeArguments(Protocol):
    """Arguments of a queue type; their class is the type."""

    @property
    def kind(self) -> str:
        """Its name in messages: "partitioned"."""


READERS: Final[tuple[Callable[[ArgumentReader, str], QueueTypeArguments | None], ...]] = (
    read_grouped,
    read_partitioned,
    read_sessions,
)
"""Each reads its kind's arguments, given the queue type too; None for a queue that is not of it."""


def read_queue_type(reader: ArgumentReader, queue_type: str) -> QueueTypeArguments | None:
    """The special queue type of the arguments; None for a plain queue. Raises `ChannelRefusal` 406."""
    selected = [rules for read in READERS if (rules := read(reader, queue_type)) is not None]
    if len(selected) > 1:
        names = " and ".join(rules.kind for rules in selected)
        raise reader.refused(f"a queue has one type, and these arguments are of {names}")
    return selected[0] if selected else None


QUEUE_TYPES: Final = ("classic", "quorum", "partitioned", "sessions", STREAM)
OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")

TIMER_MAX_MS: Final = 10 * 365 * 24 * 3600 * 1000
"""RabbitMQ's: ten years."""


@dataclass(slots=True, frozen=True)
class QueueArguments:
    """Arguments of a queue, parsed. None: no limit, no dead-letter exchange, a plain queue.

    `message_ttl_s`: how long a message may wait before it expires; `expires_s`: how long the queue may be unused
    before it is deleted.
    """

    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    single_active_consumer: bool = False
    queue_type: str = "classic"
    kind: QueueTypeArguments | None = None
    message_ttl_s: float | None = None
    expires_s: float | None = None

    @classmethod
    def parse(cls, arguments: Mapping[str, object], *, where: str) -> QueueArguments:
        """Read the arguments of the queue `where` ("queue 'x' in vhost '/'").

        Raises `ChannelRefusal` 406 for a value out of range and for an argument that is not supported.
        """
        reader = ArgumentReader(arguments, where)
        queue_type = reader.choice("x-queue-type", QUEUE_TYPES) or "classic"
        if queue_type == STREAM:
            stream = cls(queue_type=STREAM, kind=read_stream(reader))
            reader.finish()
            return stream
        parsed = cls(
            max_length=reader.number("x-max-length"),
            max_length_bytes=reader.number("x-max-length-bytes"),
            overflow=reader.choice("x-overflow", OVERFLOWS) or "drop-head",
            dead_letter_exchange=reader.text("x-dead-letter-exchange"),
            dead_letter_routing_key=reader.text("x-dead-letter-routing-key"),
            single_active_consumer=reader.flag("x-single-active-consumer"),
            queue_type=queue_type,
            kind=read_queue_type(reader, queue_type),
            message_ttl_s=_seconds(reader.number("x-message-ttl", most=TIMER_MAX_MS)),
            expires_s=_seconds(reader.number("x-expires", least=1, most=TIMER_MAX_MS)),
        )
        if reader.number("x-delivery-limit", least=-1) not in (None, -1):
            raise reader.unsupported("x-delivery-limit", "only -1, which is no limit, is supported")
        reader.choice("x-dead-letter-strategy", ("at-most-once",))
        reader.finish()
        if parsed.dead_letter_routing_key is not None and parsed.dead_letter_exchange is None:
            raise reader.invalid("x-dead-letter-routing-key", "the queue has no x-dead-letter-exchange")
        if parsed.kind is not None:
            _check_special(reader, parsed, parsed.kind.kind)
        return parsed

    @property
    def limited(self) -> bool:
        """True if the queue can be full."""
        return self.max_length is not None or self.max_length_bytes is not None


def _check_special(reader: ArgumentReader, parsed: QueueArguments, kind: str) -> None:
    """A queue of several lines has no one head to drop from, and no one active consumer."""
    if parsed.limited and parsed.overflow == "drop-head":
        raise reader.invalid(
            "x-overflow", f"a {kind} queue with a limit cannot drop messages: declare it with reject-publish"
        )
    if parsed.single_active_consumer:
        raise reader.invalid("x-single-active-consumer", f"a {kind} queue chooses its consumers itself")
    for name, value in (("x-message-ttl", parsed.message_ttl_s), ("x-expires", parsed.expires_s)):
        if value is not None:
            raise reader.unsupported(name, f"a {kind} queue and its messages do not expire")


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def check_exchange_arguments(arguments: Mapping[str, object], *, where: str) -> None:
    """Refuses what exchange.declare does not support here (406)."""
    reader = ArgumentReader(arguments, where)
    reader.text("alternate-exchange")
    reader.finish()


def same_arguments(
    requested: Mapping[str, object], current: Mapping[str, object], *, names: tuple[str, ...], where: str
) -> None:
    """Raise 406 when one of the arguments of these names differs, as RabbitMQ words it."""
    for name in names:
        if requested.get(name) != current.get(name):
            if name in requested and name in current:
                raise inequivalent(name, where, requested[name], current[name])
            received = _received(requested[name]) if name in requested else "none"
            is_now = _received(current[name]) if name in current else "none"
            raise ChannelRefusal(
                ReplyCode.PRECONDITION_FAILED,
                f"inequivalent arg '{name}' for {where}: received {received} but current is {is_now}",
            )


def inequivalent(name: str, where: str, received: object, current: object) -> ChannelRefusal:
    """A declaration whose property or argument differs from the existing one."""
    return ChannelRefusal(
        ReplyCode.PRECONDITION_FAILED,
        f"inequivalent arg '{name}' for {where}: received {described(received)} but current is {described(current)}",
    )


def _received(value: object) -> str:
    return f"the value {described(value)} of type '{_type_name(value)}'"


def _type_name(value: object) -> str:
    match value:
        case bool():
            return "bool"
        case int():
            return "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
        case str():
            return "longstr"
        case float():
            return "double"
        case list():
            return "array"
        case dict():
            return "table"
        case _:
            return type(value).__name__
