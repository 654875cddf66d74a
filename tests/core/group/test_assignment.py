from __future__ import annotations

import random
import runpy
import zlib
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group import (
    backed_up,
    balanced_owners,
    balanced_primaries,
    standbys,
    standbys_of,
    static_primaries,
)
from lbg_core.group.assignment import weight
from testing import ROOT
from testing.needs import repeated

BENCH: Any = runpy.run_path(
    str(ROOT / "testing" / "assignment_movement.py"), run_name="testing.assignment_movement"
)

QUEUE_COUNTS = st.integers(1, 64)
LIVE = st.sets(st.integers(0, 80), min_size=1, max_size=40)


def moved(before: dict[int, int], after: dict[int, int]) -> set[int]:
    return {queue for queue in before if before[queue] != after[queue]}


def queues_of(primaries: dict[int, int], index: int) -> set[int]:
    return {queue for queue, primary in primaries.items() if primary == index}


def loads(primaries: dict[int, int], live: Collection[int]) -> list[int]:
    by_member = Counter(primaries.values())
    return [by_member[index] for index in live]


@given(QUEUE_COUNTS, LIVE, st.randoms())
def test_every_member_computes_the_same_from_the_same_live_set(
    queue_count: int, live: set[int], shuffler: random.Random
) -> None:
    shuffled = [*live, *list(live)[:3]]
    shuffler.shuffle(shuffled)

    assert balanced_primaries(queue_count, shuffled) == balanced_primaries(queue_count, frozenset(live))


@given(QUEUE_COUNTS, LIVE)
def test_every_queue_has_a_live_primary_and_loads_differ_by_at_most_one(
    queue_count: int, live: set[int]
) -> None:
    primaries = balanced_primaries(queue_count, live)

    assert set(primaries) == set(range(queue_count))
    assert set(primaries.values()) <= live
    assert max(loads(primaries, live)) - min(loads(primaries, live)) <= 1


@pytest.mark.long
def test_the_laws_hold_for_every_queue_count_to_16_and_every_live_subset_of_10_indexes() -> None:
    for queue_count in range(1, 17):
        for live in (BENCH["members_of"](bits) for bits in range(1, 1 << 10)):
            primaries = balanced_primaries(queue_count, live)
            assert set(primaries.values()) <= set(live)
            assert max(loads(primaries, live)) - min(loads(primaries, live)) <= 1


def test_with_more_members_than_queues_the_excess_has_none() -> None:
    primaries = balanced_primaries(3, range(10))

    assert sorted(loads(primaries, range(10))) == [0] * 7 + [1] * 3


def test_without_members_there_are_no_primaries() -> None:
    assert balanced_primaries(4, []) == {}


def test_the_caller_may_change_the_answer() -> None:
    balanced_primaries(4, [0, 1]).clear()

    assert len(balanced_primaries(4, [0, 1])) == 4


@pytest.mark.long
@pytest.mark.parametrize("queue_count", [1, 4, 7, 16, 50, 256])
def test_the_loss_and_return_of_any_one_member_of_a_full_set_moves_its_own_queues_only(
    queue_count: int,
) -> None:
    for member_count in range(2, 34):
        full = balanced_primaries(queue_count, range(member_count))
        for lost in range(member_count):
            rest = balanced_primaries(queue_count, set(range(member_count)) - {lost})
            assert moved(full, rest) == queues_of(full, lost)


@pytest.mark.parametrize("queue_count", [1, 4, 7, 16, 50, 256])
def test_a_join_to_a_full_set_moves_the_newcomers_share_rounded_down(queue_count: int) -> None:
    for member_count in range(1, 34):
        before = balanced_primaries(queue_count, range(member_count))
        after = balanced_primaries(queue_count, range(member_count + 1))
        assert moved(before, after) == queues_of(after, member_count)
        assert len(moved(before, after)) == queue_count // (member_count + 1)


# Measured for every live subset of 10 indexes: docs/internals/assignment.md. The bound is the worst of 1 to 16 queues.
@pytest.mark.long
def test_movement_over_every_change_stays_within_the_published_bound() -> None:
    for queue_count in range(1, 17):
        found = BENCH["measure"](balanced_primaries, queue_count, 10)
        assert found.every.ratio < 1.28
        assert found.dense.ratio == 1.0
        assert found.one_hole.ratio < 1.22
        assert found.every.worst_excess <= 5


@pytest.mark.long
@pytest.mark.parametrize("queue_count", repeated([2, 4]))
def test_the_published_table_is_what_the_bench_measures(queue_count: int) -> None:
    *_, row = BENCH["rows"](range(queue_count, queue_count + 1), 16)

    assert row in (ROOT / "docs" / "internals" / "assignment.md").read_text().splitlines()


def test_the_bench_counts_movement_as_a_plain_count_does() -> None:
    found = BENCH["measure"](balanced_primaries, 7, 6)

    plain = fewest = changes = 0
    for bits in range(1, 1 << 6):
        live = BENCH["members_of"](bits)
        for leaver in live if len(live) > 1 else []:
            before = balanced_primaries(7, live)
            plain += len(moved(before, balanced_primaries(7, set(live) - {leaver})))
            fewest += len(queues_of(before, leaver))
            changes += 1
    assert (found.every.moved, found.every.fewest, found.every.changes) == (plain, fewest, changes)


@pytest.mark.parametrize(
    "rule", ["by_position", "by_join_order", "by_bounded_rendezvous", "by_rounds"], ids=lambda rule: rule[3:]
)
def test_the_rules_we_compare_with_obey_the_laws_too(rule: str) -> None:
    for queue_count in (1, 5, 8):
        for bits in range(1, 1 << 6):
            live = BENCH["members_of"](bits)
            primaries = BENCH[rule](queue_count, live)
            assert set(primaries) == set(range(queue_count))
            assert max(loads(primaries, live)) - min(loads(primaries, live)) <= 1


