"""Overlaps, moves and places, on deliveries few enough to read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Spans, Times, check_overlaps, elsewhere, misplaced, moves
    from lbg_pipeline.verify.checks.overlap import Spans, check_overlaps
    from lbg_pipeline.verify.checks.placement import Times, elsewhere, misplaced, moves


Row = tuple[int, int, int, int]


def found(rows: list[Row], *, skew_us: int = 0, judged_from_us: int = 0) -> list[tuple[int, int, bool]]:
    """`rows` are of (key, holder, start, end); each holder has one incarnation."""
    key, holder, started_us, finished_us = np.array(rows, np.int64).reshape(-1, 4).T
    is_checked = started_us >= judged_from_us
    spans = Spans(key, holder, started_us, finished_us, holder, np.arange(len(rows)), is_checked)
    result = check_overlaps(spans, skew_us)
    columns = result.later.tolist(), result.other.tolist(), result.uncertain.tolist()
    return sorted(zip(*columns, strict=True))


def test_who_starts_while_another_has_the_key_overlaps_with_who_finishes_last() -> None:
    rows = [(0, 0, 0, 10), (0, 1, 2, 20), (0, 2, 5, 6), (1, 0, 0, 10), (1, 1, 10, 11), (0, 0, 21, 22)]
    assert found(rows) == [(1, 0, False), (2, 1, False)]
    assert found(rows, judged_from_us=3) == [(2, 1, False)]


def test_one_holder_may_have_several_at_once() -> None:
    assert found([(0, 0, 0, 10), (0, 0, 2, 4), (0, 0, 3, 20)]) == []


@pytest.mark.parametrize(("skew_us", "is_uncertain"), [(1, False), (2, True)])
def test_an_overlap_that_the_skew_explains_is_uncertain(skew_us: int, is_uncertain: bool) -> None:
    assert found([(0, 0, 0, 10), (0, 1, 8, 20)], skew_us=skew_us) == [(1, 0, is_uncertain)]


_SPAN = st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 9), st.integers(1, 9)).map(
    lambda one: (*one[:3], one[2] + one[3])
)


@given(st.lists(_SPAN, max_size=12), st.integers(0, 10))
def test_two_epochs_find_what_one_finds(rows: list[Row], until_us: int) -> None:
    first = [index for index, row in enumerate(rows) if row[2] < until_us]
    second = [index for index, row in enumerate(rows) if row[2] >= until_us or row[3] >= until_us]
    told = [
        (chosen[later], chosen[other], uncertain)
        for chosen, from_us in ((first, 0), (second, until_us))
        for later, other, uncertain in found([rows[index] for index in chosen], judged_from_us=from_us)
    ]
    assert sorted(told) == found(rows)


def times(*at_us: int) -> Times:
    none = np.zeros(len(at_us), np.int64)
    return Times(np.array(at_us, np.int64), none, np.arange(len(at_us)))


def test_a_shard_moves_between_deliveries_that_follow_one_another() -> None:
    shard, member = np.array([0, 0, 1, 0, 0]), np.array([7, 8, 9, 8, 7])
    was, now = moves(shard, member, times(3, 1, 2, 4, 5))
    assert list(zip(was.tolist(), now.tolist(), strict=True)) == [(1, 0), (0, 3), (3, 4)]


def test_a_message_is_misplaced_where_it_was_not_first() -> None:
    message, place = np.array([1, 1, 1, 2]), np.array([5, 6, 5, 5])
    nothing = np.zeros(4, np.bool_)
    at = times(1, 2, 3, 4)
    assert elsewhere(message, place, at, nothing).tolist() == [False, True, False, False]
    assert elsewhere(place, message, at, nothing).tolist() == [False, False, False, True]
    assert misplaced(message, place, at, nothing, nothing).tolist() == [False, True, False, True]


def test_a_message_that_came_before_is_misplaced_in_a_place_that_is_new() -> None:
    message, place = np.array([1, 1, 2, 3]), np.array([5, 6, 5, 7])
    is_message_seen, is_place_seen = message == 1, place == 5
    found = misplaced(message, place, times(1, 2, 3, 4), is_message_seen, is_place_seen)
    assert found.tolist() == [False, True, True, False]
