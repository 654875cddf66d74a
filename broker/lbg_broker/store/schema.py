"""Tables of the store, its file, and the lock on its directory.

`message` and `spill` have the same shape. A row's id is the line's number in the upper bits and the position in
it in the lower 40, so that a line is one run of the table: appends go to its end, a cumulative ack is one range.
`garbage` are ranges of ids that are deleted for everybody but not yet removed: a purge takes as long as its commit.
`spill` is what lines that do not survive the process could not keep in memory: it is emptied at every start.
`reserve` has rows of nothing, which are deleted when something has to be written and the disk has no room.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from lbg_broker.store.errors import DirectoryLockedError, NewerStoreError, StoreError, store_error
from lbg_core.forks import lock
from lbg_core.private_files import make_private_directory, open_private

HOLDER_CHARS: Final = 20


class DirectoryLock:
    """Held from making it until `release`, or until the process dies in whatever way."""

    def __init__(self, directory: Path) -> None:
        """Raises `DirectoryLockedError` when another process has it, `StoreError` when it cannot be made."""
        path = directory / "lock"
        try:
            make_private_directory(directory)
            file = open_private(path, os.O_RDWR | os.O_CREAT)
            self._file = os.fdopen(file, "r+")  # held open for as long as we run
            is_locked = lock(file)
        except OSError as error:
            raise StoreError(f"cannot use the data directory {directory}: {error.strerror}") from error
        if not is_locked:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise DirectoryLockedError(
                f"the data directory {directory} is in use by another broker (process {holder})"
            )
        # In place, for on a full disk a file that was emptied would stay so. It is only to be read by people.
        with suppress(OSError):
            os.pwrite(self._file.fileno(), f"{os.getpid():<{HOLDER_CHARS}}\n".encode(), 0)
            os.ftruncate(self._file.fileno(), HOLDER_CHARS + 1)

    def release(self) -> None:
        """Let others have the directory."""
        self._file.close()


def lock_holder(directory: Path) -> int | None:
    """Process id of the broker that has the data directory; None if none has it, and if there is no directory.

    Raises `StoreError` if the lock cannot be read, or if its process is not one of this machine (or container).
    """
    path = directory / "lock"
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = file.read(HOLDER_CHARS).strip()
            else:
                return None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if holder.isdigit() and holds(int(holder), directory):
        return int(holder)
    raise StoreError(f"the broker that uses {directory} is a process of another machine or container")


def holds(process: int, directory: Path) -> bool:
    """True while a process runs and, where /proc tells, has the directory's lock open. It does not touch the lock."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    opened, path = Path("/proc", str(process), "fd"), directory / "lock"
    if not Path("/proc/self/fd").is_dir():
        return True
    with suppress(FileNotFoundError):
        for one in opened.iterdir():
            with suppress(FileNotFoundError):
                if one.samefile(path):
                    return True
    return False


STORE_FILE: Final = "broker.sqlite3"
"""In the data directory."""

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x4C424731  # "LBG1"

POSITION_BITS: Final = 40
"""A trillion messages per line, and eight million lines in the life of a store."""

CACHE_KIB: Final = 8 * 1024

CHECKPOINT_PAGES: Final = 4096
"""The write-ahead log is copied into the file when it has grown to this many pages (16 MiB): less often than
SQLite's own 1000, because rows that are deleted by then are never copied."""

WAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""Size to which a write-ahead log that grew large (one huge batch) is cut back."""

_TABLES: Final = """
CREATE TABLE definition (kind TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, key))
    WITHOUT ROWID;
CREATE TABLE spool (id INTEGER PRIMARY KEY, next_position INTEGER NOT NULL, mark INTEGER NOT NULL,
    messages INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE message (id INTEGER PRIMARY KEY, origin BLOB NOT NULL, header BLOB NOT NULL, body BLOB NOT NULL);
CREATE TABLE spill (id INTEGER PRIMARY KEY, origin BLOB NOT NULL, header BLOB NOT NULL, body BLOB NOT NULL);
CREATE TABLE garbage (first INTEGER PRIMARY KEY, last INTEGER NOT NULL);
CREATE TABLE reserve (id INTEGER PRIMARY KEY, room BLOB NOT NULL);
"""


def open_database(path: Path, *, alone: bool = False) -> sqlite3.Connection:
    """Open the store, making it if there is none. `alone`: nobody else may open it, and the index of the log is in
    memory.

    Raises `NewerStoreError`, `DamagedStoreError` (also for somebody else's SQLite file) or `StoreError`.
    """
    try:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
        try:
            if alone:
                database.execute("PRAGMA locking_mode=EXCLUSIVE")
            _prepare(database, path)
        except BaseException:
            database.close()
            raise
        return database
    except sqlite3.Error as error:
        raise store_error(error, path) from error


def check_version(version: int, path: Path) -> None:
    """Raises `NewerStoreError`."""
    if version > SCHEMA_VERSION:
        raise NewerStoreError(
            f"the store {path} is of version {version}, and this broker reads version {SCHEMA_VERSION}; it is left as "
            "it is: upgrade this broker"
        )


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    (owner,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if owner != APPLICATION_ID and (tables or owner):
        raise StoreError(f"{path} is an SQLite file, but no broker's store")
    check_version(version, path)
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    if not pages:  # it counts only before the first table, and is a write, for which there may be no room
        database.execute("PRAGMA auto_vacuum=INCREMENTAL")
    (mode,) = database.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise StoreError(f"{path}: this file system cannot keep a write-ahead log (journal mode {mode})")
    database.execute("PRAGMA synchronous=FULL")
    # Pages that are freed need not be written for it; what is deleted in others is overwritten.
    database.execute("PRAGMA secure_delete=FAST")
    # In a container the data directory may be all that can be written to.
    database.execute("PRAGMA temp_store=MEMORY")
    database.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
    database.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
    database.execute(f"PRAGMA journal_size_limit={WAL_LIMIT_BYTES}")
    if not tables:
        database.executescript(
            f"BEGIN; {_TABLES} PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={SCHEMA_VERSION};"
            "COMMIT;"
        )
