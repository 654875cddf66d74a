"""Gaps, repeats and inversions that a member claims: each planted one, and nothing that it cannot know."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_core.group.member_state import (
    Hole,
    Identity,
    Positions,
    QueueState,
    Repeats,
    Role,
    SequenceReport,
    Status,
)
from lbg_core.group.members_protocol import Changes, Handover, Hello, Move, QueueReport, Reattached
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.effects import Attach, Post
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.key_order import KEY_MAX_CHARS
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.core.sequence_audit import (
    ESTABLISHED,
    GAP_S,
    HOLES_OF_STREAM_MAX,
    SURE_AFTER_S,
    SequenceAudit,
)
from lbg_sidecar.message import ACK, drop, retry
from testing.exploration import example_count
from testing.member.bare_member import setup_of
from testing.member.world import World
from testing.member.world.key_moves import KeyMover
from testing.member.world.member import HEARTBEAT_S
from testing.member.world.situations import feed, settled

FORMER = Identity(0, "orders-4", "0-1")
THIRD = Identity(2, "third", "2-1")
LATER = 2 * SURE_AFTER_S


class Consumer:
    """A member with index 1 that serves the only queue of its group, beside the former consumer."""

    def __init__(self, now: float = 0.0) -> None:
        self.machine = ExclusiveMember(
            setup_of(BalancingRules(queue_count=1, client_count=2), Rules(concurrency=4))
        )
        self.now = now
        self.tag = 0
        self.connect()

    @property
    def audit(self) -> SequenceAudit:
        audit = self.machine.part(SequenceAudit)
        assert audit is not None
        return audit

    def connect(self) -> None:
        machine = self.machine
        machine.connected(1, self.now)
        assert machine.roster.me is not None
        machine.returned(Hello(machine.roster.me), 0, self.now)
        machine.tick(self.now)
        (self.attachment,) = (one.attachment for one in self.effects() if isinstance(one, Attach))
        machine.attached(self.attachment, self.now)
        self.tag = 0

    def effects(self) -> list[object]:
        effects, self.machine.effects[:] = list(self.machine.effects), []
        return list(effects)

    def deliver(
        self, *numbers: int, key: str | None = "k", publisher: str = "p", redelivered: bool = False
    ) -> None:
        """As one batch; calls begin later."""
        arrivals = []
        for number in numbers:
            self.tag += 1
            arrivals.append(
                InFlight(
                    self.attachment,
                    self.tag,
                    key=key,
                    identity=(publisher, 0, number),
                    hash_=0,
                    redelivered=redelivered,
                )
            )
        self.machine.deliver(self.attachment, arrivals, self.now)

    def work(self) -> list[int]:
        """The numbers of the calls, each of which ends well."""
        called = []
        while (call := self.machine.take(self.now)) is not None:
            assert call.identity is not None
            called.append(call.identity[2])
            self.machine.end(call, ACK, self.now)
        return called

    def later(self, seconds: float = LATER) -> SequenceReport:
        self.now += seconds
        self.machine.tick(self.now)
        self.effects()
        return self.audit.report()

    def take(self, *numbers: int, redelivered: bool = False, **more: str) -> SequenceReport:
        self.deliver(*numbers, redelivered=redelivered, **more)
        self.work()
        return self.later()

    def hear_of_former(self) -> None:
        self.machine.message(Hello(FORMER), self.now)
        self.machine.message(served_by_former(), self.now)

    def announced(self) -> str:
        """The former consumer announces to hand the queue over. Returns the proof of the answer."""
        self.machine.message(Move(FORMER, 0, 1, "m-1"), self.now)
        (answer,) = (
            one.message
            for one in self.effects()
            if isinstance(one, Post) and isinstance(one.message, Reattached)
        )
        return answer.proof


def served_by_former() -> QueueReport:
    return QueueReport(FORMER, (QueueState(0, Role.PRIMARY, active=True, status=Status.READY),))


def test_consecutive_numbers_are_no_gap() -> None:
    report = Consumer().take(*range(20))
    assert report == SequenceReport(streams=1)


def test_a_skipped_number_is_missing_once_it_is_certain_and_no_more_when_it_comes() -> None:
    consumer = Consumer()
    consumer.deliver(0, 1, 3)
    consumer.work()
    assert consumer.later(SURE_AFTER_S / 2).missing == 0
    report = consumer.later()
    assert (report.missing, report.gap_streams, report.missed) == (1, 1, 1)
    assert report.first_missing == "p-0-2"
    assert report.gap_since_us == 0
    report = consumer.take(2)
    assert (report.missing, report.missed, report.late) == (0, 1, 1)
    assert report.out_of_order == 1  # of the same key as 3


def test_a_late_number_of_another_key_is_in_order() -> None:
    consumer = Consumer()
    consumer.take(0, 1, 3)
    report = consumer.take(2, key="other")
    assert (report.missing, report.out_of_order, report.order_unknown) == (0, 0, 0)


def test_a_number_that_comes_soon_was_never_missing() -> None:
    consumer = Consumer()
    consumer.deliver(0, 1, 3)
    consumer.deliver(2, key="other")
    consumer.work()
    assert consumer.later() == SequenceReport(streams=1)


def test_a_stream_that_does_not_begin_with_its_first_number_is_unknown_before_that() -> None:
    report = Consumer().take(5, 6, 7)
    assert (report.missing, report.unknown_streams) == (0, 1)


def test_what_is_known_as_processed_closes_a_gap() -> None:
    consumer = Consumer()
    assert consumer.take(0, 1, 5).missing == 3
    consumer.machine.dispatcher.processed.merge(Positions((("p", 0, ((0, 3),)),)))
    report = consumer.later()
    assert (report.missing, report.late, report.first_missing) == (1, 2, "p-0-4")


def test_a_dead_letter_and_a_retried_message_are_no_gap_and_in_order() -> None:
    consumer = Consumer()
    consumer.deliver(0, 1, 2)
    for verdict in (retry("not now"), drop("no good")):
        call = consumer.machine.take(consumer.now)
        assert call is not None
        consumer.machine.end(call, verdict, consumer.now)
        consumer.later()
    consumer.work()
    assert consumer.later() == SequenceReport(streams=1)


def test_an_inversion_of_a_key_is_counted() -> None:
    consumer = Consumer()
    consumer.deliver(0, 1, 2, 3)
    first, second = (consumer.attachment.ack_window.oldest, consumer.machine.take(consumer.now))
    assert first is second is not None
    one, two = list(consumer.attachment.ack_window.all_unacked())[:2]
    audit = consumer.audit
    for in_flight in (two, one):
        audit.ended(in_flight, ACK, consumer.now)
    report = consumer.later()
    assert (report.out_of_order, report.out_of_order_id) == (1, "p-0-0")


def test_of_a_key_that_was_forgotten_a_lower_number_is_unknown_and_a_higher_one_in_order() -> None:
    consumer = Consumer()
    consumer.audit.order.keys_max = 2
    consumer.take(0, key="a")
    consumer.take(2, key="b")
    assert consumer.take(4, key="c").missing == 2  # a is forgotten, and 0 was its last
    consumer.take(5, key="d")  # b is, and 2 was
    report = consumer.take(1, key="b")
    assert (report.order_unknown, report.out_of_order, report.late) == (1, 0, 1)
    report = consumer.take(6, key="a")
    assert (report.order_unknown, report.out_of_order) == (1, 0)


def test_streams_are_bounded_and_the_one_idle_for_longest_is_forgotten() -> None:
    consumer = Consumer()
    consumer.audit.streams_max = 2
    for publisher, number in (("p", 0), ("q", 0), ("p", 1), ("r", 0)):
        consumer.take(number, publisher=publisher)
    assert consumer.later().streams == 2
    assert consumer.take(2, publisher="p").unknown_streams == 0
    assert consumer.take(2, publisher="q").unknown_streams == 1


# Takeovers


def test_after_a_crash_what_the_former_consumer_had_is_unknown_and_what_it_held_is_again() -> None:
    consumer = Consumer()
    consumer.hear_of_former()
    consumer.deliver(5, 8, redelivered=True)
    consumer.deliver(10, 11)
    consumer.work()
    report = consumer.later()
    assert (report.missing, report.unknown_streams) == (0, 1)
    assert report.repeats == (Repeats("orders-4", 0, 2),)
    assert report.repeated == 2


def test_some_numbers_after_a_crash_a_skipped_one_is_missing_again() -> None:
    consumer = Consumer()
    consumer.hear_of_former()
    consumer.take(5, redelivered=True)
    consumer.take(*range(6, 6 + ESTABLISHED))
    report = consumer.take(8 + ESTABLISHED)
    assert (report.missing, report.unknown_streams) == (2, 1)


def taken_with(
    handover_numbers: Iterable[int], *, is_clean: bool = True, holes: tuple[Hole, ...] = (), now: float = 0.0
) -> Consumer:
    """The former consumer hands the queue over, and processed these numbers."""
    consumer = Consumer(now)
    consumer.hear_of_former()
    proof = consumer.announced()
    runs = tuple((number, number) for number in handover_numbers)
    positions = Positions((("p", 0, runs),))
    handover = Handover(
        FORMER, 0, "m-1", positions, 0.0, proof=proof, is_clean=is_clean, has_holes=True, holes=holes
    )
    consumer.machine.message(handover, consumer.now)
    return consumer


def test_after_a_handover_with_positions_the_next_number_continues_the_stream() -> None:
    consumer = taken_with(range(5))
    consumer.deliver(5, redelivered=True)  # it had been delivered, and did not begin
    report = consumer.take(6, 7)
    assert report == SequenceReport(streams=1)


def test_after_a_handover_with_positions_a_skipped_number_is_missing() -> None:
    report = taken_with(range(5)).take(7)
    assert (report.missing, report.unknown_streams, report.first_missing) == (2, 0, "p-0-5")


def test_after_a_handover_that_was_not_clean_a_skipped_number_is_unknown() -> None:
    report = taken_with(range(5), is_clean=False).take(7)
    assert (report.missing, report.unknown_streams) == (0, 1)


def test_a_former_consumer_that_reports_a_stream_without_numbers_does_no_harm() -> None:
    consumer = taken_with(())
    assert consumer.take(0, 1, 2).missing == 0


def test_a_gap_that_is_older_than_a_day_is_overdue_until_the_number_comes() -> None:
    consumer = Consumer()
    consumer.take(0, 1)
    begun_us = int(consumer.now * 1e6)
    consumer.take(3)
    report = consumer.later(GAP_S)
    assert (report.missing, report.unknown_streams, report.missed) == (0, 0, 1)
    assert (report.overdue, report.overdue_since_us) == (1, begun_us)
    report = consumer.take(5)
    assert (report.missing, report.overdue) == (1, 1)
    report = consumer.take(2)
    assert (report.missing, report.overdue, report.late) == (1, 0, 1)


def test_an_overdue_gap_goes_with_its_queue() -> None:
    gap = Hole("p", 0, 3, 3, 0, is_gap=True)
    consumer = taken_with((0, 1, 2, 4), holes=(gap,), now=2 * GAP_S)
    report = consumer.take(5)
    assert (report.missing, report.overdue, report.overdue_since_us) == (0, 1, 0)


def test_a_forgotten_stream_with_holes_is_unknown() -> None:
    consumer = Consumer()
    consumer.audit.streams_max = 1
    assert consumer.take(0, 1, 3).missing == 1
    before_us = int(consumer.now * 1e6)
    report = consumer.take(0, publisher="q")
    assert (report.missing, report.unknown_streams, report.unknown_before_us) == (0, 1, before_us)


def test_the_order_of_very_long_keys_is_unknown() -> None:
    consumer = Consumer()
    report = consumer.take(0, 1, key="k" * (KEY_MAX_CHARS + 1))
    assert (report.out_of_order, report.order_unknown) == (0, 2)


def test_of_very_many_holes_the_lowest_are_one_of_which_nothing_is_claimed() -> None:
    consumer = Consumer()
    for number in range(0, 8 * HOLES_OF_STREAM_MAX, 2):
        consumer.deliver(number)
    consumer.work()
    report = consumer.later()
    assert (report.missing, report.unknown_streams) == (HOLES_OF_STREAM_MAX - 1, 1)


def test_a_gap_goes_with_its_queue() -> None:
    gap = Hole("p", 0, 3, 3, 0, is_gap=True)
    consumer = taken_with((0, 1, 2, 4), holes=(gap,))
    report = consumer.take(5)
    assert (report.missing, report.missed, report.first_missing) == (1, 0, "p-0-3")
    assert consumer.audit.handover_fields(consumer.attachment) == {
        "is_clean": True,
        "has_holes": True,
        "holes": (gap,),
    }


def test_a_former_consumer_that_is_heard_again_makes_what_is_skipped_unknown() -> None:
    consumer = Consumer()
    consumer.take(*range(ESTABLISHED))
    consumer.hear_of_former()
    report = consumer.take(ESTABLISHED + 3)
    assert (report.missing, report.unknown_streams) == (0, 1)


def test_a_member_that_is_gone_may_have_served_unheard() -> None:
    consumer = Consumer()
    consumer.machine.message(Hello(FORMER), consumer.now)
    consumer.take(*range(ESTABLISHED))
    consumer.machine.message(Changes(THIRD, lost=(FORMER,)), consumer.now)
    report = consumer.take(ESTABLISHED + 1)
    assert (report.missing, report.unknown_streams) == (0, 1)
    consumer.take(ESTABLISHED + 2)


def test_a_connection_that_was_lost_makes_an_open_gap_unknown() -> None:
    consumer = Consumer()
    assert consumer.take(0, 1, 3).missing == 1
    consumer.machine.disconnected(consumer.now)
    consumer.machine.closed(consumer.attachment, consumer.now)
    consumer.connect()
    report = consumer.take(4)
    assert report.missing == 0


# In the world


def removed(world: World, queue: int) -> int:
    """Takes a message that waits out of the queue, behind the back of the members. Returns its number."""
    item = world.queues[queue].ready[2]
    world.queues[queue].ready.remove(item)
    world.finished[item.identity] += 1
    return item.seq


def test_a_message_removed_from_a_queue_is_exactly_what_is_claimed() -> None:
    world, members = settled(2, queue_count=2, hash_count=2)
    world.is_planted = True
    for member in members:
        world.service_s[member.name] = 0.5  # so that messages wait in the queues
    feed(world, 4)
    number = removed(world, 1)
    world.service_s.clear()
    feed(world, 4)
    world.run(LATER)
    reports = {member.name: member.machine.part(SequenceAudit) for member in members}
    claims = [(one.missed, one.report().first_missing) for one in reports.values() if one is not None]
    assert sorted(claims) == [(0, ""), (1, f"p-1-{number}")]
    assert sum(one.report().missing for one in reports.values() if one is not None) == 1


def test_keys_that_move_between_queues_are_claimed_by_nobody() -> None:
    world, _ = settled(2, queue_count=2, hash_count=8)
    mover = KeyMover(world)
    mover.start(3)
    feed(world, 12)
    world.run(LATER)
    assert not world.violations
    assert world.queue_count == 3
    assert world.claims == {}


def test_calls_that_ran_while_a_process_stood_still_are_counted() -> None:
    world, (member,) = settled(1, queue_count=2, hash_count=2)
    world.service_s[member.name] = 5.0
    feed(world, 0.5)
    running = len(member.calls)
    world.stall(member, 2 * HEARTBEAT_S)
    world.run(3 * HEARTBEAT_S)
    assert member.machine.dispatcher.counts.during_standstill == running > 0


# Histories


@settings(max_examples=example_count(200))
@given(
    removed_numbers=st.sets(st.integers(0, 39), max_size=6),
    late=st.booleans(),
    batch=st.integers(1, 7),
)
def test_of_any_stream_that_begins_here_exactly_the_numbers_that_never_come_are_missing(
    removed_numbers: set[int], late: bool, batch: int
) -> None:
    consumer = Consumer()
    delivered: set[int] = set()
    numbers = [number for number in range(40) if number not in removed_numbers]
    for first in range(0, len(numbers), batch):
        part = numbers[first : first + batch]
        consumer.take(*part, key=None)
        delivered |= set(part)
    highest = max(delivered)
    if late:
        for number in sorted(removed_numbers):
            if number < highest:
                consumer.take(number, key=None)
                delivered.add(number)
    expected = set(range(highest + 1)) - delivered
    report = consumer.later()
    if 0 in removed_numbers:  # it does not begin here
        assert report.missing <= len(expected)
        assert report.missing or report.unknown_streams or not expected
    else:
        assert report.missing == len(expected)
    assert report.out_of_order == 0
