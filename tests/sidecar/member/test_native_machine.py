"""A member whose messages the broker shares out: what it asks for, what it calls, and how it goes."""

from __future__ import annotations

import pytest

from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Hello, Leave, Move
from lbg_sidecar.core.acks import SINGLE_ACK_AFTER_S
from lbg_sidecar.core.delivery import Outcome
from lbg_sidecar.core.effects import (
    Abort,
    Ack,
    Attach,
    DeadLetter,
    Detach,
    Done,
    Exit,
    LiveSet,
    Post,
    StoodDown,
)
from lbg_sidecar.message import ACK, INTERRUPTED, drop, retry
from testing.member.native_member import NativeMember

OTHER = Identity(1, "other", "other-1")


def test_it_attaches_once_whoever_else_is_there() -> None:
    member = NativeMember()
    member.join()
    member.machine.message(Hello(OTHER), 1.0)
    for now in range(2, 60):
        member.machine.message(Move(OTHER, 0, 0, "move"), float(now))
        member.machine.tick(float(now))
    assert not member.took(Attach)
    assert not member.took(Detach)
    assert [effect.live for effect in member.took(LiveSet)] == [frozenset({0}), frozenset({0, 1})]
    assert member.machine.describe(60.0)["live"] == [0, 1]


def test_keys_run_side_by_side_and_one_key_in_order() -> None:
    member = NativeMember()
    attachment = member.join()
    member.deliver(attachment, ("a", 1, 0), ("a", 1, 1), ("b", 2, 0))
    running = member.take_all()
    assert [held.key for held in running] == ["a", "b"]
    member.machine.end(running[0], ACK, 1.0)
    assert [held.identity for held in member.take_all()] == [("p", 1, 1)]


def test_acks_are_cumulative_and_pass_over_what_is_not_done() -> None:
    member = NativeMember()
    attachment = member.join()
    member.deliver(attachment, 0, 1, 2)
    first, second, third = member.take_all()
    member.machine.end(second, ACK, 1.0)
    member.machine.end(third, ACK, 1.0)
    assert member.machine.flush(1.0) == 1.0 + SINGLE_ACK_AFTER_S
    assert not member.took(Ack)
    member.machine.end(first, ACK, 1.1)
    member.machine.flush(1.1)
    assert [(ack.tag, ack.multiple) for ack in member.took(Ack)] == [(3, True)]
    member.machine.flush(1.2)
    assert not member.machine.dispatcher.unacked.attachments


def test_the_number_of_a_message_is_its_partition() -> None:
    member = NativeMember()
    attachment = member.join()
    member.deliver(attachment, ("a", 13, 0))
    (held,) = member.take_all()
    assert held.queue == 13 % 8


def test_leaving_starts_nothing_waits_for_what_runs_and_settles_before_it_closes() -> None:
    member = NativeMember()
    attachment = member.join()
    member.deliver(attachment, ("a", 1, 0), ("a", 1, 1), ("b", 2, 0), ("c", 3, 0))
    a, b, c = member.take_all()
    member.machine.end(b, ACK, 1.0)
    member.machine.stop("SIGTERM", 1.0)
    assert any(isinstance(post.message, Leave) for post in member.took(Post))
    assert not member.took(Detach)
    member.machine.end(c, ACK, 1.1)
    assert not member.take_all(), "neither the next of a key that ran, nor anything else"
    member.machine.end(a, ACK, 1.2)
    (detach,) = member.took(Detach)
    assert detach.ack_tag == 1
    assert sorted(detach.single_tags) == [3, 4]
    settled, released = member.took(Done)
    assert settled.settled
    assert [held.outcome for held in released.deliveries] == [Outcome.RELEASED]
    assert not member.took(Exit)
    member.machine.closed(attachment, 1.3)
    assert member.took(Exit)
    assert member.machine.delivered_again == 0


def test_any_number_of_scattered_acks_goes_with_the_close() -> None:
    member = NativeMember(concurrency=64)
    attachment = member.join()
    member.deliver(attachment, *range(40))
    calls = member.take_all()
    for held in calls[1:]:
        member.machine.end(held, ACK, 1.0)
    member.machine.stop("SIGTERM", 1.0)
    member.machine.end(calls[0], retry("no"), 1.1)
    (detach,) = member.took(Detach)
    assert len(detach.single_tags) == 39
    assert member.machine.delivered_again == 0