def test_a_thousand_queues_and_two_hundred_members_are_no_trouble() -> None:
    holes = {3, 77, 140}
    live = set(range(203)) - holes

    primaries = balanced_primaries(1000, live)

    assert set(loads(primaries, live)) == {5}
    assert len(moved(balanced_primaries(1000, range(203)), primaries)) == sum(
        len(queues_of(balanced_primaries(1000, range(203)), hole)) for hole in holes
    )


def test_static_primaries_follow_the_documents_rule() -> None:
    assert static_primaries(8, 4, {0, 1, 2, 3}) == {0: 0, 1: 1, 2: 2, 3: 3, 4: 0, 5: 1, 6: 2, 7: 3}


def test_a_static_queue_whose_primary_is_not_running_has_none() -> None:
    assert static_primaries(4, 4, [0, 2]) == {0: 0, 1: None, 2: 2, 3: None}


@given(QUEUE_COUNTS, st.integers(1, 64), st.sets(st.integers(0, 64)))
def test_static_primaries_are_live_and_at_home_or_none(
    queue_count: int, client_count: int, live: set[int]
) -> None:
    for queue, index in static_primaries(queue_count, client_count, live).items():
        home = queue % client_count
        assert index == (home if home in live else None)


def test_the_ranks_are_fixed_because_members_of_two_versions_have_to_agree() -> None:
    assert standbys(8, range(8), 2) == (
        *((2, 5), (5, 6), (0, 1), (1, 0)),
        *((6, 0), (6, 4), (5, 7), (5, 4)),
    )
    assert [weight(queue, index) for queue, index in ((0, 0), (0, 1), (7, 3), (1023, 999))] == [
        *(1075335365, 3150394840),
        *(3209186902, 2467062583),
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("queues", "members", "expected"),
    [(256, 64, 2371052400), (1024, 256, 4290659651), (4000, 1000, 3079542939)],
)
def test_the_homes_of_large_groups_are_fixed_because_members_of_two_versions_have_to_agree(
    queues: int, members: int, expected: int
) -> None:
    assert zlib.crc32(repr(balanced_owners(queues, frozenset(range(members)))).encode()) == expected


@given(QUEUE_COUNTS, st.lists(LIVE, min_size=1, max_size=6), st.integers(0, 80), st.integers(0, 5))
def test_a_member_backs_up_the_queues_that_have_it_as_a_standby_whatever_was_live_before(
    queue_count: int, lives: list[set[int]], stranger: int, count: int
) -> None:
    for live in lives:
        chosen = standbys(queue_count, live, count)
        for index in (min(lives[0]), max(lives[0]), stranger):
            expected = tuple(queue for queue, found in enumerate(chosen) if index in found)
            assert backed_up(queue_count, frozenset(live), index, count) == expected


def test_the_standbys_of_one_queue_are_those_among_all() -> None:
    live = frozenset(range(0, 60, 3))
    assert standbys(64, live, 2) == tuple(standbys_of(64, live, queue, 2) for queue in range(64))


@given(QUEUE_COUNTS, LIVE, st.integers(1, 5))
def test_a_queue_has_as_many_standbys_as_there_may_be_and_its_primary_is_none_of_them(
    queue_count: int, live: set[int], count: int
) -> None:
    primaries = balanced_primaries(queue_count, live)
    chosen = standbys(queue_count, live, count)

    assert len(chosen) == queue_count
    for queue, found in enumerate(chosen):
        assert len(set(found)) == len(found) == min(count, len(live) - 1)
        assert set(found) <= live - {primaries[queue]}
        ranked = sorted(live - {primaries[queue]}, key=lambda index: weight(queue, index), reverse=True)
        assert list(found) == ranked[:count]


@given(QUEUE_COUNTS, LIVE, st.integers(1, 3), st.integers(0, 80))
def test_a_join_changes_standbys_only_for_the_newcomer_and_where_the_primary_changes(
    queue_count: int, live: set[int], count: int, newcomer: int
) -> None:
    live.discard(newcomer)
    if not live:
        return
    after = live | {newcomer}
    moves = moved(balanced_primaries(queue_count, live), balanced_primaries(queue_count, after))
    for queue, (old, new) in enumerate(
        zip(standbys(queue_count, live, count), standbys(queue_count, after, count), strict=True)
    ):
        if queue not in moves:
            assert set(new) - set(old) <= {newcomer}


@pytest.mark.long
@pytest.mark.parametrize(("members", "queues"), [(8, 256), (64, 256), (256, 1024)])
def test_standbys_are_spread_evenly_and_a_join_takes_its_share_of_them(members: int, queues: int) -> None:
    before, after = standbys(queues, range(members), 2), standbys(queues, range(members + 1), 2)
    share = queues * 2 / members
    loads = Counter(index for found in before for index in found)
    assert max(loads[index] for index in range(members)) <= share + 4 * share**0.5
    attachments = sum(len(set(new) - set(old)) for old, new in zip(before, after, strict=True))
    assert attachments <= 2 * share + queues / members


def test_an_index_far_above_the_others_has_a_rank_too() -> None:
    live = {0, 1, 4096, 5000}
    assert standbys(4, live, 3) == tuple(
        tuple(sorted(live - {primary}, key=lambda index: weight(queue, index), reverse=True))
        for queue, primary in balanced_primaries(4, live).items()
    )
