"""Each message's effects happen once in PostgreSQL, between transactions that run at the same time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest
from psycopg import Connection, IsolationLevel
from psycopg.rows import dict_row

from lbg_sidecar.app.channel import parse_processed
from lbg_sidecar.inbox import InboxError, NoIdentity
from lbg_sidecar.inbox.postgres import PostgresInbox
from testing.sidecar.postgres import PostgresServer
from testing.sidecar.sent import Sent
from testing.waiting import until

Opened = Callable[[], Connection]
INBOX = PostgresInbox()
LEVELS = [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]


@pytest.fixture
def opened(postgres: PostgresServer) -> Iterator[Opened]:
    conninfo = postgres.new_database()
    connections: list[Connection] = []

    def open_one() -> Connection:
        connections.append(psycopg.connect(conninfo))
        return connections[-1]

    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE TABLE effects (seq bigint)")
    INBOX.create(open_one())
    yield open_one
    for connection in connections:
        connection.close()


def process(connection: Connection, message: Sent) -> bool:
    with connection.transaction():
        first = INBOX.first_time(connection, message)
        if first:
            connection.execute("INSERT INTO effects VALUES (%s)", (message.seq,))
    return first


def effects(connection: Connection) -> list[int]:
    with connection.transaction():
        return [seq for (seq,) in connection.execute("SELECT seq FROM effects ORDER BY seq")]


def told(connection: Connection) -> set[int]:
    streams = parse_processed(INBOX.processed(connection))
    return {seq for _, _, runs in streams for first, last in runs for seq in range(first, last + 1)}


async def waits(connection: Connection, waiting: int) -> None:
    """Until the server says that this backend waits for a lock."""

    def blocked() -> bool:
        with connection.transaction():
            found = connection.execute("SELECT cardinality(pg_blocking_pids(%s))", (waiting,)).fetchone()
        return found is not None and found[0] > 0

    await until(blocked, what="a transaction to wait")


def test_every_effect_happens_once_with_compactions_at_random(opened: Opened) -> None:
    connection, chance, seen = opened(), random.Random(7), set()
    for _ in range(150):
        if chance.random() < 0.15:
            INBOX.compact(connection)
        seq = chance.randrange(30)
        assert process(connection, Sent(seq)) is (seq not in seen)
        seen.add(seq)
    assert effects(connection) == sorted(seen)
    assert told(connection) == seen


@pytest.mark.parametrize("commits", [True, False])
async def test_a_second_transaction_waits_for_the_first_and_repeats_it_only_if_that_is_undone(
    opened: Opened, commits: bool
) -> None:
    one, two, watching = opened(), opened(), opened()
    with ThreadPoolExecutor(1) as thread:
        assert INBOX.first_time(one, Sent(0))
        second: Future[bool] = thread.submit(process, two, Sent(0))
        await waits(watching, two.info.backend_pid)
        one.commit() if commits else one.rollback()
        assert second.result(20) is not commits


async def test_a_compaction_waits_for_a_transaction_that_has_looked_at_the_floor(opened: Opened) -> None:
    one, compacting, watching = opened(), opened(), opened()
    process(one, Sent(0))
    with ThreadPoolExecutor(1) as thread:
        assert INBOX.first_time(one, Sent(1))
        folding = thread.submit(INBOX.compact, compacting)
        await waits(watching, compacting.info.backend_pid)
        one.commit()
        assert folding.result(20) == 2
    assert told(one) == {0, 1}


@pytest.mark.parametrize("had_a_floor", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_a_snapshot_from_before_the_compaction_lets_no_repeat_through(
    opened: Opened, level: IsolationLevel, had_a_floor: bool
) -> None:
    one, late = opened(), opened()
    process(one, Sent(0))
    if had_a_floor:
        INBOX.compact(one)
    else:  # as a helper that made none would have left it
        one.execute("DELETE FROM lbg_inbox_floor")
        one.commit()
    process(one, Sent(1))
    if not had_a_floor:
        one.execute("DELETE FROM lbg_inbox_floor")
        one.commit()
    late.isolation_level = level
    late.execute("SELECT count(*) FROM effects")  # the snapshot is taken here
    INBOX.compact(one)
    if level is IsolationLevel.READ_COMMITTED:
        assert not INBOX.first_time(late, Sent(1))
    else:
        with pytest.raises(psycopg.errors.SerializationFailure):
            INBOX.first_time(late, Sent(1))
    late.rollback()
    assert not process(late, Sent(1))
    assert effects(one) == [0, 1]


@pytest.mark.parametrize("level", LEVELS)
def test_members_that_race_for_the_same_messages_leave_each_effect_once(
    opened: Opened, level: IsolationLevel
) -> None:
    count, start = 60, threading.Barrier(4)

    def work(connection: Connection, seed: int) -> None:
        connection.isolation_level = level
        chance = random.Random(seed)
        start.wait(20)
        for seq in range(count):
            while True:
                try:
                    process(connection, Sent(seq))
                    if chance.random() < 0.2:
                        INBOX.compact(connection)
                    break
                except psycopg.errors.SerializationFailure:
                    continue

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, opened(), seed) for seed in range(4)]:
            done.result(60)
    assert effects(opened()) == list(range(count))


def test_several_create_the_tables_at_the_same_time(opened: Opened) -> None:
    with opened() as connection:
        connection.execute("DROP TABLE lbg_inbox, lbg_inbox_floor")
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(INBOX.create, opened()) for _ in range(4)]:
            done.result(20)
    assert process(opened(), Sent(0))


def test_a_connection_that_commits_each_statement_is_refused_unless_a_transaction_was_begun(
    opened: Opened,
) -> None:
    connection = opened()
    connection.autocommit = True
    with pytest.raises(InboxError, match="begin a transaction before first_time"):
        INBOX.first_time(connection, Sent(0))
    assert told(connection) == set()
    assert process(connection, Sent(0))


def test_what_rows_the_application_reads_does_not_matter(opened: Opened) -> None:
    connection = opened()
    connection.row_factory = dict_row
    process(connection, Sent(0))
    INBOX.compact(connection)
    with connection.transaction(), connection.cursor() as cursor:
        assert not INBOX.first_time(cursor, Sent(0))
        assert INBOX.first_time(cursor, Sent(1))
    assert told(connection) == {0, 1}


def test_a_message_of_a_foreign_publisher_is_refused_and_a_compaction_within_a_transaction(
    opened: Opened,
) -> None:
    connection = opened()
    with pytest.raises(NoIdentity):
        INBOX.first_time(connection, Sent(None))
    INBOX.first_time(connection, Sent(0))
    with pytest.raises(InboxError, match="has a transaction under way"):
        INBOX.compact(connection)
    connection.rollback()


def test_table_names_are_taken_literally(opened: Opened) -> None:
    inbox, connection = PostgresInbox(table='in"; 100% --', floor_table="select"), opened()
    inbox.create(connection)
    with connection.transaction():
        assert inbox.first_time(connection, Sent(0))
    assert inbox.compact(connection) == 1
    with connection.transaction():
        assert not inbox.first_time(connection, Sent(0))