def test_what_does_not_end_within_the_grace_is_cut_off_and_counted() -> None:
    member = NativeMember()
    attachment = member.join()
    member.deliver(attachment, 0, 1)
    slow, quick = member.take_all()
    member.machine.end(quick, ACK, 1.0)
    member.machine.stop("SIGTERM", 1.0)
    member.machine.tick(20.9)
    assert not member.took(Abort)
    member.machine.tick(21.1)
    assert [abort.calls for abort in member.took(Abort)] == [(slow,)]
    (detach,) = member.took(Detach)
    assert detach.single_tags == (2,)
    member.machine.closed(attachment, 21.2)
    assert member.took(Exit)
    assert member.machine.delivered_again == 1, "what was done behind it is acknowledged"


def test_a_second_stop_leaves_at_once() -> None:
    member = NativeMember()
    attachment = member.join()
    member.deliver(attachment, 0)
    member.take_all()
    member.machine.stop("SIGTERM", 1.0)
    member.machine.stop("SIGTERM", 1.1)
    assert member.took(Abort)
    assert member.took(Detach)
    member.machine.tick(2.0)
    assert member.took(Exit), "the broker's answer to the close is not waited for for long"


def test_a_dead_letter_on_its_way_is_waited_for() -> None:
    member = NativeMember()
    attachment = member.join()
    member.deliver(attachment, 0)
    (held,) = member.take_all()
    member.machine.end(held, drop("no good"), 1.0)
    (letter,) = member.took(DeadLetter)
    member.machine.stop("SIGTERM", 1.1)
    assert not member.took(Detach)
    member.machine.confirmed(letter.in_flight, 1.2)
    (detach,) = member.took(Detach)
    assert detach.ack_tag == 1


def test_a_lost_connection_aborts_what_runs_and_it_comes_back() -> None:
    member = NativeMember()
    attachment = member.join()
    member.deliver(attachment, 0, 1)
    first, second = member.take_all()
    member.machine.disconnected(1.0)
    (abort,) = member.took(Abort)
    assert set(abort.calls) == {first, second}
    assert member.machine.take(1.1) is None
    member.machine.end(first, INTERRUPTED, 1.1)
    member.machine.end(second, ACK, 1.2)
    again = member.join(2.0)
    member.deliver(again, 0, 1, now=2.0)
    assert [held.identity for held in member.take_all(2.0)] == [("p", 0, 0)], (
        "what was done is not done again"
    )


def test_a_call_that_has_not_ended_keeps_its_key_when_its_message_comes_again() -> None:
    member = NativeMember()
    attachment = member.join()
    member.deliver(attachment, ("a", 1, 0))
    (old,) = member.take_all()
    member.machine.disconnected(1.0)
    again = member.join(2.0)
    member.deliver(again, ("a", 1, 0), now=2.0)
    assert not member.take_all(2.0)
    member.machine.end(old, INTERRUPTED, 2.5)
    assert len(member.take_all(2.5)) == 1


def test_a_channel_that_closes_of_itself_is_opened_anew_after_a_while() -> None:
    member = NativeMember()
    attachment = member.join()
    member.machine.closed(attachment, 1.0)
    assert not member.took(Attach)
    member.machine.tick(1.5)
    assert member.took(Attach)


def test_standing_down_gives_everything_back_and_the_next_join_takes_part_again() -> None:
    member = NativeMember()
    attachment = member.join()
    member.deliver(attachment, 0)
    (held,) = member.take_all()
    member.machine.stand_down("its database is down", 1.0)
    member.machine.end(held, ACK, 1.1)
    assert member.took(Detach)
    member.machine.closed(attachment, 1.2)
    assert member.took(StoodDown)
    member.machine.disconnected(1.3)
    assert member.machine.leaving == "its database is down"
    assert member.machine.roster.is_leaving
    member.join(5.0)
    assert member.machine.leaving is None
    assert not member.machine.roster.is_leaving


def test_nothing_is_called_for_while_a_stop_waits_for_its_attachment() -> None:
    member = NativeMember()
    member.machine.connected(0, 0.0)
    (asked,) = member.took(Attach)
    member.machine.stop("SIGTERM", 0.1)
    assert member.took(Detach)
    member.deliver(asked.attachment, 0)
    assert member.machine.take(0.2) is None
    member.machine.closed(asked.attachment, 0.3)
    assert member.took(Exit)


@pytest.mark.parametrize("index", [0, 3])
def test_the_lowest_index_counts_what_waits(index: int) -> None:
    member = NativeMember()
    member.join(index=index)
    member.machine.message(Hello(OTHER), 1.0)
    (queue,) = member.machine.describe(1.0)["queues"]
    assert (queue["role"] == "primary") is (index == 0)
    assert queue["active"]
    assert queue["status"] == "Ready"
