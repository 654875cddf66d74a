"""A consumer that is stuck while its connection lives, in the world without clocks: noticed, and nothing else is."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from lbg_core.group import STATIC
from lbg_core.group.member_state import Progress
from lbg_core.group.members_protocol import Reattached
from lbg_sidecar.core.binding import Phase
from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.effects import Stalled, Superseded
from lbg_sidecar.core.stall_watchdog import (
    COUNT_INTERVAL_MAX_S,
    COUNT_INTERVAL_S,
    COUNTS_TO_ACT,
    RECOUNT_INTERVAL_S,
)
from lbg_sidecar.core.status_report import progress_of
from lbg_sidecar.io.connection import OnCounted
from lbg_sidecar.message import retry
from testing.member.native_member import NativeMember
from testing.member.world import Chances, SimMember, World, situations
from testing.member.world.queues import Link

NOTICED_WITHIN_S = 1.2 * (COUNT_INTERVAL_S + COUNTS_TO_ACT * RECOUNT_INTERVAL_S) + 1

feed = partial(situations.feed, every_s=0.1)
settled = partial(situations.settled, seed=11, fed_s=14, every_s=0.1)
fine = partial(situations.fine, after_s=8)


def stalls(world: World) -> list[Stalled]:
    return [event for _, _, event in world.events if isinstance(event, Stalled)]


def progress(member: SimMember, queue: int) -> Progress:
    return member.machine.content().queues[queue].progress


def looks_at(world: World) -> list[float]:
    """Times of the counts of queues from now on."""
    looks: list[float] = []
    count = world.broker.count

    def counted(link: Link, queue: int, on_counted: OnCounted) -> None:
        looks.append(world.now)
        count(link, queue, on_counted)

    world.broker.count = counted
    return looks


@pytest.mark.parametrize("active", [True, False])
def test_a_consumer_that_gets_nothing_is_attached_anew_and_everything_comes_in_order(active: bool) -> None:
    world, members = settled(2)
    queue = next(number for number, index in world.served_by().items() if index == members[0].index)
    if not active:  # a new consumer, to which nothing was delivered yet
        for member in members:
            world.kill(member)
        world.run(1)
        members = [world.join()]
        world.run(1)
    world.queues[queue].swallow()
    feed(world, NOTICED_WITHIN_S)
    assert [stall.queue for stall in stalls(world)] == [queue]
    assert members[0].machine.dispatcher.counts.stalls == 1
    feed(world, 1)
    assert not members[0].machine.watchdog.is_stalled(queue), "it has had messages since"
    feed(world, 20)
    assert len(stalls(world)) == 1
    assert world.repeats == 0
    fine(world)


def test_a_stuck_consumer_in_front_of_the_primary_gets_behind_it() -> None:
    world = World(5, queue_count=1, hash_count=1)
    world.join()
    other = world.join()
    world.run(8)
    # Nobody knows who is active at an idle queue; it is not the primary, and it gets nothing.
    queue = world.queues[0]
    queue.consumers.sort(key=lambda consumer: consumer.link is not other.link)
    queue.swallow()
    feed(world, 30)
    assert len(stalls(world)) == 1
    assert world.served_by() == {0: 0}
    assert world.repeats == 0
    fine(world)


def test_a_slow_application_is_not_restarted() -> None:
    world, members = settled(1, rules=Rules(concurrency=2, call_timeout_s=60))
    world.chances = Chances(slow=1.0, slow_s=25.0)
    feed(world, 40)
    assert not stalls(world)
    assert {progress(members[0], queue) for queue in range(4)} == {Progress.WORKING}
    fine(world, after_s=40)


def test_a_blocked_key_is_shown_and_not_restarted() -> None:
    world, members = settled(1)
    world.chances = Chances(retry=1.0)
    feed(world, 40)
    assert world.queues[0].ready
    assert {progress(members[0], queue) for queue in range(4)} == {Progress.BLOCKED}
    assert not stalls(world)
    fine(world, after_s=40)  # poisoned by now, they wait for the longest interval


def test_a_look_that_fails_says_nothing() -> None:
    world, _ = settled(1, chances=Chances(look_fails=1.0))
    world.queues[0].swallow()
    feed(world, 40)
    assert not stalls(world)
    world.chances.look_fails = 0.0
    feed(world, NOTICED_WITHIN_S)
    assert [stall.queue for stall in stalls(world)] == [0]
    fine(world)


def test_a_queue_whose_channel_closed_during_a_count_is_counted_again() -> None:
    world, (member, _) = settled(2, queue_count=1, hash_count=1)
    count, asked = world.broker.count, []
    world.broker.count = lambda *question: asked.append(question)
    while not asked:
        world.run(0.05)
    world.broker.count = count
    attachment = member.machine.bindings.serving(0)
    assert member.link is not None
    assert attachment is not None
    world.broker.close(member.link, attachment)
    count(*asked[0])
    feed(world, 12)
    assert world.served_by() == {0: 0}, "a planned move brings it back"
    world.queues[0].swallow()
    feed(world, NOTICED_WITHIN_S)
    assert [stall.queue for stall in stalls(world)] == [0]
    fine(world)


def test_a_stuck_queue_whose_last_count_comes_during_its_handoff_is_handed_over() -> None:
    world, (member, other) = settled(2, queue_count=1, hash_count=1)
    count, asked = world.broker.count, []

    def counted(*question: Any) -> None:
        asked.append(question)
        if len(asked) < COUNTS_TO_ACT:
            count(*question)

    world.broker.count = counted
    world.queues[0].swallow()
    for _ in range(40):
        world.publish("key0", hash_=0)
    while len(asked) < COUNTS_TO_ACT:
        world.run(0.05)
    close = world.broker.close
    world.broker.close = lambda *closed: world.at(world.now + 1, close, *closed)
    world.broker.loses = (Reattached,)
    member.stop()
    count(*asked[-1])
    world.run(2)
    assert member.exited
    assert world.served_by() == {0: other.index}
    fine(world)


def test_a_queue_that_others_empty_is_left_alone() -> None:
    world, _ = settled(1)
    world.queues[0].swallow()
    for _ in range(40):
        world.publish("key0", hash_=0)
    for _ in range(12):
        world.run(2)
        world.published.pop(world.queues[0].ready.popleft().identity)
    assert not stalls(world)


def test_a_queue_that_another_one_emptied_after_the_stall_is_no_longer_stalled() -> None:
    world, (member,) = settled(1, queue_count=1, hash_count=1)
    world.queues[0].pump = lambda: None
    for _ in range(40):
        world.publish("key0", hash_=0)
    world.run(NOTICED_WITHIN_S)
    assert progress(member, 0) is Progress.STALLED
    world.published.clear()
    world.queues[0].ready.clear()
    world.run(1.2 * COUNT_INTERVAL_S + 1)
    assert progress(member, 0) is Progress.IDLE
    assert len(stalls(world)) == 1


def test_a_broker_that_never_delivers_is_tried_less_and_less_often() -> None:
    world, _ = settled(1, queue_count=1, hash_count=1)
    feed(world, 1)
    world.queues[0].pump = lambda: None
    feed(world, 300, every_s=1.0)
    assert 5 <= len(stalls(world)) <= 10


@pytest.mark.long
def test_an_idle_group_is_looked_at_less_and_less_often_and_a_busy_one_never() -> None:
    world, _ = settled(2)  # four queues
    looks = looks_at(world)
    feed(world, 10, every_s=0.02)
    assert not looks
    world.run(1.2 * (RECOUNT_INTERVAL_S + COUNT_INTERVAL_S) + 1)
    assert len(looks) == 2 * 4
    world.run(10 * COUNT_INTERVAL_MAX_S)
    looks.clear()
    world.run(10 * COUNT_INTERVAL_MAX_S)
    assert 4 * 10 / 1.2 - 4 <= len(looks) <= 4 * 10 / 0.8 + 4


def test_queues_that_are_idle_for_as_long_are_counted_in_one_write() -> None:
    world, _ = settled(1)
    looks = looks_at(world)
    feed(world, 10, every_s=0.02)
    world.run(10 * COUNT_INTERVAL_MAX_S)
    last = looks[-4:]
    assert last[-1] - last[0] < 0.1


def test_a_queue_that_is_stuck_after_a_long_rest_is_noticed() -> None:
    world, _ = settled(1)
    world.run(10 * COUNT_INTERVAL_MAX_S)
    world.queues[0].swallow()
    feed(world, 1.2 * (COUNT_INTERVAL_MAX_S - COUNT_INTERVAL_S) + NOTICED_WITHIN_S)
    assert [stall.queue for stall in stalls(world)] == [0]
    fine(world)


def test_a_queue_that_was_busy_again_is_looked_at_as_soon_as_before() -> None:
    world, _ = settled(1)
    world.run(10 * COUNT_INTERVAL_MAX_S)
    feed(world, 2)
    world.queues[0].swallow()
    feed(world, NOTICED_WITHIN_S)
    assert [stall.queue for stall in stalls(world)] == [0]


def test_a_static_member_is_watched_too() -> None:
    balancing = {"assignment": STATIC, "client_count": 1}
    world = World(3, queue_count=1, hash_count=1, balancing=balancing)
    world.join()
    world.run(1)
    world.queues[0].swallow()
    feed(world, NOTICED_WITHIN_S)
    assert len(stalls(world)) == 1
    fine(world)


def test_a_static_release_leaves_a_stalled_consumer_that_closes_alone() -> None:
    balancing = {"assignment": STATIC, "client_count": 2, "release_interval_s": 3600}
    world = World(7, balancing=balancing)
    member = world.join(fixed=0)
    feed(world, 2)
    world.join(fixed=1)
    world.run(2)
    machine = member.machine
    queue = next(
        queue for queue, index in enumerate(machine.rules.primaries(machine.roster.live)) if index == 1
    )
    assert machine.bindings.serving(queue)
    world.queues[queue].swallow()
    for _ in range(40):
        world.publish(f"key{queue}", hash_=queue)
    while not stalls(world):
        world.run(0.001)
    assert machine.bindings.all[queue].phase is Phase.DETACHING
    machine.balancer.release_due = world.now
    machine.balancer.balance(world.now)
    assert queue not in machine.handoffs.moves
    assert machine.handoffs.moves, "the other queues of the second member are released"
    fine(world, after_s=60)


def test_a_member_that_another_one_replaced_without_its_knowledge_stops_its_calls() -> None:
    """After a partition of a cluster, RabbitMQ lets a member wait without an error.
    It requeues the messages of a consumer whose node it cannot see, and gives them to the next one."""
    world, members = settled(2, queue_count=1, hash_count=4, chances=Chances(call_s=0.3))
    world.run(0.1)
    world.suspect(0)
    assert members[0].calls
    feed(world, 4)
    (superseded,) = (event for _, _, event in world.events if isinstance(event, Superseded))
    assert superseded.by == 1
    assert not members[0].machine.bindings.all[0].active
    assert members[0].machine.dispatcher.counts.overlaps == 1
    assert not members[0].calls
    feed(world, 8)
    assert world.served_by() == {0: 0}, "a planned move brings it back"
    fine(world, after_s=60)
    assert world.repeats <= world.disturbed


@pytest.mark.parametrize(("prefetch", "expected"), [(2, Progress.BLOCKED), (3, Progress.WORKING)])
def test_a_message_that_is_retried_blocks_a_queue_whose_window_is_full(
    prefetch: int, expected: Progress
) -> None:
    member = NativeMember(prefetch=prefetch)
    attachment = member.join()
    member.deliver(attachment, 0, 1)
    failing, _ = member.take_all()
    member.machine.end(failing, retry("no"), 1.0)
    assert progress_of(attachment) is expected
    assert progress_of(None) is Progress.IDLE
