"""Errors of the store.

::

    StoreError
    ├── DirectoryLockedError   another process has the data directory
    ├── NewerStoreError        the file is of a newer version
    ├── DiskFullError          no room (or no quota): nothing of the batch is written; it can be tried again
    └── DamagedStoreError      not a store of ours, or SQLite found it corrupt
"""

from __future__ import annotations

import sqlite3
from pathlib import Path


class StoreError(Exception):
    """Base of every error of the store; also an I/O error of the disk."""


class DirectoryLockedError(StoreError):
    """Two brokers on one directory would destroy it."""


class NewerStoreError(StoreError):
    """The file is of a newer version than this broker reads."""


class DiskFullError(StoreError):
    """The disk has no room for the batch."""


class DamagedStoreError(StoreError):
    """The file cannot be read as a store."""


def may_be_full(error: sqlite3.Error) -> bool:
    """True for a failed write whose reason SQLite does not pass on: a used-up quota is one (EDQUOT), and a file
    that may not grow (EFBIG); it tells only ENOSPC apart (os_unix.c, unixWrite)."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_WRITE


def store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """SQLite's error as one of ours."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return DiskFullError(f"{path}: no space left on the device")
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DamagedStoreError(f"{path} is damaged or no broker's store: {error}")
    return StoreError(f"{path}: {error}")
