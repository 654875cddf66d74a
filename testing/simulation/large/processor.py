"""Processes with one core each: a step takes the time that is charged to it, and what comes meanwhile waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop
from typing import Any

from testing.simulation.clock import Clock, Process


class Processor(Process):
    """`turn` of its event loop: what had come when a turn begins belongs to it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.free_at = self.busy_s = 0.0
        self.turn = 0
        self.left_in_turn = 0
        self.waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()


class ProcessorClock(Clock):
    """A step of a `Processor` begins when the one before it is done. While it runs, `now` has what was charged: what it
    sends leaves then. Steps of several processors run at the same time, so `now` is in order for each alone."""

    def __init__(self) -> None:
        super().__init__()
        self.running: Processor | None = None
        """The process whose step it is; None outside."""
        self._was_idle = False
        self._scheduler = Process("scheduler")

    def charge(self, us: float) -> None:
        """The step that runs takes so many microseconds more."""
        if self.running is not None:
            self.now += us * 1e-6
            self.running.busy_s += us * 1e-6

    def wake(self, us: float) -> None:
        """Charges it to a step that found its process idle, once."""
        if self._was_idle:
            self._was_idle = False
            self.charge(us)

    def run(self, until: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until:
            when, _, process, action, arguments = heappop(heap)
            if not process.alive:
                continue
            if not isinstance(process, Processor):
                self.now = when
                action(*arguments)
            elif process.waiting or when < process.free_at:
                process.waiting.append((action, arguments))
                if len(process.waiting) == 1:
                    self.at(process.free_at, self._scheduler, self._go_on, process)
            else:
                self._was_idle = when > process.free_at
                process.turn += 1
                self._step(process, when, action, arguments)
        self.now = until

    def _go_on(self, process: Processor) -> None:
        if not process.alive:
            return
        if not process.left_in_turn:
            process.turn += 1
            process.left_in_turn = len(process.waiting)
        process.left_in_turn -= 1
        self._step(process, process.free_at, *process.waiting.popleft())
        if process.waiting:
            self.at(process.free_at, self._scheduler, self._go_on, process)

    def _step(
        self, process: Processor, at: float, action: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        self.now, self.running = at, process
        try:
            action(*arguments)
        finally:
            process.free_at, self.running, self._was_idle = self.now, None, False
