"""The store: batches of changes, pages of messages, and the state at start, in one SQLite file."""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from lbg_broker.core.effects import (
    Definition,
    Page,
    PageRequest,
    Row,
    SpoolChange,
    SpoolRecord,
    StoreBatch,
    StoredState,
)
from lbg_broker.core.message import Message
from lbg_broker.core.spool import LETTERS_BYTES
from lbg_broker.store.errors import DiskFullError, StoreError, may_be_full, store_error
from lbg_broker.store.reserve import INDEX_BYTES, PAGE_BYTES, Reserve, Size
from lbg_broker.store.schema import POSITION_BITS, open_database

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

TRIAL_PAGES: Final = 256
"""So much room (1 MiB) is to be there before publishes are accepted again."""

DOUBTS_MAX: Final = 3
"""Transactions in a row that may fail while the disk has room: the kernel is asked after the write, and somebody may
have freed something in between. More are an error of the disk."""

RESERVE_ROW_PAGES: Final = 16
RESERVE_ROW_BYTES: Final = (RESERVE_ROW_PAGES - 1) * (PAGE_BYTES - 4)
"""A row of the reserve is a chain of so many pages (overflow pages have 4,092 bytes each), and a part of another."""

LARGEST: Final = 0
"""The row of the reserve that says how long the longest message was."""

FREE_PAGES_MIN: Final = 4_096
"""Unused pages the file keeps (16 MiB): what a busy queue frees it soon needs again."""


