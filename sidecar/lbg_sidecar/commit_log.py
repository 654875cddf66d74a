"""Files of what a member has processed: commit log and session position, mapped into memory.

The commit log:

    0      head     magic, version, CRC-32
    4096   slot 0   a name and two records, 1024 bytes
    5120   slot 1   …

A slot is one stream. Its name is written once: CRC-32, when the stream was opened (a number that rises), hash,
publisher. Its records are written in turn: the valid one with the higher generation counts, so a record torn by
kill -9 leaves the one before it. A record's CRC-32 covers the slot's name too, so that a record never counts for
another stream, even if a power loss left one page of a slot and not the other. Numbers are little-endian.

It survives the death of the process at any instruction. It is not synced: after a power loss older records may be
found, which lets repeats through. See docs/exactly-once.md.

A write takes 1.7 us for a stream without holes and 4.9 us for one with four runs, on two cores with other work on them
(CPython 3.11)::

    python -m timeit -s 'from lbg_sidecar.commit_log import CommitLog; from lbg_core.group import SequenceSet
    log = CommitLog("/tmp/timed.commits"); numbers = SequenceSet([(0, 9)])' 'log.write("p", 1, numbers)'

The session position:

    0    head       magic, version, CRC-32
    64   record 0   CRC-32, generation, last committed sequence number, 1 if that was the End-of-Session, else 0; the
                    broker's epoch in which it was given, filled up with zeros
    128  record 1   the same

The records are written in turn, and the valid one with the higher generation counts: kill -9 at any instruction leaves
this number or the one before. Their CRC-32 covers the names of group and session as well, so the file of one session
never counts for another. Numbers are little-endian.

It survives the death of the process. It is not synced: after a power loss an older number may be found. See
docs/exactly-once.md.

A file of the process's place: a pod that starts elsewhere without the volume has no positions. What is forgotten,
damaged or never written lets a repeat through; nothing counts as processed that was not.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import os
import struct
import tempfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from zlib import crc32

from lbg_core.forks import lock, own_map
from lbg_core.group import SequenceSet
from lbg_core.group.sequences import StreamRuns
from lbg_core.private_files import (
    allocate,
    is_same_file,
    make_private_directory,
    open_private,
    report_wide,
)
from lbg_sidecar.errors import MemberError


class CommitsError(MemberError):
    pass


log = logging.getLogger("lbg.member")

VERSION = 1
_CRC = struct.Struct("<I")


def packed_head(magic: bytes, version: int = VERSION) -> bytes:
    head = magic + version.to_bytes(4, "little")
    return head + _CRC.pack(crc32(head))


def version_of(stored: bytes, magic: bytes) -> int | None:
    """None if this is no file with this magic, or its head is damaged."""
    version = int.from_bytes(stored[len(magic) :][:4], "little")
    return version if stored.startswith(packed_head(magic, version)) else None


class _StoredFile(ABC):
    """An open, locked and mapped file whose head is good. Raises CommitsError for a file that is in use, of a newer
    version, or cannot be made; one that is damaged is set aside, and a new one takes its place.

    `kind`: its name for people. `size_bytes`: of a new file. `if_moved`, `if_damaged`: what a file that is moved away
    by hand, and one that is set aside, means for the messages.
    """

    kind: ClassVar[str]
    magic: ClassVar[bytes]
    size_bytes: ClassVar[int]
    if_moved: ClassVar[str]
    if_damaged: ClassVar[str]

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self._descriptor = self._opened()
            try:
                self._map = mmap.mmap(self._descriptor, 0)
                own_map(self._map)
                self._load()
            except BaseException:
                os.close(self._descriptor)
                raise
        except OSError as error:
            raise CommitsError(
                f"{self.kind} {self.path} cannot be used: {error.strerror or error}; name another directory, or none"
            ) from error

    def close(self) -> None:
        if self._descriptor >= 0:
            self._map.close()
            os.close(self._descriptor)
            self._descriptor = -1

    @abstractmethod
    def _load(self) -> None:
        """Reads the map."""

    def _is_sound(self, stored: bytes) -> bool:
        """True if the file behind a good head can be used; one that is shorter than `size_bytes` is extended then."""
        return len(stored) == self.size_bytes

    def _opened(self) -> int:
        make_private_directory(self.path.parent)
        while True:
            descriptor = open_private(self.path, os.O_RDWR | os.O_CREAT)
            try:
                if not lock(descriptor):
                    raise CommitsError(
                        f"{self.kind} {self.path} is in use by another process: give each member a name of its own"
                    )
                # Another process may have set it aside before it was locked here.
                if is_same_file(descriptor, self.path) and self._is_usable(descriptor):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _is_usable(self, descriptor: int) -> bool:
        """False: it is set aside."""
        stored = os.pread(descriptor, self.size_bytes, 0)
        if not any(stored) and os.fstat(descriptor).st_size <= self.size_bytes:
            # With its space: a full disk is met here, and not as SIGBUS in the middle of a write.
            allocate(descriptor, 0, self.size_bytes)
            os.pwrite(descriptor, packed_head(self.magic), 0)
            return True
        version = version_of(stored, self.magic)
        if version is not None and version > VERSION:
            raise CommitsError(
                f"{self.kind} {self.path} is of version {version}, and this member reads version {VERSION}: upgrade "
                f"this member, or move the file away{self.if_moved}"
            )
        if version == VERSION and self._is_sound(stored):
            if len(stored) < self.size_bytes:
                allocate(descriptor, 0, self.size_bytes)
            return True
        aside = next(
            path
            for number in itertools.count(1)
            if not (path := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists()
        )
        os.rename(self.path, aside)
        log.warning("%s %s is %s", self.kind, self.path, self.if_damaged.format(aside=aside.name))
        return False


SLOTS_AT = 4096
SLOT_BYTES = 1024
RECORD_BYTES = 352
RUNS_MAX = 20
"""Runs above the floor that a record holds; the lowest are left out when there are more."""

_NAME = struct.Struct("<QQB")
_RECORD = struct.Struct("<QqI")
_RUNS = [struct.Struct(f"<{2 * count}q") for count in range(RUNS_MAX + 1)]

NAME_BYTES = SLOT_BYTES - 2 * RECORD_BYTES
NAME_MAX = 255  # of a publisher, in bytes: what AMQP's short strings hold


def packed_name(opened: int, hash_: int, publisher: bytes) -> bytes:
    content = _NAME.pack(opened, hash_, len(publisher)) + publisher
    return _CRC.pack(crc32(content)) + content


def unpacked_name(slot: bytes) -> tuple[bytes, int, int, str] | None:
    """Its bytes, when it was opened, hash and publisher; None for a slot without a valid name."""
    opened, hash_, length = _NAME.unpack_from(slot, _CRC.size)
    end = _CRC.size + _NAME.size + length
    content = slot[_CRC.size : end]
    if slot[: _CRC.size] != _CRC.pack(crc32(content)):
        return None
    try:
        return slot[:end], opened, hash_, content[_NAME.size :].decode()
    except UnicodeDecodeError:
        return None


def packed_record(name: bytes, generation: int, numbers: SequenceSet) -> bytes:
    runs = numbers.runs() if numbers.sparse_count else []
    if runs and runs[0][0] == 0:
        del runs[0]  # the floor's own
    del runs[:-RUNS_MAX]
    content = _RECORD.pack(generation, numbers.floor, len(runs))
    if runs:
        content += _RUNS[len(runs)].pack(*(end for run in runs for end in run))
    return _CRC.pack(crc32(content, crc32(name))) + content


def unpacked_record(name: bytes, record: bytes) -> tuple[int, SequenceSet] | None:
    """Generation and numbers; None for one that was never written, is torn, or belongs to another name."""
    generation, floor, count = _RECORD.unpack_from(record, _CRC.size)
    if count > RUNS_MAX:
        return None
    end = _CRC.size + _RECORD.size + _RUNS[count].size
    if record[: _CRC.size] != _CRC.pack(crc32(record[_CRC.size : end], crc32(name))):
        return None
    ends: Sequence[int] = _RUNS[count].unpack_from(record, _CRC.size + _RECORD.size)
    numbers = SequenceSet([(0, floor)] if floor >= 0 else [])
    for first, last in zip(ends[::2], ends[1::2], strict=True):
        numbers.add_run(first, last)
    return generation, numbers


GROW_SLOTS = 256


@dataclass(slots=True)
class _Slot:
    at: int
    name: bytes
    generation: int = 0


class CommitLog(_StoredFile):
    """A commit log. `streams_max` streams take 1 KiB each; the one that was idle for longest gives way first, and
    before it those of them that were not written since the file was opened."""

    kind = "commit log"
    magic = b"LBG commits\n"
    size_bytes = SLOTS_AT
    if_moved = ", which only lets repeats through"
    if_damaged = "damaged: set aside as {aside}; its messages may be processed again"

    def __init__(self, path: Path | str, *, streams_max: int = 65_536) -> None:
        self._streams_max = streams_max
        self._slots: OrderedDict[tuple[str, int], _Slot] = OrderedDict()
        self._loaded: list[StreamRuns] = []
        self._is_disk_full = False
        super().__init__(path)

    def streams(self) -> tuple[StreamRuns, ...]:
        """Contents of the file when it was opened."""
        return tuple(self._loaded)

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
        record = packed_record(slot.name, slot.generation, numbers)
        at = slot.at + NAME_BYTES + slot.generation % 2 * RECORD_BYTES
        self._map[at : at + len(record)] = record

    def _load(self) -> None:
        entries = []
        for at in range(SLOTS_AT, len(self._map) - SLOT_BYTES + 1, SLOT_BYTES):
            slot_bytes = self._map[at : at + SLOT_BYTES]
            named = unpacked_name(slot_bytes)
            if named is not None:
                name, opened, hash_, publisher = named
                entries.append((opened, publisher, hash_, _Slot(at, name), slot_bytes[NAME_BYTES:]))
        entries.sort(key=lambda entry: entry[0])
        for _, publisher, hash_, slot, records in entries:
            self._slots[publisher, hash_] = slot
            unpacked = [
                unpacked_record(slot.name, records[:RECORD_BYTES]),
                unpacked_record(slot.name, records[RECORD_BYTES:]),
            ]
            valid = [record for record in unpacked if record is not None]
            if valid:
                slot.generation, numbers = max(valid, key=lambda record: record[0])
                self._loaded.append((publisher, hash_, tuple(numbers.runs())))
        self._opened_last = entries[-1][0] if entries else 0
        used = {slot.at for slot in self._slots.values()}
        slots_end = len(self._map) - SLOT_BYTES + 1
        self._free = [at for at in range(SLOTS_AT, slots_end, SLOT_BYTES) if at not in used]

    # Slots

    def _open_slot(self, publisher: str, hash_: int) -> _Slot | None:
        encoded = publisher.encode()
        if len(encoded) > NAME_MAX:
            return None  # no publisher of ours has such a name
        at = self._room()
        if at is None:
            return None
        self._opened_last += 1
        name = packed_name(self._opened_last, hash_, encoded)
        # Emptied before it is named: a write that is cut short here leaves an empty slot.
        self._map[at : at + SLOT_BYTES] = bytes(SLOT_BYTES)
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
        grown = size + GROW_SLOTS * SLOT_BYTES
        try:
            allocate(self._descriptor, 0, grown)
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
            log.info("commit log %s can grow again", self.path)
        self._free = list(range(size, grown - SLOT_BYTES + 1, SLOT_BYTES))


RECORDS_AT = (64, 128)
EPOCH_BYTES = 40
_POSITION_RECORD = struct.Struct("<QQ?40s")


class PositionFile(_StoredFile):
    """The position of one session."""

    kind = "position file"
    magic = b"LBG position\n"
    size_bytes = 192
    if_moved = ": the broker then continues after acknowledged messages"
    if_damaged = (
        "damaged, or another session's: set aside as {aside}; the broker continues after acknowledged messages, and "
        "may repeat messages that were processed since"
    )

    def __init__(self, path: Path, *, group: str, session: str) -> None:
        self._named = crc32(f"{group}\0{session}".encode())
        self._generation = 0
        self.committed: int | None = None
        """Position in the file when it was opened; None: nothing."""
        self.epoch: str | None = None
        """Of `committed`; None where it was not reported."""
        self.is_over = False
        """Of the session, when the file was opened: all of it is processed, but the broker may still have it."""
        super().__init__(path)

    def write(self, committed: int, *, epoch: str | None = None, is_over: bool = False) -> None:
        """Writes a position; when it returns, kill -9 does not undo it. An epoch that is too long for the file is no
        LBG broker's, and its number is not stored: the broker continues after acknowledged messages."""
        self._generation += 1
        epoch_bytes = (epoch or "").encode()
        if len(epoch_bytes) > EPOCH_BYTES:
            return
        content = _POSITION_RECORD.pack(self._generation, committed, is_over, epoch_bytes)
        at = RECORDS_AT[self._generation % 2]
        record = _CRC.pack(crc32(content, self._named)) + content
        self._map[at : at + len(record)] = record

    def _load(self) -> None:
        if valid := self._records(self._map[:]):
            self._generation, self.committed, self.is_over, epoch_bytes = max(valid)
            self.epoch = epoch_bytes.rstrip(b"\0").decode(errors="replace") or None

    def _is_sound(self, stored: bytes) -> bool:
        """False also for another session's; True for one that was cut behind a record."""
        return bool(self._records(stored)) or (super()._is_sound(stored) and not any(stored[RECORDS_AT[0] :]))

    def _records(self, stored: bytes) -> list[tuple[int, int, bool, bytes]]:
        """Generation, number, whether that ends the session, and epoch; without those that were never written, are
        torn, or are another session's."""
        records = []
        for at in RECORDS_AT:
            content = stored[at + _CRC.size : at + _CRC.size + _POSITION_RECORD.size]
            if stored[at : at + _CRC.size] == _CRC.pack(crc32(content, self._named)):
                records.append(_POSITION_RECORD.unpack(content))
        return records


def require_directory(path: Path) -> None:
    """Make it if it is missing, and report who else has access. Raises CommitsError unless a file can be made there."""
    try:
        make_private_directory(path)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise CommitsError(
            f"the commits directory {path} cannot be used: {error.strerror or error}; name another directory, or none"
        ) from error
    report_wide(path)
