"""Loads of members and queues: by hand on a few hashes, and against plain Python on many."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_core.group import BALANCED, STATIC, balanced_primaries, queue_of, static_primaries
from lbg_pipeline.plan.simulate import Demand, Rules, queue_loads, share_freely, simulate


def rules(**told: object) -> Rules:
    default = {
        "assignment": BALANCED,
        "concurrency": 1,
        "queue_is_a_lane": False,
        "service_s": 0.01,
        "target_utilisation": 0.7,
        "target_delay_s": 10.0,
        "members_max": 64,
    }
    return Rules(**{**default, **told})


def demand(mean: list[float], *peaks: list[float]) -> Demand:
    calls = np.array([mean, *peaks])
    return Demand(len(mean), calls, calls * 10)


def even_loads(hashes: int) -> Demand:
    return demand([1.0] * hashes)


def test_hashes_are_striped_over_queues_and_queues_over_members() -> None:
    one = simulate(demand([1, 2, 3, 4, 5, 6]), 3, 2, rules(concurrency=10))
    assert one.queue_calls_mean == (1 + 4, 2 + 5, 3 + 6)
    assert balanced_primaries(3, [0, 1]) == {0: 0, 1: 1, 2: 0}
    assert one.member_calls_mean == (5 + 9, 7)
    assert one.utilisation_mean == 1.4
    assert one.spread == pytest.approx(14 / 10.5)
    assert one.queue_messages_peak == 90
    assert one.member_messages_peak == 140


def test_peak_is_each_ones_own_busiest_stretch() -> None:
    one = simulate(demand([1, 1], [3, 0], [0, 2]), 2, 2, rules(concurrency=4))
    assert one.queue_calls_peak == (3, 2)
    assert one.member_calls_peak == (3, 2)
    assert (one.utilisation_mean, one.utilisation_peak) == (0.25, 0.75)
    assert not one.meets


def test_with_one_away_the_worst_one_to_lose_counts() -> None:
    one = simulate(demand([5, 1, 1]), 3, 3, rules(concurrency=10))
    assert one.utilisation_peak == 0.5
    # 0 has 5; whoever goes of the others may leave it queue 1 or 2.
    after = [
        max(sum(load for queue, load in enumerate([5, 1, 1]) if owners[queue] == member) for member in live)
        for live in ([1, 2], [0, 2], [0, 1])
        for owners in [balanced_primaries(3, live)]
    ]
    assert one.away_utilisation == max(after) / 10


def test_a_single_member_has_nobody_to_stand_in() -> None:
    one = simulate(demand([1, 1]), 2, 1, rules())
    assert one.away_utilisation is None
    assert one.moved.join == 2


def test_wandering_queues_of_static_all_go_to_the_busiest() -> None:
    one = simulate(demand([4, 1, 1]), 3, 3, rules(assignment=STATIC, concurrency=10))
    assert one.member_calls_mean == (4, 1, 1)
    # Without 1 or 2 it is 4 + 1; without 0 it is 1 + 4.
    assert one.away_utilisation == 0.5


def test_a_queue_that_is_a_lane_has_one_call_at_a_time() -> None:
    loads = demand([0.9, 0.1])
    assert simulate(loads, 2, 2, rules(concurrency=16)).meets
    lane = simulate(loads, 2, 2, rules(concurrency=16, queue_is_a_lane=True))
    assert lane.utilisation_peak == 0.9
    assert not lane.meets


def test_delay_is_that_of_the_busiest_and_grows_without_a_limit_above_all_that_it_can() -> None:
    """One call at a time: M/M/1, where 99 % wait less than 4.6 service times times share / (1 - share)."""
    loads = demand([0.5, 0.5])
    for lane in (rules(), rules(concurrency=16, queue_is_a_lane=True)):
        assert simulate(loads, 2, 2, lane).delay_peak_us == 46_000
    assert simulate(loads, 2, 2, rules(concurrency=16)).delay_peak_us == 0
    assert simulate(demand([1.0, 0.5]), 2, 2, rules()).delay_peak_us is None


def test_long_calls_leave_room_for_the_target_of_the_delay() -> None:
    """4.6 s * 2/3 / (1/3) are 9.2 s; with 16 calls at a time a message waits less, and 70 % are the lower limit."""
    assert rules(service_s=1.0, target_delay_s=9.2, target_utilisation=0.9).target == pytest.approx(
        2 / 3, rel=1e-4
    )
    assert rules(service_s=1.0, target_delay_s=9.2, concurrency=16).target == 0.7


def test_members_without_queues_to_count_have_the_same() -> None:
    one = share_freely(demand([3, 1], [5, 3]), 4, rules(concurrency=4))
    assert one.member_calls_mean == (1, 1, 1, 1)
    assert one.member_calls_peak == (2, 2, 2, 2)
    assert one.away_utilisation == pytest.approx(8 / 3 / 4)


@pytest.mark.parametrize(("queues", "members"), [(8, 4), (12, 5), (16, 16), (7, 3)])
def test_a_join_to_a_full_set_moves_the_newcomers_share_and_no_more(queues: int, members: int) -> None:
    moved = simulate(even_loads(queues), queues, members, rules()).moved
    assert moved.join == queues // members
    assert moved.leave_max == math.ceil(queues / members)


loads_of_hashes = st.lists(st.floats(0, 50), min_size=1, max_size=40)


@settings(deadline=None)
@given(
    loads_of_hashes,
    st.integers(1, 40),
    st.integers(1, 12),
    st.sampled_from([BALANCED, STATIC]),
    st.integers(1, 8),
)
def test_it_adds_up_as_plain_python_does(
    loads: list[float], queues: int, members: int, assignment: str, concurrency: int
) -> None:
    queues = min(queues, len(loads))
    members = min(members, queues)
    one = simulate(demand(loads), queues, members, rules(assignment=assignment, concurrency=concurrency))
    by_queue = [
        sum(load for hash_, load in enumerate(loads) if queue_of(hash_, queues) == queue)
        for queue in range(queues)
    ]
    primaries = (
        balanced_primaries(queues, range(members))
        if assignment == BALANCED
        else static_primaries(queues, members, range(members))
    )
    by_member = [
        sum(load for queue, load in enumerate(by_queue) if primaries[queue] == member)
        for member in range(members)
    ]
    assert one.queue_calls_mean == pytest.approx(by_queue)
    assert one.member_calls_mean == pytest.approx(by_member)
    assert one.utilisation_peak == pytest.approx(max(by_member) / concurrency)
    assert max(one.member_calls_peak) >= max(max(loads), sum(loads) / members) - 1e-9
    if members > 1:
        assert one.away_utilisation is not None
        assert one.away_utilisation >= max(max(by_member), sum(loads) / (members - 1)) / concurrency - 1e-9


@given(loads_of_hashes, st.integers(1, 8), st.integers(2, 4))
def test_a_multiple_of_the_queues_splits_each_of_them(loads: list[float], queues: int, times: int) -> None:
    few = queue_loads(np.array([loads]), queues)[0]
    many = queue_loads(np.array([loads]), queues * times)[0]
    assert many.max() <= few.max() + 1e-9
    assert many.reshape(times, queues).sum(axis=0) == pytest.approx(few)
