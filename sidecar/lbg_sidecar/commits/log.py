"""The file of what one member processed, mapped into memory: a write is a copy, and the kernel keeps it.

It survives the death of the process at any instruction. It is not synced: after a power loss older records may be
found, which lets repeats through. See docs/exactly-once.md.

A write takes 1.7 us for a stream without holes and 4.9 us for one with four runs, on two cores with other work on them
(CPython 3.11)::

    python -m timeit -s 'from lbg_sidecar.commits import CommitLog; from lbg_broker.group import SequenceSet
    log = CommitLog("/tmp/timed.commits"); numbers = SequenceSet([(0, 9)])' 'log.write("p", 1, numbers)'
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import mmap
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lbg_broker.group import SequenceSet

from ..consuming.positions import StreamRuns
from . import layout
from .errors import CommitsError

log = logging.getLogger("lbg.member")

GROW_SLOTS = 256


@dataclass(slots=True)
class _Slot:
    at: int
    name: bytes
    generation: int = 0


class CommitLog:
    """An open and locked commit log. `streams_max` streams take 1 KiB each; the one that was idle for longest gives way
    first, and before it those of them that were not written since the file was opened.

    Raises CommitsError for a file that is in use, of a newer version, or cannot be made.
    """

    def __init__(self, path: Path | str, *, streams_max: int = 65_536) -> None:
        self.path = Path(path)
        self._streams_max = streams_max
        self._slots: OrderedDict[tuple[str, int], _Slot] = OrderedDict()
        self._found: list[StreamRuns] = []
        self._is_disk_full = False
        try:
            self._descriptor = self._opened()
        except OSError as error:
            raise CommitsError(
                f"commit log {self.path} cannot be used: {error.strerror or error}; name another directory, or none"
            ) from error
        try:
            self._map = mmap.mmap(self._descriptor, 0)
            self._load()
        except BaseException:
            os.close(self._descriptor)
            raise

    def streams(self) -> tuple[StreamRuns, ...]:
        """What the file said when it was opened."""
        return tuple(self._found)

    def write(self, publisher: str, hash_: int, numbers: SequenceSet) -> None:
        """These numbers of the stream were processed. When it returns, kill -9 does not undo it."""
        slot = self._slots.get((publisher, hash_))
        if slot is None:
            slot = self._open_slot(publisher, hash_)
            if slot is None:
                return
        else:
            self._slots.move_to_end((publisher, hash_))
        slot.generation += 1
        record = layout.packed_record(slot.name, slot.generation, numbers)
        at = slot.at + layout.NAME_BYTES + slot.generation % 2 * layout.RECORD_BYTES
        self._map[at : at + len(record)] = record

    def close(self) -> None:
        if self._descriptor >= 0:
            self._map.close()
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Opening

    def _opened(self) -> int:
        """A descriptor of a locked file with a good head."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._lock(descriptor)
                if self._is_ours(descriptor) and self._has_head(descriptor):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommitsError(
                f"commit log {self.path} is in use by another process: give each member a name of its own"
            ) from None

    def _is_ours(self, descriptor: int) -> bool:
        """Whether the path still leads to what was opened: who had it before may have set it aside."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _has_head(self, descriptor: int) -> bool:
        size = os.fstat(descriptor).st_size
        if size == 0:
            self._grow(descriptor, layout.SLOTS_AT)
            os.pwrite(descriptor, layout.packed_head(), 0)
            return True
        head = os.pread(descriptor, layout.HEAD_BYTES, 0)
        version = layout.version_of(head)
        if version is not None and version > layout.VERSION:
            raise CommitsError(
                f"commit log {self.path} is of version {version}, and this member knows {layout.VERSION}: run the "
                "newer member again, or move the file away, which only lets repeats through"
            )
        if version is not None and size >= layout.SLOTS_AT:
            return True
        aside = next(
            path
            for number in itertools.count(1)
            if not (path := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists()
        )
        os.rename(self.path, aside)
        log.warning(
            "commit log %s is damaged: set aside as %s; what it knew may be processed again",
            self.path,
            aside.name,
        )
        return False

    def _load(self) -> None:
        found = []
        for at in range(layout.SLOTS_AT, len(self._map) - layout.SLOT_BYTES + 1, layout.SLOT_BYTES):
            slot = self._map[at : at + layout.SLOT_BYTES]
            named = layout.unpacked_name(slot)
            if named is not None:
                name, opened, hash_, publisher = named
                found.append((opened, publisher, hash_, _Slot(at, name), slot[layout.NAME_BYTES :]))
        found.sort(key=lambda entry: entry[0])
        for _, publisher, hash_, known, records in found:
            self._slots[publisher, hash_] = known
            read = [
                layout.unpacked_record(known.name, records[: layout.RECORD_BYTES]),
                layout.unpacked_record(known.name, records[layout.RECORD_BYTES :]),
            ]
            valid = [record for record in read if record is not None]
            if valid:
                known.generation, numbers = max(valid, key=lambda record: record[0])
                self._found.append((publisher, hash_, tuple(numbers.runs())))
        self._opened_last = found[-1][0] if found else 0
        taken = {known.at for known in self._slots.values()}
        slots_end = len(self._map) - layout.SLOT_BYTES + 1
        self._free = [at for at in range(layout.SLOTS_AT, slots_end, layout.SLOT_BYTES) if at not in taken]

    # Slots

    def _open_slot(self, publisher: str, hash_: int) -> _Slot | None:
        encoded = publisher.encode()
        if len(encoded) > layout.NAME_MAX:
            return None  # no publisher of ours has such a name
        at = self._room()
        if at is None:
            return None
        self._opened_last += 1
        name = layout.packed_name(self._opened_last, hash_, encoded)
        # Emptied before it is named: whatever is cut short here is a slot that says nothing.
        self._map[at : at + layout.SLOT_BYTES] = bytes(layout.SLOT_BYTES)
        self._map[at : at + len(name)] = name
        slot = self._slots[publisher, hash_] = _Slot(at, name)
        return slot

    def _room(self) -> int | None:
        if len(self._slots) < self._streams_max:
            if not self._free:
                self._add_slots()
            if self._free:
                return self._free.pop()
        if not self._slots:
            return None
        return self._slots.popitem(last=False)[1].at

    def _add_slots(self) -> None:
        size = len(self._map)
        grown = size + GROW_SLOTS * layout.SLOT_BYTES
        try:
            self._grow(self._descriptor, grown)
            self._map.resize(grown)
        except OSError as error:
            if not self._is_disk_full:
                self._is_disk_full = True
                log.warning(
                    "commit log %s cannot grow: %s; until it can, it forgets its oldest streams, which lets repeats "
                    "through: make room on its disk",
                    *(self.path, error.strerror or error),
                )
            return
        if self._is_disk_full:
            self._is_disk_full = False
            log.info("commit log %s grows again", self.path)
        self._free = list(range(size, grown - layout.SLOT_BYTES + 1, layout.SLOT_BYTES))

    def _grow(self, descriptor: int, size: int) -> None:
        """With its space: a full disk is met here, and not as SIGBUS in the middle of a write."""
        os.posix_fallocate(descriptor, 0, size)
