"""Whether a member is in its group, since when, and what was wrong last: for whoever looks at it from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime


class Contact:
    """`advise` makes the text of an error, with what to do about it; `wall_s` gives seconds since 1970.

    An error stays until the member is in the group again: while it tries to get there, the last one counts.
    """

    def __init__(
        self, *, advise: Callable[[Exception], str] = str, wall_s: Callable[[], float] = time.time
    ) -> None:
        self.is_joined = False
        self.error = ""
        self._advise = advise
        self._wall_s = wall_s
        self._since_s = wall_s()

    def joined(self) -> None:
        self._turn(True)
        self.error = ""

    def parted(self, why: str) -> None:
        """`why` is empty where nothing is wrong."""
        self._turn(False)
        self.error = why

    def failed(self, error: Exception) -> str:
        """An attempt to get into the group; returns the line that says so."""
        self._turn(False)
        self.error = self._advise(error)
        return self.error

    @property
    def since(self) -> str:
        """UTC, as in RFC 3339."""
        return datetime.fromtimestamp(self._since_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    def describe(self) -> dict[str, object]:
        return {"joined": self.is_joined, "since": self.since, "last_error": self.error or None}

    def _turn(self, is_joined: bool) -> None:
        if is_joined is not self.is_joined:
            self.is_joined = is_joined
            self._since_s = self._wall_s()
