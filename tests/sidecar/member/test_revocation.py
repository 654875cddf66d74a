"""Revoked deliveries: a member returns on request those not begun; verdicts of revoked ones do nothing."""

from __future__ import annotations

import pytest

from lbg_core.client import Backoff
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import GivenBack
from lbg_sidecar.core.delivery import InFlight, Outcome
from lbg_sidecar.core.dispatcher import Order
from lbg_sidecar.core.effects import (
    Abort,
    Ack,
    Attach,
    CallFailed,
    DeadLetter,
    Detach,
    Done,
    Limit,
    Post,
    Reassigned,
    Recalled,
    Republish,
    Requeue,
    Withdraw,
)
from lbg_sidecar.message import ACK, INTERRUPTED, drop, retry
from testing.member.native_member import NativeMember

NOW = 1.0


def asked(member: NativeMember, *tags: int, now: float = NOW) -> None:
    member.machine.revoked(member.attachment, tags, now, reassigned=False)


def taken(member: NativeMember, *tags: int, now: float = NOW) -> None:
    member.machine.revoked(member.attachment, tags, now, reassigned=True)


def holding(*names: object, **rules: object) -> tuple[NativeMember, list[InFlight]]:
    """A member with these deliveries, and its calls that run."""
    member = NativeMember(**rules)
    attachment = member.join()
    member.deliver(attachment, *names)
    running = member.take_all()
    member.run()
    member.told.clear()
    return member, running


def given_back(member: NativeMember) -> list[int]:
    return [tag for effect in member.took(Requeue) for tag in effect.tags]


def acks(member: NativeMember) -> list[tuple[int, bool]]:
    return [(effect.tag, effect.multiple) for effect in member.took(Ack)]


ONE_KEY = [("a", 1, 0), ("a", 1, 1), ("a", 1, 2)]


