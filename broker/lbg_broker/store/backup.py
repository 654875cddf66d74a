"""Backup of the store while the broker runs, and restore.

A copy is one SQLite file with everything that was confirmed when it began. It is made in one step of SQLite's online
backup («SQLite Backup API»): in smaller steps it would begin again whenever the broker writes, and never end. The
broker goes on meanwhile; its write-ahead log grows by what it writes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote

from lbg_broker.store.errors import DamagedStoreError, DiskFullError, StoreError, store_error
from lbg_broker.store.reserve import Reserve
from lbg_broker.store.schema import (
    APPLICATION_ID,
    STORE_FILE,
    WAL_LIMIT_BYTES,
    DirectoryLock,
    check_version,
)
from lbg_core.counted_nouns import counted
from lbg_core.private_files import FILE_MODE, open_private

PART: Final = ".part"


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """Contents of a copy."""

    queues: int
    messages: int
    size_bytes: int


def back_up(data_dir: Path, target: Path) -> StoreCopy:
    """Copy the store of `data_dir` to `target`, which is whole or not there. Raises `StoreError`."""
    part = target.with_name(target.name + PART)
    with _sole(part):
        copied = _copy(data_dir / STORE_FILE, part)
        _settle(part, target)
    return copied


@contextmanager
def copied_out(data_dir: Path) -> Iterator[tuple[BinaryIO, StoreCopy]]:
    """The same as a stream, by way of a file in the data directory that has gone afterwards."""
    part = data_dir / f"backup{PART}"
    with _sole(part):
        copied = _copy(data_dir / STORE_FILE, part)
        with part.open("rb") as copy:
            part.unlink()
            yield copy, copied


def restore(source: BinaryIO, data_dir: Path, *, replace: bool = False) -> StoreCopy:
    """Make `source` the store of `data_dir`, in which no broker may run. Raises `StoreError`, and then what was there
    is there still. `replace`: a store that is there is given up."""
    lock = DirectoryLock(data_dir)
    try:
        store, part = data_dir / STORE_FILE, data_dir / f"restore{PART}"
        if store.exists() and not replace:
            raise StoreError(f"{store} exists: use --replace to overwrite it by the copy")
        try:
            with _private(part) as copy:
                copy.truncate(0)
                shutil.copyfileobj(source, copy, 1 << 20)
            copied = _checked(part)
            # A log that stayed would be taken for the new file's. It goes after the file that it belongs to: a crash
            # in between leaves no store, and none that is wrong.
            for old in (store, *(Path(f"{store}{end}") for end in ("-wal", "-shm"))):
                old.unlink(missing_ok=True)
            _settle(part, store)
        except OSError as error:
            raise StoreError(f"{part}: {error.strerror}") from error
        finally:
            part.unlink(missing_ok=True)
        return copied
    finally:
        lock.release()


@contextmanager
def _sole(part: Path) -> Iterator[None]:
    """Nobody else writes `part`; what an earlier one left there is cut off. It has gone in the end."""
    with _private(part) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(f"another backup is writing {part}") from None
        try:
            file.truncate(0)
            yield
        finally:
            part.unlink(missing_ok=True)


def _private(path: Path) -> BinaryIO:
    """For us alone: a copy has the hashes of passwords in it. Raises `StoreError`."""
    try:
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        os.fchmod(descriptor, FILE_MODE)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
    return os.fdopen(descriptor, "r+b")


def _copy(store: Path, part: Path) -> StoreCopy:
    try:
        with _reserve_open(store), closing(_open(store, "rw")) as source:
            _require_store(source, store)
            _make_sure_of_room(source, part)
            with closing(sqlite3.connect(part, isolation_level=None)) as target:
                target.execute("PRAGMA journal_mode=OFF")
                target.execute("PRAGMA synchronous=OFF")
                source.backup(target, pages=-1)
    except sqlite3.Error as error:
        raise store_error(error, store) from error
    return _checked(part)


@contextmanager
def _reserve_open(store: Path) -> Iterator[None]:
    """Retains log and index, whose space the last to open a store without a broker would give up."""
    if not store.exists():
        raise StoreError(f"{store} is not there")
    reserve = Reserve(store)
    try:
        reserve.retain_log()
        yield
    finally:
        reserve.close(is_empty=False)


def _make_sure_of_room(source: sqlite3.Connection, part: Path) -> None:
    """A copy that fills the broker's own disk would stop its publishers."""
    needed = _number(source, "PRAGMA page_count") * _number(source, "PRAGMA page_size") + WAL_LIMIT_BYTES
    free = shutil.disk_usage(part.parent).free
    if free < needed:
        raise DiskFullError(
            f"{part.parent} has {free >> 20} MiB free and the copy needs {needed >> 20}: copy to another file system"
        )


def _checked(copy: Path) -> StoreCopy:
    """Raises `DamagedStoreError` for what is not whole, and `StoreError` for what is no store or too new."""
    size_bytes = copy.stat().st_size
    try:
        with closing(_open(copy, "ro", immutable=True)) as database:
            _require_store(database, copy)
            expected = _number(database, "PRAGMA page_count") * _number(database, "PRAGMA page_size")
            if size_bytes != expected:
                raise DamagedStoreError(
                    f"{copy} has {size_bytes} of {counted(expected, 'byte')}: it is truncated"
                )
            ((verdict,),) = database.execute("PRAGMA quick_check(1)").fetchall()
            if verdict != "ok":
                raise DamagedStoreError(f"{copy} is damaged: {verdict}")
            return StoreCopy(
                queues=_number(database, "SELECT count(*) FROM definition WHERE kind = 'queue'"),
                messages=_number(database, "SELECT coalesce(sum(messages), 0) FROM spool"),
                size_bytes=size_bytes,
            )
    except sqlite3.Error as error:
        raise store_error(error, copy) from error


def _require_store(database: sqlite3.Connection, path: Path) -> None:
    if _number(database, "PRAGMA application_id") != APPLICATION_ID:
        raise StoreError(f"{path} is not a store of a broker")
    check_version(_number(database, "PRAGMA user_version"), path)


def _settle(part: Path, target: Path) -> None:
    """On disk, and then under its name."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.rename(target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _open(path: Path, mode: str, *, immutable: bool = False) -> sqlite3.Connection:
    if not path.exists():
        raise StoreError(f"{path} is not there")
    end = "&immutable=1" if immutable else ""
    return sqlite3.connect(f"file:{quote(str(path))}?mode={mode}{end}", uri=True, isolation_level=None)


def _number(database: sqlite3.Connection, query: str) -> int:
    (value,) = database.execute(query).fetchone()
    return int(value)
