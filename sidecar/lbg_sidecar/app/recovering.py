"""Whether a command that may die counts as ready: not while it keeps dying."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

UP_S = 1.0
"""A command that has lived this long, or has answered, is up again."""


class Recovering:
    """`tell` is called with False when the command has been down for `down_grace_s`, and with True when it is up again
    after that; never twice with the same."""

    def __init__(self, down_grace_s: float, tell: Callable[[bool], None]) -> None:
        self._down_grace_s = down_grace_s
        self._tell = tell
        self._is_ready = True
        self._up: asyncio.TimerHandle | None = None
        self._down: asyncio.TimerHandle | None = None

    def started(self) -> None:
        self._up = asyncio.get_running_loop().call_later(UP_S, self.proved)

    def ended(self) -> None:
        """This life of the command is over."""
        if self._up is not None:
            self._up.cancel()

    def failed(self) -> None:
        """It ended of itself. Counted from the first time since it was up."""
        if self._down is None:
            loop = asyncio.get_running_loop()
            self._down = loop.call_later(self._down_grace_s, self._stays_down)

    def proved(self) -> None:
        """It has lived long enough, or answered."""
        self.stop()
        if not self._is_ready:
            self._is_ready = True
            self._tell(True)

    def stop(self) -> None:
        """It is not found to be down any more."""
        if self._down is not None:
            self._down.cancel()
            self._down = None

    def _stays_down(self) -> None:
        self._is_ready = False
        self._tell(False)
