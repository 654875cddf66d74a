"""Protocol of one stream: numbers, credit, answers and cancels. No I/O.

Messages are numbered from 1 on each connection. An application's frame is accepted as a whole or refused as a whole: it
is read and checked before anything of it counts, so that after a refusal it is clear which messages are unanswered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lbg_core.group.sequences import StreamRuns
from lbg_sidecar.app.channel import (
    Committed,
    Extension,
    parse_committed,
    parse_processed,
    read_extension,
    read_object,
    read_verdict,
)
from lbg_sidecar.errors import StreamError
from lbg_sidecar.message import ACK, INTERRUPTED, Verdict

SUBPROTOCOL = "lbg.stream.v1"
CREDIT_MAX = 65_535

_HELLO = frozenset({"credit", "processed", "committed"})
_ANSWER = frozenset({"ack", "acks", "verdicts", "cancelled", "extend", "credit"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame: how many messages may be out unanswered, and what the application has committed itself."""

    credit: int
    processed: tuple[StreamRuns, ...] = ()
    committed: Committed | None = None


class Conversation(Generic[T]):
    """One connection's messages. `T` is what a message is to the caller."""

    def __init__(self, hello: Hello) -> None:
        self.credit = hello.credit
        self._out: dict[int, T] = {}  # ascending: numbers are only ever added at the end
        self._cancelled: set[int] = set()
        self._sent = 0
        self._acked_to = 0

    @property
    def out(self) -> int:
        return len(self._out)

    def room(self, concurrency: int) -> int:
        """Number of messages that may still be sent."""
        return max(0, min(self.credit, concurrency) - len(self._out))

    def send(self, messages: Iterable[T]) -> int:
        """The number of the first; the others follow it one by one."""
        first = self._sent + 1
        for message in messages:
            self._sent += 1
            self._out[self._sent] = message
        return first

    def cancel(self, is_meant: Callable[[T], bool]) -> list[int]:
        """The numbers to cancel, each named once, and only while it is unanswered."""
        numbers = [number for number in self.numbers(is_meant) if number not in self._cancelled]
        self._cancelled.update(numbers)
        return numbers

    def numbers(self, is_meant: Callable[[T], bool]) -> list[int]:
        """Those of unanswered messages."""
        return [number for number, message in self._out.items() if is_meant(message)]

    def unanswered(self, numbers: Iterable[int]) -> list[int]:
        return [number for number in numbers if number in self._out]

    def close(self) -> list[T]:
        """Ends the conversation; returns the unanswered messages, in the order they were sent."""
        messages = list(self._out.values())
        self._out.clear()
        self._cancelled.clear()
        return messages

    def answer(self, text: str) -> list[tuple[T, Verdict | Extension]]:
        """Effect of a frame from the application. Raises StreamError, and then nothing of it counts."""
        fields = _fields(text, _ANSWER)
        extended = self._extended(fields)
        verdicts: dict[int, Verdict] = {}
        for number in _list(fields, "acks"):
            self._decide(verdicts, number, ACK)
        for entry in _list(fields, "verdicts"):
            if not isinstance(entry, dict):
                raise StreamError(f'an entry of "verdicts" is not an object: {entry!r:.80}')
            try:
                verdict = read_verdict(entry)
            except ValueError as error:
                raise StreamError(str(error)) from None
            self._decide(verdicts, entry.get("n"), verdict)
        for number in _list(fields, "cancelled"):
            self._confirm(verdicts, number)
        acked_to = self._acked_to
        if "ack" in fields:
            acked_to = self._sent_number(fields["ack"])
            if acked_to <= self._acked_to:
                raise StreamError(f"everything up to {self._acked_to} was acknowledged before {acked_to}")
            for number in self._out:
                if number > acked_to:
                    break
                verdicts.setdefault(number, ACK)
        credit = _credit(fields["credit"]) if "credit" in fields else self.credit
        self._acked_to, self.credit = acked_to, credit
        if self._cancelled:
            self._cancelled.difference_update(verdicts)
        out, pop = self._out, self._out.pop
        extensions = [(out[number], one) for number, one in extended if number not in verdicts]
        return [*extensions, *((pop(number), verdict) for number, verdict in verdicts.items())]

    def _extended(self, fields: dict[str, Any]) -> list[tuple[int, Extension]]:
        """Without those that are answered: a timer may extend a call that has just ended."""
        extended = []
        for entry in _list(fields, "extend"):
            if not isinstance(entry, dict):
                raise StreamError(f'an entry of "extend" is not an object: {entry!r:.80}')
            try:
                extension = read_extension(entry)
            except ValueError as error:
                raise StreamError(str(error)) from None
            extended.append((self._sent_number(entry.get("n")), extension))
        return [(number, one) for number, one in extended if number in self._out]

    def _decide(self, verdicts: dict[int, Verdict], value: object, verdict: Verdict) -> None:
        number = self._sent_number(value)
        if number not in self._out or number in verdicts:
            raise StreamError(f"message {number} was answered twice")
        verdicts[number] = verdict

    def _confirm(self, verdicts: dict[int, Verdict], value: object) -> None:
        number = self._sent_number(value)
        if number not in self._out:
            return  # answered while the cancel was on its way
        if number not in self._cancelled:
            raise StreamError(f"message {number} was not to be cancelled")
        self._decide(verdicts, number, INTERRUPTED)

    def _sent_number(self, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise StreamError(f"not the number of a message: {value!r:.80}")
        if not 1 <= value <= self._sent:
            raise StreamError(f"message {str(value)[:20]} was never sent")
        return value


def read_hello(text: str) -> Hello:
    """The first frame: ``{"hello": {"credit": 256, "processed": […]}}``. Raises StreamError."""
    hello = _fields(text, frozenset({"hello"})).get("hello")
    if not isinstance(hello, dict) or "credit" not in hello:
        raise StreamError('the first frame must be {"hello": {"credit": …}}')
    _only(hello, _HELLO)
    try:
        processed = parse_processed(hello.get("processed", []))
        committed = parse_committed(hello["committed"]) if "committed" in hello else None
    except ValueError as error:
        raise StreamError(str(error)) from None
    return Hello(_credit(hello["credit"]), processed, committed)


def messages_frame(first: int, messages: Sequence[str]) -> str:
    """From messages that are JSON already."""
    return f'{{"first":{first},"messages":[{",".join(messages)}]}}'


def _fields(text: str, allowed: frozenset[str]) -> dict[str, Any]:
    try:
        fields = read_object(text)
    except ValueError as error:
        raise StreamError(f"{error}: {text!r:.80}") from None
    _only(fields, allowed)
    return fields


def _only(fields: dict[str, Any], allowed: frozenset[str]) -> None:
    for name in fields:
        if name not in allowed:
            raise StreamError(f"{name!r:.80} is unknown; known are {', '.join(sorted(allowed))}")


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields.get(name, [])
    if not isinstance(value, list):
        raise StreamError(f'"{name}" is not a list')
    return value


def _credit(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= CREDIT_MAX:
        raise StreamError(f'"credit" must be a whole number from 0 to {CREDIT_MAX}, not {value!r:.80}')
    return value
