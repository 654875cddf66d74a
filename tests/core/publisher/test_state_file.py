from __future__ import annotations

import os
from pathlib import Path

import pytest

from lbg_core.group import GroupSpec, epoch_of
from lbg_core.publisher import resume as layout
from lbg_core.publisher.errors import InputChanged, StateError
from lbg_core.publisher.input.rows import Row
from lbg_core.publisher.resume import Identity, InputVerifier
from lbg_core.publisher.send_window import SendWindow
from lbg_core.publisher.stamper import StampedMessage
from lbg_core.publisher.state_file import StateFile

SPEC = GroupSpec("g", "g", hash_count=5, queue_count=2, queue_size_mb=1, client_username="u")
IDENTITY = Identity("p", "0a", 7, {"key": "id"})
ROWS = [Row(number, number + 1, f"k{number % 4}", "t", b"%d" % number) for number in range(1, 21)]


def publish(machine: SendWindow, rows: list[Row], state: StateFile) -> list[StampedMessage]:
    for row in rows:
        machine.accept(row.key, row.topic, row.body)
    sends = machine.step(0).sends
    last = max(sends, key=lambda message: message.position)
    state.note_sent(last.position + 1, last.digest)
    return sends


def resuming(state: StateFile) -> InputVerifier:
    return InputVerifier(
        position=state.start.position,
        digest=state.start.digest,
        sent_position=state.sent_position,
        sent_digest=state.sent_digest,
    )


def interrupted(path: Path) -> SendWindow:
    """Ten rows sent; of them 1 to 4, 6 and 7 confirmed and saved. Row 5 is still open."""
    with StateFile.open(path, IDENTITY, SPEC) as state:
        machine = SendWindow(SPEC, seed=state.identity.seed)
        machine.connected(fenced=True)
        sends = publish(machine, ROWS[:10], state)
        tags = {message.position: tag for tag, message in enumerate(sends, start=1)}
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


def confirm_all(machine: SendWindow, state: StateFile) -> None:
    """Send what may be sent, as the shell does it, until everything that was accepted is confirmed."""
    while not machine.is_settled:
        sends = machine.step(0).sends
        assert sends
        if machine.ended_epoch is not None and not state.has_next_epoch:
            state.save(machine, at_once=True)
        last = max(sends, key=lambda message: message.position)
        if last.position >= state.sent_position:
            state.note_sent(last.position + 1, last.digest)
        machine.answered(0, multiple=True, ok=True, now=0)
    state.save(machine, at_once=True)


def run(path: Path, rows: list[Row]) -> tuple[StateFile, list[StampedMessage]]:
    """A whole run of `rows`; what was stamped in it."""
    stamped = []
    with StateFile.open(path, IDENTITY, SPEC) as state:
        machine = SendWindow(SPEC, seed=state.identity.seed, start=state.start)
        machine.connected(fenced=True)
        check = resuming(state)
        for row in rows:
            for ready in check.accept(row):
                if not machine.has_room:
                    confirm_all(machine, state)
                stamped.append(machine.accept(ready.key, ready.topic, ready.body))
        check.end()
        confirm_all(machine, state)
    return state, stamped


