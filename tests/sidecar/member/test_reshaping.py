"""A member takes another number of queues on the connection that it has."""

from __future__ import annotations

import pytest

from lbg_core.group.member_state import Identity, Positions
from lbg_core.group.members_protocol import Hello
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.effects import Attach, CountReady, Detach, Effect, Reconnect
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.core.queue_consumers import CONSUMED_FOR_S, Sweep
from lbg_sidecar.message import ACK
from testing.member.bare_member import setup_of

FOUR = BalancingRules(4)
SIX = BalancingRules(6)
NOT_FOUND = 404
GONE = "NOT_FOUND - no queue 'lbg.orders.5'"
DOWN = "NOT_FOUND - home node 'rabbit@b' of durable queue 'lbg.orders.5' is down or inaccessible"


class Joined:
    """A member of a group of so many queues, and time, which passes in steps of its ticks."""

    def __init__(self, rules: BalancingRules, *, answers: bool = True) -> None:
        self.now = 0.0
        self.answers = answers
        self.machine = ExclusiveMember(setup_of(rules))
        self.detached: list[Attachment] = []
        self.counted: list[int] = []
        self.attachments: dict[int, Attachment] = {}
        self.machine.connected(0, self.now)
        self.run()

    def run(self) -> None:
        """Carries out effects as a broker that answers at once does."""
        effects = self.machine.effects
        while effects:
            due, effects[:] = effects[:], []
            for effect in due:
                match effect:
                    case Attach(attachment, _):
                        self.attachments[attachment.queue] = attachment
                        if self.answers:
                            self.machine.attached(attachment, self.now)
                    case Detach(attachment):
                        self.detached.append(attachment)
                        self.machine.closed(attachment, self.now)
                    case CountReady(queue):
                        self.counted.append(queue)
                    case Reconnect(why):
                        raise AssertionError(why)
                    case _:
                        pass

    def reshape(self, queue_count: int) -> None:
        self.machine.reshape(queue_count, self.now)
        self.run()

    def let_pass(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, max(self.machine.next_due(self.now), self.now + 0.001))
            self.machine.tick(self.now)
            self.machine.flush(self.now)
            self.run()

    def deliver(self, queue: int) -> None:
        attachment = self.attachments[queue]
        in_flight = InFlight(attachment, attachment.delivered + 1, key="k", identity=("p", queue, 0))
        self.machine.deliver(attachment, [in_flight], self.now)
        self.run()

    @property
    def consumed(self) -> list[int]:
        return sorted(self.machine.bindings.bound)

    @property
    def reported(self) -> list[int]:
        return [state.queue for state in self.machine.content().queues]


def test_more_queues_are_consumed_on_the_same_connection_and_the_others_are_not_touched() -> None:
    member = Joined(FOUR)
    before = dict(member.attachments)
    member.deliver(2)
    member.reshape(7)
    assert member.consumed == member.reported == list(range(7))
    assert member.detached == []
    assert {queue: member.attachments[queue] for queue in before} == before
    assert not before[2].paused
    in_flight = member.machine.take(member.now)
    assert in_flight is not None
    assert in_flight.queue == 2


def test_the_rules_that_machines_share_are_not_changed() -> None:
    member, other = Joined(FOUR), Joined(FOUR)
    member.reshape(7)
    assert FOUR.queue_count == other.machine.rules.queue_count == 4
    assert other.consumed == list(range(4))


def test_a_queue_that_is_too_many_is_consumed_until_it_is_deleted() -> None:
    member = Joined(SIX)
    member.deliver(5)
    member.reshape(4)
    assert member.consumed == list(range(6))
    assert member.reported == list(range(4))
    assert member.detached == []
    surplus = member.attachments[5]
    in_flight = member.machine.take(member.now)
    assert in_flight is not None
    assert in_flight.attachment is surplus
    assert member.machine.cancelled(surplus)
    member.machine.closed(surplus, member.now)
    member.run()
    member.let_pass(30.0)
    assert member.consumed == list(range(5))
    with pytest.raises(IndexError):
        member.machine.bindings.all[5]


@pytest.mark.parametrize(("why", "is_deleted"), [(GONE, True), (DOWN, False)])
def test_a_queue_that_is_too_many_is_consumed_again_unless_it_is_deleted(why: str, is_deleted: bool) -> None:
    member = Joined(SIX)
    member.reshape(4)
    lost = member.attachments[5]
    member.machine.closed(lost, member.now)
    member.answers = False
    member.let_pass(1.0)
    again = member.attachments[5]
    assert again is not lost
    assert member.machine.refused(again, NOT_FOUND, why) is is_deleted
    member.machine.closed(again, member.now)
    member.answers = True
    member.let_pass(30.0)
    assert (5 in member.consumed) is not is_deleted


