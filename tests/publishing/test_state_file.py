from __future__ import annotations

import os
from pathlib import Path

import pytest

from lbg_broker.group import GroupSpec
from lbg_broker.publishing import state_layout as layout
from lbg_broker.publishing.errors import InputChanged, StateError
from lbg_broker.publishing.identity import Identity
from lbg_broker.publishing.ordering import OrderedPublishing
from lbg_broker.publishing.resuming import Resuming
from lbg_broker.publishing.rows import Row
from lbg_broker.publishing.state_file import StateFile

SPEC = GroupSpec("g", "g", hash_count=5, queue_count=2, queue_size_mb=1, client_username="u")
IDENTITY = Identity("p", "0a", 7, {"key": "id"})
ROWS = [Row(number, number + 1, f"k{number % 4}", "t", b"%d" % number) for number in range(1, 21)]


def publish(machine: OrderedPublishing, rows: list[Row], state: StateFile) -> None:
    for row in rows:
        machine.accept(row.key, row.topic, row.body)
    sends = machine.step(0).sends
    last = max(sends, key=lambda message: message.position)
    state.note_sent(last.position + 1, last.digest)


def resuming(state: StateFile) -> Resuming:
    return Resuming(
        position=state.start.position,
        digest=state.start.digest,
        sent_position=state.sent_position,
        sent_digest=state.sent_digest,
    )


def interrupted(path: Path) -> OrderedPublishing:
    """Ten rows sent; of them 1 to 4, 6 and 7 confirmed and saved. Row 5 is still open."""
    with StateFile.open(path, IDENTITY, SPEC) as state:
        machine = OrderedPublishing(SPEC, seed=state.identity.seed)
        machine.connected(fenced=True)
        publish(machine, ROWS[:10], state)
        tags = {message.position: tag for tag, message in machine._by_tag.items()}
        for position in (0, 1, 2, 3, 5, 6):
            machine.answered(tags[position], multiple=False, ok=True, now=0)
        state.save(machine, at_once=True)
    return machine


