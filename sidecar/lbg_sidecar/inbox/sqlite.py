"""Inbox in SQLite. One writer at a time is SQLite's own rule, so no lock is needed beyond its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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


class SQLiteInbox:
    """::

    with connection:
        if inbox.first_time(connection, message):
            connection.execute("INSERT INTO orders VALUES (?, ?)", (message.key, message.data))
    """

    def __init__(self, *, table: str = "lbg_inbox", floor_table: str = "lbg_inbox_floor") -> None:
        self._rows = quoted(table)
        self._floors = quoted(floor_table)

    def create(self, connection: sqlite3.Connection) -> None:
        """Make the tables where they are missing. A transaction of its own: raises InboxError within another."""
        stream = "publisher TEXT NOT NULL, hash INTEGER NOT NULL"
        with self.transaction(connection):
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._rows} ({stream}, seq INTEGER NOT NULL, "
                "PRIMARY KEY (publisher, hash, seq)) WITHOUT ROWID"
            )
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._floors} ({stream}, floor INTEGER NOT NULL, "
                "PRIMARY KEY (publisher, hash)) WITHOUT ROWID"
            )

    def first_time(self, cursor: sqlite3.Cursor | sqlite3.Connection, message: Identified) -> bool:
        """Record the message in the transaction under way; False if it was recorded before: write nothing then.

        Inserts first, which takes SQLite's write lock: from there on no compaction can come between. A transaction
        that read before and lost the lock to another writer gets `sqlite3.OperationalError` here; let it be a retry.
        Raises NoIdentity for a message that no publisher of ours stamped.
        """
        publisher, hash_, seq = identity_of(message)
        _require_transaction(cursor)
        inserted = cursor.execute(
            f"INSERT OR IGNORE INTO {self._rows} VALUES (?, ?, ?)", (publisher, hash_, seq)
        )
        if not inserted.rowcount:
            return False
        if seq > self._floor(cursor, (publisher, hash_)):
            return True
        self.forget(cursor, message)
        return False

    def settle(self, connection: sqlite3.Connection) -> None:
        """Commit a transaction that is under way."""
        if connection.in_transaction:
            _commit(connection)

    @contextmanager
    def transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        """A transaction that has SQLite's write lock, committed at its end. Raises InboxError within another.

        A connection with `autocommit=False` is always in one, which this commits and goes on with.
        """
        if _is_always_in_transaction(connection):
            connection.commit()
        elif connection.in_transaction:
            raise InboxError("the connection has a transaction under way: commit it before")
        else:
            connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            _commit(connection)
        except BaseException:
            if connection.in_transaction:
                _rollback(connection)
            raise

    @contextmanager
    def savepoint(self, connection: sqlite3.Connection) -> Iterator[None]:
        """A savepoint: an exception undoes the writes since its begin. Raises InboxError if it has gone with its
        transaction: by a commit, or by an error that SQLite answers with a rollback of all (a full disk)."""
        connection.execute("SAVEPOINT lbg_message")
        try:
            yield
        except BaseException:
            _end_savepoint(connection, "ROLLBACK TO lbg_message")
            raise
        _end_savepoint(connection)

    def first_times(self, connection: sqlite3.Connection, messages: Iterable[Identified]) -> Iterator[bool]:
        """`first_time` of each, when it is asked for.

        One at a time: a handler that commits, which it must not, records no message that is not handled yet.
        """
        return (self.first_time(connection, message) for message in messages)

    def forget(self, connection: sqlite3.Cursor | sqlite3.Connection, message: Identified) -> None:
        """Remove the record that `first_time` made in the transaction under way."""
        connection.execute(
            f"DELETE FROM {self._rows} WHERE publisher = ? AND hash = ? AND seq = ?", identity_of(message)
        )

    def compact(self, connection: sqlite3.Connection) -> int:
        """Fold the rows that follow a floor without a hole into it; how many rows went. A transaction of its own:
        raises InboxError within another."""
        folded = 0
        with self.transaction(connection):
            streams = connection.execute(f"SELECT DISTINCT publisher, hash FROM {self._rows}").fetchall()
            for stream in streams:
                before = self._floor(connection, stream)
                numbers = connection.execute(
                    f"SELECT seq FROM {self._rows} WHERE publisher = ? AND hash = ? ORDER BY seq", stream
                )
                floor = raised_floor(before, (seq for (seq,) in numbers))
                if floor == before:
                    continue
                connection.execute(
                    f"INSERT OR REPLACE INTO {self._floors} VALUES (?, ?, ?)", (*stream, floor)
                )
                folded += connection.execute(
                    f"DELETE FROM {self._rows} WHERE publisher = ? AND hash = ? AND seq <= ?",
                    (*stream, floor),
                ).rowcount
        return folded

    def processed(self, connection: sqlite3.Connection) -> JsonStreams:
        """Processed streams, for the member."""
        # One statement, so that no compaction comes between rows and floors.
        rows = connection.execute(
            f"SELECT publisher, hash, 0, floor FROM {self._floors} "
            f"UNION ALL SELECT publisher, hash, seq, seq FROM {self._rows}"
        ).fetchall()
        return as_json(rows)

    def _floor(self, cursor: sqlite3.Cursor | sqlite3.Connection, stream: Stream) -> int:
        row = cursor.execute(
            f"SELECT floor FROM {self._floors} WHERE publisher = ? AND hash = ?", stream
        ).fetchone()
        return row[0] if row else NO_FLOOR


def _is_always_in_transaction(connection: sqlite3.Connection) -> bool:
    """True for `autocommit=False` (Python 3.12), where `commit` begins the next transaction."""
    return getattr(connection, "autocommit", None) is False


def _commit(connection: sqlite3.Connection) -> None:
    # With `autocommit=True` the method does nothing, and with False the statement leaves no transaction.
    if _is_always_in_transaction(connection):
        connection.commit()
    else:
        connection.execute("COMMIT")


def _rollback(connection: sqlite3.Connection) -> None:
    if _is_always_in_transaction(connection):
        connection.rollback()
    else:
        connection.execute("ROLLBACK")


def _end_savepoint(connection: sqlite3.Connection, *before: str) -> None:
    try:
        for statement in (*before, "RELEASE lbg_message"):
            connection.execute(statement)
    except sqlite3.OperationalError as error:
        if "no such savepoint" not in str(error):
            raise
        raise InboxError(
            "the handler has ended the transaction, which is that of a batch: it must neither commit nor use "
            "`with connection`"
        ) from error


def _require_transaction(cursor: sqlite3.Cursor | sqlite3.Connection) -> None:
    """Without one the record would be committed alone, and a crash after it would lose the message's effects."""
    connection = cursor.connection if isinstance(cursor, sqlite3.Cursor) else cursor
    commits_alone = connection.isolation_level is None or getattr(connection, "autocommit", None) is True
    if commits_alone and not connection.in_transaction:
        raise InboxError(
            "the connection commits each statement by itself: begin a transaction before first_time"
        )
