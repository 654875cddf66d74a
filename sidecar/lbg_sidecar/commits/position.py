"""The file of how far a member's session is, mapped into memory: a write is a copy, and the kernel keeps it.

    0    head       magic, version, CRC-32
    64   record 0   CRC-32, generation, last committed sequence number, 1 if that was the End-of-Session, else 0; the
                    broker's epoch in which it was given, filled up with zeros
    128  record 1   the same

Records of version 1 have no epoch.

The records are written in turn, and the valid one with the higher generation counts: kill -9 at any instruction leaves
this number or the one before. Their CRC-32 covers the names of group and session as well, so the file of one session
never speaks for another. Numbers are little-endian.

It survives the death of the process. It is not synced: after a power loss an older number may be found. See
docs/exactly-once.md.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import mmap
import os
import struct
from pathlib import Path
from zlib import crc32

from .errors import CommitsError

log = logging.getLogger("lbg.member")

MAGIC = b"LBG position\n"
VERSION = 2
RECORDS_AT = (64, 128)
SIZE_BYTES = 192

EPOCH_BYTES = 40

_HEAD = struct.Struct(f"<{len(MAGIC)}sI")
_CRC = struct.Struct("<I")
_RECORD = struct.Struct("<QQ?40s")
_RECORD_1 = struct.Struct("<QQ?")


class PositionFile:
    """An open and locked file. Raises CommitsError where it is in use, of a newer version, or cannot be made."""

    def __init__(self, path: Path, *, group: str, session: str) -> None:
        self.path = path
        self._named = crc32(f"{group}\0{session}".encode())
        self._generation = 0
        self.committed: int | None = None
        """What the file said when it was opened; None: nothing."""
        self.epoch: str | None = None
        """Of `committed`; None where nobody said."""
        self.is_over = False
        """Of the session, when the file was opened: all of it is processed, and the broker may not know."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._lock()
            self._map = self._mapped()
        except OSError as error:
            os.close(self._descriptor)
            raise self._unusable(error) from error
        except BaseException:
            os.close(self._descriptor)
            raise

    def write(self, committed: int, *, epoch: str | None = None, is_over: bool = False) -> None:
        """When it returns, kill -9 does not undo it. An epoch that is too long for the file is no broker's of ours, and
        its number is not kept: the broker goes on after what was acknowledged."""
        self._generation += 1
        told = (epoch or "").encode()
        if len(told) > EPOCH_BYTES:
            return
        content = _RECORD.pack(self._generation, committed, is_over, told)
        at = RECORDS_AT[self._generation % 2]
        record = _CRC.pack(crc32(content, self._named)) + content
        self._map[at : at + len(record)] = record

    def close(self) -> None:
        if self._descriptor >= 0:
            self._map.close()
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommitsError(
                f"position file {self.path} is in use by another process: give each member a name of its own"
            ) from None

    def _mapped(self) -> mmap.mmap:
        descriptor = self._descriptor
        found = os.pread(descriptor, SIZE_BYTES, 0)
        version = _version_of(found)
        if version is not None and version > VERSION:
            raise CommitsError(
                f"position file {self.path} is of version {version}, and this member knows {VERSION}: run the newer "
                "member again, or move the file away: then the broker goes on after what was acknowledged to it"
            )
        records = [self._read(found, at) for at in RECORDS_AT] if version is not None else []
        known = [record for record in records if record is not None]
        if known:
            self._generation, self.committed, self.is_over, told = max(known)
            self.epoch = told.rstrip(b"\0").decode(errors="replace") or None
        elif any(found[RECORDS_AT[0] :]) or (version is None and any(found)):
            self._set_aside(found)
            version = None
        # With its space: a full disk is met here, and not as SIGBUS in the middle of a write.
        os.posix_fallocate(descriptor, 0, SIZE_BYTES)
        mapped = mmap.mmap(descriptor, SIZE_BYTES)
        if version != VERSION:
            head = _HEAD.pack(MAGIC, VERSION)
            head += _CRC.pack(crc32(head))
            if version is None:
                mapped[:SIZE_BYTES] = head.ljust(SIZE_BYTES, b"\0")
            else:
                mapped[: len(head)] = head
        return mapped

    def _read(self, found: bytes, at: int) -> tuple[int, int, bool, bytes] | None:
        """Generation, number, whether that ends the session, and epoch; None for a record that was never written, is
        torn, or is another session's."""
        for layout in (_RECORD, _RECORD_1):
            content = found[at + _CRC.size : at + _CRC.size + layout.size]
            crc = _CRC.pack(crc32(content, self._named))
            if len(content) == layout.size and found[at : at + _CRC.size] == crc:
                generation, committed, is_over, *epoch = layout.unpack(content)
                return generation, committed, is_over, epoch[0] if epoch else b""
        return None

    def _set_aside(self, found: bytes) -> None:
        """Something is in it, and no valid record: it is damaged, or another session's."""
        aside = next(
            path
            for number in itertools.count(1)
            if not (path := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists()
        )
        aside.write_bytes(found)
        log.warning(
            "position file %s is damaged, or another session's: what was in it is in %s; the broker goes on after what "
            "was acknowledged to it, and may repeat what was processed since",
            self.path,
            aside.name,
        )

    def _unusable(self, error: OSError) -> CommitsError:
        return CommitsError(
            f"position file {self.path} cannot be used: {error.strerror or error}; name another directory, or none"
        )


def _version_of(found: bytes) -> int | None:
    head, crc = found[: _HEAD.size], found[_HEAD.size : _HEAD.size + _CRC.size]
    if len(head) < _HEAD.size or crc != _CRC.pack(crc32(head)):
        return None
    magic, version = _HEAD.unpack(head)
    return version if magic == MAGIC else None
