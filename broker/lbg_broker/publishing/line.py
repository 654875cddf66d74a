"""The messages of one queue, in their order: those sent and those still to send.

    FLOWING --a refusal, or a barrier sent for another queue--> DRAINING    send nothing; await every open
    answer DRAINING --all answered, none refused--> FLOWING DRAINING --all answered, some refused--> HELD
    the refused wait first in line HELD --the wait is over, a barrier is sent--> FLOWING
    with a window of 1

No clock and no I/O here: `ordering` drives it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from .message import Stamped
from .settings import PublishingSettings


class LineState(Enum):
    FLOWING = auto()
    DRAINING = auto()
    HELD = auto()


@dataclass(slots=True)
class Round:
    """How a round of answers ended.

    `accepted` were accepted with nothing of their hash missing before them; `behind` were accepted while an
    earlier message of their hash goes back to be sent again. Of those, `after_gap` counts the ones whose
    earlier message is known to be refused, and `inverted` the ones of the refused message's own key.
    `unknown` were never answered.
    """

    accepted: list[Stamped] = field(default_factory=list)
    behind: list[Stamped] = field(default_factory=list)
    unknown: list[Stamped] = field(default_factory=list)
    refused: int = 0
    after_gap: int = 0
    inverted: int = 0


@dataclass(slots=True)
class Line:
    """`sent` holds what was sent from the oldest message on that is not accepted yet, answered or not."""

    queue: int
    settings: PublishingSettings
    state: LineState = LineState.FLOWING
    pending: deque[Stamped] = field(default_factory=deque)
    sent: deque[Stamped] = field(default_factory=deque)
    open: int = 0
    open_keys: set[str] = field(default_factory=set)
    window: int = 0
    slow_start_until: int = 0
    refusals_in_a_row: int = 0
    is_full: bool = False  # from a refusal on until the window is back at its start, or all is accepted
    resume_at: float = 0.0
    refused_at: float = 0.0  # the first of the refusals in a row
    asked_at: float = 0.0  # when it was last answered, or when the first open message was sent since
    _credit: int = 0

    def __post_init__(self) -> None:
        self.slow_start_until = self.settings.window_messages
        self.restart_window()

    def restart_window(self) -> None:
        self.window = min(self.settings.first_window_messages, self.settings.window_messages)

    def grow_window(self) -> None:
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

    def take_sendable(self, into: list[Stamped]) -> None:
        """Move what may be sent now from pending to sent, in order, and append it to `into`."""
        pending, room = self.pending, self.window - self.open
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

    def answered(self, message: Stamped, ok: bool) -> None:
        message.accepted = ok
        self.open -= 1
        if message.key is not None:
            self.open_keys.discard(message.key)
        if ok:
            self.grow_window()
            if self.is_full and (
                self.window >= self.settings.first_window_messages or not (self.open or self.pending)
            ):
                self.is_full = False
        else:
            self.state = LineState.DRAINING

    def take_accepted(self) -> list[Stamped]:
        """Remove and return the sent messages from the oldest up to the first that is open or refused."""
        sent = self.sent
        accepted = []
        while sent and sent[0].accepted:
            accepted.append(sent.popleft())
        return accepted

    def end_round(self, now: float, *, unknown_is_gap: bool = True) -> Round:
        """No more answers will come: what is not accepted goes back to the front, in order.

        If any was refused the line waits; else it flows. An unanswered message (its connection was lost) may
        have been refused; `unknown_is_gap` False says that the broker would then not have accepted a later
        one.
        """
        ended = Round()
        missing: set[int] = set()
        gaps: set[int] = set()
        gap_keys: set[str | None] = set()
        back = []
        for message in self.sent:
            hash_ = message.hash
            if message.accepted:
                if hash_ not in missing:
                    ended.accepted.append(message)
                    continue
                ended.behind.append(message)
                ended.after_gap += hash_ in gaps
                message.inverted = message.key in gap_keys
                ended.inverted += message.inverted
                continue
            back.append(message)
            missing.add(hash_)
            if message.accepted is None:
                ended.unknown.append(message)
            else:
                ended.refused += 1
            if unknown_is_gap or message.accepted is False:
                gaps.add(hash_)
                if message.key is not None:
                    gap_keys.add(message.key)
        self.pending.extendleft(reversed(back))
        self.sent.clear()
        self.open_keys.clear()
        self.open = 0
        if ended.refused:
            self._hold(now)
        elif self.state is LineState.DRAINING:
            self.state = LineState.FLOWING
        return ended

    def _hold(self, now: float) -> None:
        settings = self.settings
        if not self.refusals_in_a_row:
            self.refused_at = now
        doublings = min(self.refusals_in_a_row, 32)
        self.refusals_in_a_row += 1
        self.resume_at = now + min(settings.backoff_first_s * 2**doublings, settings.backoff_max_s)
        self.slow_start_until = max(1, self.window // 2)
        self.window = 1
        self._credit = 0
        self.is_full = True
        self.state = LineState.HELD
