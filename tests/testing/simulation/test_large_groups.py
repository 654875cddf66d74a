"""A group of 16 members in the simulation of large groups: what it measures, and what its judge finds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.amqp.methods import QueueDeclare, QueueDeclareOk
from lbg_core.group import NOWHERE_ELSE, backed_up, standbys
from testing.simulation.client import Client
from testing.simulation.clock import Process
from testing.simulation.large import scenarios
from testing.simulation.large.assignments import Assignments
from testing.simulation.large.costs import EMBEDDED, RABBITMQ, Costs
from testing.simulation.large.group import Judge, LargeGroup
from testing.simulation.large.processor import Processor, ProcessorClock

MEMBERS = 16


@pytest.fixture
def group() -> Iterator[LargeGroup]:
    with LargeGroup(MEMBERS, EMBEDDED) as group:
        yield group


def started(costs: Costs = EMBEDDED, *, seed: int = 1) -> scenarios.Start:
    """The start of a small group."""
    with LargeGroup(6, costs, seed=seed, on_rabbitmq=costs is RABBITMQ) as group:
        return scenarios.start(group)


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
    assert crash.agreed_s > scenarios.DEAF_S, "until then they hear nothing of it"
    assert (crash.lost, crash.inverted) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("costs", [EMBEDDED, RABBITMQ], ids=["embedded", "rabbitmq"])
def test_one_seed_gives_one_history(costs: Costs) -> None:
    assert started(costs) == started(costs) != started(costs, seed=2)


@pytest.mark.parametrize(("costs", "counted"), [(EMBEDDED, 3), (RABBITMQ, 1)], ids=["embedded", "rabbitmq"])
def test_a_declare_counts_at_most_one_consumer_on_rabbitmq(costs: Costs, counted: int) -> None:
    answers: list[QueueDeclareOk] = []
    with LargeGroup(6, costs, on_rabbitmq=costs is RABBITMQ) as group:
        scenarios.start(group)
        client = Client.connected(group, group.process, "counts", pytest.fail)
        assert client is not None
        client.open_channel().ask_soon(QueueDeclare(group.names.queue(0), passive=True), answers.append)
        group.run(0.1)
    assert [one.consumer_count for one in answers] == [counted]


@pytest.mark.process
@pytest.mark.slow
def test_the_history_does_not_depend_on_the_order_of_sets() -> None:
    module = "tests.testing.simulation.test_large_groups"
    command = (sys.executable, "-c", f"from {module} import started; print(started())")
    seen = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_a_member_that_costs_more_delays_what_comes_after() -> None:
    slow = replace(EMBEDDED, member=replace(EMBEDDED.member, message_us=20_000.0))
    normal_s, slow_s = (started(costs).agreed_s or 0.0 for costs in (EMBEDDED, slow))
    assert slow_s > normal_s + 0.1


def test_what_comes_to_a_busy_process_waits_in_its_order_and_sees_the_time_that_has_passed() -> None:
    clock, process, seen = ProcessorClock(), Processor("busy"), list[tuple[str, float]]()

    def step(name: str) -> None:
        clock.wake(100.0)
        clock.charge(1000.0)
        seen.append((name, round(clock.now, 6)))
        if name == "first":
            clock.after(0.0, process, step, "soon")
            clock.at(clock.now - 0.0005, Process("other"), lambda: seen.append(("other", clock.now)))

    for at, name in ((1.0, "first"), (1.0004, "second"), (1.01, "later")):
        clock.at(at, process, step, name)
    clock.run(2.0)
    assert seen == [
        ("first", 1.0011),
        ("other", 1.0006),
        ("second", 1.0021),
        ("soon", 1.0031),
        ("later", 1.0111),
    ]
    assert process.busy_s == pytest.approx(0.0042)


def test_a_killed_process_does_none_of_what_waits() -> None:
    clock, process, seen = ProcessorClock(), Processor("killed"), list[int]()

    def step(number: int) -> None:
        seen.append(number)
        clock.charge(1000.0)

    for number in range(3):
        clock.at(1.0, process, step, number)
    clock.run(1.0005)
    process.alive = False
    clock.run(2.0)
    assert seen == [0]


def test_a_message_before_an_earlier_one_is_inverted_and_a_second_call_is_a_repeat() -> None:
    judge = Judge(ProcessorClock(), 1)
    bodies = [judge.body(0) for _ in range(4)]
    for number in (0, 2, 1, 2):
        judge.started(bodies[number])
    assert (judge.inverted, judge.repeated, judge.lost) == (1, 1, 1)


@given(st.lists(st.sets(st.integers(0, 60), min_size=1), min_size=1, max_size=5))
def test_the_standbys_that_members_share_are_those_that_each_would_compute(lives: list[set[int]]) -> None:
    shared = Assignments(ProcessorClock(), EMBEDDED.member)
    for live in map(frozenset, lives):
        assert shared.standbys(40, live, 2) == standbys(40, live, 2)
        for index in live:
            assert shared.backed_up(40, live, index, 2) == backed_up(40, live, index, 2)


def test_each_member_is_charged_once_for_a_live_set() -> None:
    clock, members = ProcessorClock(), [Processor("a"), Processor("b")]
    shared, costs, live = Assignments(clock, EMBEDDED.member), EMBEDDED.member, frozenset(range(5))
    for number, member in enumerate((*members, *members), start=1):
        clock.at(number, member, shared.owners_with, NOWHERE_ELSE, 40, live)
        clock.at(number, member, shared.backed_up, 40, live, 0, 2)
    clock.run(10.0)
    expected_us = 40 * (costs.assignment_queue_us + 5 * costs.homes_us + 4 * costs.rank_us)
    assert [member.busy_s for member in members] == pytest.approx([expected_us * 1e-6] * 2)
