"""Order within a sub-stream: at once, and after what is remembered of before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Deliveries, NOTHING, Numbers, check_order, highest_after
    from lbg_pipeline.verify.checks.order import NOTHING, Deliveries, Numbers, check_order, highest_after


def deliveries(*rows: tuple[int, ...], **fields: Any) -> Deliveries:
    """Rows of (sub-stream, number, time, incarnation), each with the next delivery of all."""
    sub_stream, number, at_us, incarnation = np.array(rows, np.int64).reshape(-1, 4).T
    everywhere = np.ones(len(rows), np.bool_)
    given = {"is_checked": everywhere, "is_seen": ~everywhere, "is_remembered": everywhere, **fields}
    return Deliveries(sub_stream, number, at_us, incarnation, np.arange(len(rows)), **given)


def checked(rows: Deliveries, highest: list[int], skew_us: int = 0) -> dict[str, list[tuple[int, ...]]]:
    found = check_order(rows, np.array(highest, np.int64), skew_us)
    return {
        kind: sorted(zip(which.tolist(), before.tolist(), uncertain.tolist(), strict=True))
        for kind, which, before, uncertain in found.by_kind()
        if len(which)
    }


def test_a_lower_number_seen_for_the_first_time_is_inverted_and_one_seen_before_rewound() -> None:
    rows = deliveries((0, 0, 1, 0), (0, 2, 2, 0), (0, 1, 3, 0), (0, 2, 4, 0), (1, 0, 1, 0), (1, 1, 2, 0))
    assert checked(rows, [-1, -1]) == {"inverted": [(2, 2, False)], "rewound": [(3, 2, False)]}


def test_deliveries_of_a_sub_stream_may_come_in_any_order_of_time() -> None:
    rows = deliveries((0, 2, 3, 0), (0, 1, 2, 0), (0, 0, 1, 0), (1, 5, 2, 0), (1, 4, 1, 0))
    assert checked(rows, [-1, -1]) == {}


def test_what_is_remembered_is_compared_with() -> None:
    rows = (0, 6, 9, 0), (0, 8, 10, 0), (1, 3, 9, 0)
    assert checked(deliveries(*rows), [7, -1]) == {"inverted": [(0, 7, False)]}
    is_seen = np.array([True, False, True])
    assert checked(deliveries(*rows, is_seen=is_seen), [7, 2]) == {"rewound": [(0, 7, False), (2, 3, False)]}


def test_what_was_forgotten_is_not_inverted_and_what_was_judged_is_not_judged_again() -> None:
    rows = (0, 9, 1, 0), (0, 5, 2, 0), (0, 4, 3, 0)
    is_known = np.array([True, True, False])
    assert checked(deliveries(*rows, is_remembered=is_known), [-1]) == {"inverted": [(1, 9, False)]}
    assert checked(deliveries(*rows, is_checked=~is_known), [-1]) == {"inverted": [(2, 9, False)]}


@pytest.mark.parametrize(("skew_us", "is_uncertain"), [(9, False), (10, True)])
def test_the_skew_of_two_clocks_explains_what_one_clock_does_not(skew_us: int, is_uncertain: bool) -> None:
    of_two = deliveries((0, 1, 10, 0), (0, 0, 20, 1))
    assert checked(of_two, [-1], skew_us) == {"inverted": [(1, 1, is_uncertain)]}
    of_one = deliveries((0, 1, 10, 0), (0, 0, 20, 0))
    assert checked(of_one, [-1], skew_us) == {"inverted": [(1, 1, False)]}


_ROW = st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 6), st.integers(0, 2))


@given(st.lists(_ROW, max_size=14), st.integers(0, 6), st.sampled_from([0, 2]))
def test_two_epochs_find_what_one_finds(rows: list[tuple[int, ...]], until_us: int, skew_us: int) -> None:
    """The first epoch ends at `until_us`; what the clocks' skew may explain is there in the second again."""
    rows = sorted(rows)
    whole = checked(deliveries(*rows), [NOTHING, NOTHING], skew_us)
    every = deliveries(*rows)
    found: dict[str, list[tuple[int, ...]]] = {}
    highest = np.array([NOTHING, NOTHING])
    for after, until in ((-100, until_us), (until_us, 100)):
        here = np.flatnonzero((every.at_us > after - skew_us) & (every.at_us <= until))
        before = {rows[index][:2] for index in np.flatnonzero(every.at_us <= after - skew_us)}
        judged = Deliveries(
            *(getattr(every, name)[here] for name in Deliveries.__slots__[:5]),
            is_checked=every.at_us[here] > after,
            is_seen=np.array([rows[index][:2] in before for index in here], np.bool_),
            is_remembered=np.ones(len(here), np.bool_),
        )
        result = check_order(judged, highest, skew_us)
        for kind, which, highest_before, uncertain in result.by_kind():
            columns = here[which].tolist(), highest_before.tolist(), uncertain.tolist()
            found.setdefault(kind, []).extend(zip(*columns, strict=True))
        past = here[every.at_us[here] <= until - skew_us]
        highest = highest_after(every.sub_stream[past], every.number[past], highest)
    assert {kind: sorted(told) for kind, told in found.items() if told} == whole


def test_numbers_of_a_later_epoch_follow_those_of_an_earlier_one() -> None:
    numbers = Numbers(np.array([0, 0, 50]), np.array([0, 900, 3]))
    assert (np.diff(numbers.places) > 0).all()
    assert numbers.number(numbers.places).tolist() == [0, 900, 3]
    assert numbers.began_us(numbers.places).tolist() == [0, 0, 50]
    assert numbers.number(np.array([NOTHING])).tolist() == [NOTHING]
