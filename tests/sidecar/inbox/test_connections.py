"""However a connection is opened, what the member may acknowledge is committed: another connection reads it."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lbg_sidecar.inbox import BatchingInbox, InboxError, SQLiteInbox
from lbg_sidecar.inbox.postgres import PostgresInbox
from testing.sidecar.postgres import PostgresServer
from testing.sidecar.sent import Sent

COUNT = 20
Connect = Callable[[], Any]


@pytest.fixture
def conninfo(postgres: PostgresServer) -> str:
    return postgres.new_database()


async def handled(inbox: Any, connect: Connect, handle: Callable[[Any, Any], None]) -> list[object]:
    """Verdicts of calls on two connections: the one of the begin, and one after a failure."""
    is_broken = False

    def break_once(connection: Any, message: Any) -> None:
        nonlocal is_broken
        if message.seq == COUNT and not is_broken:
            is_broken = True
            connection.close()
        handle(connection, message)

    async with BatchingInbox(inbox, connect, break_once) as handler:
        first = await asyncio.gather(*(handler(Sent(seq)) for seq in range(COUNT)))
        with pytest.raises((psycopg.Error, sqlite3.Error)):
            await handler(Sent(COUNT))
        return [*first, *await asyncio.gather(*(handler(Sent(COUNT + seq)) for seq in range(COUNT)))]


POSTGRES: dict[str, tuple[bool, str]] = {
    "a setting": (False, "SET TIME ZONE 'UTC'"),
    "a table": (False, "CREATE TABLE IF NOT EXISTS effects (seq integer)"),
    "a query": (False, "SELECT 1"),
    "nothing": (False, ""),
    "autocommit": (True, "SET TIME ZONE 'UTC'"),
    "autocommit, and a transaction begun": (True, "BEGIN"),
}


class PoolProxied:
    """A raw connection of SQLAlchemy: all of the driver's, but a dictionary for `info`."""

    def __init__(self, connection: Any) -> None:
        self.driver_connection, self.info = connection, dict[str, str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver_connection, name)


@pytest.mark.process
@pytest.mark.parametrize("wrapped", [lambda connection: connection, PoolProxied], ids=["own", "pooled"])
@pytest.mark.parametrize("left", POSTGRES)
async def test_postgresql_has_what_was_acknowledged_whatever_connect_executed(
    left: str, wrapped: Callable[[Any], Any], conninfo: str
) -> None:
    autocommit, statement = POSTGRES[left]
    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE TABLE effects (seq integer)")

    def connect() -> Any:
        connection = psycopg.connect(conninfo, autocommit=autocommit)
        if statement:
            connection.execute(statement)
        return wrapped(connection)

    def handle(connection: Any, message: Any) -> None:
        connection.execute("INSERT INTO effects VALUES (%s)", (message.seq,))

    assert await handled(PostgresInbox(), connect, handle) == [None] * 2 * COUNT
    with psycopg.connect(conninfo) as connection:
        rows = connection.execute("SELECT seq FROM effects ORDER BY seq").fetchall()
    assert rows == [(seq,) for seq in range(2 * COUNT)]


@pytest.mark.process
async def test_a_connection_whose_statement_failed_in_connect_is_refused(conninfo: str) -> None:
    def connect() -> Any:
        connection = psycopg.connect(conninfo)
        connection.execute("CREATE TABLE effects (seq integer)")
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT nothing")
        return connection

    with pytest.raises(InboxError, match="a statement failed on the connection"):
        async with BatchingInbox(PostgresInbox(), connect, lambda *_: None):
            pass


@pytest.mark.parametrize("connect", [lambda: sqlite3.connect(":memory:"), object], ids=["sqlite", "none"])
async def test_a_connection_of_another_driver_is_refused_by_its_type(connect: Connect) -> None:
    with pytest.raises(InboxError, match=r"the connection is a \w+, and not a psycopg.Connection"):
        async with BatchingInbox(PostgresInbox(), connect, lambda *_: None):
            pass


@pytest.mark.process
def test_what_has_a_transaction_of_its_own_is_refused_within_another(conninfo: str) -> None:
    inbox = PostgresInbox()
    with psycopg.connect(conninfo) as connection:
        inbox.create(connection)
        connection.execute("SELECT 1")
        for own in (inbox.create, inbox.compact):
            with pytest.raises(InboxError, match="has a transaction under way: commit it before"):
                own(connection)


