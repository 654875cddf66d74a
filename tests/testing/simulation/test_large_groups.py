"""A group of 16 members in the simulation of large groups: what it measures, and what its judge finds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group import backed_up, standbys
from testing.simulation.clock import Clock, Process
from testing.simulation.large import scenarios
from testing.simulation.large.assignments import Assignments
from testing.simulation.large.broker import QueueMessage
from testing.simulation.large.costs import EMBEDDED
from testing.simulation.large.group import Judge, LargeGroup
from testing.simulation.large.processor import Processor

MEMBERS = 16


@pytest.fixture
def group() -> LargeGroup:
    return LargeGroup(MEMBERS, EMBEDDED)


def test_a_group_settles_and_a_third_of_it_is_replaced_without_loss(group: LargeGroup) -> None:
    start = scenarios.start(group)
    assert start.agreed_s is not None
    assert start.settled_s is not None
    assert start.attachments >= 4 * MEMBERS
    rest = scenarios.rest(group, seconds=5.0)
    assert 0 < rest.mail_mean <= rest.mail_most
    assert 0 < rest.member_busy_mean < 1
    assert 0 < rest.broker_busy < 1
    crash = scenarios.crash(group, scenarios.neighbours(group, MEMBERS // 3))
    assert (crash.victims, crash.lost, crash.inverted) == (5, 0, 0)
    assert crash.agreed_s is not None
    assert crash.served_s is not None
    assert crash.settled_s is not None
    assert len(group.expected) == MEMBERS - 5


def test_a_join_moves_the_queues_that_have_a_new_primary(group: LargeGroup) -> None:
    scenarios.start(group)
    join = scenarios.join(group)
    assert join.settled_s is not None
    assert join.due_moves == 4 * MEMBERS // (MEMBERS + 1)
    assert join.moves >= join.due_moves
    assert join.attached >= join.due_moves
    assert (join.lost, join.inverted) == (0, 0)


def test_every_queue_is_served_while_a_third_of_the_members_has_a_stale_view(group: LargeGroup) -> None:
    scenarios.start(group)
    crash = scenarios.stale_views(group)
    assert crash.served_s is not None
    assert crash.agreed_s is not None, "directories repair what the members missed"
    assert (crash.lost, crash.inverted) == (0, 0)


def test_one_seed_gives_one_history() -> None:
    first, second, other = (LargeGroup(6, EMBEDDED, seed=seed) for seed in (1, 1, 2))
    assert scenarios.start(first) == scenarios.start(second) != scenarios.start(other)


def test_a_member_that_costs_more_delays_what_comes_after() -> None:
    slow = replace(EMBEDDED, member=replace(EMBEDDED.member, message_us=20_000.0))
    normal_s, slow_s = (scenarios.start(LargeGroup(6, costs)).agreed_s or 0.0 for costs in (EMBEDDED, slow))
    assert slow_s > normal_s + 0.1


def test_a_busy_process_lets_what_comes_wait_and_timers_take_turns() -> None:
    clock, process = Clock(), Process("busy")
    processor = Processor(clock, process, wakeup_us=100.0)
    seen: list[tuple[str, float]] = []

    def step(name: str) -> None:
        seen.append((name, round(clock.now, 6)))
        processor.charge(1000.0)

    for name in ("first", "second", "third"):
        processor.do(step, name)
    processor.do_timer(step, "timer")
    clock.run(1.0)
    assert seen == [("first", 0.0), ("second", 0.0011), ("timer", 0.0021), ("third", 0.0031)]
    assert processor.busy_s == pytest.approx(0.0041)


def test_a_message_before_an_earlier_one_is_inverted_and_a_second_call_is_a_repeat() -> None:
    judge = Judge(Clock(), 1)
    judge.published = [4]
    for number in (0, 2, 1, 2):
        judge.started(QueueMessage(0, number, 0.0))
    assert (judge.inverted, judge.repeated, judge.lost) == (1, 1, 1)


@given(st.lists(st.sets(st.integers(0, 60), min_size=1), min_size=1, max_size=5))
def test_the_standbys_that_members_share_are_those_that_each_would_compute(lives: list[set[int]]) -> None:
    shared = Assignments(queue_count=40, standbys=2)
    for live in lives:
        assert shared.standbys(frozenset(live)) == standbys(40, live, 2)
        for index in live:
            assert shared.backed_up(frozenset(live)).get(index, ()) == backed_up(
                40, frozenset(live), index, 2
            )
