"""Floors of replicas: every need is covered in time, nothing is asked for twice, and lists stay short enough."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_pipeline.forecast.schedule import Need, Sizing, entries_of, fewer, floors, schedule

HOUR_S = 3600


def hours(*replicas: int, from_s: int = 0) -> list[Need]:
    return [
        Need(from_s + hour * HOUR_S, from_s + (hour + 1) * HOUR_S, count)
        for hour, count in enumerate(replicas)
    ]


def floor_at(entries: list[Need], at_s: int) -> int:
    return max((one.replicas for one in entries if one.from_s <= at_s < one.until_s), default=1)


replicas = st.lists(st.integers(1, 9), min_size=1, max_size=60)
leads_s = st.integers(0, 3 * HOUR_S)


def test_neighbours_alike_are_one_entry() -> None:
    assert schedule(hours(2, 2, 3, 3, 3, 2), lead_s=0) == [
        Need(0, 2 * HOUR_S, 2),
        Need(2 * HOUR_S, 5 * HOUR_S, 3),
        Need(5 * HOUR_S, 6 * HOUR_S, 2),
    ]


def test_replicas_are_there_before_they_are_needed_and_stay_until_the_end() -> None:
    assert schedule(hours(2, 5, 2), lead_s=300) == [
        Need(-300, HOUR_S - 300, 2),
        Need(HOUR_S - 300, 2 * HOUR_S, 5),
        Need(2 * HOUR_S, 3 * HOUR_S, 2),
    ]


def test_one_replica_goes_without_saying() -> None:
    assert schedule(hours(1, 3, 1, 1, 2), lead_s=0) == [
        Need(HOUR_S, 2 * HOUR_S, 3),
        Need(4 * HOUR_S, 5 * HOUR_S, 2),
    ]
    assert schedule(hours(1, 1), lead_s=300) == []
    assert schedule([], lead_s=300) == []


@given(replicas, leads_s)
def test_the_schedule_is_the_highest_need_at_each_moment_with_its_lead(
    counts: list[int], lead_s: int
) -> None:
    needs = hours(*counts)
    told = schedule(needs, lead_s=lead_s)
    led = [Need(one.from_s - lead_s, one.until_s, one.replicas) for one in needs]
    edges = {edge for one in [*led, *told] for edge in (one.from_s, one.until_s)}
    for at_s in sorted(moment for edge in edges for moment in (edge - 1, edge, edge + 1)):
        assert floor_at(told, at_s) == floor_at(led, at_s)
    for one, other in pairwise(told):
        assert one.until_s <= other.from_s
        assert one.until_s < other.from_s or one.replicas != other.replicas


@given(replicas, leads_s, st.integers(1, 12))
def test_a_list_too_long_is_merged_up_and_never_dropped(counts: list[int], lead_s: int, most: int) -> None:
    exact, short = (
        schedule(hours(*counts), lead_s=lead_s, most_entries=limit) for limit in (1_000_000, most)
    )
    assert len(short) <= most
    if len(exact) <= most:
        assert short == exact
    for one in exact:
        for at_s in (one.from_s, (one.from_s + one.until_s) // 2, one.until_s - 1):
            assert floor_at(short, at_s) >= one.replicas
    assert max((one.replicas for one in short), default=1) == max(counts)


def test_what_costs_least_is_merged_first() -> None:
    segments = floors(hours(9, 9, 2, 3, 9), lead_s=0)
    assert fewer(segments, 3) == [
        Need(0, 2 * HOUR_S, 9),
        Need(2 * HOUR_S, 4 * HOUR_S, 3),
        Need(4 * HOUR_S, 5 * HOUR_S, 9),
    ]


@pytest.mark.long
def test_a_year_of_minutes_is_shortened_in_time() -> None:
    segments = floors(
        [Need(minute * 60, minute * 60 + 60, 2 + minute * 7919 % 13) for minute in range(20_000)], lead_s=300
    )
    assert len(entries_of(fewer(segments, 512))) <= 512


@pytest.mark.parametrize(
    ("messages", "replicas"),
    [(0, 2), (7_200, 2), (7_200.001, 3), (36_000, 10), (39_600, 10), (36_000.00001, 10)],
)
def test_replicas_are_what_demand_takes_within_the_limits(messages: float, replicas: int) -> None:
    assert Sizing(capacity=1.0, least=2, most=10).replicas(messages, HOUR_S) == replicas


def test_a_need_beyond_the_limit_is_known() -> None:
    assert Sizing(capacity=0.5, least=1, most=3).unbounded(HOUR_S * 4, HOUR_S) == 8
