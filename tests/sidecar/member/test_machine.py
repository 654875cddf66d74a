"""Named situations in a member's life: races, limits and times, in the world without clocks."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import pytest

from lbg_core.client.backoff import Backoff
from lbg_core.group import STATIC, balanced_primaries
from lbg_core.group.member_state import Identity, Rebalance, Status
from lbg_core.group.members_protocol import Handover, Move, Takeover
from lbg_sidecar.core.acks import WINDOW_MAX, derived_prefetch
from lbg_sidecar.core.binding import Phase
from lbg_sidecar.core.dispatcher import Rules, WhenExhausted
from lbg_sidecar.core.effects import HandoffAbandoned, Moved
from lbg_sidecar.core.handoff import Stage
from testing.member.world import Chances, World
from testing.member.world.member import SimMember
from testing.member.world.situations import feed, fine, settled
from testing.needs import repeated


def events(world: World, kind: type) -> list[Any]:
    return [event for _, _, event in world.events if isinstance(event, kind)]


# Times


@pytest.mark.parametrize("busy", [True, False])
def test_everybody_agrees_on_a_crash_within_a_second(busy: bool) -> None:
    world, members = settled(5)
    if not busy:
        world.run(3)
    world.kill(members[2])
    feed(world, 1.0) if busy else world.run(1.0)
    for member in members:
        if member.process.alive:
            assert member.machine.roster.live == {0, 1, 3, 4}


def test_everybody_agrees_on_a_join_within_a_tenth_of_a_second() -> None:
    world, members = settled(4)
    joined = world.join()
    world.run(0.1)
    for member in [*members, joined]:
        assert member.machine.roster.live == {0, 1, 2, 3, 4}


def test_after_a_crash_the_delay_passes_before_anything_moves() -> None:
    world, members = settled(3)
    world.kill(members[1])
    feed(world, 4.5)
    assert not events(world, Moved)
    assert members[0].machine.balancer.status is Rebalance.HOLD_DOWN
    feed(world, 8)
    assert world.served_by() == balanced_primaries(4, {0, 2})
    fine(world)


@pytest.mark.long
def test_a_member_that_comes_back_in_time_moves_no_queue_but_those_that_had_to_go_elsewhere() -> None:
    world, members = settled(3)
    before = world.served_by()
    lost = {queue for queue, index in before.items() if index == 1}
    world.drop_connection(members[1])
    feed(world, 3)
    assert members[0].machine.roster.live == {0, 1, 2}
    assert members[0].machine.bindings.holddown.due is None, "membership is what it was"
    feed(world, 10)
    assert world.served_by() == before
    assert {move.queue for move in events(world, Moved)} <= lost
    fine(world)


@pytest.mark.long
def test_a_newcomer_consumes_no_queue_before_it_knows_the_others() -> None:
    world = World(3, queue_count=60, hash_count=60)
    for _ in range(5):
        world.join()
    feed(world, 8)
    newcomer = world.join()
    while not newcomer.machine.roster.peers:
        assert not newcomer.machine.bindings.bound
        assert not newcomer.machine.content().queues
        world.run(0.001)
    world.run(1.0)
    assert set(newcomer.machine.bindings.bound) == set(
        newcomer.machine.rules.consumed(5, frozenset(range(6)))
    )
    fine(world)


# Handoffs


def test_a_planned_move_takes_one_hop_whoever_waits_first() -> None:
    world, _ = settled(5)
    world.join()
    feed(world, 8)
    moved = {move.queue for move in events(world, Moved)}
    taken = [event for event in events(world, Takeover) if event.queue in moved]
    assert len(taken) == len(moved), "somebody in between became active too"
    assert all(event.planned for event in taken)
    fine(world)


def test_deliveries_between_freeze_and_close_are_not_called_and_come_again_in_order() -> None:
    world = World(3, queue_count=1, hash_count=1, chances=Chances(call_s=0.2, delay_s=0.002))
    mover = world.join()
    feed(world, 1)
    world.join()
    feed(world, 1)
    mover.stop()
    while mover.machine.handoffs.moves[0].stage in (Stage.REQUESTED, Stage.ANNOUNCED):
        world.run(0.001)
    assert mover.machine.handoffs.moves[0].stage is Stage.DRAINING
    started = set(mover.calls)
    assert started
    for number in range(6):
        world.publish(f"new{number}", hash_=0)
    while mover.machine.handoffs.moves:
        world.run(0.002)
        assert all(held in started or held.tag < max(h.tag for h in started) for held in mover.calls)
    assert mover.exited
    fine(world)
    assert world.repeats == 0


def test_a_queue_that_does_not_drain_is_kept_and_moves_later() -> None:
    world = World(5, queue_count=2, hash_count=2)
    world.join()
    feed(world, 1)
    world.chances = Chances(slow=1.0, slow_s=9.0)
    feed(world, 0.5)
    world.chances = Chances()
    world.join()
    feed(world, 9)
    kept = events(world, HandoffAbandoned)
    assert kept
    assert not any(move.forced for move in events(world, Moved))
    feed(world, 20)
    assert world.served_by() == balanced_primaries(2, {0, 1})
    fine(world)
    assert world.repeats == 0


def slow_world(seconds: float, *, call_s: float, abortable: bool = True) -> World:
    """A member whose two queues always have calls at work, begun at different times, that take longer than a handoff
    may; one that joins it; and so many seconds."""
    world = World(5, queue_count=2, hash_count=2, rules=Rules(concurrency=32))
    if not abortable:  # as a handler in threads
        world.application.aborts = lambda call: None
    world.chances = Chances(slow=1.0, slow_s=call_s)
    world.join()
    for number in range(round(seconds * 2)):
        world.at(number / 2, lambda n=number: world.publish(f"key{n % 24}", hash_=n % 2))
    world.run(20)
    world.events.clear()
    world.join()
    world.run(seconds - 20)
    return world


@pytest.mark.parametrize("call_s", [3.5, 9.0, 25.0])
def test_calls_longer_than_the_handoff_time_starve_no_join(call_s: float) -> None:
    world = slow_world(20 + 10 * call_s, call_s=call_s)
    assert world.served_by() == balanced_primaries(2, {0, 1})
    assert [move.forced for move in events(world, Moved)] == [0]
    fine(world, after_s=60)
    assert world.repeats == 0


def test_a_call_that_never_ends_starves_no_join_and_its_queue_works_as_long_as_it_stood_still() -> None:
    """It is aborted at its own limit."""
    world = slow_world(250, call_s=600.0)
    assert world.served_by() == balanced_primaries(2, {0, 1})
    assert [move.forced for move in events(world, Moved)] == [0]
    kept = [(at, event) for at, _, event in world.events if isinstance(event, HandoffAbandoned)]
    assert len(kept) >= 3
    for (at, event), (next_at, after) in pairwise(kept):
        assert next_at - after.after_s - at >= 0.8 * max(event.after_s, 5.0)


def test_each_handoff_that_is_put_off_lets_the_next_take_twice_as_long_up_to_the_limit_of_a_call() -> None:
    world = slow_world(300, call_s=600.0, abortable=False)
    kept = events(world, HandoffAbandoned)
    assert [round(event.after_s) for event in kept[:6]] == [3, 6, 12, 24, 33, 33]
    assert [event.times for event in kept] == list(range(1, len(kept) + 1))
    assert [round(event.next_s) for event in kept[:5]] == [6, 12, 24, 33, 33]
    assert not events(world, Moved)


def test_a_member_says_of_each_queue_how_often_its_handoff_was_put_off_until_it_has_moved() -> None:
    world = slow_world(50, call_s=25.0)
    told = world.members[0].machine.content().queues
    assert [(one.put_off, round(one.next_drain_s)) for one in told] == [(0, 0), (2, 12)]
    world.run(60)
    assert all(one.put_off == 0 for one in world.members[0].machine.content().queues)


def test_a_handoff_that_nobody_wants_any_more_was_never_put_off() -> None:
    world = slow_world(60, call_s=600.0, abortable=False)
    assert world.members[0].machine.content().queues[1].put_off
    world.kill(world.members[1])
    world.run(20)
    assert not world.members[0].machine.content().queues[1].put_off


def test_a_static_release_that_nobody_wants_any_more_was_never_put_off() -> None:
    balancing = {"assignment": STATIC, "client_count": 2, "release_interval_s": 5.0}
    chances = Chances(slow=1.0, slow_s=600.0, deaf=1.0)
    world = World(7, queue_count=2, hash_count=2, balancing=balancing, chances=chances)
    member = world.join(fixed=0)
    world.run(1)
    feed(world, 1)
    other = world.join(fixed=1)
    world.run(20)
    assert member.machine.content().queues[1].put_off
    world.kill(other)
    world.run(20)
    assert not member.machine.content().queues[1].put_off


def test_a_member_that_leaves_cuts_off_what_does_not_drain_and_counts_it() -> None:
    world, members = settled(2)
    world.chances = Chances(slow=1.0, slow_s=60.0)
    feed(world, 0.5)
    world.chances = Chances()
    inside = len(members[0].calls)
    members[0].stop()
    world.run(19.5)
    assert not members[0].exited
    world.run(1)
    assert members[0].exited
    assert members[0].machine.dispatcher.counts.forced >= inside > 0
    world.run(70)
    fine(world)


def test_a_member_that_leaves_waits_for_slow_calls_and_begins_with_every_queue_meanwhile() -> None:
    world, members = settled(2, balancing={"moves_at_once": 1})
    world.chances = Chances(slow=1.0, slow_s=9.0)
    feed(world, 0.5)
    world.chances = Chances()
    stalls = members[1].machine.dispatcher.counts.stalls
    members[0].stop()
    feed(world, 2)
    moves = members[0].machine.handoffs.moves.values()
    assert moves
    assert all(move.stage not in (Stage.REQUESTED, Stage.ANNOUNCED) for move in moves)
    served = {binding.queue for binding in members[0].machine.bindings.all if binding.active}
    assert served == {move.queue for move in moves}, "what does not drain holds up no other queue"
    feed(world, 10)
    assert members[0].exited
    fine(world)
    assert world.repeats == 0
    assert members[1].machine.dispatcher.counts.stalls == stalls, "it knew that they would come"


def test_a_member_leaves_within_its_grace_period_whatever_the_application_does() -> None:
    world, members = settled(2, balancing={"max_handoff_s": 60.0, "shutdown_grace_s": 4.0})
    world.chances = Chances(slow=1.0, slow_s=600.0)
    feed(world, 0.5)
    members[0].stop()
    world.run(4.5)
    assert members[0].exited


def test_a_move_aimed_at_a_member_that_just_died_ends_with_somebody_else() -> None:
    world, members = settled(3)
    late = world.join()
    feed(world, 4.9)
    world.kill(late)
    feed(world, 8)
    for member in members:
        assert not member.machine.handoffs.moves
        assert member.machine.roster.live == {0, 1, 2}
    feed(world, 10)
    assert world.served_by() == balanced_primaries(4, {0, 1, 2})
    fine(world)


def test_a_move_announced_by_somebody_who_is_not_active_moves_nothing() -> None:
    world, members = settled(2)
    queue = next(q for q, index in world.served_by().items() if index == 0)
    liar = members[1].machine.roster.me
    assert liar is not None
    before = members[0].machine.bindings.all[queue].attachment
    members[0].receives(Move(liar, queue, 1, "m-1"))
    feed(world, 2)
    assert members[0].machine.bindings.all[queue].attachment is before
    fine(world)


def test_a_move_of_a_queue_that_does_not_exist_is_ignored() -> None:
    world, members = settled(2)
    members[0].receives(Move(Identity(1, "x", "y"), 99, 1, "m-1"))
    fine(world)


def test_without_any_answer_a_move_is_made_after_a_short_wait() -> None:
    world = World(11, chances=Chances(hint_lost=0.0))
    members = [world.join() for _ in range(3)]
    feed(world, 12)
    world.events.clear()
    world.chances = Chances(hint_lost=1.0)
    members[0].stop()
    feed(world, 2)
    assert members[0].exited
    fine(world)
    assert world.repeats == 0


# By chance, and idle


def test_who_became_active_by_chance_keeps_the_queue_for_the_delay() -> None:
    world, members = settled(3)
    victim = members[0]
    queues = {queue for queue, index in world.served_by().items() if index == 0}
    world.drop_connection(victim)
    feed(world, 2)
    holders = {world.served_by()[queue] for queue in queues}
    assert 0 not in holders
    feed(world, 2)
    assert {world.served_by()[queue] for queue in queues} == holders
    feed(world, 8)
    assert {world.served_by()[queue] for queue in queues} == {0}


def test_idle_queues_come_to_their_primaries_without_a_single_message() -> None:
    world = World(13)
    for _ in range(4):
        world.join()
    world.run(8)
    assert world.served_by() == balanced_primaries(4, range(4))
    attachments = [binding.epoch for member in world.members for binding in member.machine.bindings.all]
    world.run(120)
    assert attachments == [
        binding.epoch for member in world.members for binding in member.machine.bindings.all
    ], "once is enough"


def test_a_key_blocked_for_half_of_the_consumer_timeout_gives_its_queue_back() -> None:
    world = World(17, queue_count=1, hash_count=1, balancing={"consumer_timeout_s": 100.0})
    only = world.join()
    world.chances = Chances(retry=1.0)
    world.publish("a", hash_=0)
    world.run(49)
    assert not events(world, Moved)
    world.run(5)
    (moved,) = events(world, Moved)
    assert "consumer timeout" in moved.why
    assert moved.forced == 0
    attempts = next(iter(only.calls), None) or only.machine.bindings.all[0].attachment
    assert attempts is not None
    fine(world, after_s=40)  # poisoned by now, it waits for the longest interval


@pytest.mark.parametrize("seed", repeated(range(6)))
def test_what_is_cut_off_at_three_quarters_of_the_consumer_timeout_says_so_whatever_it_waited_for(
    seed: int,
) -> None:
    """A handoff that was begun at half of it, and put off or not, may be waiting for the call."""
    chances = Chances(slow=1.0, slow_s=1000.0)
    world = World(seed, queue_count=1, hash_count=1, chances=chances, balancing={"consumer_timeout_s": 36.0})
    world.join()
    world.run(1)
    world.publish("a", hash_=0)
    world.run(32)
    (moved,) = events(world, Moved)
    assert events(world, HandoffAbandoned)
    assert (moved.why, moved.forced) == ("held for three quarters of the consumer timeout", 1)


def test_attempts_are_counted_across_a_move() -> None:
    rules = Rules(concurrency=4, max_attempts=6, when_exhausted=WhenExhausted.DEAD_LETTER)
    world = World(20, queue_count=1, hash_count=1, rules=rules, balancing={"rebalance_delay_s": 0.1})
    world.join()
    world.run(0.3)
    world.join()
    world.run(1.0)  # the second member backs the queue up
    world.chances = Chances(retry=1.0)
    item = world.publish("a", hash_=0)
    world.run(0.15)
    members = world.members
    members[0].stop()
    world.run(10)
    assert members[0].exited
    assert world.dead[item.identity] == 1
    counts = [member.machine.dispatcher.counts.retried for member in members]
    assert sum(counts) == 6
    assert all(counts), "both had tried it"


def test_a_call_that_failed_after_its_limit_is_aborted_at_the_limit_of_its_next_attempt() -> None:
    """Its handler caught the abort, and then raised an error."""
    rules = Rules(call_timeout_s=2.0, backoff=Backoff(first_s=1.0, jitter=0.0))
    chances = Chances(slow=1.0, slow_s=3.0, deaf=1.0)
    world = World(3, queue_count=1, hash_count=1, rules=rules, chances=chances, failing={"k"})
    member = world.join()
    item = world.publish("k", hash_=0)
    world.run(3.5)
    assert member.machine.dispatcher.counts.retried == 1
    chances.deaf, chances.slow_s = 0.0, 3600.0
    world.run(1)
    assert member.calls
    chances.slow = 0.0
    world.failing.clear()
    world.run(5)
    assert world.finished[item.identity] == 1


# What others are told


def test_statuses_say_what_a_member_has_of_a_queue() -> None:
    world, members = settled(2)
    told = {state.queue: state for state in members[0].machine.content().queues}
    for queue, index in world.served_by().items():
        if index == 0:
            assert told[queue].status is Status.READY
            assert told[queue].is_primary
            assert told[queue].active
        else:
            assert told[queue].status is Status.UNASSIGNED
            assert not told[queue].active
    world.drop_connection(members[0])
    world.run(0.02)
    assert {state.status for state in members[0].machine.content().queues} <= {Status.UNBOUND}


def test_static_members_alone_release_nothing() -> None:
    world = World(23, balancing={"assignment": STATIC, "client_count": 2})
    world.join(fixed=0)
    feed(world, 70, every_s=0.25)
    assert not events(world, Moved)


def test_another_number_of_clients_is_another_assignment_where_it_is_static() -> None:
    balancing = {"assignment": STATIC, "client_count": 4, "release_interval_s": 5.0}
    world = World(23, queue_count=4, hash_count=4, balancing=balancing)
    for index in range(2):
        world.join(fixed=index)
    world.assign(STATIC, client_count=2)
    feed(world, 20, every_s=0.25)
    assert world.served_by() == {0: 0, 1: 1, 2: 0, 3: 1}


def test_a_static_release_closes_eight_consumers_at_the_same_time() -> None:
    world = World(23, queue_count=40, balancing={"assignment": STATIC, "client_count": 2})
    machine = world.join(fixed=0).machine
    world.join(fixed=1)
    world.run(2)
    machine.balancer.release_due = world.now
    machine.balancer.balance(world.now)
    assert [one.phase for one in machine.bindings.bound.values()].count(Phase.DETACHING) == 8


# The window


def test_the_window_is_wide_until_calls_are_known_to_be_slow() -> None:
    def window(service_time_s: float | None, concurrency: int = 16) -> int:
        return derived_prefetch(
            concurrency=concurrency, service_time_s=service_time_s, consumer_timeout_s=1800
        )

    assert window(None) == WINDOW_MAX
    assert window(0.001) == WINDOW_MAX
    assert window(10.0) == 90
    assert window(2000.0) == 1
    assert window(0.001, concurrency=400) == 800


@pytest.mark.parametrize("service_time_s", [0.0001, 0.5, 3.6, 30.0, 899.0])
def test_a_whole_window_of_one_key_is_done_in_half_of_the_consumer_timeout(service_time_s: float) -> None:
    prefetch = derived_prefetch(concurrency=16, service_time_s=service_time_s, consumer_timeout_s=1800)
    assert prefetch * service_time_s <= 900


@pytest.mark.parametrize(("service_time_s", "window"), [(None, 256), (0.01, 256), (0.5, 96), (3.5, 32)])
def test_what_a_broker_may_move_is_no_more_than_all_slots_do_in_the_time_of_a_handoff(
    service_time_s: float | None, window: int
) -> None:
    assert (
        derived_prefetch(
            concurrency=16, service_time_s=service_time_s, consumer_timeout_s=1800, handoff_s=3.0
        )
        == window
    )


def test_nothing_is_handed_to_a_member_that_says_nothing_any_more() -> None:
    """Its mailbox may outlive it: in a cluster that of a node that stands still is there for a minute."""
    world, members = settled(3)
    silent = members[2]
    served = {queue for queue, index in world.served_by().items() if index == 2}
    silent.process.alive = False  # its connection stays, and nobody reads from it
    for queue in served:  # somebody else has its queues
        consumers = world.queues[queue].consumers
        consumers.append(consumers.pop(0))
    feed(world, 4)
    world.events.clear()
    feed(world, 12)
    assert not events(world, Moved)
    members[1].stop()
    feed(world, 1)
    assert {move.to for move in events(world, Moved)} <= {None, 0}


def test_messages_that_need_no_call_leave_room_for_the_next_at_once() -> None:
    """A publisher sends all again: 600 of them took half a minute."""
    world, _ = settled(1, queue_count=1, hash_count=1)
    for item in list(world.published.values()):
        world.publish_again(item)
    world.run(2)
    assert not world.queues[0].ready
    assert not world.queues[0].holds
    fine(world)


# A broker that stands still


def with_a_backlog() -> tuple[World, SimMember]:
    """Two keys of queue 1: one has most of it, and the other's messages between them are worked on long before."""
    world = World(3, queue_count=2, balancing={"prefetch": 128})
    world.broker.applies_after_s = 0.001
    for number in range(1_500):
        world.publish("hot" if number % 16 else "cold", hash_=1 if number % 16 else 3)
    first = world.join()
    world.run(1.0)
    world.join()
    return world, first


@functools.cache
def moves_at_s() -> float:
    world, first = with_a_backlog()
    while not first.machine.handoffs.moves:
        world.run(0.001)
    return world.now


@pytest.mark.long
@pytest.mark.parametrize("after_s", [-0.4, 0.6, 1.2])
def test_a_broker_that_stands_still_around_a_handoff_discards_no_ack(after_s: float) -> None:
    """It reads the acks of that time and the close together, and a closing channel discards what is behind 32."""
    world, _ = with_a_backlog()
    world.broker.loses = (Handover,)
    world.run(moves_at_s() + after_s - world.now)
    world.broker.process.frozen_until = world.now + 0.45
    world.run(3.0)
    assert world.served_by() == {0: 0, 1: 1}
    fine(world)
    assert world.repeats == 0
