"""Carrying out a batch, reading pages, and what there is at start."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lbg_broker.server.core.changes import (
    Definition,
    Page,
    PageRequest,
    Row,
    SpoolChange,
    SpoolRecord,
    StoreBatch,
    StoredState,
)
from lbg_broker.server.core.message import Message
from lbg_broker.server.store.errors import store_error
from lbg_broker.server.store.schema import POSITION_BITS, open_database

__all__ = ["Store"]

CHUNK_ROWS: Final = (512, 128, 32, 8, 1)
"""Rows per INSERT. Each statement gives the interpreter's lock away and must win it back from a busy loop, so
few large ones are better than many small ones; fixed sizes, so that they are compiled once."""

COLUMNS: Final = 4
POSITION_MAX: Final = (1 << POSITION_BITS) - 1

GARBAGE_POSITIONS: Final = 10_000
"""A range of more positions than this is not deleted with its batch but by and by: every confirm would wait."""

TIDY_ROWS: Final = 4_000
"""Rows removed at a time; a batch that comes meanwhile waits for these (some 10 ms)."""

TIDY_PAGES: Final = 1_000
"""Pages given back to the file system at a time."""

WRITES_PER_LOOK: Final = 64
"""Batches between two looks at how much of the file is unused."""

FREE_PAGES_MIN: Final = 4_096
"""Unused pages the file keeps (16 MiB): what a busy queue frees it soon needs again."""


class Store:
    """One open store. Every method blocks; use it from one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises `StoreError`."""
        self.path = path
        self._database = open_database(path)
        variables = self._database.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)  # 999 in old builds
        self._chunks = [rows for rows in CHUNK_ROWS if rows * COLUMNS <= variables]
        self.untidy = True
        """Whether `tidy` has something to do, or may have."""
        self._writes = 0
        while self._remove_garbage():
            pass

    def load(self) -> StoredState:
        """What was kept. Messages are counted by their lines' records and not read, but for the place of the first."""
        try:
            definitions = [
                Definition(kind, key, value)
                for kind, key, value in self._database.execute(
                    "SELECT kind, key, value FROM definition ORDER BY kind, key"
                )
            ]
            spools = [
                SpoolRecord(*row)
                for row in self._database.execute(
                    "SELECT id, next_position, mark, messages, bytes, (SELECT message.id FROM message WHERE"
                    " message.id BETWEEN spool.id << ? AND (spool.id << ?) + ? ORDER BY message.id LIMIT 1) & ?"
                    " FROM spool",
                    (POSITION_BITS, POSITION_BITS, POSITION_MAX, POSITION_MAX),
                )
            ]
        except sqlite3.Error as error:
            raise store_error(error, self.path) from error
        return StoredState(definitions, spools)

    def carry_out(self, batch: StoreBatch) -> list[Page]:
        """Write a batch, whole or not at all, and read the pages it asks for.

        When this returns the batch is on disk. Raises `StoreError`; `DiskFullError` if trying again may help.
        """
        try:
            if batch.writes:
                self._write(batch)
            return [self._read(request) for request in batch.pages]
        except sqlite3.Error as error:
            raise store_error(error, self.path) from error

    def close(self) -> None:
        """Bring the write-ahead log into the file and close it."""
        self._database.close()

    def _write(self, batch: StoreBatch) -> None:
        with self._transaction():
            for definition in batch.definitions:
                self._define(definition)
            self._insert("message", _rows(change for change in batch.spools if change.durable))
            self._insert("spill", _rows(change for change in batch.spools if not change.durable))
            for change in batch.spools:
                self._delete("message" if change.durable else "spill", change)
            self._record([change.record for change in batch.spools if change.record is not None])
            for spool, durable in batch.dropped:
                self._drop(spool, durable)
        self._writes += 1
        if self._writes % WRITES_PER_LOOK == 0:
            self.untidy = True

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            yield
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _define(self, definition: Definition) -> None:
        if definition.value is None:
            self._database.execute(
                "DELETE FROM definition WHERE kind = ? AND key = ?", (definition.kind, definition.key)
            )
        else:
            self._database.execute(
                "INSERT OR REPLACE INTO definition VALUES (?, ?, ?)",
                (definition.kind, definition.key, definition.value),
            )

    def _insert(self, table: str, values: list[int | bytes]) -> None:
        start, rows = 0, len(values) // COLUMNS
        for chunk in self._chunks:
            while rows >= chunk:
                end = start + chunk * COLUMNS
                self._database.execute(_INSERTS[table, chunk], values[start:end])
                start, rows = end, rows - chunk

    def _delete(self, table: str, change: SpoolChange) -> None:
        base = change.spool << POSITION_BITS
        for first, last in change.deletes:
            if last - first > GARBAGE_POSITIONS and change.durable:
                self._throw_away(base + first, base + last)
            else:
                self._database.execute(
                    f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", (base + first, base + last)
                )

    def _record(self, records: Sequence[SpoolRecord]) -> None:
        for record in records:
            self._database.execute(
                "INSERT OR REPLACE INTO spool VALUES (?, ?, ?, ?, ?)",
                (record.spool, record.next_position, record.mark, record.messages, record.bytes),
            )

    def _drop(self, spool: int, durable: bool) -> None:
        base = spool << POSITION_BITS
        end = base + POSITION_MAX
        if durable:
            self._throw_away(base, end)
            self._database.execute("DELETE FROM spool WHERE id = ?", (spool,))
        else:
            self._database.execute("DELETE FROM spill WHERE id BETWEEN ? AND ?", (base, end))

    def _throw_away(self, first: int, last: int) -> None:
        self._database.execute("INSERT OR REPLACE INTO garbage VALUES (?, ?)", (first, last))
        self.untidy = True

    def _read(self, request: PageRequest) -> Page:
        base = request.spool << POSITION_BITS
        rows: list[Row] = []
        size = 0
        cursor = self._select(request, base)
        for row_id, origin, header, body in cursor:
            rows.append((row_id - base, origin, header, body))
            size += len(header) + len(body)
            if size >= request.bytes_max:
                break
        else:
            if len(rows) < request.messages_max:
                return Page(request, rows, request.upto)
        cursor.close()
        return Page(request, rows, rows[-1][0] + 1)

    def _select(self, request: PageRequest, base: int) -> sqlite3.Cursor:
        table = "message" if request.durable else "spill"
        body = "x''" if request.headers_only else "body"
        if request.positions:
            ids = ",".join(str(base + position) for position in request.positions)
            return self._database.execute(
                f"SELECT id, origin, header, {body} FROM {table} WHERE id IN ({ids}) ORDER BY id"
            )
        return self._database.execute(
            f"SELECT id, origin, header, {body} FROM {table} WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (base + request.first, base + request.upto, request.messages_max),
        )

    def tidy(self) -> None:
        """Remove some of what was thrown away, or give some room back; `untidy` says whether more is to do.

        Raises `StoreError`.
        """
        try:
            self.untidy = self._remove_garbage() or self._shrink()
        except sqlite3.Error as error:
            raise store_error(error, self.path) from error

    def _remove_garbage(self) -> bool:
        database = self._database
        row = database.execute("SELECT first, last FROM garbage LIMIT 1").fetchone()
        if row is None:
            return False
        with self._transaction():
            removed = database.execute(
                "DELETE FROM message WHERE id IN (SELECT id FROM message WHERE id BETWEEN ? AND ? LIMIT ?)",
                (*row, TIDY_ROWS),
            ).rowcount
            if removed < TIDY_ROWS:
                database.execute("DELETE FROM garbage WHERE first = ?", (row[0],))
        return True

    def _shrink(self) -> bool:
        (free,) = self._database.execute("PRAGMA freelist_count").fetchone()
        (pages,) = self._database.execute("PRAGMA page_count").fetchone()
        if free <= max(FREE_PAGES_MIN, pages // 2):
            return False
        self._database.execute(f"PRAGMA incremental_vacuum({TIDY_PAGES})").fetchall()
        return True


_INSERTS: Final = {
    (table, rows): f"INSERT INTO {table} VALUES " + ",".join(["(?,?,?,?)"] * rows)
    for table in ("message", "spill")
    for rows in CHUNK_ROWS
}


def _rows(changes: Iterator[SpoolChange]) -> list[int | bytes]:
    """The inserted messages' columns one after the other, in the order of the table."""
    values: list[int | bytes] = []
    for change in sorted(changes, key=_spool_of):
        base = change.spool << POSITION_BITS
        message: Message
        for message in change.inserts:
            values += (base + message.position, message.origin.wire, message.header, message.body)
    return values


def _spool_of(change: SpoolChange) -> int:
    return change.spool