def test_a_new_state_starts_at_nothing_and_keeps_its_identity(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with StateFile.open(path, IDENTITY, SPEC) as state:
        assert (state.start.position, state.sent_position) == (0, 0)
    with StateFile.open(path, Identity("other", "0b", 8, {"key": "id"}), SPEC) as state:
        assert state.identity == IDENTITY
    assert sorted(os.listdir(tmp_path)) == ["s"]


def test_after_a_death_the_stamps_go_on_identically_and_only_the_unconfirmed_are_sent(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = interrupted(path)
    whole = OrderedPublishing(SPEC, seed=IDENTITY.seed)
    expected = [
        (message.hash, message.seq)
        for message in (whole.accept(row.key, row.topic, row.body) for row in ROWS)
    ]
    with StateFile.open(path, IDENTITY, SPEC) as state:
        assert state.start.position == 4
        assert state.sent_position == 10
        check = resuming(state)
        machine = OrderedPublishing(SPEC, seed=state.identity.seed, start=state.start)
        machine.connected(fenced=True)
        for row in ROWS:
            for ready in check.take(row):
                message = machine.accept(ready.key, ready.topic, ready.body)
                assert (message.hash, message.seq) == expected[message.position]
        check.end()
        assert machine.counts.maybe_twice + machine.counts.skipped == 6
        confirmed_in_order = first.counts.confirmed - 4
        assert machine.counts.skipped == confirmed_in_order
        assert machine.stamper.digest == whole.stamper.digest
        assert machine.stamper.next_seq == whole.stamper.next_seq


def test_totals_add_up_over_runs(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for _ in range(3):
        with StateFile.open(path, IDENTITY, SPEC) as state:
            machine = OrderedPublishing(SPEC)
            machine.counts.refused = 2
            state.save(machine, at_once=True)
    with StateFile.open(path, IDENTITY, SPEC) as state:
        assert (state.before.runs, state.before.refused) == (3, 6)


@pytest.mark.parametrize("torn", [0, 1])
def test_one_torn_slot_costs_one_save_and_no_more(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "s"
    interrupted(path)
    size = layout.slot_size_bytes(SPEC.hash_count)
    with path.open("r+b") as file:
        file.seek(layout.SLOTS_AT + torn * size + 30)
        file.write(b"\xff\xff\xff")
    with StateFile.open(path, IDENTITY, SPEC) as state:
        assert state.start.position == (4 if torn == 0 else 0)


@pytest.mark.parametrize("at", [3, 40, layout.MARK_AT, layout.SLOTS_AT])
def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path, at: int) -> None:
    path = tmp_path / "s"
    with StateFile.open(path, IDENTITY, SPEC):
        pass
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff")
    before = path.read_bytes()
    with pytest.raises(StateError, match="damaged"):
        StateFile.open(path, IDENTITY, SPEC)
    assert path.read_bytes() == before


def test_a_foreign_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")
    with pytest.raises(StateError, match=r"notes\.txt is no state file"):
        StateFile.open(path, IDENTITY, SPEC)
    assert path.read_text() == "my notes\n"
    with pytest.raises(StateError, match="cannot be used"):
        StateFile.open(tmp_path / "no" / "where", IDENTITY, SPEC)


def test_a_state_is_of_one_publisher_at_a_time_one_group_and_one_reading(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with (
        StateFile.open(path, IDENTITY, SPEC),
        pytest.raises(StateError, match="in use by another publisher"),
    ):
        StateFile.open(path, IDENTITY, SPEC)
    other = GroupSpec("g", "g", hash_count=6, queue_count=2, queue_size_mb=1, client_username="u")
    with pytest.raises(StateError, match="hash_count 5, and this one has 6"):
        StateFile.open(path, IDENTITY, other)
    with pytest.raises(InputChanged, match="key 'id', and now it is 'name'"):
        StateFile.open(path, Identity("p", "0a", 7, {"key": "name"}), SPEC)


def take_all(check: Resuming, rows: list[Row], given: list[Row]) -> None:
    for row in rows:
        given += check.take(row)


@pytest.mark.parametrize("row", [1, 3, 5, 9, 10])
def test_an_input_changed_where_it_was_published_is_refused_before_anything_is_sent(
    tmp_path: Path, row: int
) -> None:
    interrupted(tmp_path / "s")
    with StateFile.open(tmp_path / "s", IDENTITY, SPEC) as state:
        check = resuming(state)
    changed = list(ROWS)
    changed[row - 1] = Row(row, row + 1, ROWS[row - 1].key, "t", b"other")
    given: list[Row] = []
    with pytest.raises(InputChanged, match="changed since it was published"):
        take_all(check, changed, given)
    assert given == []


def test_an_input_that_became_shorter_is_refused_and_one_that_grew_goes_on(tmp_path: Path) -> None:
    interrupted(tmp_path / "s")
    with StateFile.open(tmp_path / "s", IDENTITY, SPEC) as state:
        short, grown = resuming(state), resuming(state)
    for row in ROWS[:9]:
        assert short.take(row) == []
    with pytest.raises(InputChanged, match="has 9 rows, and 10 were published"):
        short.end()
    given = [row for each in ROWS for row in grown.take(each)]
    grown.end()
    assert given == ROWS[4:]


def test_saving_often_with_many_hashes_is_slowed_down_but_the_last_save_is_never_left_out(
    tmp_path: Path,
) -> None:
    spec = GroupSpec("g", "g", hash_count=65536, queue_count=2, queue_size_mb=1, client_username="u")
    with StateFile.open(tmp_path / "s", IDENTITY, spec) as state:
        machine = OrderedPublishing(spec)
        machine.connected(fenced=True)
        publish(machine, ROWS, state)
        for tag in range(1, 11):
            machine.answered(tag, multiple=False, ok=True, now=0)
            state.save(machine)
        state.save(machine, at_once=True)
    with StateFile.open(tmp_path / "s", IDENTITY, spec) as state:
        assert state.start.position == 10
        assert max(state.start.next_seq) > 0
