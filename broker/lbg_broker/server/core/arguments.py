"""Arguments of queues, exchanges and consumers: what they may be, and refusing those we would have to ignore."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lbg_broker.amqp import ReplyCode
from lbg_broker.server.core.errors import ChannelRefusal
from lbg_broker.server.core.kinds.rules import KindRules, read_kind
from lbg_broker.server.core.reading_arguments import ArgumentReader, described

__all__ = [
    "QueueArguments",
    "check_exchange_arguments",
    "inequivalent",
    "same_arguments",
]

QUEUE_TYPES: Final = ("classic", "quorum", "partitioned", "sessions")
OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")

TIMER_MAX_MS: Final = 10 * 365 * 24 * 3600 * 1000
"""RabbitMQ's: ten years."""


@dataclass(slots=True, frozen=True)
class QueueArguments:
    """What a queue's x-arguments ask for. None: no limit, no dead-letter exchange, no special kind.

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
    kind: KindRules | None = None
    message_ttl_s: float | None = None
    expires_s: float | None = None

    @classmethod
    def parse(cls, arguments: Mapping[str, object], *, where: str) -> "QueueArguments":
        """Read the arguments of the queue `where` ("queue 'x' in vhost '/'").

        Raises `ChannelRefusal` 406 for a value out of range and for an argument that is not supported.
        """
        reader = ArgumentReader(arguments, where)
        queue_type = reader.choice("x-queue-type", QUEUE_TYPES) or "classic"
        parsed = cls(
            max_length=reader.number("x-max-length"),
            max_length_bytes=reader.number("x-max-length-bytes"),
            overflow=reader.choice("x-overflow", OVERFLOWS) or "drop-head",
            dead_letter_exchange=reader.text("x-dead-letter-exchange"),
            dead_letter_routing_key=reader.text("x-dead-letter-routing-key"),
            single_active_consumer=reader.flag("x-single-active-consumer"),
            queue_type=queue_type,
            kind=read_kind(reader, queue_type),
            message_ttl_s=_seconds(reader.number("x-message-ttl", most=TIMER_MAX_MS)),
            expires_s=_seconds(reader.number("x-expires", least=1, most=TIMER_MAX_MS)),
        )
        if reader.number("x-delivery-limit", least=-1) not in (None, -1):
            raise reader.unsupported("x-delivery-limit", "only -1, no limit, is")
        reader.choice("x-dead-letter-strategy", ("at-most-once",))
        reader.finish()
        if parsed.dead_letter_routing_key is not None and parsed.dead_letter_exchange is None:
            raise reader.invalid("x-dead-letter-routing-key", "there is no x-dead-letter-exchange")
        if parsed.kind is not None:
            _check_special(reader, parsed, parsed.kind.kind)
        return parsed

    @property
    def limited(self) -> bool:
        """Whether the queue can be full."""
        return self.max_length is not None or self.max_length_bytes is not None


def _check_special(reader: ArgumentReader, parsed: QueueArguments, kind: str) -> None:
    """A queue of several lines has no one head to drop from, and no one active consumer."""
    if parsed.limited and parsed.overflow == "drop-head":
        raise reader.invalid(
            "x-overflow", f"a {kind} queue with a limit drops nothing: declare it with reject-publish"
        )
    if parsed.single_active_consumer:
        raise reader.invalid("x-single-active-consumer", f"a {kind} queue chooses its consumers itself")
    for name, value in (("x-message-ttl", parsed.message_ttl_s), ("x-expires", parsed.expires_s)):
        if value is not None:
            raise reader.unsupported(
                name, f"a {kind} queue and its messages stay until somebody deletes them"
            )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def check_exchange_arguments(arguments: Mapping[str, object], *, where: str) -> None:
    """Refuse what exchange.declare cannot be asked here (406)."""
    reader = ArgumentReader(arguments, where)
    reader.text("alternate-exchange")
    reader.finish()


def same_arguments(
    asked: Mapping[str, object], current: Mapping[str, object], *, names: tuple[str, ...], where: str
) -> None:
    """Raise 406 when one of the arguments of these names differs, as RabbitMQ words it."""
    for name in names:
        if asked.get(name) != current.get(name):
            received = _received(asked[name]) if name in asked else "none"
            is_now = _received(current[name]) if name in current else "none"
            raise ChannelRefusal(
                ReplyCode.PRECONDITION_FAILED,
                f"inequivalent arg '{name}' for {where}: received {received} but current is {is_now}",
            )


def inequivalent(name: str, where: str, received: object, current: object) -> ChannelRefusal:
    """A declaration whose property differs from what is there."""
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
