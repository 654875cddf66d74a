"""The one core of a process: steps one after another, each for as long as it costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from testing.simulation.clock import Clock, Process

Step = tuple[Callable[..., None], tuple[Any, ...]]


class Processor:
    """A step runs when it begins, and what it sends leaves when it has been charged: at `free_at`.

    Timers and what was received take turns, as in an event loop: neither waits for all of the other.
    """

    def __init__(self, clock: Clock, process: Process, *, wakeup_us: float) -> None:
        self.clock = clock
        self.process = process
        self.free_at = 0.0
        self.busy_s = 0.0
        self._wakeup_us = wakeup_us
        self._received: deque[Step] = deque()
        self._timers: deque[Step] = deque()
        self._is_timers_turn = False
        self._is_due = False
        self.turn = 0
        """Of the event loop: what has been received when it begins belongs to it."""
        self._left_in_turn = 0

    @property
    def waiting(self) -> int:
        return len(self._received) + len(self._timers)

    def charge(self, us: float) -> None:
        seconds = us * 1e-6
        self.free_at += seconds
        self.busy_s += seconds

    def do(self, action: Callable[..., None], *arguments: Any) -> None:
        """For what was received."""
        if self._is_due or self.clock.now < self.free_at:
            self._received.append((action, arguments))
            self._continue()
        else:
            self._begin(action, arguments)

    def do_timer(self, action: Callable[..., None], *arguments: Any) -> None:
        if self._is_due or self.clock.now < self.free_at:
            self._timers.append((action, arguments))
            self._continue()
        else:
            self._begin(action, arguments)

    def _begin(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.free_at = self.clock.now
        self.turn += 1
        self._left_in_turn = 0
        self.charge(self._wakeup_us)
        action(*arguments)

    def _continue(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.clock.at(self.free_at, self.process, self._next)

    def _next(self) -> None:
        if self._left_in_turn == 0:
            self.turn += 1
            self._left_in_turn = self.waiting
        self._left_in_turn -= 1
        if self._timers and (self._is_timers_turn or not self._received):
            action, arguments = self._timers.popleft()
            self._is_timers_turn = False
        else:
            action, arguments = self._received.popleft()
            self._is_timers_turn = True
        self.free_at = self.clock.now
        action(*arguments)
        if self._received or self._timers:
            self.clock.at(self.free_at, self.process, self._next)
        else:
            self._is_due = False
