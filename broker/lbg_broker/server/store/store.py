"""Carrying out a batch, reading pages, and what there is at start."""

import sqlite3
from collections.abc import Iterator, Sequence
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


class Store:
    """One open store. Every method blocks; use it from one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises `StoreError`."""
        self.path = path
        self._database = open_database(path)
        self._collect_garbage()

    def load(self) -> StoredState:
        """What was kept. Messages are counted by their lines' records and not read."""
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
                    "SELECT id, next_position, mark, messages, bytes FROM spool"
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
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            for definition in batch.definitions:
                self._define(definition)
            self._insert("message", _rows(change for change in batch.spools if change.durable))
            self._insert("spill", _rows(change for change in batch.spools if not change.durable))
            for change in batch.spools:
                self._delete("message" if change.durable else "spill", change)
            self._record([change.record for change in batch.spools if change.record is not None])
            for spool, durable in batch.dropped:
                self._drop(spool, durable)
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
                "INSERT INTO definition VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                (definition.kind, definition.key, definition.value),
            )

    def _insert(self, table: str, values: list[int | bytes]) -> None:
        start, rows = 0, len(values) // COLUMNS
        for chunk in CHUNK_ROWS:
            while rows >= chunk:
                end = start + chunk * COLUMNS
                self._database.execute(_INSERTS[table, chunk], values[start:end])
                start, rows = end, rows - chunk

    def _delete(self, table: str, change: SpoolChange) -> None:
        base = change.spool << POSITION_BITS
        for first, last in change.deletes:
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
        table = "message" if durable else "spill"
        self._database.execute(
            f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", (base, base + (1 << POSITION_BITS) - 1)
        )
        if durable:
            self._database.execute("DELETE FROM spool WHERE id = ?", (spool,))

    def _read(self, request: PageRequest) -> Page:
        base = request.spool << POSITION_BITS
        table = "message" if request.durable else "spill"
        rows: list[Row] = []
        size = 0
        cursor = self._database.execute(
            f"SELECT id, origin, header, body FROM {table} WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (base + request.first, base + request.upto, request.messages_max),
        )
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

    def _collect_garbage(self) -> None:
        return


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
