"""Retransmission of what a member publishes, over one channel after another. Pure.

The window is the publisher's (`lbg_core.client.retransmit`). A message that reaches no queue because no validator
listens yet is sent again like one that was refused. A channel that refuses everything, or has no answers,
is replaced: `doubt` decides when, and `renewed` returns what it did not confirm to the front, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from lbg_core.client.backoff import doubled_s
from lbg_core.client.retransmit import (
    ANSWER_S,
    Outgoing,
    QueueWindow,
    RetransmitSettings,
    WindowState,
)

CHECKS_PER_PATIENCE = 20
"""Number of checks for an alarm in that time: its end is detected soon, and the wait for answers begins there."""

SETTINGS = RetransmitSettings(
    window_messages=1024, first_window_messages=1, backoff_first_s=0.5, backoff_max_s=0.5
)


@dataclass(frozen=True, slots=True)
class RetransmitTimeouts:
    """`answer_s`: without any answer.

    `refused_s`: while everything is refused. RabbitMQ 3.10 refuses for ever on a channel that first published to a
    quorum queue while its leader was down; a queue that is merely full accepts messages again by itself.
    """

    answer_s: float = ANSWER_S
    refused_s: float = 1.0


class Retransmittable(Protocol):
    @property
    def is_over(self) -> bool:
        """True if it need not be published any more."""


Item = TypeVar("Item", bound=Retransmittable)


class Retransmitter(Generic[Item]):
    """Messages to one queue. Times in seconds."""

    def __init__(
        self, *, settings: RetransmitSettings = SETTINGS, patience: RetransmitTimeouts | None = None
    ) -> None:
        self._patience = patience or RetransmitTimeouts()
        self.check_every_s = self._patience.answer_s / CHECKS_PER_PATIENCE
        self._window: QueueWindow[Outgoing[Item]] = QueueWindow(settings)
        self._renewals = 0  # since a channel worked

    def offer(self, item: Item) -> None:
        self._window.pending.append(Outgoing(item))

    def next_to_send(self, now: float) -> Outgoing[Item] | None:
        """The message to publish now, if any. Skips messages that cannot be acknowledged any more."""
        window = self._window
        if window.state is WindowState.BACKOFF and window.resume_at <= now:
            window.resume()
        while True:
            sendable: list[Outgoing[Item]] = []
            window.pop_sendable(sendable, now, limit=1)
            if not sendable:
                return None
            (message,) = sendable
            if not message.item.is_over:
                return message
            window.withdraw(message)

    def withdraw(self, message: Outgoing[Item]) -> None:
        """The message is not published."""
        self._window.withdraw(message)

    def answered(
        self, message: Outgoing[Item], now: float, *, ok: bool, returned: bool = False
    ) -> Item | None:
        """The broker's answer; `returned`: it reached no queue. Returns the message if a queue has it, for good."""
        window = self._window
        is_accepted = ok and not returned
        window.answered(message, is_accepted)
        window.settle(now)
        if window.is_drained:
            window.end_round(now)
        if ok:
            self._renewals = 0
            window.refusals_in_a_row = 0
        return message.item if is_accepted else None

    def blocked(self, now: float) -> None:
        """The broker reads no publishes for now (connection.blocked): no answer speaks against the channel."""
        self._window.excuse_silence(now)

    def doubt(self, now: float) -> str | None:
        """Reason for trying a new channel, if there is one."""
        window, patience = self._window, self._patience
        if window.open:
            is_silent = window.silent_s(now) >= patience.answer_s
            return f"has no answer after {patience.answer_s:g} s" if is_silent else None
        if not window.pending or not window.refusals_in_a_row:
            return None
        refused_s = window.refusing_s(now)
        if refused_s < doubled_s(patience.refused_s, patience.answer_s, self._renewals):
            return None
        return f"has been refused for {refused_s:.1f} s"

    def renewed(self, now: float) -> None:
        """Continues on a new channel; the former one has no more answers.

        A new channel whose publishes are refused, too, is used for twice as long: then the queue is full.
        """
        window = self._window
        if window.refusals_in_a_row:
            self._renewals += 1
        window.interrupted(now)
        window.resume()
        window.refusals_in_a_row = 0

    @property
    def waits(self) -> bool:
        """Something is open, or waits to be sent."""
        return bool(self._window.open or self._window.pending)

    @property
    def next_due(self) -> float | None:
        """Time at which refused messages may be sent again; None if none were refused."""
        return self._window.resume_at if self._window.state is WindowState.BACKOFF else None