def test_after_a_death_the_stamps_of_what_was_sent_stay_and_the_rest_is_of_a_new_epoch(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    first = interrupted(path)
    whole = SendWindow(SPEC, seed=IDENTITY.seed)
    expected = [
        (message.hash, message.seq)
        for message in (whole.accept(row.key, row.topic, row.body) for row in ROWS)
    ]
    with StateFile.open(path, IDENTITY, SPEC) as state:
        assert state.start.position == 4
        assert state.sent_position == 10
        check = resuming(state)
        machine = SendWindow(SPEC, seed=state.identity.seed, start=state.start)
        machine.connected(fenced=True)
        for row in ROWS[:10]:
            for ready in check.accept(row):
                message = machine.accept(ready.key, ready.topic, ready.body)
                assert (message.hash, message.seq) == expected[message.position]
        assert machine.counts.maybe_twice + machine.counts.skipped == 6
        confirmed_in_order = first.counts.confirmed - 4
        assert machine.counts.skipped == confirmed_in_order
        assert not machine.has_room, "nothing of a new epoch before all of the old one is confirmed"
        confirm_all(machine, state)
        fresh = [machine.accept(row.key, row.topic, row.body) for row in ROWS[10:]]
        check.end()
        assert machine.stamper.digest == whole.stamper.digest
        assert {message.hash: 0 for message in fresh} == {
            hash_: min(message.seq for message in fresh if message.hash == hash_)
            for hash_ in {message.hash for message in fresh}
        }
        assert state.identity == IDENTITY
        confirm_all(machine, state)
        assert state.identity == state.next_identity != IDENTITY


def test_each_start_that_has_something_new_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "s"
    publishers = []
    for count in (0, 5, 5, 10, 20):
        state, stamped = run(path, ROWS[:count])
        publishers.append((state.identity.publisher, len(stamped)))
    assert [count for _, count in publishers] == [0, 5, 0, 5, 10]
    (created, _), (first, _), (again, _), (second, _), (third, _) = publishers
    assert created == IDENTITY.publisher
    assert first == again
    assert len({created, first, second, third}) == 4
    assert [epoch_of(each).history for each in (created, first, second, third)] == ["p-0a"] * 4
    began = [epoch_of(each).began_us for each in (created, first, second, third)]
    assert began == sorted(set(began))
    assert began[0] == 0


def test_two_runs_from_copies_of_one_state_have_no_number_in_common(tmp_path: Path) -> None:
    path, copy = tmp_path / "s", tmp_path / "copy"
    run(path, ROWS[:10])
    copy.write_bytes(path.read_bytes())
    one, _ = run(path, ROWS)
    other, _ = run(copy, ROWS)
    assert one.identity.publisher != other.identity.publisher


def test_a_mark_of_another_epoch_says_nothing_about_what_was_sent(tmp_path: Path) -> None:
    """A file that is copied while it is written may have its parts from different moments."""
    path = tmp_path / "s"
    run(path, ROWS[:10])
    earlier = path.read_bytes()
    run(path, ROWS)
    later = path.read_bytes()
    path.write_bytes(later[: layout.SLOTS_AT] + earlier[layout.SLOTS_AT :])
    with StateFile.open(path, IDENTITY, SPEC) as state:
        assert (state.start.position, state.start.sent_position) == (10, 10)
    path.write_bytes(earlier[: layout.SLOTS_AT] + later[layout.SLOTS_AT :])
    with StateFile.open(path, IDENTITY, SPEC) as state:
        assert (state.start.position, state.start.sent_position) == (20, 20)


def test_a_clock_that_was_put_back_does_not_make_an_epoch_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    run(path, ROWS[:5])
    before, _ = run(path, ROWS[:10])
    monkeypatch.setattr("lbg_core.publisher.state_file.time.time_ns", lambda: 1)
    after, _ = run(path, ROWS)
    assert epoch_of(after.identity.publisher) > epoch_of(before.identity.publisher)


def test_what_ended_epochs_sent_is_kept_for_the_report_up_to_a_number_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "ENDED_KEPT", 3)
    path = tmp_path / "s"
    states = [run(path, ROWS[:count])[0] for count in (2, 4, 6, 8, 10, 12)]
    with StateFile.open(path, IDENTITY, SPEC) as state:
        assert [each.publisher for each in state.ended.latest] == [
            each.identity.publisher for each in states[2:5]
        ]
        assert [sum(each.next_seq.values()) for each in state.ended.latest] == [2, 2, 2]
        assert state.ended.left_out == 2


def test_a_state_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with StateFile.open(path, IDENTITY, SPEC):
        pass
    newer = layout.MAGIC.replace(b"%d" % layout.VERSION, b"%d" % (layout.VERSION + 1))
    before = path.read_bytes().replace(layout.MAGIC, newer)
    path.write_bytes(before)
    with pytest.raises(StateError) as refused:
        StateFile.open(path, IDENTITY, SPEC)
    assert str(refused.value) == (
        f"state file {path} is of version 2, and this LBG reads version 1; it is left as it is: upgrade this LBG, or "
        "name another file to publish everything anew"
    )
    assert path.read_bytes() == before


def test_totals_add_up_over_runs(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for _ in range(3):
        with StateFile.open(path, IDENTITY, SPEC) as state:
            machine = SendWindow(SPEC)
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


def take_all(check: InputVerifier, rows: list[Row], given: list[Row]) -> None:
    for row in rows:
        given += check.accept(row)


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
        assert short.accept(row) == []
    with pytest.raises(InputChanged, match="has 9 rows, and 10 were published"):
        short.end()
    given = [row for each in ROWS for row in grown.accept(each)]
    grown.end()
    assert given == ROWS[4:]


def test_saving_often_with_many_hashes_is_slowed_down_but_the_last_save_is_never_left_out(
    tmp_path: Path,
) -> None:
    spec = GroupSpec("g", "g", hash_count=65536, queue_count=2, queue_size_mb=1, client_username="u")
    with StateFile.open(tmp_path / "s", IDENTITY, spec) as state:
        machine = SendWindow(spec)
        machine.connected(fenced=True)
        publish(machine, ROWS, state)
        for tag in range(1, 11):
            machine.answered(tag, multiple=False, ok=True, now=0)
            state.save(machine)
        state.save(machine, at_once=True)
    with StateFile.open(tmp_path / "s", IDENTITY, spec) as state:
        assert state.start.position == 10
        assert max(state.start.next_seq) > 0
