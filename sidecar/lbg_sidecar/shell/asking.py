"""Asking the application anew how far its session is, once nothing of what it was given runs any more: a call that was
aborted may commit until it has ended."""

from __future__ import annotations

from collections.abc import Callable

from ..app import AppChannel, ask_again

WHY = "it is asked anew how far its session is"


class Asking:
    """`running`: whether calls run; `ready` tells whether the application counts as ready."""

    def __init__(
        self, app: AppChannel, running: Callable[[], bool], ready: Callable[[bool, str], None]
    ) -> None:
        self._app = app
        self._running = running
        self._ready = ready
        self._is_due = False

    def start(self) -> None:
        """It is not ready from here on."""
        self._is_due = True
        self._ready(False, WHY)
        self.look()

    def look(self) -> None:
        """A call may have ended."""
        if self._is_due and not self._running():
            self._is_due = False
            if not ask_again(self._app):
                self._ready(True, "")
