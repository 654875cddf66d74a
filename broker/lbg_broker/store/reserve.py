"""Reserved space in the store's own files, so that messages can be settled on a full disk.

SQLite writes in three places, and each has blocks of its own here before a publish is accepted (ADR 46):

- the *log* (`-wal`) has at least `Size.log_bytes`. Once its pages are in the database it begins again at its start, in
  blocks that it has. It is not deleted when the store is closed;
- the *database* has blocks for all its pages, so that none is missing when the log's pages are copied to it, and
  `Size.pages` pages more, in rows of the table `reserve` that are deleted when something has to grow;
- the *index of the log* (`-shm`) has all its blocks from the start, and is not cut off when the store is opened.

For the last two SQLite's own locks are held beside it («WAL-mode File Format» and os_unix.c): as long as somebody has
a shared lock on the byte DEAD_MAN no opener cuts the index off, and as long as somebody has one on SHARED_FIRST no
closer deletes the log. They are locks of open files, which the locks of SQLite in this process do not end.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lbg_broker.store.errors import DiskFullError, StoreError
from lbg_core.private_files import allocate, open_private

PAGE_BYTES: Final = 4096
FRAME_BYTES: Final = PAGE_BYTES + 24
LOG_HEADER_BYTES: Final = 32

INDEX_BYTES: Final = 5 * 32 * 1024
"""Five regions: an index of 64 MiB of log, which is the most that it keeps."""

DEAD_MAN: Final = 128
SHARED_FIRST: Final = 0x40000002
SHARED_BYTES: Final = 510

_NO_ROOM_WORDS: Final = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is exhausted",
    errno.EFBIG: "the file has reached its size limit (ulimit -f, or the file system's)",
}
NO_ROOM: Final = tuple(_NO_ROOM_WORDS)


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the reserve for a database of so many pages, with a largest message of so many bytes."""

    database_pages: int
    message_bytes: int = 0

    @property
    def pages(self) -> int:
        """A thirty-second of the database, at least 128 pages and at most 1,024 (4 MiB)."""
        return min(max(self.database_pages // 32, 128), 1024)

    @property
    def messages(self) -> int:
        """Number of messages that one transaction deletes."""
        return self.pages

    @property
    def log_bytes(self) -> int:
        """A page that is deleted from has two neighbours that it may be merged with, and the reserved pages may all be
        written. The largest message is written once more when it moves: to the dead letters, or to a session."""
        frames = 4 * self.pages + 2 * self.message_bytes // PAGE_BYTES
        return LOG_HEADER_BYTES + frames * FRAME_BYTES


class Reserve:
    """The files of one store. Made before SQLite opens them, and closed after it closed them: to close a file ends the
    locks that a process has on it."""

    def __init__(self, path: Path) -> None:
        """Raises `StoreError`."""
        self.path = path
        self._log = Path(f"{path}-wal")
        self._log_bytes = 0
        self._database = self._open(path)
        self._index: int | None = None
        self.has_index = True
        """True if the index has its blocks. Without them SQLite is to keep it in its own memory, and nobody else may
        open the store meanwhile."""
        if LOCKS:
            self._index = self._open(Path(f"{path}-shm"))
            self._place_index()

    def allocate(self, pages: int, *, have: int) -> None:
        """Have blocks for the first `pages` pages of a database that has them for `have`. Raises `DiskFullError`,
        `StoreError`."""
        if pages > have:
            self._allocate(self._database, have * PAGE_BYTES, (pages - have) * PAGE_BYTES)

    def allocate_log(self, size: Size) -> None:
        """Have blocks for the log. Raises `DiskFullError`, `StoreError`."""
        if size.log_bytes > self._log_bytes:
            log = self._open(self._log)
            try:
                self._allocate(log, 0, size.log_bytes)
            finally:
                os.close(log)
            self._log_bytes = size.log_bytes

    def require_room(self) -> None:
        """Have a block more in the log and in the database. Raises `DiskFullError`, `StoreError`."""
        log = self._open(self._log)
        try:
            for file, unit in ((log, FRAME_BYTES), (self._database, PAGE_BYTES)):
                self._allocate(file, os.fstat(file).st_size, unit)
                os.fsync(file)
        except OSError as error:
            raise self._error(error) from error
        finally:
            os.close(log)

    def retain_log(self) -> None:
        """From now on SQLite does not delete the log when it closes the store."""
        if LOCKS:
            with suppress(OSError):
                _lock(self._database, fcntl.F_RDLCK, SHARED_FIRST, SHARED_BYTES)

    def close(self, *, is_empty: bool) -> None:
        """After SQLite closed its files. `is_empty`: all that the log has is in the database. Then its header is taken
        away, unless somebody else has the store open: it would be wrong beside any other database file."""
        try:
            if is_empty and self._index is not None and _lock(self._index, fcntl.F_WRLCK, DEAD_MAN, 1):
                with suppress(OSError):
                    self._blank_log()
        finally:
            for file in (self._index, self._database):
                if file is not None:
                    os.close(file)

    def _blank_log(self) -> None:
        log = os.open(self._log, os.O_RDWR)
        try:
            os.pwrite(log, bytes(LOG_HEADER_BYTES), 0)
            if self._log_bytes:
                os.truncate(log, min(self._log_bytes, os.fstat(log).st_size))
            os.fsync(log)
        finally:
            os.close(log)

    def _place_index(self) -> None:
        """Empty the index if nobody uses it, so that SQLite makes it anew, in the blocks that it has."""
        assert self._index is not None
        if _lock(self._index, fcntl.F_WRLCK, DEAD_MAN, 1):
            try:
                _write(self._index, bytes(INDEX_BYTES), 0)
            except OSError:
                self.has_index = False
        if not _lock(self._index, fcntl.F_RDLCK, DEAD_MAN, 1):
            raise StoreError(f"{self.path} is being opened by another process: try again")

    def _allocate(self, file: int, start: int, length: int) -> None:
        try:
            allocate(file, start, length)
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> StoreError:
        if error.errno in NO_ROOM:
            return DiskFullError(f"{self.path}: {_NO_ROOM_WORDS[error.errno]}")
        return StoreError(f"{self.path}: {error.strerror}")

    def _open(self, path: Path) -> int:
        try:
            return open_private(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            kind = DiskFullError if error.errno in NO_ROOM else StoreError
            raise kind(f"{path}: {error.strerror}") from error


LOCKS: Final = hasattr(fcntl, "F_OFD_SETLK") and sys.maxsize > 1 << 32
"""True if locks belong to an open file: elsewhere than on Linux the index and the log have no reserve."""


def _lock(file: int, kind: int, start: int, length: int) -> bool:
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise StoreError(f"this file system has no locks: {error.strerror}") from error
    return True


def _write(file: int, data: bytes, start: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done : done + (1 << 20)], start + done)
