"""Batches of an inbox: one commit for many messages, and every message as if it were alone."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lbg_sidecar.inbox import BatchingInbox, InboxError, NoIdentity, SQLiteInbox
from lbg_sidecar.inbox.postgres import PostgresInbox
from lbg_sidecar.message import ACK, Verdict, drop, retry
from testing import ROOT, program
from testing.sidecar.sent import Sent
from testing.waiting import GUARD_S, until

STUCK = """
import asyncio, sqlite3, threading
from lbg_sidecar.inbox import BatchingInbox, SQLiteInbox
from testing.sidecar.sent import Sent

begun = threading.Event()

def handle(connection, message):
    begun.set()
    threading.Event().wait()

async def main():
    handler = BatchingInbox(SQLiteInbox(), lambda: sqlite3.connect(":memory:"), handle)
    await handler.__aenter__()
    call = asyncio.create_task(handler(Sent(0)))
    await asyncio.to_thread(begun.wait)
    call.cancel()
    closing = asyncio.create_task(handler.__aexit__())
    await asyncio.sleep(0)
    closing.cancel()
    print("left", flush=True)

asyncio.run(main())
"""

TABLES = (
    "CREATE TABLE parents (id INTEGER PRIMARY KEY)",
    "INSERT INTO parents VALUES (1)",
    "CREATE TABLE effects (seq INTEGER, parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)",
)


@dataclass
class Database:
    inbox: Any
    connect: Callable[[], Any]
    mark: str
    commits: int = 0
    seen: list[int] = field(default_factory=list)
    """Sequence numbers that the handler was called with."""

    @property
    def counted(self) -> Any:
        """The inbox; `commits` counts its transactions."""
        database = self

        class Counted(type(self.inbox)):
            @contextmanager
            def transaction(self, connection: Any) -> Iterator[None]:
                with super().transaction(connection):
                    yield
                database.commits += 1

        return Counted()

    def handle(self, connection: Any, message: Any, *, parent: int = 1) -> Verdict | None:
        self.seen.append(message.seq)
        connection.execute(f"INSERT INTO effects VALUES ({self.mark}, {self.mark})", (message.seq, parent))
        return None

    def effects(self) -> list[int]:
        connection = self.connect()
        rows = connection.execute("SELECT seq FROM effects ORDER BY seq").fetchall()
        connection.close()
        return [seq for (seq,) in rows]

    def recorded(self) -> list[list[object]]:
        connection = self.connect()
        found: list[list[object]] = self.inbox.processed(connection)
        connection.close()
        return found

    def batching(self, handle: Any = None, **options: Any) -> BatchingInbox[Any]:
        return BatchingInbox(self.counted, self.connect, handle or self.handle, **options)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":

        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(tmp_path / "orders.db")
            connection.execute("PRAGMA foreign_keys = ON")
            return connection

        made = Database(SQLiteInbox(), connect, "?")
    else:
        conninfo = request.getfixturevalue("postgres").new_database()
        made = Database(PostgresInbox(), lambda: psycopg.connect(conninfo), "%s")
    connection = made.connect()
    for statement in TABLES:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return made


async def outcomes(handler: Any, *messages: Any) -> list[object]:
    """Verdicts, or exceptions, of calls that run at the same time."""
    return await asyncio.gather(*(handler(message) for message in messages), return_exceptions=True)


async def test_calls_that_run_at_the_same_time_share_commits(database: Database) -> None:
    async with database.batching() as handler:
        assert await outcomes(handler, *(Sent(seq) for seq in range(200))) == [None] * 200
    assert database.effects() == list(range(200))
    assert database.commits <= 3  # the first call may be alone
    assert database.recorded() == [["p", 3, [[0, 199]]]]


async def test_a_batch_has_at_most_max_messages(database: Database) -> None:
    async with database.batching(max_messages=10) as handler:
        await outcomes(handler, *(Sent(seq) for seq in range(100)))
    assert database.commits >= 10


async def test_what_was_recorded_before_is_not_handled_again(database: Database) -> None:
    async with database.batching() as handler:
        await outcomes(handler, *(Sent(seq) for seq in range(20)))
    async with database.batching() as handler:
        assert await handler.processed() == [["p", 3, [[0, 19]]]]
        assert await outcomes(handler, *(Sent(seq) for seq in range(10, 30))) == [None] * 20
    assert database.seen == list(range(30))
    assert database.effects() == list(range(30))


async def test_what_a_floor_covers_is_not_handled_again(database: Database) -> None:
    async with database.batching() as handler:
        await outcomes(handler, *(Sent(seq) for seq in range(20)))
        connection = database.connect()
        assert database.inbox.compact(connection) == 20
        connection.close()
        assert await outcomes(handler, *(Sent(seq) for seq in range(25))) == [None] * 25
    assert database.effects() == list(range(25))
    assert database.recorded() == [["p", 3, [[0, 24]]]]


async def test_one_message_that_is_delivered_twice_at_the_same_time_is_handled_once(
    database: Database,
) -> None:
    async with database.batching() as handler:
        await outcomes(handler, *(Sent(seq) for seq in [0, 1, 1, 2, 1, 0]))
    assert database.effects() == [0, 1, 2]


async def test_a_handler_that_fails_undoes_its_message_and_no_other(database: Database) -> None:
    failing = {3, 7}

    def handle(connection: Any, message: Any) -> None:
        database.handle(connection, message)
        if message.seq in failing:
            raise ValueError(f"not {message.seq}")

    async with database.batching(handle) as handler:
        found = await outcomes(handler, *(Sent(seq) for seq in range(10)))
        assert [repr(one) for one in found if one is not None] == [
            "ValueError('not 3')",
            "ValueError('not 7')",
        ]
        assert database.effects() == [0, 1, 2, 4, 5, 6, 8, 9]
        failing.clear()
        assert await outcomes(handler, Sent(3), Sent(7), Sent(8)) == [None] * 3
    assert database.effects() == list(range(10))
    assert sorted(database.seen) == sorted([*range(10), 3, 7])  # neighbours were called once


async def test_a_handler_that_exits_fails_its_message_and_the_thread_goes_on(database: Database) -> None:
    def handle(connection: Any, message: Any) -> None:
        database.handle(connection, message)
        if message.seq == 3:
            raise SystemExit(1)

    async with database.batching(handle) as handler:
        found = await outcomes(handler, *(Sent(seq) for seq in range(5)))
        assert [repr(one) for one in found if one is not None] == ["InboxError('handler: SystemExit(1)')"]
        assert await outcomes(handler, Sent(5)) == [None]
    assert database.effects() == [0, 1, 2, 4, 5]


async def test_what_is_not_acknowledged_is_undone_and_not_recorded(database: Database) -> None:
    """A dead letter that is not confirmed when the connection is lost exists only if its message is dropped again."""
    answers: list[Any] = [retry("later"), drop("never"), 42, ACK, None]

    def handle(connection: Any, message: Any) -> Any:
        database.handle(connection, message)
        return answers[message.seq]

    async with database.batching(handle) as handler:
        for _ in range(2):
            assert await outcomes(handler, *map(Sent, range(3))) == answers[:3]
        assert await outcomes(handler, Sent(3), Sent(4)) == [ACK, None]
    assert database.effects() == [3, 4]
    assert database.recorded() == [["p", 3, [[3, 4]]]]


async def test_a_commit_that_fails_for_one_message_fails_for_no_other(database: Database) -> None:
    """A deferred constraint is checked at the commit, when nobody knows whose row it is."""

    def handle(connection: Any, message: Any) -> None:
        database.handle(connection, message, parent=2 if message.seq == 5 else 1)

    async with database.batching(handle) as handler:
        found = await outcomes(handler, *(Sent(seq) for seq in range(10)))
        assert [seq for seq, one in enumerate(found) if one is not None] == [5]
        assert "foreign key" in str(found[5]).lower()
        assert await outcomes(handler, Sent(10)) == [None]
    assert database.effects() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]


async def test_a_handler_must_not_end_the_transaction(database: Database) -> None:
    def handle(connection: Any, message: Any) -> None:
        database.handle(connection, message)
        connection.commit()

    async with database.batching(handle) as handler:
        (error,) = await outcomes(handler, Sent(0))
        assert isinstance(error, InboxError | psycopg.ProgrammingError)
        await outcomes(handler, Sent(0))
    assert database.effects() in (
        [0],
        [],
    )  # SQLite has committed it, with its record; PostgreSQL's driver refuses
    assert len(database.recorded()) == len(database.effects())


async def test_a_handler_that_commits_records_no_message_that_is_not_handled(database: Database) -> None:
    """A process that is killed in a handler leaves what is committed then."""
    left: list[tuple[list[int], list[list[object]]]] = []

    def handle(connection: Any, message: Any) -> None:
        left.append((database.effects(), database.recorded()))
        database.handle(connection, message)
        connection.commit()

    async with database.batching(handle) as handler:
        for _ in range(3):
            await outcomes(handler, *(Sent(seq) for seq in range(6)))
    for effects, recorded in left:
        assert recorded == ([["p", 3, [[effects[0], effects[-1]]]]] if effects else [])
    expected = list(range(6)) if isinstance(database.inbox, SQLiteInbox) else []
    assert database.effects() == expected  # each once; PostgreSQL's driver refuses the commit


async def test_a_lost_connection_fails_its_batch_and_the_next_one_connects_again(database: Database) -> None:
    broken: list[Any] = []

    def handle(connection: Any, message: Any) -> None:
        if not broken:
            broken.append(connection)
            connection.close()
        database.handle(connection, message)

    async with database.batching(handle) as handler:
        first = await outcomes(handler, Sent(0))
        assert isinstance(first[0], Exception)
        assert await outcomes(handler, Sent(0), Sent(1)) == [None, None]
    assert database.effects() == [0, 1]


async def test_a_database_that_cannot_be_reached_is_told_at_the_begin() -> None:
    def connect() -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        async with BatchingInbox(SQLiteInbox(), connect, lambda connection, message: None):
            pass
    await until(lambda: "lbg-inbox" not in [thread.name for thread in threading.enumerate()])


async def test_an_error_at_the_begin_has_the_cause_that_the_application_gave() -> None:
    def connect() -> sqlite3.Connection:
        raise ConnectionError("no database") from KeyError("password")

    with pytest.raises(ConnectionError) as raised:
        async with BatchingInbox(SQLiteInbox(), connect, lambda connection, message: None):
            pass
    assert repr(raised.value.__cause__) == "KeyError('password')"


async def test_a_connect_that_exits_is_told_at_the_begin() -> None:
    def connect() -> sqlite3.Connection:
        sys.exit("no database")

    with pytest.raises(InboxError, match="no database"):
        async with BatchingInbox(SQLiteInbox(), connect, lambda connection, message: None):
            pass


async def test_a_call_that_is_cancelled_before_its_batch_does_nothing(database: Database) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handle(connection: Any, message: Any) -> None:
        begun.set()
        go_on.wait()
        database.handle(connection, message)

    async with database.batching(handle) as handler:
        first = asyncio.create_task(handler(Sent(0)))
        await until(begun.is_set)
        second = asyncio.create_task(handler(Sent(1)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        go_on.set()
        assert await first is None
        assert await handler(Sent(2)) is None
    assert database.effects() == [0, 2]


async def test_a_close_that_is_cancelled_commits_and_disconnects_when_the_handler_returns(
    tmp_path: Path,
) -> None:
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Connection(sqlite3.Connection):
        def close(self) -> None:
            super().close()
            closed.set()

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "orders.db", factory=Connection)

    def handle(connection: Any, message: Any) -> None:
        begun.set()
        go_on.wait(GUARD_S)

    handler = BatchingInbox(SQLiteInbox(), connect, handle)
    await handler.__aenter__()
    first = asyncio.create_task(handler(Sent(0)))
    await until(begun.is_set)
    second = asyncio.create_task(handler(Sent(1)))
    await asyncio.sleep(0)
    closing = asyncio.create_task(handler.__aexit__())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert not closed.is_set()
    go_on.set()
    assert await asyncio.gather(first, second) == [None, None]
    await until(closed.is_set)
    await until(lambda: "lbg-inbox" not in [thread.name for thread in threading.enumerate()])


async def test_a_call_in_the_turn_of_the_close_is_committed_before_it_while_the_event_loop_runs(
    tmp_path: Path,
) -> None:
    go_on = threading.Event()
    open_connections: list[object] = []

    class Connection(sqlite3.Connection):
        def close(self) -> None:
            super().close()
            open_connections.remove(self)

    def connect() -> sqlite3.Connection:
        open_connections.append(sqlite3.connect(tmp_path / "orders.db", factory=Connection))
        return open_connections[-1]

    def handle(connection: Any, message: Any) -> None:
        assert message.seq == 0 or go_on.wait(GUARD_S)

    handler = BatchingInbox(SQLiteInbox(), connect, handle)
    await handler.__aenter__()
    first = asyncio.create_task(handler(Sent(0)))
    await asyncio.sleep(0)
    reader = sqlite3.connect(tmp_path / "orders.db")
    while not SQLiteInbox().processed(reader):
        time.sleep(0.001)  # noqa: ASYNC251 (the thread commits, and its report waits for this loop)
    reader.close()
    second = handler(Sent(1))
    second.send(None)
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    await handler.__aexit__()
    assert await first is None
    with pytest.raises(StopIteration):
        second.send(None)
    assert open_connections == []


async def test_a_call_to_an_inbox_that_is_not_open_is_refused() -> None:
    handler = BatchingInbox(SQLiteInbox(), lambda: sqlite3.connect(":memory:"), lambda *_: None)
    with pytest.raises(InboxError, match="not open"):
        await handler(Sent(0))
    async with handler:
        pass
    for refused in (handler.processed(), handler(Sent(0))):
        with pytest.raises(InboxError, match="not open"):
            await refused


async def test_positions_are_read_between_batches(database: Database) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handle(connection: Any, message: Any) -> None:
        begun.set()
        go_on.wait(GUARD_S)

    async with database.batching(handle, max_messages=1) as handler:
        calls = asyncio.create_task(outcomes(handler, *(Sent(seq) for seq in range(5))))
        await until(begun.is_set)
        positions = asyncio.create_task(handler.processed())
        await asyncio.sleep(0)
        go_on.set()
        ((_, _, [[_, last]]),) = await positions
        assert last < 4
        await calls


@pytest.mark.process
def test_a_handler_that_never_returns_does_not_hold_up_the_end_of_the_process() -> None:
    ended = subprocess.run(
        program.command(STUCK),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=GUARD_S,
    )
    assert (ended.returncode, ended.stdout) == (0, "left\n"), ended.stderr


async def test_a_message_without_identity_is_refused(database: Database) -> None:
    async with database.batching() as handler:
        with pytest.raises(NoIdentity):
            await handler(Sent(None))


def test_a_batch_has_at_least_one_message() -> None:
    with pytest.raises(ValueError, match="max_messages is 0"):
        BatchingInbox(SQLiteInbox(), lambda: sqlite3.connect(":memory:"), lambda *_: None, max_messages=0)
