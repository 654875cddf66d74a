"""Each message's effects happen once, whoever delivers it how often, and whatever is compacted in between."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.app.channel import parse_processed
from lbg_sidecar.inbox import InboxError, NoIdentity, SQLiteInbox
from testing.sidecar.sent import Sent


def opened(path: Path | str, inbox: SQLiteInbox) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=0)
    inbox.create(connection)
    connection.execute("CREATE TABLE IF NOT EXISTS effects (hash, seq)")
    return connection


def process(connection: sqlite3.Connection, inbox: SQLiteInbox, message: Sent) -> bool:
    with connection:
        first = inbox.first_time(connection, message)
        if first:
            connection.execute("INSERT INTO effects VALUES (?, ?)", (message.hash, message.seq))
    return first


Step = tuple[int, int] | None  # a delivery of hash and sequence, or a compaction


@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 1), st.integers(0, 12))), max_size=60))
def test_every_history_has_each_effect_once(steps: list[Step]) -> None:
    inbox = SQLiteInbox()
    connection = opened(":memory:", inbox)
    seen: set[tuple[int, int]] = set()
    for step in steps:
        if step is None:
            inbox.compact(connection)
            continue
        assert process(connection, inbox, Sent(step[1], hash=step[0])) is (step not in seen)
        seen.add(step)
    assert sorted(connection.execute("SELECT hash, seq FROM effects")) == sorted(seen)
    told = {
        (hash_, seq)
        for _, hash_, runs in parse_processed(inbox.processed(connection))
        for first, last in runs
        for seq in range(first, last + 1)
    }
    assert told == seen
    connection.close()


def test_what_is_rolled_back_was_never_processed() -> None:
    inbox = SQLiteInbox()
    connection = opened(":memory:", inbox)
    inbox.first_time(connection, Sent(0))
    connection.rollback()
    assert process(connection, inbox, Sent(0))
    connection.close()


def test_a_second_transaction_cannot_record_while_the_first_is_under_way(tmp_path: Path) -> None:
    inbox = SQLiteInbox()
    one, two = opened(tmp_path / "db", inbox), opened(tmp_path / "db", inbox)
    assert inbox.first_time(one, Sent(0))
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        inbox.first_time(two, Sent(0))
    two.rollback()
    one.commit()
    assert not process(two, inbox, Sent(0))
    one.close()
    two.close()


def test_a_connection_that_commits_each_statement_is_refused_before_anything_is_recorded() -> None:
    inbox = SQLiteInbox()
    connection = sqlite3.connect(":memory:", isolation_level=None)
    inbox.create(connection)
    with pytest.raises(InboxError, match="begin a transaction before first_time"):
        inbox.first_time(connection, Sent(0))
    assert inbox.processed(connection) == []
    connection.close()


def test_a_message_of_a_foreign_publisher_is_refused_with_its_id() -> None:
    inbox = SQLiteInbox()
    connection = opened(":memory:", inbox)
    with pytest.raises(NoIdentity, match="message None-3-None has no publisher"):
        inbox.first_time(connection, Sent(None, publisher=None))
    connection.close()


def test_compaction_leaves_only_what_lies_behind_a_hole() -> None:
    inbox = SQLiteInbox()
    connection = opened(":memory:", inbox)
    for seq in (0, 1, 2, 4):
        process(connection, inbox, Sent(seq))
    assert inbox.compact(connection) == 3
    assert inbox.processed(connection) == [["p", 3, [[0, 2], [4, 4]]]]
    assert connection.execute("SELECT seq FROM lbg_inbox").fetchall() == [(4,)]
    connection.close()


def test_table_names_are_taken_literally() -> None:
    inbox = SQLiteInbox(table='in"; DROP TABLE effects; --', floor_table="select")
    connection = opened(":memory:", inbox)
    assert process(connection, inbox, Sent(0))
    assert not process(connection, inbox, Sent(0))
    inbox.compact(connection)
    assert not process(connection, inbox, Sent(0))
    assert connection.execute("SELECT count(*) FROM effects").fetchone() == (1,)
    connection.close()
