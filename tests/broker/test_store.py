"""The store on a real disk: batches whole or not at all, pages, room, and who may open it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from lbg_broker.core.effects import Definition, PageRequest, SpoolChange, SpoolRecord, StoreBatch
from lbg_broker.core.message import Message, Origin
from lbg_broker.store import Committer, DirectoryLockedError, DiskFullError, NewerStoreError, Store
from lbg_broker.store import store as store_module
from lbg_broker.store.errors import DamagedStoreError, StoreError
from lbg_broker.store.schema import SCHEMA_VERSION, DirectoryLock
from testing.broker_core.world import MemoryStore
from testing.exploration import example_count
from testing.waiting import GUARD_S


@pytest.fixture
def databases(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The stores that were opened since: each is the only one that may read its database."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def recorded(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **settings))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", recorded)
    return opened


ORIGIN = Origin.of("exchange", "some.key")


def messages(positions: Sequence[int], *, size: int = 10) -> list[Message]:
    return [
        Message(position, ORIGIN, b"\x10\x00\x02", b"%d" % position + b"." * size, True)
        for position in positions
    ]


def change(
    positions: Sequence[int] = (),
    *,
    spool: int = 1,
    deletes: Sequence[tuple[int, int]] = (),
    durable: bool = True,
    size: int = 10,
) -> SpoolChange:
    record = SpoolRecord(spool, 100, 0, 5, 50) if durable else None
    return SpoolChange(spool, durable, messages(positions, size=size), deletes, record)


def batch(*changes: SpoolChange, **others: object) -> StoreBatch:
    made = StoreBatch(1, spools=list(changes))
    for name, value in others.items():
        setattr(made, name, value)
    return made


def request(
    *, spool: int = 1, durable: bool = True, first: int = 0, upto: int = 10_000, count: int = 10_000
) -> PageRequest:
    return PageRequest(spool, durable, first, upto, count, 1 << 30, 0)


def positions_in(store: Store, *, spool: int = 1, durable: bool = True) -> list[int]:
    (page,) = store.carry_out(StoreBatch(9, pages=[request(spool=spool, durable=durable)]))
    return [row[0] for row in page.rows]


def tidy_all(store: Store) -> None:
    while store.untidy:
        store.tidy()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.sqlite3"


def test_what_was_carried_out_is_there_when_opened_again(path: Path) -> None:
    store = Store(path)
    store.carry_out(
        batch(change(range(3)), definitions=[Definition("queue", "q", "{}"), Definition("user", "u", "1")])
    )
    store.carry_out(batch(definitions=[Definition("user", "u", "2"), Definition("queue", "q", None)]))
    store.close()
    store = Store(path)
    stored = store.load()
    assert stored.definitions == [Definition("user", "u", "2")]
    assert stored.spools == [SpoolRecord(1, 100, 0, 5, 50, first=0)]
    assert positions_in(store) == [0, 1, 2]
    store.close()


def test_lines_of_the_process_are_gone_at_the_next_start(path: Path) -> None:
    store = Store(path)
    store.carry_out(batch(change(range(3), durable=False), change(range(2), spool=2)))
    assert positions_in(store, durable=False) == [0, 1, 2]
    store.close()
    store = Store(path)
    assert positions_in(store, durable=False) == []
    assert positions_in(store, spool=2) == [0, 1]
    store.close()


def test_where_a_line_begins_is_told_at_the_start(path: Path) -> None:
    store = Store(path)
    store.carry_out(
        batch(change(range(9), deletes=[(0, 3), (5, 5)]), change(range(2), spool=2, deletes=[(0, 1)]))
    )
    store.carry_out(batch(change(range(3), spool=4)))
    store.close()
    store = Store(path)
    assert [(record.spool, record.first) for record in store.load().spools] == [(1, 4), (2, None), (4, 0)]
    store.close()


def test_a_page_is_read_after_the_changes_of_its_own_batch(path: Path) -> None:
    store = Store(path)
    store.carry_out(batch(change(range(10))))
    (page,) = store.carry_out(
        batch(change(range(10, 14), deletes=[(0, 1), (3, 3)]), pages=[request(upto=12, count=100)])
    )
    assert [row[0] for row in page.rows] == [2, 4, 5, 6, 7, 8, 9, 10, 11]
    assert page.end == 12
    assert page.rows[0] == (2, ORIGIN.wire, b"\x10\x00\x02", b"2..........")
    store.close()


@pytest.mark.parametrize(("count", "bytes_max", "end"), [(3, 1 << 20, 3), (100, 30, 3), (10, 1 << 20, 20)])
def test_a_page_ends_where_its_limits_say(path: Path, count: int, bytes_max: int, end: int) -> None:
    store = Store(path)
    store.carry_out(batch(change(range(10))))
    asked = PageRequest(1, True, 0, 20, count, bytes_max, 0)
    (page,) = store.carry_out(StoreBatch(2, pages=[asked]))
    if count == 10:  # as many as asked for: there may be more
        assert page.end == 10
    else:
        assert page.end == end
    assert [row[0] for row in page.rows] == list(range(min(end, 10)))
    store.close()


@pytest.mark.parametrize("durable", [True, False])
def test_a_page_may_be_of_single_positions(path: Path, durable: bool) -> None:
    store = Store(path)
    store.carry_out(batch(change(range(0, 4000, 2), durable=durable)))
    positions = [0, *range(6, 3000, 3), 3999]
    asked = replace(request(durable=durable, upto=4000), recall=True, positions=positions)
    (page,) = store.carry_out(StoreBatch(2, pages=[asked]))
    assert [row[0] for row in page.rows] == [position for position in positions if position % 2 == 0]
    (page,) = store.carry_out(StoreBatch(3, pages=[replace(asked, bytes_max=50)]))
    assert [row[0] for row in page.rows] == [0, 6, 12, 18]
    store.close()


def test_a_page_may_be_of_headers_only(path: Path) -> None:
    store = Store(path)
    store.carry_out(batch(change([1, 2], size=100_000)))
    (page,) = store.carry_out(StoreBatch(2, pages=[replace(request(), headers_only=True, bytes_max=100)]))
    assert list(page.rows) == [(position, ORIGIN.wire, b"\x10\x00\x02", b"") for position in (1, 2)]
    assert page.end == page.request.upto
    store.close()


def test_a_batch_that_fails_leaves_nothing_behind(path: Path) -> None:
    store = Store(path)
    store.carry_out(batch(change([5])))
    with pytest.raises(StoreError):
        store.carry_out(batch(change([4, 5]), definitions=[Definition("queue", "q", "{}")]))
    assert positions_in(store) == [5]
    assert store.load().definitions == []
    store.carry_out(batch(change([6])))
    assert positions_in(store) == [5, 6]
    store.close()


def test_a_full_disk_is_told_apart_and_the_same_batch_goes_through_once_there_is_room(
    path: Path, databases: list[sqlite3.Connection]
) -> None:
    store = Store(path)
    (database,) = databases
    database.execute("PRAGMA max_page_count = 40")
    large = batch(change(range(100), size=4000))
    with pytest.raises(DiskFullError, match="no space left"):
        store.carry_out(large)
    assert positions_in(store) == []
    database.execute("PRAGMA max_page_count = 100000")
    store.carry_out(large)
    assert positions_in(store) == list(range(100))
    store.close()


def test_a_large_delete_counts_at_once_and_its_rows_go_by_and_by(
    path: Path, monkeypatch: pytest.MonkeyPatch, databases: list[sqlite3.Connection]
) -> None:
    monkeypatch.setattr(store_module, "TIDY_ROWS", 1000)
    monkeypatch.setattr(store_module, "GARBAGE_POSITIONS", 100)
    count = "SELECT count(*) FROM message"
    store = Store(path)
    store.carry_out(batch(change(range(5000)), change(range(10), spool=2)))
    tidy_all(store)
    store.carry_out(batch(change([5000], deletes=[(0, 4998)])))
    assert store.untidy
    assert positions_in(store) == [4999, 5000]
    assert databases[-1].execute(count).fetchone() == (5011,)
    store.tidy()
    assert databases[-1].execute(count).fetchone() == (4011,)
    store.close()
    store = Store(path)  # a start finishes the work
    assert databases[-1].execute(count).fetchone() == (12,)
    assert positions_in(store) == [4999, 5000]
    assert len(positions_in(store, spool=2)) == 10
    store.close()


def test_a_dropped_line_loses_its_messages_and_its_record(path: Path) -> None:
    store = Store(path)
    store.carry_out(
        batch(change(range(50)), change(range(5), spool=2), change(range(7), spool=3, durable=False))
    )
    store.carry_out(batch(dropped=[(1, True), (3, False)]))
    tidy_all(store)
    assert positions_in(store) == []
    assert positions_in(store, spool=3, durable=False) == []
    assert positions_in(store, spool=2) == [0, 1, 2, 3, 4]
    assert [record.spool for record in store.load().spools] == [2]
    store.close()


@pytest.mark.long
def test_room_is_given_back_and_the_log_does_not_grow(
    path: Path, databases: list[sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "FREE_PAGES_MIN", 50)
    store = Store(path)
    (database,) = databases
    for start in range(0, 10_000, 1000):
        store.carry_out(batch(change(range(start, start + 1000), size=1000)))
    database.execute("PRAGMA wal_checkpoint").fetchall()
    full = path.stat().st_size
    for start in range(0, 10_000, 1000):
        store.carry_out(batch(change(deletes=[(start, start + 999)])))
    store.untidy = True
    tidy_all(store)
    database.execute("PRAGMA wal_checkpoint").fetchall()
    assert path.stat().st_size < full / 10
    assert path.with_name(path.name + "-wal").stat().st_size < 64 << 20
    store.close()


def test_a_directory_is_for_one_process(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / "data")
    with pytest.raises(DirectoryLockedError, match=r"is in use by another broker \(process \d+\)$"):
        DirectoryLock(tmp_path / "data")
    lock.release()
    DirectoryLock(tmp_path / "data").release()


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot use the data directory"):
        DirectoryLock(tmp_path / "file" / "data")


def test_a_store_of_a_newer_version_is_refused_and_not_touched(path: Path) -> None:
    Store(path).close()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    database.close()
    before = path.read_bytes()
    with pytest.raises(NewerStoreError) as refused:
        Store(path)
    assert str(refused.value) == (
        f"the store {path} is of version 2, and this broker reads version 1; it is left as it is: upgrade this broker"
    )
    assert path.read_bytes() == before


def test_a_file_that_is_no_store_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to be taken for one" * 100)
    with pytest.raises(DamagedStoreError):
        Store(path)
    path.unlink()
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE somebody_elses (x)")
    database.close()
    with pytest.raises(StoreError, match="no broker's store"):
        Store(path)


def test_the_committer_answers_batches_in_order_and_goes_on_after_one_failed(path: Path) -> None:
    done: list[tuple[int, bool]] = []
    all_done = threading.Event()

    def on_done(finished: StoreBatch, outcome: object) -> None:
        done.append((finished.number, isinstance(outcome, StoreError)))
        if finished.number == 3:
            all_done.set()

    committer = Committer(Store(path), on_done)
    for number, positions in ((1, [1]), (2, [1]), (3, [2])):
        made = batch(change(positions))
        made.number = number
        committer.submit(made)
    assert all_done.wait(GUARD_S)
    committer.stop()
    assert done == [(1, False), (2, True), (3, False)]


steps = st.lists(
    st.tuples(
        st.integers(1, 3),  # spool; 3 is not durable
        st.integers(0, 30),  # appended
        st.lists(st.integers(0, 60), max_size=8),  # deleted
        st.integers(0, 40),  # page from
        st.integers(1, 20),  # page of
    ),
    max_size=12,
)


@settings(
    max_examples=example_count(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps)
def test_the_store_of_dictionaries_that_other_tests_use_does_the_same(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, list[int], int, int]]
) -> None:
    real = Store(tmp_path_factory.mktemp("store") / "broker.sqlite3")
    model = MemoryStore()
    ends = {1: 0, 2: 0, 3: 0}
    for number, (spool, appended, deleted, first, count) in enumerate(steps):
        durable = spool != 3
        start, ends[spool] = ends[spool], ends[spool] + appended
        changed = SpoolChange(
            spool,
            durable,
            messages(range(start, ends[spool])),
            [(position, position + position % 3) for position in sorted(set(deleted))],
            SpoolRecord(spool, ends[spool], 0, number, 0) if durable else None,
        )
        made = StoreBatch(number, spools=[changed])
        made.pages = [PageRequest(spool, durable, first, first + 30, count, 200, 0)]
        real_page, model_page = real.carry_out(made)[0], model.carry_out(made)[0]
        assert list(real_page.rows) == list(model_page.rows)
        assert real_page.end <= model_page.end
    assert real.load() == model.load()
    real.close()
