"""Snapshots of the set of parked keys in its stream, from which a reader starts in place of the first entry.

An administrator writes a mark, reads it, and writes the set as it was there as a snapshot behind it. Then the group's
record has the place of the mark. A reader from there applies the snapshot first, and what came behind the mark after
it. So it has the set of a reader from the first entry, whatever came in between
(docs/adr/0065-parked-keys-are-a-log.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lbg_core.group.parked_keys import (
    Entry,
    MarkEntry,
    ParkEntry,
    ReleaseEntry,
    SettledEntry,
    SnapshotEntry,
    VoidEntry,
)

FIRST_ENTRY_S = 5.0
"""For the mark to come to a reader. Without it the stream is read from its first entry, which is always right."""

PART_ENTRIES = 100
"""Entries in a part of a snapshot, which is a message of the stream of about 20 kB."""


class SnapshotMissing(ValueError):
    """The stream has no such mark at this place, as after a restore: it is to be read from its first entry."""


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """Place of a mark: `offset` in the stream, and its id."""

    offset: int
    mark: str

    def __str__(self) -> str:
        return f"{self.offset}:{self.mark}"

    @classmethod
    def parse(cls, text: str) -> SnapshotPlace | None:
        """None for a text that is no place."""
        offset, _, mark = text.partition(":")
        return cls(int(offset), mark) if offset.isascii() and offset.isdigit() and mark else None


def parts_of(
    mark: str, snapshot: Iterable[ParkEntry | ReleaseEntry | SettledEntry | VoidEntry]
) -> list[SnapshotEntry]:
    """The entries of a snapshot in parts, of which there is at least one."""
    rest = iter(snapshot)
    parts = list(iter(lambda: tuple(itertools.islice(rest, PART_ENTRIES)), ())) or [()]
    return [SnapshotEntry(mark, part, part is parts[-1]) for part in parts]


class SnapshotReader:
    """Entries of the stream in the order in which they are to be applied. `place`: of the mark from which on it is
    read; None: from the first entry."""

    def __init__(self, place: SnapshotPlace | None) -> None:
        self._place = place
        self._is_complete = place is None
        self._is_marked = False
        self._snapshot: list[Entry] = []
        self._behind: list[Entry] = []

    def read(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yields nothing before the snapshot is complete. Raises SnapshotMissing."""
        for entry in entries:
            if self._is_complete:
                yield entry
            else:
                yield from self._collect(entry)

    def _collect(self, entry: Entry) -> Iterable[Entry]:
        assert self._place is not None
        mark = self._place.mark
        if not self._is_marked:
            if entry != MarkEntry(mark):
                raise SnapshotMissing(f"no snapshot at {self._place}")
            self._is_marked = True
            return ()
        if not isinstance(entry, SnapshotEntry) or entry.mark != mark:
            self._behind.append(entry)
            return ()
        self._snapshot += entry.entries
        if not entry.is_last:
            return ()
        self._is_complete = True
        ordered, self._snapshot, self._behind = [*self._snapshot, *self._behind], [], []
        return ordered
