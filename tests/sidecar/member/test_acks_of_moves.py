"""Acks of a queue that moves while many of its messages are done behind one that is not."""

from __future__ import annotations

from typing import Any

import pytest

from lbg_core.client.ack_window import UNPROVEN_FRAMES_MAX
from lbg_core.group import STATIC
from lbg_core.group.members_protocol import Handover
from lbg_sidecar.core.acks import ACK_INTERVAL_S, SINGLE_ACKS_AT_CLOSE, AckScheduler, Unacked
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.effects import Ack, Effect, HandoffAbandoned, Moved
from lbg_sidecar.message import ACK
from testing.member.native_member import NativeMember
from testing.member.world.member import SimMember
from testing.member.world.situations import fine
from testing.member.world.world import World

DONE = 100
"""Messages behind the one that fails."""

BEHIND_THE_PRIMARY = {"assignment": STATIC, "client_count": 3}
"""Index 2 is missing, so queue 2 has no primary, and no successor is named for it."""


def with_a_gap(
    *, applies_after_s: float = 0.005, messages: int = DONE, **balancing: Any
) -> tuple[World, SimMember]:
    """Two members; the one that serves queue 2 has just done many of its messages, and the first of all fails. The
    positions of a move are lost."""
    world = World(
        5,
        queue_count=3,
        hash_count=6,
        rules=Rules(concurrency=16),
        balancing={"prefetch": 256, **balancing},
        failing={"bad"},
    )
    world.broker.loses = (Handover,)
    world.broker.applies_after_s = applies_after_s
    for _ in range(2):
        world.join()
    world.publish("warm", hash_=2)
    world.run(10.0)
    world.events.clear()
    server = world.members[world.served_by()[2]]
    world.publish("bad", hash_=2)
    for number in range(messages):
        world.publish(f"k{number}", hash_=5)
    world.run(0.1)
    assert len(done_behind_the_gap(server)) > 3 * SINGLE_ACKS_AT_CLOSE
    return world, server


def done_behind_the_gap(member: SimMember) -> dict[Any, None]:
    attachment = member.machine.bindings.all[2].attachment
    assert attachment is not None
    return attachment.ack_window.scattered


def moves_of(world: World, kind: type) -> list[Any]:
    return [event for _, _, event in world.events if isinstance(event, kind) and event.queue == 2]


@pytest.mark.parametrize("balancing", [{}, BEHIND_THE_PRIMARY], ids=["balanced", "static"])
@pytest.mark.parametrize("on_rabbitmq", [True, False])
def test_a_leave_repeats_nothing_that_is_done_behind_a_gap(
    balancing: dict[str, Any], on_rabbitmq: bool
) -> None:
    """A closing channel of the embedded broker carries out all acks, one of a quorum queue 32."""
    applies_after_s = 0.005 if on_rabbitmq else 0.0
    world, server = with_a_gap(applies_after_s=applies_after_s, on_rabbitmq=on_rabbitmq, **balancing)
    server.stop()
    world.run(4.0)
    (moved,) = moves_of(world, Moved)
    assert moved.forced == 0
    world.failing.clear()
    fine(world)
    assert world.repeats == 0
    if not on_rabbitmq:
        assert moved.drain_s < 0.05


def test_a_release_of_the_static_assignment_repeats_nothing_that_is_done_behind_a_gap() -> None:
    world, server = with_a_gap(**BEHIND_THE_PRIMARY)
    server.machine.balancer.release_due = world.now
    world.run(4.0)
    (moved,) = moves_of(world, Moved)
    assert (moved.why, moved.forced) == ("release", 0)
    assert world.repeats == 0


def test_the_acks_before_a_close_are_no_faster_than_a_broker_that_shows_nothing_applies_them() -> None:
    world, server = with_a_gap()
    behind = len(done_behind_the_gap(server)) - SINGLE_ACKS_AT_CLOSE
    server.stop()
    world.run(4.0)
    (moved,) = moves_of(world, Moved)
    assert 0.1 * (behind // SINGLE_ACKS_AT_CLOSE - 1) < moved.drain_s < 2.0


@pytest.mark.long
def test_a_move_whose_acks_take_longer_than_the_handoff_time_is_postponed() -> None:
    world, server = with_a_gap(messages=200, max_handoff_s=0.5, rebalance_delay_s=2.0)
    server.machine.handoffs.start(server.machine.bindings.all[2], 1 - world.served_by()[2], "test", world.now)
    server.run()
    world.run(1.5)
    assert not moves_of(world, Moved)
    (abandoned,) = moves_of(world, HandoffAbandoned)
    assert abandoned.running == 0
    assert server.machine.bindings.all[2].active
    world.run(2.0)
    assert len(done_behind_the_gap(server)) <= SINGLE_ACKS_AT_CLOSE
    assert world.repeats == 0


def test_a_small_gap_delays_no_move() -> None:
    world, server = with_a_gap()
    world.run(2.0)
    assert len(done_behind_the_gap(server)) <= SINGLE_ACKS_AT_CLOSE
    server.stop()
    world.run(1.0)
    (moved,) = moves_of(world, Moved)
    assert moved.drain_s < 0.05


def test_while_a_queue_moves_its_acks_wait_until_the_window_runs_dry() -> None:
    member = NativeMember(prefetch=4)
    attachment = member.join()
    attachment.is_moving = True
    member.deliver(attachment, 0, 1, 2)
    first, second, third = member.take_all()
    for call in (first, second):
        member.machine.end(call, ACK, 1.0)
    member.machine.flush(10.0)
    assert not member.took(Ack)
    member.machine.end(third, ACK, 10.0)
    member.machine.flush(10.0)
    assert [ack.tag for ack in member.took(Ack)] == [3]


def test_acks_of_single_messages_leave_room_for_a_cumulative_one() -> None:
    attachment, effects = Attachment(0, 1, prefetch=256), list[Effect]()
    first, *others = (InFlight(attachment, tag) for tag in range(1, 41))
    attachment.ack_window.delivered([first, *others])
    unacked = Unacked()
    for one in others:
        unacked.done(one)
    acks = AckScheduler(unacked, effects, frames_are_lost=True)
    for turn in range(10):
        acks.flush(1.0 + turn * ACK_INTERVAL_S)
    assert sum(isinstance(effect, Ack) for effect in effects) == UNPROVEN_FRAMES_MAX - 1
