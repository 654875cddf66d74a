"""Deduplication window: events that are on their way or were confirmed lately. Pure; time is an argument.

Events on their way are never forgotten, since a retry has to meet them: who adds bounds their number. Confirmed ones
are forgotten by age, and the oldest first beyond a number.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


class OtherEvent(Exception):
    """The id belongs to an event with another content."""


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """`value` is the caller's. `confirmed_at`: None while the event is on its way."""

    id: bytes
    content: bytes
    value: T
    confirmed_at: float | None = None


class DedupWindow(Generic[T]):
    def __init__(self, *, entries_max: int, seconds: float) -> None:
        self._entries_max = entries_max
        self._seconds = seconds
        self._pending: dict[bytes, Entry[T]] = {}
        self._confirmed: OrderedDict[bytes, Entry[T]] = OrderedDict()

    @property
    def confirmed_count(self) -> int:
        return len(self._confirmed)

    def find(self, id_: bytes, content: bytes, now: float) -> Entry[T] | None:
        """The event of this id, if it is remembered. Raises OtherEvent."""
        self._expire(now)
        entry = self._pending.get(id_) or self._confirmed.get(id_)
        if entry is not None and entry.content != content:
            raise OtherEvent
        return entry

    def add(self, id_: bytes, content: bytes, value: T) -> Entry[T]:
        """Adds an event that `find` did not return, as unconfirmed."""
        entry = self._pending[id_] = Entry(id_, content, value)
        return entry

    def confirm(self, entry: Entry[T], now: float) -> None:
        if self._pending.get(entry.id) is not entry:
            return
        del self._pending[entry.id]
        entry.confirmed_at = now
        self._confirmed[entry.id] = entry
        self._expire(now)

    def forget(self, entry: Entry[T]) -> None:
        """It will not be confirmed: the next event of this id is a new one."""
        if self._pending.get(entry.id) is entry:
            del self._pending[entry.id]

    def _expire(self, now: float) -> None:
        confirmed = self._confirmed
        while confirmed:
            oldest = next(iter(confirmed.values()))
            assert oldest.confirmed_at is not None
            if len(confirmed) <= self._entries_max and now - oldest.confirmed_at <= self._seconds:
                return
            confirmed.popitem(last=False)
