"""Measurements of queues by their members, and reports of those that need more than a member can do."""

from __future__ import annotations

from collections.abc import Sequence

from lbg_core.admin.load_problems import load_problems
from lbg_core.admin.problem_kinds import Kind
from lbg_core.group import BALANCED, GroupSpec
from lbg_core.group.member_state import Overload
from lbg_core.group.pace import WINDOW_S
from lbg_sidecar.core.dispatcher import Order, Rules
from lbg_sidecar.core.load_meter import MEASURED_S, REPORTED_AFTER, STEADY_CALLS
from lbg_sidecar.core.member_core import TICK_S
from testing.member.world import World
from testing.member.world.member import SimMember
from testing.member.world.situations import fine

CALL_S = 0.05
QUEUES = 4
REPORTED_S = MEASURED_S * (REPORTED_AFTER + 2) + TICK_S
"""The first interval may have begun before, and the next shows which key it may be."""


def group(*, concurrency: int = 1, order: Order = Order.KEY) -> tuple[World, Sequence[SimMember]]:
    world = World(
        *(3, QUEUES, 16 * QUEUES, Rules(concurrency=concurrency, order=order)), balancing={"prefetch": 64}
    )
    members = [world.join() for _ in range(2)]
    world.service_s = {one.name: CALL_S for one in members}
    world.run(10)
    return world, members


def publish(world: World, *keys: str, share: float, seconds: float, queue: int = 0) -> None:
    """Messages of these keys in turn, for so many calls at a time. All are in this queue."""
    every_s = CALL_S / share
    for number in range(round(seconds / every_s)):
        key = keys[number % len(keys)]
        world.at(world.now + number * every_s, lambda k=key: world.publish(k, hash_=queue))


def overload(world: World) -> Overload | None:
    """As the active member reports it."""
    (state,) = [
        one
        for member in world.members
        for one in member.machine.content().queues
        if one.queue == 0 and one.active
    ]
    return state.overload


def test_a_queue_is_reported_that_needs_more_calls_at_a_time_than_its_member_makes() -> None:
    world, _ = group()
    keys = [f"k{number}" for number in range(20)]
    publish(world, *keys, share=1.4, seconds=60)
    world.run(REPORTED_S)
    found = overload(world)
    assert found is not None
    assert found.key is None
    assert found.calls == 1
    assert 1.2 < found.demand < 1.6


def test_a_key_is_reported_that_needs_more_than_one_call_at_a_time() -> None:
    for concurrency in (1, 8):
        world, _ = group(concurrency=concurrency)
        publish(world, "hot", share=1.4, seconds=90)
        publish(world, *(f"k{number}" for number in range(20)), share=0.1, seconds=90)
        world.run(REPORTED_S)
        found = overload(world)
        assert found is not None
        assert (found.key, found.calls) == ("hot", 1)
        assert 1.1 < found.demand < 1.7


def test_a_queue_in_order_is_reported_that_needs_more_than_one_call_at_a_time() -> None:
    world, _ = group(concurrency=8, order=Order.QUEUE)
    publish(world, *(f"k{number}" for number in range(20)), share=1.4, seconds=60)
    world.run(REPORTED_S)
    found = overload(world)
    assert found is not None
    assert (found.key, found.calls) == (None, 1)


def test_nothing_is_reported_of_a_backlog_that_gets_smaller() -> None:
    world, _ = group()
    for _ in range(400):
        world.publish("k", hash_=0)
    publish(world, "k", share=0.6, seconds=60)
    for _ in range(10):
        world.run(MEASURED_S)
        assert overload(world) is None


def test_nothing_is_reported_of_a_short_burst() -> None:
    world, _ = group()
    publish(world, *(f"k{number}" for number in range(20)), share=3.0, seconds=2 * MEASURED_S)
    for _ in range(10):
        world.run(MEASURED_S)
        assert overload(world) is None


def test_nothing_is_reported_of_a_key_that_is_blocked() -> None:
    world, _ = group(concurrency=4)
    world.failing.add("bad")
    publish(world, "bad", share=0.5, seconds=60)
    for _ in range(10):
        world.run(MEASURED_S)
        assert overload(world) is None


def test_a_report_ends_when_less_comes() -> None:
    world, members = group()
    publish(world, "hot", share=1.4, seconds=30)
    world.run(30)
    assert overload(world) is not None
    assert any(one.machine.load_meter.times_calls for one in members)
    world.run(60)
    assert overload(world) is None
    assert not any(one.machine.load_meter.times_calls for one in members)
    fine(world, after_s=10)


def test_a_member_that_is_busy_and_behind_reports_for_how_long_it_has_work() -> None:
    world, (first, second) = group()
    for queue, index in world.served_by().items():
        publish(world, f"k{queue}", share=0.3 if index == 0 else 0.1, seconds=60, queue=queue)
    world.run(20)
    assert first.machine.content().behind_s == 0
    world.service_s[first.name] = 8 * CALL_S
    world.run(30)
    assert first.machine.content().behind_s > 10
    assert second.machine.content().behind_s == 0
    spec = GroupSpec("g", hash_count=world.hash_count, queue_count=QUEUES, assignment=BALANCED)
    found = load_problems(spec, [one.machine.content() for one in world.members])
    assert [(one.kind, one.subject.members) for one in found] == [(Kind.MEMBER_OVERLOADED, (first.name,))]


def test_a_member_knows_its_load_by_many_calls_or_when_it_falls_behind() -> None:
    world, members = group()
    publish(world, *(f"k{number}" for number in range(20)), share=0.8, seconds=60)
    world.run(STEADY_CALLS / 2 * CALL_S / 0.8)
    (busy,) = [one for one in members if one.machine.bindings.served()]
    assert not busy.machine.load_meter.is_steady
    world.run(STEADY_CALLS / 2 * CALL_S / 0.8 + 2 * MEASURED_S)
    assert busy.machine.load_meter.is_steady

    world, members = group()
    publish(world, *(f"k{number}" for number in range(20)), share=2.0, seconds=20)
    world.run(3 * MEASURED_S)
    (busy,) = [one for one in members if one.machine.bindings.served()]
    assert busy.machine.load_meter.is_steady


def test_a_group_at_rest_reports_the_same_again() -> None:
    world, (first, _) = group()
    publish(world, "k", share=0.5, seconds=10)
    world.run(12)
    world.run(WINDOW_S + MEASURED_S)
    content = first.machine.content()
    world.run(10 * MEASURED_S)
    assert first.machine.content() == content
    assert all(one.demand == 0 for one in content.queues)
