"""Virtual time, processes that freeze and die, and steps that wait for answers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import Any

Step = Generator[Any, Any, None]
"""Yields waits: objects with a method `begin`, which is called with the task that waits."""

EPOCH_S = 1_700_000_000.0
"""Wall time at which each history begins, in seconds since the epoch."""


def wall_us(now: float) -> int:
    return int((EPOCH_S + now) * 1e6)


class Process:
    """Receiver of events. A frozen one (SIGSTOP) gets them when it continues, a dead one never."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen_until = 0.0


class Stopped(Exception):
    """Ends a history: its clock was stopped."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.is_stopped = False
        self._heap: list[tuple[float, int, Process, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, when: float, process: Process, action: Callable[..., None], *arguments: Any) -> None:
        self._number = number = self._number + 1
        heappush(self._heap, (when, number, process, action, arguments))

    def after(self, seconds: float, process: Process, action: Callable[..., None], *arguments: Any) -> None:
        self._number = number = self._number + 1
        heappush(self._heap, (self.now + seconds, number, process, action, arguments))

    def run(self, until: float) -> None:
        """Raises Stopped when an action has stopped the clock."""
        heap, pop = self._heap, heappop
        while heap and heap[0][0] <= until:
            when, _, process, action, arguments = pop(heap)
            if not process.alive:
                continue
            if process.frozen_until > when:
                self.at(process.frozen_until, process, action, *arguments)
                continue
            self.now = when
            action(*arguments)
            if self.is_stopped:
                raise Stopped
        self.now = until


class Sleep:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def begin(self, task: Task) -> None:
        task.clock.after(self._seconds, task.process, task.resume, task.turn, None)


class Task:
    """Runs steps of a process, one after another. `turn` grows with each wait, so that a late answer is recognised."""

    def __init__(self, clock: Clock, process: Process, steps: Step) -> None:
        self.clock = clock
        self.process = process
        self.turn = 0
        self._steps: Step | None = steps
        self.resume(0, None)

    def resume(self, turn: int, answer: Any) -> None:
        if turn != self.turn or self._steps is None:
            return
        self.turn += 1
        try:
            wait = self._steps.throw(answer) if isinstance(answer, Exception) else self._steps.send(answer)
        except StopIteration:
            self._steps = None
        else:
            wait.begin(self)

    def cancel(self) -> None:
        steps, self._steps = self._steps, None
        self.turn += 1
        if steps is not None:
            steps.close()
