"""Reading the arguments of queues, exchanges and consumers, and refusing those we would have to ignore."""

from collections.abc import Mapping
from typing import Final

from lbg_broker.amqp import ReplyCode
from lbg_broker.server.core.errors import ChannelRefusal

__all__ = ["ArgumentReader", "described"]

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
    """Reads typed arguments, each once, and refuses with 406 what is out of range or was not asked for.

    `where` says whose arguments they are: "queue 'x' in vhost '/'".
    """

    def __init__(self, arguments: Mapping[str, object], where: str) -> None:
        self._arguments = arguments
        self._where = where
        self._known: set[str] = set()

    def value(self, name: str) -> object:
        """Whatever it is; None when it is absent."""
        return self._get(name)

    def text(self, name: str) -> str | None:
        """A string, or None."""
        value = self._get(name)
        if value is None or isinstance(value, str):
            return value
        raise self.invalid(name, f"{described(value)} is no string")

    def number(self, name: str, *, least: int = 0, most: int | None = None) -> int | None:
        """An integer of at least `least` and at most `most`, or None."""
        value = self._get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, f"{described(value)} is no number")
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
            raise self.invalid(name, f"{described(value)} is no list of numbers")
        return value

    def flag(self, name: str) -> bool:
        """A boolean; False when it is absent."""
        value = self._get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.invalid(name, f"{described(value)} is no boolean")

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        """One of `choices`, or None."""
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

    def _get(self, name: str) -> object:
        self._known.add(name)
        return self._arguments.get(name)


def described(value: object) -> str:
    """A value in a reply text."""
    if isinstance(value, bool):
        return "'true'" if value else "'false'"
    return f"'{value}'"
