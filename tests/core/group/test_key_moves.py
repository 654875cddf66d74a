"""State of keys that move between separate queues: which queue delivers the messages of a hash."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lbg_core.group.errors import EntryError
from lbg_core.group.key_moves import (
    KEY_MOVE_ENTRIES,
    BarrierEntry,
    BeginEntry,
    EndEntry,
    Entry,
    JoinEntry,
    KeyMove,
    KeyMoveState,
    NumbersEntry,
    PassEntry,
    Turn,
)

MOVE = KeyMove("m1", old=2, new=3, hash_count=12)
"""Of hashes 0 to 11 those of 0, 1 (mod 6) stay. Staging queue 3 takes what leaves queue 0, 4 what leaves queue 1."""

WORDS = st.text(min_size=1, max_size=8)
NUMBERS = st.integers(0, 2**40)
RUNS = st.lists(st.tuples(NUMBERS, NUMBERS).map(lambda run: (min(run), max(run))), max_size=3).map(tuple)


@st.composite
def moves(draw: st.DrawFn) -> KeyMove:
    hash_count = draw(st.integers(1, 64))
    counts = st.integers(1, hash_count)
    return KeyMove(draw(WORDS), draw(counts), draw(counts), hash_count)


ENTRIES = st.one_of(
    st.builds(BeginEntry, moves()),
    st.builds(JoinEntry, NUMBERS, WORDS),
    st.builds(BarrierEntry, WORDS, st.lists(NUMBERS, max_size=3).map(tuple)),
    st.builds(
        PassEntry, WORDS, NUMBERS, WORDS, st.lists(st.tuples(WORDS, NUMBERS, RUNS), max_size=3).map(tuple)
    ),
    st.builds(NumbersEntry, WORDS, NUMBERS, st.lists(st.tuples(WORDS, NUMBERS, RUNS), max_size=3).map(tuple)),
    st.builds(EndEntry, WORDS),
)


def begun(*passed: int) -> KeyMoveState:
    state = KeyMoveState()
    state.apply(BeginEntry(MOVE))
    for queue in passed:
        state.apply(BarrierEntry(f"b{queue}", (queue,)))
        assert state.apply(PassEntry("m1", queue, f"b{queue}"))
    return state


def test_a_change_is_known_by_its_id() -> None:
    begun = KeyMove.between(4, 6, 12)
    assert KeyMove.of_id(begun.id, 12) == begun
    for other in ("4", "4-x-1", "x-6-1", "²-6-1", "0-6-1", "4-13-1"):
        assert KeyMove.of_id(other, 12) is None


def test_staging_queues_have_the_numbers_behind_all_others() -> None:
    assert MOVE.staging == {0: 3, 1: 4}
    assert MOVE.queue_count == 5
    assert KeyMove("m", 4, 2, 8).staging == {2: 4, 3: 5}  # what is in 0 and 1 stays there
    assert KeyMove("m", 3, 3, 8).queue_count == 3


def test_hashes_leave_their_old_queue_and_then_the_staging_queue() -> None:
    assert MOVE.queues_of(2) == (0, 3, 2)
    assert [MOVE.leaves(2, queue) for queue in range(5)] == [True, False, False, True, False]
    assert MOVE.queues_of(6) == (0,)
    assert not any(MOVE.leaves(6, queue) for queue in range(5))


@pytest.mark.parametrize(
    ("passed", "turns"),
    [
        ((), (Turn.DELIVER, Turn.HOLD, Turn.HOLD)),
        ((0,), (Turn.FORWARD, Turn.DELIVER, Turn.HOLD)),
        ((0, 3), (Turn.FORWARD, Turn.FORWARD, Turn.DELIVER)),
    ],
)
def test_the_turn_of_a_hash_follows_what_its_queues_have_passed(
    passed: tuple[int, ...], turns: tuple[Turn, ...]
) -> None:
    state = begun(*passed)
    assert tuple(state.turn(2, queue) for queue in (0, 3, 2)) == turns
    assert state.turn(6, 0) is Turn.DELIVER  # it stays
    assert state.is_open(3) is bool(passed)


def test_a_message_behind_a_fence_goes_where_its_hash_went() -> None:
    assert begun(0).forwards_to(2) == 3
    assert begun(0, 3).forwards_to(2) == 2


def test_what_a_former_consumer_writes_late_has_no_effect() -> None:
    state = begun()
    state.apply(BarrierEntry("former", (0,)))
    state.apply(BarrierEntry("present", (0, 1)))
    assert not state.apply(PassEntry("m1", 0, "former"))
    assert not state.is_open(3)
    assert state.apply(PassEntry("m1", 0, "present"))
    assert state.is_open(3)


def test_entries_of_another_change_have_no_effect() -> None:
    state = begun(0)
    assert not state.apply(PassEntry("m0", 1, "b1"))
    assert not state.apply(EndEntry("m0"))
    assert not state.apply(BeginEntry(MOVE))  # a second time
    assert list(state.passed) == [0]


def test_members_that_joined_a_change_have_not_joined_the_next_one() -> None:
    state = begun(0)
    state.apply(JoinEntry(1, "1-a"))
    assert state.joined == {(1, "1-a")}
    assert not state.apply(BeginEntry(MOVE))
    assert (state.joined, list(state.passed)) == ({(1, "1-a")}, [0])
    assert state.apply(BeginEntry(KeyMove("m2", 3, 2, 12)))
    assert (state.joined, state.passed) == (set(), {})


def test_a_change_that_ended_leaves_its_new_number() -> None:
    state = begun(0, 3, 1, 4)
    assert state.queue_count == 5
    assert state.apply(EndEntry("m1"))
    assert state.queue_count == 3
    assert state.queues_of(5) == (2,)
    state.apply(BeginEntry(KeyMove("m2", 3, 2, 12)))
    assert (state.queue_count, state.passed, state.is_ended) == (6, {}, False)


@given(moves(), st.data())
def test_at_each_moment_one_open_queue_delivers_a_hash(move: KeyMove, data: st.DataObject) -> None:
    """Queues pass in any order in which they can: a staging queue after its old queue."""
    state = KeyMoveState()
    state.apply(BeginEntry(move))
    waiting = list(move.staging)
    while True:
        for hash_ in range(move.hash_count):
            delivering = [
                queue
                for queue in move.queues_of(hash_)
                if state.is_open(queue) and state.turn(hash_, queue) is Turn.DELIVER
            ]
            assert delivering == [state.delivers(hash_)]
        if not waiting:
            return
        queue = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        state.apply(BarrierEntry("b", (queue,)))
        assert state.apply(PassEntry(move.id, queue, "b"))
        if queue in move.staging:
            waiting.append(move.staging[queue])


@given(ENTRIES)
@example(EndEntry("m1"))
def test_an_entry_is_read_as_it_was_written(entry: Entry) -> None:
    assert KEY_MOVE_ENTRIES.decode(KEY_MOVE_ENTRIES.encode(entry)) == entry


def test_an_entry_of_a_newer_version_is_refused_in_one_line() -> None:
    with pytest.raises(EntryError) as refused:
        KEY_MOVE_ENTRIES.decode(b'{"v":2,"op":"end","move":"m"}')
    assert str(refused.value) == (
        "the stream of key moves has an entry of version 2, and this LBG reads version 1: upgrade it"
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"v":1,"type":"turn"}',
        b'{"v":1,"type":"begin","move":{"id":"m","old":0,"new":2,"hash_count":9}}',
        b'{"v":1,"type":"begin","move":{"id":"m","old":2,"new":10,"hash_count":9}}',
        b'{"v":1,"type":"pass","move":"m","queue":1,"by":"b","streams":[["p",1]]}',
    ],
)
def test_what_is_no_entry_is_refused(body: bytes) -> None:
    with pytest.raises(EntryError):
        KEY_MOVE_ENTRIES.decode(body)
