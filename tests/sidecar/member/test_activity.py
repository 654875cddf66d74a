"""Activity of members, which they report to an administrator who watches, and to nobody else."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Activity, Watch
from lbg_sidecar.core.status_report import COUNTED_KEYS_MAX, HOT_KEYS_MAX, ActivityMonitor, KeyCounts
from testing.member.world import Chances, SimMember, World

ADMINISTRATOR = Identity(0, "administrator", "")


def two_members() -> tuple[World, SimMember, SimMember]:
    world = World(5, queue_count=4, hash_count=8)
    world.calm = True
    first, second = world.join(), world.join()
    world.run(10)
    return world, first, second


def watch(member: SimMember, seconds: float) -> None:
    member.receives(Watch(ADMINISTRATOR, seconds))


def reports(world: World) -> list[Activity]:
    return [answer for answer in world.broker.answers if isinstance(answer, Activity)]


def published(world: World, counts: dict[str, int]) -> None:
    for key, count in counts.items():
        for _ in range(count):
            world.publish(key, hash_=sum(map(ord, key)) % 8)


def busy(world: World, seconds: float) -> None:
    """A message of each hash every 50 ms."""
    for _ in range(int(seconds * 20)):
        for hash_ in range(8):
            world.publish(f"k{hash_}", hash_=hash_)
        world.run(0.05)


def counts_keys(member: SimMember) -> bool:
    activity = member.machine.part(ActivityMonitor)
    assert activity is not None
    return activity.next_due(0.0) < float("inf")


def test_who_is_not_watched_counts_and_reports_nothing() -> None:
    world, first, second = two_members()
    busy(world, 2)
    second.stop()
    busy(world, 5)
    assert not [report for report in reports(world) if report.keys]
    assert not counts_keys(first)


def test_members_report_each_second_what_they_processed_by_key_until_the_watch_ends() -> None:
    world, *members = two_members()
    for member in members:
        watch(member, 5)
    counts: Counter[str] = Counter()
    for _ in range(3):
        published(world, {"a": 7, "b": 3, "c": 1})
        world.run(1)
    world.run(3)
    assert world.now > 5
    for report in reports(world):
        assert [count for _, count in report.keys] == sorted(
            (count for _, count in report.keys), reverse=True
        )
        counts.update(dict(report.keys))
    assert counts == {"a": 21, "b": 9, "c": 3}
    assert not any(counts_keys(member) for member in members)
    published(world, {"a": 1})
    before = len(reports(world))
    world.run(3)
    assert len(reports(world)) == before
    assert not world.violations


def test_a_report_names_ten_keys_at_most_and_none_whole_that_is_long() -> None:
    world = World(5, queue_count=4, hash_count=8)
    member = world.join()
    world.run(10)
    watch(member, 5)
    published(world, {"k" * 300: 3, **{f"key{number}": 1 for number in range(50)}})
    world.run(2)
    shown = [report.keys for report in reports(world)]
    assert max(map(len, shown)) == HOT_KEYS_MAX
    assert sum(count for keys in shown for key, count in keys if key == "k" * 64) == 3


@pytest.mark.long
def test_a_planned_takeover_is_reported_with_its_pause_and_one_after_a_crash_without() -> None:
    world, _, second = two_members()
    of_second = {state.queue for state in second.machine.content().queues if state.is_primary}
    assert of_second
    busy(world, 2)
    world.chances, world.calm = Chances(call_s=0.06), False
    published(world, {f"k{hash_}": 20 for hash_ in range(8)})
    world.run(0.1)  # so that a queue that moves has messages
    second.stop()
    world.run(1)
    world.chances, world.calm = Chances(), True
    busy(world, 4)
    planned = [one.takeover for one in reports(world) if one.takeover is not None]
    assert {one.queue for one in planned if one.planned} == of_second
    assert all(one.former == 1 for one in planned if one.planned)
    assert any(one.pause_s is not None and 0 <= one.pause_s < 5 for one in planned)
    third = world.join()
    busy(world, 10)
    taken = {state.queue for state in third.machine.content().queues if state.active}
    before = len(reports(world))
    world.kill(third)
    busy(world, 10)
    crashed = [one.takeover for one in reports(world)[before:] if one.takeover is not None]
    assert taken
    assert taken <= {one.queue for one in crashed if not one.planned and one.pause_s is None}


@given(st.lists(st.sampled_from([f"k{number}" for number in range(8)])))
def test_few_keys_are_counted_exactly(keys: list[str]) -> None:
    counts = KeyCounts()
    for key in keys:
        counts.add(key)
    assert counts.most(8) == sorted(Counter(keys).items(), key=lambda one: (-one[1], one[0]))


def test_a_hot_key_among_very_many_is_kept_and_memory_is_bounded() -> None:
    counts = KeyCounts()
    for number in range(20 * COUNTED_KEYS_MAX):
        counts.add(f"cold{number}")
        if number % 4 == 0:
            counts.add("hot")
    assert counts.most(1) == [("hot", 5 * COUNTED_KEYS_MAX)]
    assert len(counts.most(10**6)) <= COUNTED_KEYS_MAX