class TestAsked:
    def test_what_is_not_begun_is_given_back_in_order_and_never_starts(self) -> None:
        member, (running,) = holding(*ONE_KEY)
        asked(member, 1, 2, 3)
        assert given_back(member) == [2, 3]
        assert member.took(Withdraw) == [Withdraw((running,), reassigned=False)]
        member.machine.end(running, ACK, NOW)
        assert member.take_all() == []
        assert member.machine.dispatcher.counts.given_back == 2

    def test_what_is_done_is_acknowledged_at_once_and_before(self) -> None:
        member, running = holding(0, 1, 2, concurrency=2)
        member.machine.end(running[1], ACK, NOW)
        asked(member, 1, 2, 3)
        assert acks(member) == [(2, False)]
        assert given_back(member) == [3]

    def test_a_call_that_ends_later_is_acknowledged_at_once(self) -> None:
        member, running = holding(0, 1, 2)
        asked(member, 1, 2, 3)
        member.machine.end(running[2], ACK, NOW)
        assert acks(member) == [(3, False)]
        member.machine.end(running[0], ACK, NOW)
        assert acks(member) == [(1, True)]
        member.machine.end(running[1], ACK, NOW)
        assert acks(member) == [(2, True)]

    def test_what_comes_after_what_was_given_back_is_acknowledged_as_ever(self) -> None:
        member, running = holding(*ONE_KEY, ("b", 2, 0))
        asked(member, 1, 2, 3)
        member.machine.end(running[1], ACK, NOW)
        member.took(Ack)
        member.machine.end(running[0], ACK, NOW)
        assert acks(member) == [(4, True)]
        assert member.attachment.ack_window.unacked == 0

    def test_other_lanes_and_other_partitions_go_on(self) -> None:
        member, running = holding(("a", 1, 0), ("b", 2, 0), ("b", 2, 1), concurrency=1)
        asked(member, 1)
        member.machine.end(running[0], ACK, NOW)
        (second,) = member.take_all(NOW)
        assert second.key == "b"
        member.machine.end(second, ACK, NOW)
        assert [held.identity for held in member.take_all(NOW)] == [("p", 2, 1)]

    def test_in_the_order_of_the_queue_what_is_behind_goes_on(self) -> None:
        member, _ = holding(concurrency=1, order=Order.QUEUE)
        member.deliver(member.attachment, ("a", 1, 0), ("b", 2, 0))
        asked(member, 1)
        assert given_back(member) == [1]
        assert [held.key for held in member.take_all(NOW)] == ["b"]

    def test_a_failed_call_is_given_back_and_not_made_again(self) -> None:
        for verdict in (retry("no"), INTERRUPTED):
            member, (running,) = holding(*ONE_KEY[:1])
            asked(member, 1)
            member.machine.end(running, verdict, NOW)
            assert given_back(member) == [1]
            member.machine.tick(60.0)
            assert member.take_all(60.0) == []

    def test_what_waits_for_a_retry_is_not_begun(self) -> None:
        member, (running,) = holding(*ONE_KEY)
        member.machine.end(running, retry("no"), NOW)
        asked(member, 1, 2, 3)
        assert given_back(member) == [1, 2, 3]
        member.machine.tick(60.0)
        assert member.take_all(60.0) == []

    def test_a_poisoned_message_is_given_back_and_no_longer_shown(self) -> None:
        member, (running,) = holding(("a", 1, 0), max_attempts=1)
        member.machine.end(running, retry("no"), NOW)
        assert member.machine.describe(NOW)["queues"][0]["poisoned"] == 1
        asked(member, 1)
        assert member.machine.describe(NOW)["queues"][0]["poisoned"] == 0

    def test_a_dead_letter_on_its_way_is_acknowledged_when_it_is_confirmed(self) -> None:
        member, (running,) = holding(*ONE_KEY)
        member.machine.end(running, drop("bad"), NOW)
        assert member.took(DeadLetter)
        asked(member, 1, 2, 3)
        assert given_back(member) == [2, 3]
        member.machine.confirmed(running, NOW)
        assert acks(member) == [(1, True)]

    def test_a_message_on_its_way_to_the_validator_is_acknowledged_when_it_is_confirmed(self) -> None:
        member, (running,) = holding(*ONE_KEY[:1], republish=True)
        member.machine.end(running, ACK, NOW)
        assert member.took(Republish)
        asked(member, 1)
        assert given_back(member) == []
        member.machine.confirmed(running, NOW)
        assert acks(member) == [(1, True)]

    def test_what_comes_again_runs_after_the_call_that_was_going_on(self) -> None:
        member, (running,) = holding(*ONE_KEY[:2])
        asked(member, 1, 2)
        member.deliver(member.attachment, ("a", 1, 1))
        assert member.take_all(NOW) == []
        member.machine.end(running, ACK, NOW)
        assert [held.identity for held in member.take_all(NOW)] == [("p", 1, 1)]

    def test_what_is_no_longer_here_is_passed_over(self) -> None:
        member, (running,) = holding(*ONE_KEY[:1])
        member.machine.end(running, ACK, NOW)
        member.machine.flush(NOW)
        member.took(Ack)
        asked(member, 1, 99)
        assert given_back(member) == []
        assert acks(member) == []

    def test_it_is_told_in_the_log_and_released_in_the_journal(self) -> None:
        member, (running,) = holding(*ONE_KEY)
        asked(member, 1, 2, 3)
        assert member.took(Recalled) == [Recalled((1,), requeued=2, at_work=1)]
        (done,) = member.took(Done)
        assert not done.settled
        assert [held.outcome for held in done.deliveries] == [Outcome.RELEASED] * 2
        assert running.outcome is None

    def test_a_member_that_leaves_need_not_wait_for_what_was_given_back(self) -> None:
        member, (running,) = holding(*ONE_KEY)
        member.machine.stop("told to", NOW)
        asked(member, 1, 2, 3)
        assert given_back(member) == [2, 3]
        member.machine.end(running, ACK, NOW)
        (detach,) = member.took(Detach)
        assert detach.ack_tag is None


