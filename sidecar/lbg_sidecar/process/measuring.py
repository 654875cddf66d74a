"""What is measured as it happens: told of every effect of the member, it keeps histograms and counts."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..consuming.held import Outcome
from ..effects import Done, Effect, Kept, Moved, TakenOver
from .histogram import Histogram

PAUSE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0)
"""A planned move takes 2 to 6 ms (DESIGN.md, "RabbitMQ facts"), a drain up to max_handoff_s (3 s)."""

CALL_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
"""From a call over a unix socket to the call timeout."""

AGE_S = (0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 3600.0)
"""From a message that nothing held up to a backlog of an hour."""


class Measures:
    """`now` is the event loop's clock, `wall` the time since the epoch that publishers stamp messages with."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float] = time.time) -> None:
        self.pause_s = Histogram(PAUSE_S)
        self.call_s = Histogram(CALL_S)
        self.age_s = Histogram(AGE_S)
        self.moved_away = 0
        self.taken_over = 0
        self.kept = 0
        self._now = now
        self._wall = wall

    def observe(self, effect: Effect) -> None:
        match effect:
            case Done():
                self._done(effect)
            case TakenOver():
                self.taken_over += 1
                if effect.pause_s is not None:
                    self.pause_s.observe(effect.pause_s)
            case Moved():
                self.moved_away += 1
            case Kept():
                self.kept += 1
            case _:
                pass

    def epoch_s(self, at: float) -> float:
        """A time of the event loop's clock in seconds since the epoch."""
        return at + self._wall() - self._now()

    def _done(self, done: Done) -> None:
        epoch_s = self.epoch_s(0.0)
        for held in done.deliveries:
            if held.finished_at is None or held.outcome not in (Outcome.ACK, Outcome.DEAD):
                continue
            if held.calls:
                self.call_s.observe(held.finished_at - held.started_at)
            if held.published_at_us:
                # Clocks of two machines: a publisher's may be ahead.
                self.age_s.observe(max(0.0, held.finished_at + epoch_s - held.published_at_us / 1e6))
