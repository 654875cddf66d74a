"""Inbox in PostgreSQL, by psycopg 3, which the extra `postgres` brings.

A row of a stream's floor, once there, stays. `first_time` holds it shared until its transaction ends, and `compact`
alone holds it exclusively: no row is folded away between a record and the read of the floor. Under REPEATABLE READ and
above a floor that was written after the transaction began is an error of the server (40001), never an old value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, LiteralString

from psycopg import AsyncConnection, Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow, tuple_row
from psycopg.sql import SQL, Composed, Identifier

from lbg_sidecar.inbox.identity import (
    NO_FLOOR,
    Identified,
    InboxError,
    JsonStreams,
    Stream,
    as_json,
    identity_of,
    quoted,
    raised_floor,
)

_CREATE_LOCK = 0x6C62675F  # "lbg_": CREATE TABLE IF NOT EXISTS fails when two make it at the same time


class PostgresInbox:
    """::

    with connection.transaction():
        if inbox.first_time(connection, message):
            connection.execute("INSERT INTO orders VALUES (%s, %s)", (message.key, message.data))
    """

    def __init__(self, *, table: str = "lbg_inbox", floor_table: str = "lbg_inbox_floor") -> None:
        for name in (table, floor_table):
            quoted(name)
        # Doubled, because every statement is executed with parameters, which psycopg marks by %.
        self._names = {
            name: Identifier(each.replace("%", "%%"))
            for name, each in (("rows", table), ("floors", floor_table))
        }

    def create(self, connection: Connection[Any]) -> None:
        """Make the tables where they are missing. A transaction of its own: raises InboxError within another."""
        with self.transaction(connection), _own_cursor(connection) as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_LOCK,))
            cursor.execute(
                self._sql(
                    "CREATE TABLE IF NOT EXISTS {rows} (publisher text NOT NULL, hash bigint NOT NULL, "
                    "seq bigint NOT NULL, PRIMARY KEY (publisher, hash, seq))"
                ),
                (),
            )
            cursor.execute(
                self._sql(
                    "CREATE TABLE IF NOT EXISTS {floors} (publisher text NOT NULL, hash bigint NOT NULL, "
                    "floor bigint NOT NULL, PRIMARY KEY (publisher, hash))"
                ),
                (),
            )

    def first_time(self, cursor: Cursor[Any] | Connection[Any], message: Identified) -> bool:
        """Record the message in the transaction under way; False if it was recorded before: write nothing then.

        Waits for another transaction with the same message. An error of the server (a serialization
        failure, a deadlock) ends the transaction; let it be a retry. Raises NoIdentity for a message that no
        publisher of ours stamped.
        """
        publisher, hash_, seq = identity_of(message)
        connection = cursor.connection if isinstance(cursor, Cursor) else cursor
        if connection.autocommit and _status(connection) == TransactionStatus.IDLE:
            raise InboxError(
                "the connection commits each statement by itself: begin a transaction before first_time"
            )
        with _own_cursor(connection) as own:
            own.execute(
                self._sql("INSERT INTO {rows} VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"),
                (publisher, hash_, seq),
            )
            if not own.rowcount:
                return False
            if seq > self._locked_floor(own, (publisher, hash_), "FOR SHARE"):
                return True
        self.forget(connection, message)
        return False

    def settle(self, connection: Connection[Any]) -> None:
        """Commit a transaction that is under way. Raises InboxError if it has failed, so that it can commit nothing."""
        status = _status(connection)
        if status == TransactionStatus.INERROR:
            raise InboxError(
                "a statement failed on the connection, so the transaction under way cannot be committed: roll it back "
                "where the exception is caught"
            )
        if status == TransactionStatus.INTRANS:
            connection.commit()

    @contextmanager
    def transaction(self, connection: Connection[Any]) -> Iterator[None]:
        """A transaction, committed at its end. Raises InboxError within another, whose savepoint it would be."""
        # Unknown: it is closed.
        if _status(connection) not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
            raise InboxError(
                "the connection has a transaction under way: commit it before, or connect with autocommit=True"
            )
        with connection.transaction():
            yield

    def savepoint(self, connection: Connection[Any]) -> AbstractContextManager[object]:
        """A savepoint: an exception undoes the writes since its begin."""
        return connection.transaction()

    def first_times(self, connection: Connection[Any], messages: Sequence[Identified]) -> list[bool]:
        """`first_time` of each, in the transaction under way and by a few statements. No two have one identity."""
        names = [identity_of(message) for message in messages]
        streams = sorted({(publisher, hash_) for publisher, hash_, _ in names})
        with _own_cursor(connection) as own:
            own.execute(
                self._sql(
                    "INSERT INTO {rows} SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[]) "
                    "ON CONFLICT DO NOTHING RETURNING publisher, hash, seq"
                ),
                [list(column) for column in zip(*names, strict=True)],
            )
            inserted = set(own.fetchall())
            floors = self._locked_floors(own, streams)
            first = {name for name in inserted if name[2] > floors[name[:2]]}
            if below := sorted(inserted - first):
                own.executemany(
                    self._sql("DELETE FROM {rows} WHERE publisher = %s AND hash = %s AND seq = %s"), below
                )
        return [name in first for name in names]

    def forget(self, connection: Connection[Any], message: Identified) -> None:
        """Remove the record that `first_time` made in the transaction under way."""
        with _own_cursor(connection) as own:
            own.execute(
                self._sql("DELETE FROM {rows} WHERE publisher = %s AND hash = %s AND seq = %s"),
                identity_of(message),
            )

    def compact(self, connection: Connection[Any]) -> int:
        """Fold the rows that follow a floor without a hole into it; how many rows went. A transaction for each
        stream, so that an application waits for one at most: raises InboxError within another."""
        with self.transaction(connection), _own_cursor(connection) as cursor:
            streams = cursor.execute(self._sql("SELECT DISTINCT publisher, hash FROM {rows}"), ()).fetchall()
        return sum(self._fold(connection, (publisher, hash_)) for publisher, hash_ in streams)

    def _fold(self, connection: Connection[Any], stream: Stream) -> int:
        with self.transaction(connection), _own_cursor(connection) as cursor:
            before = self._locked_floor(cursor, stream, "FOR UPDATE")
            numbers = cursor.execute(
                self._sql("SELECT seq FROM {rows} WHERE publisher = %s AND hash = %s ORDER BY seq"), stream
            ).fetchall()
            floor = raised_floor(before, (seq for (seq,) in numbers))
            if floor == before:
                return 0
            cursor.execute(
                self._sql("UPDATE {floors} SET floor = %s WHERE publisher = %s AND hash = %s"),
                (floor, *stream),
            )
            folded: int = cursor.execute(
                self._sql("DELETE FROM {rows} WHERE publisher = %s AND hash = %s AND seq <= %s"),
                (*stream, floor),
            ).rowcount
            return folded

    def processed(self, connection: Connection[Any]) -> JsonStreams:
        """Processed streams, for the member. In the transaction under way, if there is one."""
        # One statement, so that no compaction comes between rows and floors.
        query = self._sql(
            "SELECT publisher, hash, 0, floor FROM {floors} WHERE floor > %s "
            "UNION ALL SELECT publisher, hash, seq, seq FROM {rows}"
        )
        with connection.transaction(), _own_cursor(connection) as cursor:
            return as_json(cursor.execute(query, (NO_FLOOR,)))

    def _locked_floor(self, cursor: Cursor[TupleRow], stream: Stream, lock: LiteralString) -> int:
        """Made if it is missing: what is not there cannot be locked, and a floor made meanwhile would not be seen."""
        query = self._sql("SELECT floor FROM {floors} WHERE publisher = %s AND hash = %s " + lock)
        while (row := cursor.execute(query, stream).fetchone()) is None:
            cursor.execute(
                self._sql("INSERT INTO {floors} VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"),
                (*stream, NO_FLOOR),
            )
        floor: int = row[0]
        return floor

    def _locked_floors(self, cursor: Cursor[TupleRow], streams: Sequence[Stream]) -> dict[Stream, int]:
        """The floors of streams, locked FOR SHARE in their order and made where they are missing."""
        columns = [list(column) for column in zip(*streams, strict=True)]
        query = self._sql(
            "SELECT publisher, hash, floor FROM {floors} WHERE (publisher, hash) IN "
            "(SELECT * FROM unnest(%s::text[], %s::bigint[])) ORDER BY publisher, hash FOR SHARE"
        )
        while True:
            found = cursor.execute(query, columns).fetchall()
            floors = {(publisher, hash_): floor for publisher, hash_, floor in found}
            if len(floors) == len(streams):
                return floors
            cursor.execute(
                self._sql(
                    "INSERT INTO {floors} SELECT *, %s FROM unnest(%s::text[], %s::bigint[]) ON CONFLICT DO NOTHING"
                ),
                [NO_FLOOR, *columns],
            )

    def _sql(self, text: Any) -> Composed:
        return SQL(text).format(**self._names)


def _status(connection: object) -> TransactionStatus:
    """By `pgconn`, which a connection out of a pool of SQLAlchemy has too: its `info` is something else."""
    pgconn = getattr(connection, "pgconn", None)
    if pgconn is None or isinstance(connection, AsyncConnection):
        raise InboxError(f"the connection is a {type(connection).__qualname__}, and not a psycopg.Connection")
    return TransactionStatus(pgconn.transaction_status)


def _own_cursor(connection: Connection[Any]) -> Cursor[TupleRow]:
    """A cursor of its own, independent of the row types of the application's cursors."""
    return connection.cursor(row_factory=tuple_row)
