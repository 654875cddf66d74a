"""The two tables of a run, `inserted` and `recognised`, in SQLite and in PostgreSQL. Neither has an index.

An application takes messages with `take`, in one transaction; the judge reads.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from lbg_sidecar.inbox import SQLiteInbox
from lbg_sidecar.inbox.postgres import PostgresInbox
from testing.sidecar.postgres import PostgresServer

BUSY_S = 20.0
ROWS_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class Order:
    """A message as the application got it: who it is, and what is inserted of it."""

    id: str
    publisher: str
    hash: int
    seq: int
    row: tuple[int, int]


class Database(ABC):
    """One connection. Not for two threads at the same time."""

    @abstractmethod
    def create(self) -> None:
        """`inserted` has no unique index: it takes every duplicate. `recognised` has a row for each message that the
        inbox kept out of it."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]: ...

    @abstractmethod
    def first_time(self, order: Order) -> bool: ...

    @abstractmethod
    def insert(self, table: str, rows: Sequence[tuple[int, int]]) -> None: ...

    @abstractmethod
    def compact(self) -> None: ...

    @abstractmethod
    def processed(self) -> list[list[object]]: ...

    @abstractmethod
    def count(self, table: str) -> int: ...

    @abstractmethod
    def inserted_about(self) -> int:
        """Quickly: it is asked every few milliseconds, and need not be exact."""

    @abstractmethod
    def rows(self) -> Iterator[tuple[int, int]]:
        """Publisher and position of what is in `inserted`, in the order it was inserted."""

    @abstractmethod
    def close(self) -> None: ...

    def take(self, orders: Iterable[Order], *, inbox: bool) -> None:
        """All of them in one transaction. In the order of their names, so that two transactions over the same
        messages wait for each other and do not lock each other out; none of a batch has another's key."""
        inserted, recognised = [], []
        with self.transaction():
            for order in sorted(orders, key=lambda order: (order.publisher, order.hash, order.seq)):
                fresh = not inbox or self.first_time(order)
                (inserted if fresh else recognised).append(order.row)
            self.insert("inserted", inserted)
            self.insert("recognised", recognised)


class SQLite(Database):
    """In WAL mode, not synced at every commit: what is committed survives kill -9, which is what happens here, and
    not the loss of power."""

    def __init__(self, place: str) -> None:
        self._connection = sqlite3.connect(place, timeout=BUSY_S, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._inbox = SQLiteInbox()

    def create(self) -> None:
        self._inbox.create(self._connection)
        for table in ("inserted", "recognised"):
            self._connection.execute(
                f"CREATE TABLE {table} (publisher INTEGER NOT NULL, position INTEGER NOT NULL)"
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            yield

    def first_time(self, order: Order) -> bool:
        return self._inbox.first_time(self._connection, order)

    def insert(self, table: str, rows: Sequence[tuple[int, int]]) -> None:
        self._connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)

    def compact(self) -> None:
        self._inbox.compact(self._connection)

    def processed(self) -> list[list[object]]:
        return self._inbox.processed(self._connection)

    def count(self, table: str) -> int:
        found: int = self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        return found

    def inserted_about(self) -> int:
        found: int = self._connection.execute("SELECT coalesce(max(rowid), 0) FROM inserted").fetchone()[0]
        return found

    def rows(self) -> Iterator[tuple[int, int]]:
        yield from self._connection.execute("SELECT publisher, position FROM inserted ORDER BY rowid")

    def close(self) -> None:
        self._connection.close()


class Postgres(Database):
    """`number` counts the inserts of all transactions; it has no index either."""

    def __init__(self, place: str) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(place, autocommit=True)
        self._inbox = PostgresInbox()

    def create(self) -> None:
        self._inbox.create(self._connection)
        for table in ("inserted", "recognised"):
            self._connection.execute(
                f"CREATE TABLE {table} (publisher integer NOT NULL, position integer NOT NULL, number bigserial)"
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._connection.transaction():
            yield

    def first_time(self, order: Order) -> bool:
        return self._inbox.first_time(self._connection, order)

    def insert(self, table: str, rows: Sequence[tuple[int, int]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} (publisher, position) VALUES (%s, %s)", rows)

    def compact(self) -> None:
        self._inbox.compact(self._connection)

    def processed(self) -> list[list[object]]:
        return self._inbox.processed(self._connection)

    def count(self, table: str) -> int:
        found = self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert found is not None
        return int(found[0])

    def inserted_about(self) -> int:
        """Numbers that the counter assigned, with those of transactions that failed."""
        found = self._connection.execute(
            "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM inserted_number_seq"
        ).fetchone()
        assert found is not None
        return int(found[0])

    def rows(self) -> Iterator[tuple[int, int]]:
        with self._connection.transaction(), self._connection.cursor(name="judge") as cursor:
            cursor.itersize = ROWS_AT_ONCE
            yield from cursor.execute("SELECT publisher, position FROM inserted ORDER BY number")

    def close(self) -> None:
        self._connection.close()


DATABASES: dict[str, Callable[[str], Database]] = {"sqlite": SQLite, "postgres": Postgres}


@contextmanager
def place_for(database: str, directory: Path) -> Iterator[str]:
    """Place of such a database for the length of the block: a file, or the run's own server."""
    if database == "sqlite":
        yield str(directory / "applications.db")
        return
    with PostgresServer() as server:
        yield server.conninfo