class TestTaken:
    def test_a_call_that_runs_is_stopped_counted_and_its_verdict_does_nothing(self) -> None:
        for verdict in (ACK, retry("no"), drop("bad"), INTERRUPTED):
            member, (running,) = holding(*ONE_KEY[:1])
            asked(member, 1)
            taken(member, 1)
            assert member.took(Withdraw)[-1] == Withdraw((running,), reassigned=True)
            assert member.took(Reassigned) == [Reassigned((1,), at_work=1)]
            member.machine.end(running, verdict, NOW)
            member.machine.flush(NOW + 1)
            assert acks(member) == []
            assert given_back(member) == []
            assert member.took(DeadLetter) == []
            assert member.machine.dispatcher.counts.taken == 1
            assert member.take_all(60.0) == []

    def test_a_call_that_never_ends_is_aborted_when_its_time_is_over_and_counts_for_nothing(self) -> None:
        """A command is not killed for a message that was taken, and has its slot and its key until then."""
        member, (running,) = holding(*ONE_KEY[:1], call_timeout_s=5.0)
        taken(member, 1)
        member.machine.tick(5.0)
        assert member.took(Abort) == [Abort((running,))]
        member.machine.tick(6.0)
        assert member.took(Abort) == member.took(CallFailed) == []
        assert member.machine.dispatcher.counts.timed_out == 0

    def test_what_is_done_and_not_acknowledged_is_not_acknowledged_any_more(self) -> None:
        member, running = holding(0, 1)
        member.machine.end(running[0], ACK, NOW)
        taken(member, 1)
        member.machine.end(running[1], ACK, NOW)
        member.machine.flush(NOW + 1)
        assert acks(member) == [(2, True)]
        assert member.machine.dispatcher.counts.taken == 0

    def test_what_was_not_begun_never_starts_even_if_it_was_not_asked_for(self) -> None:
        member, (running,) = holding(*ONE_KEY, ("b", 2, 0), concurrency=1)
        taken(member, 1, 2, 3)
        assert given_back(member) == []
        member.machine.end(running, ACK, NOW)
        assert [held.key for held in member.take_all(NOW)] == ["b"]

    def test_what_was_processed_here_after_all_is_dropped_if_it_comes_again(self) -> None:
        member, (running,) = holding(*ONE_KEY[:1])
        taken(member, 1)
        member.deliver(member.attachment, ("a", 1, 0))
        assert member.take_all(NOW) == []
        member.machine.end(running, ACK, NOW)
        assert member.take_all(NOW) == []
        assert member.machine.dispatcher.counts.repeats_dropped == 1
        member.machine.flush(NOW + 1)
        assert acks(member) == [(2, True)]

    def test_a_dead_letter_on_its_way_holds_its_lane_up_no_more(self) -> None:
        member, (running,) = holding(*ONE_KEY[:1])
        member.machine.end(running, drop("bad"), NOW)
        taken(member, 1)
        member.deliver(member.attachment, ("a", 1, 1))
        assert [held.identity for held in member.take_all(NOW)] == [("p", 1, 1)]
        member.machine.confirmed(running, NOW)
        member.machine.flush(NOW + 1)
        assert acks(member) == []

    def test_two_messages_with_one_identity_are_on_their_way_to_the_validator_at_once(self) -> None:
        """No publisher of ours gives two keys the same."""
        member, running = holding(("a", 1, 0), ("b", 1, 0), republish=True)
        for one in running:
            member.machine.end(one, ACK, NOW)
        for one in running:
            member.machine.confirmed(one, NOW)
        member.machine.flush(NOW + 1)
        assert acks(member) == [(2, True)]

    def test_a_message_on_its_way_to_the_validator_can_come_again(self) -> None:
        member, (running,) = holding(*ONE_KEY[:1], republish=True)
        member.machine.end(running, ACK, NOW)
        taken(member, 1)
        member.machine.confirmed(running, NOW)
        member.deliver(member.attachment, ("a", 1, 0))
        assert len(member.take_all(NOW)) == 1
        member.machine.flush(NOW + 1)
        assert acks(member) == []

    def test_the_rest_of_the_window_is_settled_and_closed_as_ever(self) -> None:
        member, running = holding(0, 1, 2)
        taken(member, 2)
        for held in running:
            member.machine.end(held, ACK, NOW)
        member.machine.stop("told to", NOW)
        (detach,) = member.took(Detach)
        assert detach.ack_tag == 3
        assert detach.single_tags == ()


