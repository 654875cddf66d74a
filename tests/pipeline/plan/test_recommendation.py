"""The recommendation: the smallest sufficient size, and no change where the present size is as good."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_pipeline.plan.choose import Existing, choose, choose_freely, queue_ladder
from lbg_pipeline.plan.simulate import Demand, simulate
from testing.exploration import example_count

from .test_simulating import demand, rules


def even(total: float, hash_count: int = 32) -> Demand:
    return demand([total / hash_count] * hash_count)


def test_fewest_members_come_first_then_fewest_queues() -> None:
    choice = choose([even(2.0)], None, rules(), Existing())
    assert (choice.recommended.members, choice.recommended.queue_count) == (3, 3)
    assert choice.recommended.utilisation_peak == pytest.approx(22 / 32, abs=0.01)
    assert choice.recommended.meets


@settings(deadline=None, max_examples=example_count(40))
@given(st.lists(st.floats(0, 1), min_size=8, max_size=24), st.integers(1, 4))
def test_nothing_smaller_meets_the_target(loads: list[float], concurrency: int) -> None:
    told, counts = rules(concurrency=concurrency), [1, 2, 3, 4, 6, 8]
    best = choose([demand(loads)], counts, told, Existing()).recommended
    smaller = [
        simulate(demand(loads), queues, members, told)
        for queues, members in itertools.product(counts, range(1, 9))
        if members <= queues and (members, queues) < (best.members, best.queue_count)
    ]
    if best.meets:
        assert not [one for one in smaller if one.meets]
    else:
        every = [simulate(demand(loads), queues, n, told) for queues in counts for n in range(1, queues + 1)]
        assert not [one for one in every if one.meets]


def test_a_hash_that_is_too_hot_for_a_member_asks_for_no_more_members_than_help() -> None:
    loads = [3.0] + [0.05] * 31
    choice = choose([demand(loads)], None, rules(), Existing())
    assert not choice.recommended.meets
    assert choice.recommended.utilisation_peak == pytest.approx(3.0, rel=0.1)
    # 3 + 31 * 0.05 at 0.7 for each is 7; more would stand by the hot one.
    assert choice.recommended.members <= 8


def test_skew_is_answered_with_queues_before_members() -> None:
    """Hashes 0 and 4 fall together in 4 queues and not in 8."""
    loads = [0.4, 0.05, 0.05, 0.05, 0.4, 0.05, 0.05, 0.05]
    choice = choose([demand(loads)], [4, 8], rules(), Existing())
    assert (choice.recommended.queue_count, choice.recommended.members) == (8, 2)


def test_what_is_there_is_kept_where_it_needs_as_few_members() -> None:
    choice = choose([even(2.0, 120)], None, rules(), Existing(120, 12, 4))
    assert (choice.recommended.queue_count, choice.recommended.members) == (12, 3)
    assert choice.existing is not None
    assert choice.existing.members == 4


def test_fewer_queues_than_there_are_have_to_be_asked_for() -> None:
    """8 queues are 3, 3 and 2 for three members."""
    there = Existing(120, 8, 4)
    assert choose([even(2.0, 120)], None, rules(), there).recommended.queue_count == 12
    assert choose([even(2.0, 120)], [3, 8, 12], rules(), there).recommended.queue_count == 3


def test_too_few_queues_are_not_kept() -> None:
    choice = choose([even(2.0)], None, rules(), Existing(32, 2, 2))
    assert (choice.recommended.queue_count, choice.recommended.members) == (3, 3)
    assert choice.existing is not None
    assert not choice.existing.meets


def test_another_hash_count_is_a_new_group_and_told_where_it_does_better() -> None:
    hot = demand([0.6, 0.6])
    split = demand([0.3, 0.3, 0.3, 0.3])
    choice = choose([hot, split], None, rules(target_utilisation=0.5), Existing(2, 2, 2))
    assert choice.recommended.hash_count == 2
    assert not choice.recommended.meets
    assert choice.new_group is not None
    assert (choice.new_group.hash_count, choice.new_group.members) == (4, 4)
    assert choose([hot, split], None, rules(), Existing(2, 2, 2)).new_group is None


def test_what_another_count_needs_is_no_bound_for_the_groups_own() -> None:
    """4 queues put the hot hashes together; 6 and 8 part them and do with fewer members."""
    loads = [0.3, 0, 0, 0, 0.3, 0, 0, 0, 0.3, 0, 0, 0]
    for counts in ([4], [4, 6], [4, 6, 8, 12]):
        told = choose([demand(loads)], counts, rules(target_utilisation=0.95), Existing(12, 4, 2))
        alone = choose(
            [demand(loads)],
            [told.recommended.queue_count],
            rules(target_utilisation=0.95),
            Existing(12, 4, 2),
        )
        assert told.recommended == alone.recommended


def test_a_new_group_gets_ten_hashes_for_each_queue_if_it_may() -> None:
    choice = choose([even(2.0, 16), even(2.0, 64), even(2.0, 128)], [4], rules(), Existing())
    assert choice.recommended.hash_count == 64


def test_fewest_are_for_the_mean_and_most_for_the_peak() -> None:
    calm, busy = [0.01] * 160, [0.04] * 160
    choice = choose([demand(calm, busy)], None, rules(concurrency=2), Existing())
    assert (choice.members_min, choice.recommended.members) == (2, 5)


def test_members_are_bounded() -> None:
    choice = choose([even(10.0)], None, rules(members_max=4), Existing())
    assert choice.recommended.members == 4
    assert not choice.recommended.meets


def test_members_with_which_one_may_be_away_are_told() -> None:
    choice = choose([even(1.3, 120)], [12], rules(), Existing())
    assert choice.recommended.members == 2
    assert choice.recommended.away_utilisation == pytest.approx(1.3)
    assert choice.members_spared == 3


def test_candidates_hold_the_recommended_members_for_other_numbers_of_queues() -> None:
    choice = choose([even(2.0)], [3, 4, 8, 16], rules(), Existing())
    assert {one.queue_count for one in choice.candidates if one.members == 3} == {3, 4, 8, 16}


def test_the_ladder_ends_where_more_queues_are_of_no_use() -> None:
    assert queue_ladder(even(0.5), rules(), 128) == [1, 2, 3, 4, 6, 8, 12, 16]
    assert queue_ladder(even(3.0), rules(), 12) == [1, 2, 3, 4, 5, 6, 8, 10, 12]


def test_without_queues_to_count_members_are_all_there_is_to_choose() -> None:
    choice = choose_freely(
        Demand(1, np.array([[1.0], [3.0]]), np.array([[1.0], [3.0]])), rules(), Existing(members=1)
    )
    assert (choice.members_min, choice.recommended.members) == (2, 5)
    assert choice.recommended.queue_count == 1
    assert choice.existing is not None
    assert not choice.existing.meets
    assert choice.members_spared == 5
