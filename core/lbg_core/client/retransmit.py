"""Publishing in order through refusals and lost channels: windows, delivery tags and back-off. Pure.

States of the window of one queue:

    FLOWING  --a refusal, or `drain`-->                           DRAINING   send nothing, await every answer
    DRAINING --all answered, none refused-->                      FLOWING
    DRAINING --all answered, some refused-->                      HELD       the refused wait first in line
    HELD     --the wait is over: `resume`-->                      FLOWING    with a window of 1

A queue that refuses a message (it is full; `x-overflow: reject-publish`) may accept the next ones already under way.
So at the first refusal its window stops, every open answer is awaited, and what was not accepted is sent again in its
order, one message at a time until one is accepted. What was open on a channel that is gone is unknown, and sent again
in its order too: a consumer sees some of it twice, and still the first sight of each in order.

The publisher has a window for each queue of its group (`lbg_core.publisher.send_window`), a member one for its dead
letters and one for the validator (`lbg_sidecar.core.retransmit`), the replay of dead letters one with one message per
key. Times are seconds on any clock that does not go back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Generic, Protocol, TypeVar

from lbg_core.client.backoff import doubled_s

ANSWER_S: Final = 20.0
"""Without an answer for so long, a channel is given up: a quorum queue that has its majority back answers within 15 s
what it was sent without one, or never."""


@dataclass(frozen=True, slots=True)
class RetransmitSettings:
    """Limits of one window.

    `window_messages`: unconfirmed messages per queue, at most; it bounds what a crash can repeat.
    `first_window_messages`: where a connection's window starts; it doubles each round trip up to the maximum.
    `backoff_first_s`, `backoff_max_s`: the wait before a refused message is tried again, doubling while the
        queue stays full.
    `one_per_key`: never two unconfirmed messages of one key. It makes an inversion impossible on a broker
        without ordered refusal (RabbitMQ), and costs throughput when few keys carry the load: about one
        message per key and round trip.
    """

    window_messages: int = 256
    first_window_messages: int = 16
    backoff_first_s: float = 0.01
    backoff_max_s: float = 1.0
    one_per_key: bool = False

    def __post_init__(self) -> None:
        for name in ("window_messages", "first_window_messages"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.backoff_first_s <= self.backoff_max_s:
            raise ValueError("0 < backoff_first_s <= backoff_max_s must hold")


class Sendable(Protocol):
    """`accepted`: the broker's answer to the last attempt; None while it is open."""

    key: str | None
    accepted: bool | None
    sends: int


M = TypeVar("M", bound=Sendable)
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Outgoing(Generic[T]):
    """`Sendable` around what has no such fields of its own."""

    item: T
    key: str | None = None
    accepted: bool | None = None
    sends: int = 0


class OpenTags(Generic[T]):
    """Messages of one channel that have no answer yet, by delivery tag. Tags go up."""

    def __init__(self) -> None:
        self._by_tag: dict[int, T] = {}
        self._lowest = 1
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_tag)

    def sent(self, tag: int, message: T) -> None:
        self._by_tag[tag] = message
        self._last = tag

    def sent_next(self, messages: Iterable[T]) -> None:
        """They have the tags after the last one."""
        by_tag, tag = self._by_tag, self._last
        for message in messages:
            tag += 1
            by_tag[tag] = message
        self._last = tag

    def get(self, tag: int) -> T | None:
        return self._by_tag.get(tag)

    def answered(self, tag: int, *, multiple: bool) -> list[T]:
        """Remove and return what a basic.ack or basic.nack from the broker stands for, in the order it was sent.

        A tag that is not open stands for nothing. Tag 0 with `multiple` means all (AMQP 0-9-1, basic.ack).
        """
        by_tag = self._by_tag
        if not multiple:
            message = by_tag.pop(tag, None)
            return [] if message is None else [message]
        last = min(tag, self._last) if tag else self._last
        answered = [
            message
            for each in range(self._lowest, last + 1)
            if (message := by_tag.pop(each, None)) is not None
        ]
        self._lowest = max(self._lowest, last + 1)
        return answered

    def clear(self) -> list[T]:
        """The channel is gone: return what was open. Tags begin at 1 again."""
        unanswered = list(self._by_tag.values())
        self._by_tag.clear()
        self._lowest, self._last = 1, 0
        return unanswered

    @property
    def open(self) -> Iterable[T]:
        return self._by_tag.values()


class WindowState(Enum):
    FLOWING = auto()
    DRAINING = auto()
    BACKOFF = auto()


