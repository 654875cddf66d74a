"""The file of how far a member's session is, mapped into memory: a write is a copy, and the kernel keeps it.

    0    head       magic, version, CRC-32
    64   record 0   CRC-32, generation, last committed sequence number, 1 if that was the End-of-Session, else 0
    128  record 1   the same

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
VERSION = 1
RECORDS_AT = (64, 128)
SIZE_BYTES = 192

_HEAD = struct.Struct(f"<{len(MAGIC)}sI")
_CRC = struct.Struct("<I")
_RECORD = struct.Struct("<QQ?")


class PositionFile:
    """An open and locked file. Raises CommitsError where it is in use, of a newer version, or cannot be made."""

    def __init__(self, path: Path, *, group: str, session: str) -> None:
        self.path = path
        self._named = crc32(f"{group}\0{session}".encode())
        self._generation = 0
        self.committed: int | None = None
        """What the file said when it was opened; None: nothing."""
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

    def write(self, committed: int, *, is_over: bool = False) -> None:
        """When it returns, kill -9 does not undo it."""
        self._generation += 1
        content = _RECORD.pack(self._generation, committed, is_over)
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
            self._generation, self.committed, self.is_over = max(known)
        elif any(found[RECORDS_AT[0] :]) or (version is None and any(found)):
            self._set_aside(found)
            version = None
        # With its space: a full disk is met here, and not as SIGBUS in the middle of a write.
        os.posix_fallocate(descriptor, 0, SIZE_BYTES)
        mapped = mmap.mmap(descriptor, SIZE_BYTES)
        if version is None:
            head = _HEAD.pack(MAGIC, VERSION)
            mapped[:SIZE_BYTES] = (head + _CRC.pack(crc32(head))).ljust(SIZE_BYTES, b"\0")
        return mapped

    def _read(self, found: bytes, at: int) -> tuple[int, int, bool] | None:
        """Generation, number, whether that ends the session; None for a record that was never written, is torn, or is
        another session's."""
        content = found[at + _CRC.size : at + _CRC.size + _RECORD.size]
        if (
            found[at : at + _CRC.size] != _CRC.pack(crc32(content, self._named))
            or len(content) < _RECORD.size
        ):
            return None
        generation, committed, is_over = _RECORD.unpack(content)
        return generation, committed, is_over

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
