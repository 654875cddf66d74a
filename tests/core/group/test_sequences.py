from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group import SequenceSet

NUMBERS = st.lists(st.integers(0, 60), max_size=80)


class PlainSet:
    """The same with a Python set: slow and plainly right."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()

    def runs(self) -> list[tuple[int, int]]:
        runs: list[tuple[int, int]] = []
        for number in sorted(self.numbers):
            if runs and runs[-1][1] == number - 1:
                runs[-1] = (runs[-1][0], number)
            else:
                runs.append((number, number))
        return runs

    @property
    def floor(self) -> int:
        return next(number for number in range(-1, len(self.numbers)) if number + 1 not in self.numbers)

    def holes(self, upto: int) -> list[tuple[int, int]]:
        missing = PlainSet()
        missing.numbers = set(range(upto)) - self.numbers
        return missing.runs()

    def forget(self, runs_max: int) -> int:
        sparse = [run for run in self.runs() if run[0] > 0]
        gone = {n for first, last in sparse[: max(0, len(sparse) - runs_max)] for n in range(first, last + 1)}
        self.numbers -= gone
        return len(gone)


def assert_same(ours: SequenceSet, plain: PlainSet) -> None:
    assert ours.runs() == plain.runs()
    assert ours.floor == plain.floor
    assert list(ours) == sorted(plain.numbers)
    assert len(ours) == len(plain.numbers)
    assert ours.highest == max(plain.numbers, default=-1)
    assert ours.sparse_count == len([run for run in plain.runs() if run[0] > 0])
    for number in range(-2, 64):
        assert (number in ours) == (number in plain.numbers)
    for upto in (0, 1, 30, 61, 70):
        assert ours.holes(upto) == plain.holes(upto)


@given(NUMBERS)
def test_adding_one_by_one_agrees_with_a_plain_set(numbers: list[int]) -> None:
    ours, plain = SequenceSet(), PlainSet()

    for number in numbers:
        assert ours.add(number) == (number not in plain.numbers)
        plain.numbers.add(number)
    assert_same(ours, plain)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 24), st.just(0)),
        st.tuples(st.just("add_run"), st.integers(0, 24), st.integers(0, 8)),
        st.tuples(st.just("forget"), st.integers(0, 4), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_any_history_agrees_with_a_plain_set(steps: list[tuple[str, int, int]]) -> None:
    ours, plain = SequenceSet(), PlainSet()

    for step, number, more in steps:
        if step == "forget":
            assert ours.forget(number) == plain.forget(number)
        else:
            ours.add_run(number, number + more)
            plain.numbers |= set(range(number, number + more + 1))
        assert_same(ours, plain)


@given(NUMBERS, st.randoms())
def test_a_set_can_be_made_again_from_its_runs_in_any_order(numbers: list[int], shuffler: object) -> None:
    ours = SequenceSet((number, number) for number in numbers)
    runs = ours.runs()
    shuffler.shuffle(runs)

    assert SequenceSet(runs) == ours


def test_a_run_below_the_floor_changes_nothing() -> None:
    numbers = SequenceSet([(0, 9)])

    numbers.add_run(2, 4)

    assert numbers.runs() == [(0, 9)]


def test_in_order_only_the_floor_grows() -> None:
    numbers = SequenceSet()

    assert all(numbers.add(number) for number in range(10_000))
    assert (numbers.floor, numbers.sparse_count) == (9_999, 0)


def test_lanes_that_finish_out_of_order_leave_a_sparse_set_above_the_floor() -> None:
    numbers = SequenceSet()
    for number in (0, 1, 3, 5, 4):
        numbers.add(number)

    assert (numbers.floor, numbers.runs()) == (1, [(0, 1), (3, 5)])
    assert numbers.holes(8) == [(2, 2), (6, 7)]

    numbers.add(2)

    assert (numbers.floor, numbers.sparse_count) == (5, 0)


def test_forgetting_never_calls_a_message_seen_that_was_not() -> None:
    numbers = SequenceSet([(0, 4), (10, 14), (20, 24), (30, 34)])

    assert numbers.forget(1) == 10

    assert numbers.runs() == [(0, 4), (30, 34)]
    assert numbers.add(7)
    assert numbers.add(12)


@pytest.mark.parametrize("number", [-1, -100])
def test_a_negative_number_is_a_mistake(number: int) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        SequenceSet().add(number)
    with pytest.raises(ValueError, match="at least 0"):
        SequenceSet([(0, 5), (9, 9)]).add(number)


def test_a_run_that_goes_down_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="from 5 to 3"):
        SequenceSet([(5, 3)])


def test_sets_are_equal_by_content_and_show_it() -> None:
    assert SequenceSet([(0, 3), (5, 5)]) == SequenceSet([(5, 5), (2, 3), (0, 1)])
    assert SequenceSet() != SequenceSet([(1, 1)])
    assert SequenceSet() != object()
    assert repr(SequenceSet([(0, 3), (5, 5)])) == "SequenceSet([(0, 3), (5, 5)])"
