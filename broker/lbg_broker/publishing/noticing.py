"""Which queues are told to be full or silent, each once until it takes messages again. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from . import events

SILENT_AFTER_S = 5.0
"""An election of a quorum queue's leader takes a second or two; what lasts longer is worth a line."""


class QueueNotices:
    """`named`: the names on the broker of queues, by their numbers."""

    def __init__(
        self, named: Callable[[Iterable[int]], list[str]], tell: Callable[[events.PublisherEvent], None]
    ) -> None:
        self._named = named
        self._tell = tell
        self._full: set[int] = set()
        self._silent: set[int] = set()

    def full(self, queues: set[int]) -> None:
        if queues != self._full:
            self._changed(self._full, queues, events.QueueFull)
            self._full = set(queues)

    def silent(self, queues: set[int]) -> None:
        if queues != self._silent:
            self._changed(self._silent, queues, lambda name: events.QueueSilent(name, SILENT_AFTER_S))
            self._silent = set(queues)

    def _changed(
        self, before: set[int], now: set[int], begun: Callable[[str], events.PublisherEvent]
    ) -> None:
        names_before, names_now = self._named(before), self._named(now)
        for name in names_now:
            if name not in names_before:
                self._tell(begun(name))
        for name in names_before:
            if name not in names_now:
                self._tell(events.QueueTaking(name))
