"""The ring of members."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.core.peer import following, neighbour

INDEXES = st.sets(st.integers(0, 2000), min_size=2, max_size=200)


@given(INDEXES, st.data())
def test_the_ring_leads_from_each_member_through_all_others(indexes: set[int], data: st.DataObject) -> None:
    me = data.draw(st.sampled_from(sorted(indexes)))
    others = sorted(indexes - {me})
    places = [following(others, me, place) for place in range(1, len(others) + 1)]
    assert places == [*(one for one in others if one > me), *(one for one in others if one < me)]


@given(INDEXES, st.data())
def test_neighbours_are_powers_of_two_away(indexes: set[int], data: st.DataObject) -> None:
    me = data.draw(st.sampled_from(sorted(indexes)))
    others = sorted(indexes - {me})
    steps = int(math.log2(len(others))) + 1
    found = {neighbour(others, me, number / steps) for number in range(steps)}
    assert found == {following(others, me, 2**power) for power in range(steps)}
    assert neighbour(others, me, math.nextafter(1.0, 0.0)) == following(others, me, 2 ** (steps - 1))


def test_a_change_reaches_all_members_over_neighbours_in_a_few_rounds() -> None:
    """In each round each member meets one neighbour, and both have the change if one of them does."""
    numbers = random.Random(1)
    for count in (64, 500, 512):
        has = {0}
        for _ in range(16):
            meetings = []
            for me in range(count):
                others = [one for one in range(count) if one != me]
                meetings.append({me, neighbour(others, me, numbers.random())})
            has |= set().union(*(meeting for meeting in meetings if meeting & has))
        assert len(has) == count
