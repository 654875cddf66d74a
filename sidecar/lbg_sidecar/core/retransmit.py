"""Republishing in order, with a confirm for each message and many on the way. Pure.

Pure. A message that the broker refuses, or that reaches no queue because no validator listens yet, must not be
overtaken by a later one: what is on the way is awaited, then the rest goes out again from the first one refused,
one message at a time until one succeeds.

A channel that refuses everything, or owes an answer for too long, is replaced: `doubt` says when, `renewed` puts what
it did not confirm back to the front, in order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from operator import itemgetter

from lbg_sidecar.core.delivery import InFlight

LOOKS_PER_PATIENCE = 20
"""So often an alarm is looked for meanwhile: its end is noticed soon, and waiting for answers begins there."""


@dataclass(frozen=True, slots=True)
class RetransmitTimeouts:
    """`answer_s`: without any answer. A quorum queue that has its majority back answers within 15 s what it was
    sent without one, or never.

    `refused_s`: while everything is refused. RabbitMQ 3.10 refuses for ever on a channel that first published to a
    quorum queue while its leader was down; a queue that is merely full takes messages again by itself, so this is
    also the wait before a refused dead letter is tried again.
    """

    answer_s: float = 20.0
    refused_s: float = 1.0


class Retransmitter:
    """`tag` is the confirm's number for a publish. Times in seconds."""

    def __init__(
        self, *, window: int = 1024, pause_s: float = 0.5, patience: RetransmitTimeouts | None = None
    ) -> None:
        self._window = window
        self._pause_s = pause_s
        self._patience = patience or RetransmitTimeouts()
        self._waiting: deque[InFlight] = deque()
        self._on_the_way: dict[int, InFlight] = {}
        self._sent_at: dict[int, float] = {}
        self._refused: dict[int, InFlight] = {}
        self._refused_since: float | None = None
        self._refused_patience_s = self._patience.refused_s
        self._blocked_at = float("-inf")
        self._proven = False  # the last one succeeded, so many may be on the way
        self._not_before = 0.0

    def offer(self, held: InFlight) -> None:
        self._waiting.append(held)

    def next_to_send(self, now: float) -> InFlight | None:
        """The message to publish now, if any; then say so with `sent`. Skips what nobody can acknowledge any more."""
        if self._refused or now < self._not_before:
            return None
        if len(self._on_the_way) >= (self._window if self._proven else 1):
            return None
        while self._waiting:
            held = self._waiting.popleft()
            if not held.is_over:
                return held
        return None

    def sent(self, tag: int, held: InFlight, now: float) -> None:
        self._on_the_way[tag] = held
        self._sent_at[tag] = now

    def resolved(self, tag: int, now: float, *, ok: bool, returned: bool = False) -> InFlight | None:
        """The fate of one publish; `returned`: it reached no queue. Returns the message if a queue has it, for good."""
        held = self._on_the_way.pop(tag, None)
        if held is None:
            return None
        del self._sent_at[tag]
        if ok:
            self._refused_since = None
            self._refused_patience_s = self._patience.refused_s
        elif self._refused_since is None:
            self._refused_since = now
        taken = ok and not returned
        if not taken:
            self._refused[tag] = held
            self._proven = False
        elif not self._refused:
            self._proven = True
        if self._refused and not self._on_the_way:
            self._put_back()
            self._not_before = now + self._pause_s
        return held if taken else None

    def up_to(self, tag: int) -> list[int]:
        """The publishes that a confirm with `multiple` stands for."""
        return list(takewhile(lambda sent: sent <= tag, self._on_the_way))

    def blocked(self, now: float) -> None:
        """The broker reads no publishes for now (connection.blocked): no answer speaks against the channel."""
        self._blocked_at = now

    def doubt(self, now: float) -> str | None:
        """Reason for trying a new channel, if there is one."""
        oldest = next(iter(self._on_the_way), None)
        if oldest is not None:
            unanswered_since = max(self._sent_at[oldest], self._blocked_at)
            if now - unanswered_since >= self._patience.answer_s:
                return f"has no answer after {self._patience.answer_s:g} s"
            return None
        if self._refused_since is None or not self._waiting:
            return None
        refused_s = now - self._refused_since
        return f"has been refused for {refused_s:.1f} s" if refused_s >= self._refused_patience_s else None

    def renewed(self, now: float) -> None:
        """There is a new channel, and no answers come over the one before it any more. Tags may begin anew.

        One that is refused all the same is kept for twice as long as the one before: then the queue is full.
        """
        if self._refused_since is not None:
            self._refused_since = None
            self._refused_patience_s = min(2 * self._refused_patience_s, self._patience.answer_s)
        self._refused |= self._on_the_way
        self._on_the_way.clear()
        self._sent_at.clear()
        self._put_back()
        self._proven = False
        self._not_before = now

    def _put_back(self) -> None:
        refused = sorted(self._refused.items(), key=itemgetter(0), reverse=True)
        self._waiting.extendleft(held for _, held in refused)
        self._refused.clear()

    def lost(self) -> None:
        """The connection is gone. Whatever was not confirmed is delivered again, to us or to another."""
        self._waiting.clear()
        self._on_the_way.clear()
        self._sent_at.clear()
        self._refused.clear()
        self._refused_since = None
        self._proven = False

    @property
    def awaits_answers(self) -> bool:
        return bool(self._on_the_way)

    @property
    def next_due(self) -> float | None:
        return self._not_before if self._waiting and not self._refused else None

    @property
    def stuck(self) -> bool:
        """Nothing gets through at the moment."""
        return not self._proven and bool(self._waiting or self._refused)