SQLITE: dict[str, tuple[dict[str, Any], str]] = {
    "legacy": ({}, "INSERT INTO opened VALUES (1)"),
    "legacy, exclusive": ({"isolation_level": "EXCLUSIVE"}, "INSERT INTO opened VALUES (1)"),
    "legacy, nothing": ({}, ""),
    "each statement alone": ({"isolation_level": None}, "INSERT INTO opened VALUES (1)"),
    "each statement alone, and a transaction begun": ({"isolation_level": None}, "BEGIN"),
    "autocommit": ({"autocommit": True}, "INSERT INTO opened VALUES (1)"),
    "autocommit, and a transaction begun": ({"autocommit": True}, "BEGIN"),
    "no autocommit": ({"autocommit": False}, "INSERT INTO opened VALUES (1)"),
    "no autocommit, a query": ({"autocommit": False}, "SELECT * FROM opened"),
}


@pytest.fixture(
    params=[
        name
        for name, (options, _) in SQLITE.items()
        if "autocommit" not in options or sys.version_info >= (3, 12)
    ]
)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    options, statement = SQLITE[request.param]
    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE opened (n)")
        connection.execute("CREATE TABLE effects (seq)")

    def connect() -> Any:
        connection = sqlite3.connect(tmp_path / "orders.db", check_same_thread=False, **options)
        if statement:
            connection.execute(statement)
        return connection

    return connect


def in_file(tmp_path: Path, query: str) -> list[Any]:
    """As another connection reads it."""
    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection:
        return connection.execute(query).fetchall()


async def test_sqlite_has_what_was_acknowledged_in_every_mode_of_transactions(
    connect: Connect, tmp_path: Path
) -> None:
    def handle(connection: Any, message: Any) -> None:
        connection.execute("INSERT INTO effects VALUES (?)", (message.seq,))

    assert await handled(SQLiteInbox(), connect, handle) == [None] * 2 * COUNT
    assert in_file(tmp_path, "SELECT seq FROM effects ORDER BY seq") == [(seq,) for seq in range(2 * COUNT)]


async def test_a_handler_that_fails_undoes_its_message_alone_in_every_mode(
    connect: Connect, tmp_path: Path
) -> None:
    def handle(connection: Any, message: Any) -> None:
        connection.execute("INSERT INTO effects VALUES (?)", (message.seq,))
        if message.seq == 1:
            raise ValueError("not this one")

    async with BatchingInbox(SQLiteInbox(), connect, handle) as handler:
        await asyncio.gather(*(handler(Sent(seq)) for seq in range(3)), return_exceptions=True)
        assert await handler.processed() == [["p", 3, [[0, 0], [2, 2]]]]
    assert in_file(tmp_path, "SELECT seq FROM effects ORDER BY seq") == [(0,), (2,)]


def test_a_compaction_is_committed_in_every_mode(connect: Connect, tmp_path: Path) -> None:
    inbox = SQLiteInbox()
    with closing(connect()) as connection:
        inbox.settle(connection)
        inbox.create(connection)
        with inbox.transaction(connection):
            for seq in range(3):
                assert inbox.first_time(connection, Sent(seq))
        assert inbox.compact(connection) == 3
    assert in_file(tmp_path, "SELECT floor FROM lbg_inbox_floor") == [(2,)]


async def test_an_error_that_rolls_everything_back_acknowledges_nothing_of_it(
    tmp_path: Path,
) -> None:
    """SQLite ends the whole transaction on some errors, a full disk among them."""
    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection:
        connection.execute("CREATE TABLE effects (seq UNIQUE ON CONFLICT ROLLBACK)")
        connection.execute("INSERT INTO effects VALUES (5)")
        connection.commit()

    def handle(connection: Any, message: Any) -> None:
        connection.execute("INSERT INTO effects VALUES (?)", (message.seq,))

    def connect() -> Any:
        return sqlite3.connect(tmp_path / "orders.db")

    async with BatchingInbox(SQLiteInbox(), connect, handle) as handler:
        calls = (handler(Sent(seq)) for seq in range(10))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [repr(answer) for answer in answers if answer is not None] == [
            "IntegrityError('UNIQUE constraint failed: effects.seq')"
        ]
        assert await handler.processed() == [["p", 3, [[0, 4], [6, 9]]]]
    assert in_file(tmp_path, "SELECT seq FROM effects ORDER BY seq") == [(seq,) for seq in range(10)]