class TestWindow:
    """Of what may move away, no more is held than is done in the time of a handoff."""

    @pytest.mark.parametrize(("call_s", "window"), [(0.5, 24), (3 / 32, 128)])
    def test_it_follows_the_measured_time_of_the_calls_where_it_is_far_off(
        self, call_s: float, window: int
    ) -> None:
        member = NativeMember(moves=True, prefetch=None)
        attachment = member.join()
        assert attachment.prefetch == 256
        now = 0.0
        for name in range(64):
            member.deliver(attachment, name, now=now)
            (held,) = member.take_all(now)
            member.machine.end(held, ACK, now := now + call_s)
        member.machine.tick(now)
        assert member.took(Limit) == [Limit(attachment, window)]  # 4 slots, 3 s
        assert attachment.prefetch == window
        member.machine.tick(now + 0.1)
        assert member.took(Limit) == []

    def test_one_that_is_set_stays(self) -> None:
        member = NativeMember(moves=True)
        attachment = member.join()
        for name in range(64):
            member.deliver(attachment, name)
            (held,) = member.take_all()
            member.machine.end(held, ACK, 100.0)
        member.machine.tick(100.0)
        assert member.took(Limit) == []
        assert attachment.prefetch == 64


def test_a_word_that_comes_when_the_channel_is_closing_means_nothing() -> None:
    member, running = holding(*ONE_KEY)
    member.machine.stop("told to", NOW)
    member.machine.end(running[0], ACK, NOW)
    assert member.took(Detach)
    asked(member, 2, 3)
    taken(member, 2, 3)
    assert given_back(member) == []
    assert not member.took(Attach)


class TestAttempts:
    """A message goes to the next member with the attempts that it has failed."""

    def test_a_failed_message_that_is_given_back_takes_its_attempts_along(self) -> None:
        member, running = holding(*ONE_KEY, backoff=Backoff(first_s=60.0))
        member.machine.end(running[0], retry("busy"), NOW)
        member.took(Post)
        asked(member, 1, 2, 3)
        assert [one.message for one in member.took(Post)] == [given_back_by(member, running[0], 1)]

    def test_a_call_that_fails_after_the_broker_wanted_it_back_does_too(self) -> None:
        member, running = holding(*ONE_KEY)
        asked(member, 1, 2, 3)
        member.took(Post)
        member.machine.end(running[0], retry("busy"), NOW)
        assert [one.message for one in member.took(Post)] == [given_back_by(member, running[0], 1)]

    def test_so_does_one_that_a_leaving_member_gives_back(self) -> None:
        member, running = holding(*ONE_KEY, backoff=Backoff(first_s=60.0))
        member.machine.end(running[0], retry("busy"), NOW)
        member.took(Post)
        member.machine.stop("over", NOW)
        assert given_back_by(member, running[0], 1) in [one.message for one in member.took(Post)]

    def test_the_next_member_counts_on(self) -> None:
        former, running = holding(*ONE_KEY)
        after, (called,) = holding(*ONE_KEY, max_attempts=3)
        after.machine.message(given_back_by(former, running[0], 2, incarnation="former"), NOW)
        after.machine.end(called, retry("busy"), NOW)
        assert called.attempts == 3
        assert after.machine.dispatcher.counts.poisoned == 1

    def test_what_never_failed_is_not_reported(self) -> None:
        member, _ = holding(*ONE_KEY)
        asked(member, 1, 2, 3)
        assert not any(isinstance(one.message, GivenBack) for one in member.took(Post))


def given_back_by(
    member: NativeMember, in_flight: InFlight, attempts: int, *, incarnation: str = ""
) -> GivenBack:
    me = member.machine.roster.me
    assert me is not None
    assert in_flight.identity is not None
    sender = Identity(me.index, me.name, incarnation or me.incarnation)
    return GivenBack(sender, ((*in_flight.identity, attempts),))
