"""Arguments of queues, exchanges and consumers: what they may be, and refusing those we would have to ignore."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lbg_broker.amqp import ReplyCode
from lbg_broker.server.core.errors import ChannelRefusal

__all__ = [
    "QueueArguments",
    "check_consumer_arguments",
    "check_exchange_arguments",
    "inequivalent",
    "same_arguments",
]

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

QUEUE_TYPES: Final = ("classic", "quorum")
OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")


@dataclass(slots=True, frozen=True)
class QueueArguments:
    """What a queue's x-arguments ask for. None: no limit, no dead-letter exchange."""

    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    single_active_consumer: bool = False
    queue_type: str = "classic"

    @classmethod
    def parse(cls, arguments: Mapping[str, object], *, where: str) -> "QueueArguments":
        """Read the arguments of the queue `where` ("queue 'x' in vhost '/'").

        Raises `ChannelRefusal` 406 for a value out of range and for an argument that is not supported.
        """
        reader = _Reader(arguments, where)
        parsed = cls(
            max_length=reader.number("x-max-length"),
            max_length_bytes=reader.number("x-max-length-bytes"),
            overflow=reader.choice("x-overflow", OVERFLOWS) or "drop-head",
            dead_letter_exchange=reader.text("x-dead-letter-exchange"),
            dead_letter_routing_key=reader.text("x-dead-letter-routing-key"),
            single_active_consumer=reader.flag("x-single-active-consumer"),
            queue_type=reader.choice("x-queue-type", QUEUE_TYPES) or "classic",
        )
        if reader.number("x-delivery-limit", least=-1) not in (None, -1):
            raise reader.unsupported("x-delivery-limit", "only -1, no limit, is")
        reader.choice("x-dead-letter-strategy", ("at-most-once",))
        reader.finish()
        if parsed.dead_letter_routing_key is not None and parsed.dead_letter_exchange is None:
            raise reader.invalid("x-dead-letter-routing-key", "there is no x-dead-letter-exchange")
        return parsed

    @property
    def limited(self) -> bool:
        """Whether the queue can be full."""
        return self.max_length is not None or self.max_length_bytes is not None


class _Reader:
    def __init__(self, arguments: Mapping[str, object], where: str) -> None:
        self._arguments = arguments
        self._where = where
        self._known: set[str] = set()

    def text(self, name: str) -> str | None:
        value = self._get(name)
        if value is None or isinstance(value, str):
            return value
        raise self.invalid(name, f"{_described(value)} is no string")

    def number(self, name: str, *, least: int = 0) -> int | None:
        value = self._get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, f"{_described(value)} is no number")
        if value < least:
            raise self.invalid(name, f"{value} is less than {least}")
        return value

    def flag(self, name: str) -> bool:
        value = self._get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.invalid(name, f"{_described(value)} is no boolean")

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is not None and value not in choices:
            raise self.unsupported(name, f"the values supported are {', '.join(choices)}; received '{value}'")
        return value

    def finish(self) -> None:
        """Refuse what nobody asked for: an ignored argument is a broken promise."""
        for name in self._arguments:
            if name.startswith("x-") and name not in self._known and name not in INERT:
                raise self.unsupported(name, "")

    def invalid(self, name: str, reason: str) -> ChannelRefusal:
        return ChannelRefusal(
            ReplyCode.PRECONDITION_FAILED, f"invalid arg '{name}' for {self._where}: {reason}"
        )

    def unsupported(self, name: str, reason: str) -> ChannelRefusal:
        text = f"arg '{name}' for {self._where} is not supported"
        return ChannelRefusal(ReplyCode.PRECONDITION_FAILED, f"{text}: {reason}" if reason else text)

    def _get(self, name: str) -> object:
        self._known.add(name)
        return self._arguments.get(name)


def check_consumer_arguments(arguments: Mapping[str, object], *, where: str) -> None:
    """Refuse what basic.consume cannot be asked here (406)."""
    reader = _Reader(arguments, where)
    reader.flag("x-cancel-on-ha-failover")  # a node fails over to nowhere: there is nothing to cancel on
    reader.finish()


def check_exchange_arguments(arguments: Mapping[str, object], *, where: str) -> None:
    """Refuse what exchange.declare cannot be asked here (406)."""
    reader = _Reader(arguments, where)
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
        f"inequivalent arg '{name}' for {where}: received {_described(received)} but current is {_described(current)}",
    )


def _received(value: object) -> str:
    return f"the value {_described(value)} of type '{_type_name(value)}'"


def _described(value: object) -> str:
    """A value in a reply text."""
    if isinstance(value, bool):
        return "'true'" if value else "'false'"
    return f"'{value}'"


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