def test_a_queue_of_the_present_number_that_is_deleted_is_a_failure() -> None:
    member = Joined(SIX)
    assert not member.machine.cancelled(member.attachments[5])
    assert not member.machine.refused(member.attachments[5], NOT_FOUND, GONE)


def test_a_queue_that_comes_back_goes_on_with_its_epochs() -> None:
    member = Joined(SIX)
    for queue in (4, 5):
        member.machine.closed(member.attachments[queue], member.now)
    member.reshape(4)
    assert member.consumed == list(range(4))
    member.reshape(6)
    member.let_pass(1.0)
    assert member.consumed == list(range(6))
    assert member.attachments[5].epoch == 2


def test_queues_that_are_too_many_are_released_by_a_member_that_leaves() -> None:
    member = Joined(SIX)
    member.deliver(5)
    member.reshape(4)
    in_flight = member.machine.take(member.now)
    assert in_flight is not None
    member.machine.stop("test", member.now)
    member.run()
    assert 5 in member.consumed
    member.machine.end(in_flight, ACK, member.now)
    member.let_pass(1.0)
    assert member.consumed == []


def test_of_the_new_number_those_that_are_not_consumed_are_counted_and_no_other() -> None:
    member = Joined(SIX)
    bindings = member.machine.bindings
    sweep = Sweep(member.machine.context, member.machine.wanted)
    sweep.connected(member.now)

    def counts() -> list[Effect]:
        member.machine.effects.clear()
        sweep.tick(sweep.due)
        return member.machine.effects[:]

    member.machine.closed(member.attachments[5], member.now)
    assert counts() == [CountReady(5)]
    member.reshape(4)
    assert 4 in bindings.bound, "a surplus queue, and five channels in all"
    assert counts() == []
    member.machine.closed(member.attachments[3], member.now)
    assert [counts() for _ in range(8)] == [[CountReady(3)]] * 8


def test_positions_are_reported_of_the_queues_that_the_hashes_have_now() -> None:
    member = Joined(FOUR)
    processed = member.machine.dispatcher.processed
    processed.add(("p", 5, 0))
    assert processed.of_queue(1).streams
    member.reshape(6)
    assert processed.of_queue(1) == Positions()
    assert processed.of_queue(5).streams


def test_positions_are_reported_of_every_queue_that_a_hash_may_have() -> None:
    member = Joined(SIX)
    processed = member.machine.dispatcher.processed
    processed.add(("p", 5, 0))
    processed.queues_of = lambda hash_: {hash_ % 4, hash_ % 6}
    assert processed.of_queue(1) == processed.of_queue(5) == Positions((("p", 5, ((0, 0),)),))
    assert processed.of_queue(2) == Positions()
    forged = Positions((("p", 6, ((0, 0),)), ("p", 7, ((0, 0),))), (("p", 6, 1, 2), ("p", 7, 1, 2)))
    processed.merge(forged, queues=(2,))
    assert ("p", 6, 0) in processed
    assert ("p", 7, 0) not in processed
    assert (processed.attempts(("p", 6, 1)), processed.attempts(("p", 7, 1))) == (2, 0)


def test_a_queue_that_was_counted_before_it_was_deleted_is_not_wanted() -> None:
    """Seed 342 of histories with all features: the member ended with an IndexError."""
    member = Joined(FOUR)
    member.let_pass(10)
    for _ in range(4):
        member.machine.counted(5, 0, 0, member.now)
        member.let_pass(10)
    assert sorted(binding.queue for binding in member.machine.bindings.own()) == [0, 1, 2, 3]


def test_a_queue_without_a_consumer_is_consumed_for_a_while() -> None:
    member = Joined(BalancingRules(12))
    for index in range(1, 7):
        member.machine.message(Hello(Identity(index, f"m{index}", f"life-{index}")), member.now)
    member.let_pass(10.0)
    bindings = member.machine.bindings
    missing = next(queue for queue in range(12) if not bindings.is_wanted(queue))
    member.machine.wanted.want(missing, member.now)
    assert bindings.is_wanted(missing)
    member.let_pass(CONSUMED_FOR_S + 1.0)
    assert not bindings.is_wanted(missing)


def test_sixteen_requests_to_consume_are_open_at_the_same_time() -> None:
    member = Joined(BalancingRules(40), answers=False)
    member.let_pass(1.0)
    assert len(member.consumed) == 16