@dataclass(slots=True)
class QueueWindow(Generic[M]):
    """Messages to one queue, from first to last: `sent` from the oldest on that is not accepted, then `pending`."""

    settings: RetransmitSettings
    queue: int = 0
    state: WindowState = WindowState.FLOWING
    pending: deque[M] = field(default_factory=deque)
    sent: deque[M] = field(default_factory=deque)
    open: int = 0
    open_keys: set[str] = field(default_factory=set)
    window: int = 0
    slow_start_until: int = 0
    refusals_in_a_row: int = 0
    is_full: bool = False  # from a refusal on until the window is back at its start, or all is accepted
    resume_at: float = 0.0
    refused_at: float = 0.0  # the first of the refusals in a row
    awaiting_since: float = 0.0  # when it was last answered, or when the first open message was sent since
    _credit: int = 0

    def __post_init__(self) -> None:
        self.slow_start_until = self.settings.window_messages
        self.restart_window()

    def restart_window(self) -> None:
        self.window = min(self.settings.first_window_messages, self.settings.window_messages)

    def pop_sendable(self, into: list[M], now: float, *, limit: int | None = None) -> None:
        """Move what may be sent now, up to `limit`, from pending to sent, in order, and append it to `into`."""
        if self.state is not WindowState.FLOWING:
            return
        if not self.open:
            self.awaiting_since = now
        pending, room = self.pending, self.window - self.open
        if limit is not None:
            room = min(room, limit)
        one_per_key = self.settings.one_per_key
        while pending and room > 0:
            message = pending[0]
            if one_per_key and message.key is not None:
                if message.key in self.open_keys:
                    return
                self.open_keys.add(message.key)
            pending.popleft()
            message.accepted = None
            message.sends += 1
            self.sent.append(message)
            into.append(message)
            self.open += 1
            room -= 1

    def answered(self, message: M, ok: bool) -> None:
        """The broker's answer to one open message; `settle` follows the last one of a frame."""
        message.accepted = ok
        self.open -= 1
        if message.key is not None:
            self.open_keys.discard(message.key)
        if ok:
            self._grow_window()
            if self.is_full and (
                self.window >= self.settings.first_window_messages or not (self.open or self.pending)
            ):
                self.is_full = False
        else:
            self.state = WindowState.DRAINING

    def withdraw(self, message: M) -> None:
        """One that was taken to be sent is not sent, and never will be."""
        self.sent.remove(message)
        self.open -= 1
        if message.key is not None:
            self.open_keys.discard(message.key)

    def _grow_window(self) -> None:
        """After an accepted message: double per round trip up to half of where it broke, then add one per
        window.

        This is the additive increase of AIMD with the slow start of TCP (RFC 5681, section 3.1): after a
        short burst of refusals the window is soon back, and near a limit that stays it creeps.
        """
        self.refusals_in_a_row = 0
        if self.window >= self.settings.window_messages:
            return
        if self.window < self.slow_start_until:
            self.window += 1
            return
        self._credit += 1
        if self._credit >= self.window:
            self._credit = 0
            self.window += 1

    def settle(self, now: float) -> list[M]:
        """Remove and return the sent messages from the oldest up to the first that is open or refused."""
        self.awaiting_since = now
        sent = self.sent
        accepted = []
        while sent and sent[0].accepted:
            accepted.append(sent.popleft())
        return accepted

    @property
    def is_drained(self) -> bool:
        """Every answer is in that was awaited: `end_round` is due."""
        return not self.open and self.state is WindowState.DRAINING

    def end_round(self, now: float) -> list[M]:
        """No more answers will come: what is not accepted goes back to the front, in order.

        If any was refused the window waits; else it flows. Returns all that was sent from the oldest on that is not
        accepted, with its answers.
        """
        ended = list(self.sent)
        self.pending.extendleft(message for message in reversed(ended) if not message.accepted)
        self.sent.clear()
        self.open_keys.clear()
        self.open = 0
        if any(message.accepted is False for message in ended):
            self._back_off(now)
        elif self.state is WindowState.DRAINING:
            self.state = WindowState.FLOWING
        return ended

    def interrupted(self, now: float) -> list[M]:
        """The channel is gone, and the answers to everything open with it: `end_round`, and begin small."""
        ended = self.end_round(now)
        if self.state is WindowState.FLOWING:
            self.restart_window()
        return ended

    def _back_off(self, now: float) -> None:
        settings = self.settings
        if not self.refusals_in_a_row:
            self.refused_at = now
        self.resume_at = now + doubled_s(
            settings.backoff_first_s, settings.backoff_max_s, self.refusals_in_a_row
        )
        self.refusals_in_a_row += 1
        self.slow_start_until = max(1, self.window // 2)
        self.window = 1
        self._credit = 0
        self.is_full = True
        self.state = WindowState.BACKOFF

    def drain(self) -> None:
        """Send nothing before all that is open has its answer."""
        if self.open:
            self.state = WindowState.DRAINING

    def resume(self) -> None:
        """The wait after a refusal is over."""
        self.state = WindowState.FLOWING

    def excuse_silence(self, now: float) -> None:
        """The broker took no publishes until now (connection.blocked): that it gave no answer means nothing."""
        self.awaiting_since = max(self.awaiting_since, now)

    def silent_s(self, now: float) -> float:
        """Time for which answers have been due without one."""
        return now - self.awaiting_since if self.open else 0.0

    def refusing_s(self, now: float) -> float:
        """Time for which everything was refused and nothing accepted."""
        return now - self.refused_at if self.refusals_in_a_row else 0.0