class Store:
    """One open store. Every method blocks; use it from one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises `StoreError`."""
        self.path = path
        self._reserve = Reserve(path)
        try:
            self._database = open_database(path, alone=not self._reserve.has_index)
        except BaseException:
            self._reserve.close(is_empty=False)
            raise
        variables = self._database.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)  # 999 in old builds
        self._chunks = [rows for rows in CHUNK_ROWS if rows * COLUMNS <= variables]
        self.untidy = True
        """True if `tidy` has something to do, or may have."""
        self.short: DiskFullError | None = None
        """Reason for which there is no whole reserve since the store was opened; None: there is."""
        self._is_full = False
        self._doubts = 0
        self._writes = 0
        self._pages = self._pages_next = 0  # of the database, committed and in the open transaction
        self._reserve_rows = self._reserve_rows_next = 0
        self._largest = 0  # bytes of the longest message, rounded up
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Have the reserve, and be rid of what nobody needs any more, as far as the disk has room."""
        try:
            self._pages = self._number("PRAGMA page_count")
            try:
                self._reserve.allocate(self._pages, have=0)
                self._reserve.allocate_log(Size(self._pages))
                self._reserve_rows = self._number("SELECT count(*) FROM reserve WHERE id > 0")
                self._largest = self._number(
                    f"SELECT CAST(total(room) AS INTEGER) FROM reserve WHERE id = {LARGEST}"
                    " AND EXISTS (SELECT 1 FROM message)"
                )
                with self._transaction():
                    self._fill_reserve()
            except (DiskFullError, sqlite3.OperationalError) as error:
                failure = error if isinstance(error, StoreError) else store_error(error, self.path)
                if not isinstance(failure, DiskFullError):
                    raise
                self.short = failure
            try:
                self._in_steps("DELETE FROM spill WHERE id IN (SELECT id FROM spill LIMIT ?)")
                while self._remove_garbage():
                    pass
            except (DiskFullError, sqlite3.OperationalError) as error:
                failure = error if isinstance(error, StoreError) else store_error(error, self.path)
                # Without any room what is thrown away is still there: it would be delivered again.
                if not isinstance(failure, DiskFullError) or self._number("SELECT count(*) FROM garbage"):
                    raise failure from error
                self.short = failure
        except sqlite3.Error as error:
            raise store_error(error, self.path) from error

    def load(self) -> StoredState:
        """Loads the stored state. Messages are counted by their lines' records and not read, but for the place of the
        first."""
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

        When this returns the batch is on disk. Raises `StoreError`; `DiskFullError` if there is no room: then one with
        `on_reserve` may have it.
        """
        try:
            if batch.writes and batch.on_reserve:
                self._write_on_reserve(batch)
            elif batch.writes:
                self._write(batch)
            return [self._read(request) for request in batch.pages]
        except sqlite3.Error as error:
            raise store_error(error, self.path) from error

    def close(self) -> None:
        """Bring the write-ahead log into the file and close it. The reserve stays."""
        try:
            is_empty = self._checkpoint()
        except (StoreError, sqlite3.Error):
            is_empty = False
        self._reserve.retain_log()
        self._database.close()
        self._reserve.close(is_empty=is_empty)

    def _write(self, batch: StoreBatch) -> None:
        """Write a batch, and leave the whole reserve."""
        try:
            try:
                self._write_whole(batch)
            except (DiskFullError, sqlite3.OperationalError) as error:
                if not _is_full(error):
                    raise
                self._checkpoint()  # so that the log, which has no room to grow, begins again
                self._write_whole(batch)
        except (DiskFullError, sqlite3.OperationalError) as error:
            self._is_full = self._is_full or _is_full(error)
            raise
        self._is_full = False
        self.short = None
        self._writes += 1
        if self._writes % WRITES_PER_LOOK == 0:
            self.untidy = True

    def _write_whole(self, batch: StoreBatch) -> None:
        with self._transaction():
            if batch.trial:
                self._try_room()
            self._change(batch)
            self._fill_reserve()

    def _change(self, batch: StoreBatch) -> None:
        for definition in batch.definitions:
            self._define(definition)
        for durable, table in ((True, "message"), (False, "spill")):
            values = _rows(change for change in batch.spools if change.durable is durable)
            if durable and values:
                self._note_largest(values)
            self._insert(table, values)
        for change in batch.spools:
            self._delete("message" if change.durable else "spill", change)
        self._finish(batch)

    def _finish(self, batch: StoreBatch) -> None:
        self._record([change.record for change in batch.spools if change.record is not None])
        for spool, durable in batch.dropped:
            self._drop(spool, durable)

    # --- the reserve -------------------------------------------------------------------------------------------

    def _write_on_reserve(self, batch: StoreBatch) -> None:
        """Write a batch without growing the files: in the log from its start, in pages that the database has, and if
        they do not do in those of the reserve."""
        self._checkpoint()
        failed: Exception | None = None
        for rows in sorted({min(rows, self._reserve_rows) for rows in (0, 1, 4, self._reserve_rows)}):
            for most in (Size(self._pages).messages, 8, 0):
                try:
                    with self._transaction():
                        self._free_reserve(rows)
                        self._settle(batch, most)
                        self._have_blocks()
                except (DiskFullError, sqlite3.OperationalError) as error:
                    if not _is_full(error):
                        raise
                    failed = error
                else:
                    self._empty_garbage()
                    self._save_up()
                    return
        assert failed is not None
        raise failed

    def _save_up(self) -> None:
        """Gives freed space to the reserve first, and then to publishes."""
        missing = self._target_rows(self._pages) - self._reserve_rows
        free = self._number("PRAGMA freelist_count") // RESERVE_ROW_PAGES
        rows = min(missing, free - 1, 4)
        if rows > 0:
            with suppress(sqlite3.OperationalError, DiskFullError), self._transaction():
                self._reserve_more(rows)
                self._have_blocks()

    def _reserve_more(self, rows: int) -> None:
        for _ in range(rows):
            self._database.execute("INSERT INTO reserve (room) VALUES (zeroblob(?))", (RESERVE_ROW_BYTES,))
        self._reserve_rows_next += max(rows, 0)

    def _free_reserve(self, rows: int) -> None:
        """Free pages of the reserve."""
        if rows:
            self._database.execute(
                "DELETE FROM reserve WHERE id IN (SELECT id FROM reserve WHERE id > 0 LIMIT ?)", (rows,)
            )
            self._reserve_rows_next = self._reserve_rows - rows

    def _settle(self, batch: StoreBatch, most: int) -> None:
        """Make the changes of a batch so that few pages are written: beyond `most` positions what is deleted is thrown
        away. Deletes come first, as what they free is needed."""
        for change in batch.spools:
            base = change.spool << POSITION_BITS
            table = "message" if change.durable else "spill"
            for first, last in change.deletes:
                count = last - first + 1
                if count <= most or not change.durable:
                    most -= count
                    self._database.execute(
                        f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", (base + first, base + last)
                    )
                else:
                    self._throw_away(base + first, base + last)
        for definition in batch.definitions:
            self._define(definition)
        for durable, table in ((True, "message"), (False, "spill")):
            self._insert(table, _rows(change for change in batch.spools if change.durable is durable))
        self._finish(batch)

    def _empty_garbage(self) -> None:
        """Remove what was thrown away, for the next batch needs its room."""
        try:
            while self._remove_garbage():
                self._checkpoint()
        except (DiskFullError, sqlite3.OperationalError) as error:
            if not _is_full(error):
                raise

    def _have_blocks(self) -> None:
        """Have blocks for every page, before a transaction is committed."""
        self._pages_next = self._number("PRAGMA page_count")
        self._reserve.allocate(self._pages_next, have=self._pages)

    def _fill_reserve(self) -> None:
        """Let the reserve grow with what is stored, before it is."""
        self._reserve_more(self._target_rows(self._number("PRAGMA page_count")) - self._reserve_rows)
        self._have_blocks()
        self._reserve.allocate_log(Size(self._pages_next, self._largest))

    def _target_rows(self, pages: int) -> int:
        return -(-Size(pages).pages // RESERVE_ROW_PAGES)

    @property
    def is_low(self) -> bool:
        """True if a quarter of the reserve, or more, is used."""
        return self._is_full and 4 * self._reserve_rows <= 3 * self._target_rows(self._pages)

    @property
    def letter_bytes_max(self) -> int:
        """The longest message that the reserve has room for once more."""
        return max(self._largest, LETTERS_BYTES)

    @property
    def target_bytes(self) -> int:
        """Room for a reserve that is whole, with the blocks that the files have."""
        size = Size(self._pages, self._largest)
        return size.pages * PAGE_BYTES + size.log_bytes + INDEX_BYTES

    def _note_largest(self, values: list[int | bytes]) -> None:
        largest = max([len(values[place]) for place in range(3, len(values), COLUMNS)])  # type: ignore[arg-type]  # bodies
        if largest > max(self._largest, PAGE_BYTES):
            self._largest = 1 << (largest - 1).bit_length()
            self._database.execute("INSERT OR REPLACE INTO reserve VALUES (?, ?)", (LARGEST, self._largest))

    def _try_room(self) -> None:
        """Raises `DiskFullError` unless publishes can be accepted again, and not only one."""
        if self._number("PRAGMA freelist_count") < TRIAL_PAGES:
            self._reserve.allocate(self._pages + TRIAL_PAGES, have=self._pages)

    def _checkpoint(self) -> bool:
        """Copy the log into the database; whether all of it is there now, so that the log begins again."""
        with self._writing():
            busy, there, copied = self._database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return not busy and bool(there == copied)

    def _in_steps(self, statement: str) -> None:
        """Carry out a delete of at most `?` rows until there are none, in transactions that the log has room for."""
        most = TIDY_ROWS
        while True:
            try:
                with self._writing():
                    if self._database.execute(statement, (most,)).rowcount < most:
                        return
            except (DiskFullError, sqlite3.OperationalError) as error:
                if not _is_full(error) or most == 1:
                    raise
                most = max(most // 8, 1)
            self._checkpoint()

    def _number(self, query: str) -> int:
        (value,) = self._database.execute(query).fetchone()
        return int(value)

    # --- the tables --------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        database = self._database
        self._pages_next, self._reserve_rows_next = self._pages, self._reserve_rows
        with self._writing():
            database.execute("BEGIN IMMEDIATE")
            try:
                yield
                database.execute("COMMIT")
                self._doubts = 0
                self._pages, self._reserve_rows = self._pages_next, self._reserve_rows_next
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A write of SQLite that fails for want of room is a `DiskFullError` whatever the kernel said."""
        try:
            yield
        except sqlite3.Error as error:
            if may_be_full(error):
                self._doubt(error)
            raise

    def _doubt(self, error: sqlite3.Error) -> None:
        """Raises `DiskFullError` if the write that failed is to be tried again."""
        try:
            self._reserve.require_room()
        except DiskFullError:
            self._doubts = 0
            raise
        self._doubts += 1
        if self._doubts <= DOUBTS_MAX:
            raise DiskFullError(f"{self.path}: {error}, and there is room") from error

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
            f"SELECT id, origin, header, {body} FROM {table} WHERE id >= ? AND id < ?"
            " AND NOT EXISTS (SELECT 1 FROM garbage WHERE first BETWEEN ? AND id AND last >= id) ORDER BY id LIMIT ?",
            (base + request.first, base + request.upto, base, request.messages_max),
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
        """Remove some of what was thrown away, in a transaction that the log has room for; whether there was any."""
        most = TIDY_ROWS
        while (
            row := self._database.execute("SELECT first, last FROM garbage LIMIT 1").fetchone()
        ) is not None:
            try:
                with self._transaction():
                    self._remove(row[0], row[1], most)
                return True
            except (DiskFullError, sqlite3.OperationalError) as error:
                if not _is_full(error) or most == 1:
                    raise
            most = max(most // 8, 1)
            self._checkpoint()
        return False

    def _remove(self, first: int, last: int, most: int) -> None:
        removed = self._database.execute(
            "DELETE FROM message WHERE id IN (SELECT id FROM message WHERE id BETWEEN ? AND ? LIMIT ?)",
            (first, last, most),
        ).rowcount
        if removed < most:
            self._database.execute("DELETE FROM garbage WHERE first = ?", (first,))

    def _shrink(self) -> bool:
        free, pages = self._number("PRAGMA freelist_count"), self._number("PRAGMA page_count")
        if self._is_full or free <= max(FREE_PAGES_MIN, pages // 2):
            return False
        self._database.execute(f"PRAGMA incremental_vacuum({TIDY_PAGES})").fetchall()
        self._pages = self._number("PRAGMA page_count")
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


def _is_full(error: Exception) -> bool:
    """True if it is for want of room."""
    return isinstance(error, DiskFullError) or (
        isinstance(error, sqlite3.Error) and isinstance(store_error(error, Path()), DiskFullError)
    )


Outcome = list[Page] | StoreError
"""The pages a batch asked for, or why it is not on disk."""


class Committer:
    """Gives batches to the store in order and calls back, on its own thread, when each is on disk or failed."""

    def __init__(self, store: Store, on_done: Callable[[StoreBatch, Outcome], None]) -> None:
        self._store = store
        self._on_done = on_done
        self._batches: queue.SimpleQueue[StoreBatch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="lbg-store", daemon=True)
        self._thread.start()

    def submit(self, batch: StoreBatch) -> None:
        """Have a batch written after those submitted before."""
        self._batches.put(batch)

    def stop(self) -> None:
        """Write what was submitted, then end the thread and close the store."""
        self._batches.put(None)
        self._thread.join()
        self._store.close()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                outcome: Outcome = self._store.carry_out(batch)
            except StoreError as error:
                outcome = error
            except Exception as error:  # a mistake of ours must not leave everybody waiting for ever
                outcome = StoreError(f"the batch could not be carried out: {error!r}")
            self._on_done(batch, outcome)

    def _next(self) -> StoreBatch | None:
        """The next batch; while there is none, the store tidies up."""
        while self._store.untidy:
            try:
                return self._batches.get_nowait()
            except queue.Empty:
                try:
                    self._store.tidy()
                except StoreError:  # a batch that meets the same trouble will tell
                    break
        return self._batches.get()
