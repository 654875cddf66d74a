"""An event loop whose time passes only while nothing is left to do: an hour of waiting takes no time."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable
from typing import Any


class _Jumping(selectors.DefaultSelector):
    passed_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("all tasks wait, and nothing will ever wake them")
        if not ready and timeout is not None and timeout > 0:
            self.passed_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)
        # What is due now is due by this much, which must not be lost in a float of a year's seconds.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jumping.passed_s


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is run on a loop of its own, at the time 0."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
