"""First deliveries of an announced queue at its successor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lbg_core.group.member_state import Identity, Positions, QueueState, Role, Status
from lbg_core.group.members_protocol import (
    Changes,
    Handover,
    Hello,
    Leave,
    Move,
    Ping,
    QueueReport,
    Reattached,
    Takeover,
)
from lbg_sidecar.core.binding import Phase
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.effects import Attach, CallFailed, Detach, Failure, Post
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.handoff import REATTACH_AFTER_S
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.message import ACK, INTERRUPTED
from testing.member.bare_member import setup_of

MOVER = Identity(0, "mover", "0-1")
DONE = Positions((("p", 0, ((0, 1),)),))
MAX_HANDOFF_S = BalancingRules(queue_count=1).max_handoff_s


def machine_of(queue_count: int) -> ExclusiveMember:
    """Joined as index 1; there is nobody else."""
    balancing = BalancingRules(queue_count=queue_count, client_count=2)
    machine = ExclusiveMember(setup_of(balancing, Rules(concurrency=4)))
    join_alone(machine, 0.0)
    return machine


def join_alone(machine: ExclusiveMember, now: float) -> None:
    """As index 1, while index 0 is free: its hello comes back."""
    machine.connected(1, now)
    assert machine.roster.me is not None
    machine.returned(Hello(machine.roster.me), 0, now)
    machine.tick(now)


def report(*queues: int, is_active: bool = True) -> QueueReport:
    """Of the mover, that it serves these queues."""
    status = Status.READY if is_active else Status.UNASSIGNED
    return QueueReport(
        MOVER,
        tuple(QueueState(queue, role=Role.SECONDARY, active=is_active, status=status) for queue in queues),
    )


def proof_in(effects: list[object]) -> str:
    """Proof in the answer to the mover."""
    (answer,) = (
        effect.message
        for effect in effects
        if isinstance(effect, Post) and isinstance(effect.message, Reattached)
    )
    return answer.proof


class Successor:
    """A member with index 1 and one queue, beside the mover, from the announcement on. `is_reported`: the mover has
    reported before that it serves the queue."""

    def __init__(self, *, is_reported: bool = True) -> None:
        self.machine = machine_of(1)
        self.machine.message(Hello(MOVER), 0.0)
        (self.attachment,) = (effect.attachment for effect in self.run() if isinstance(effect, Attach))
        self.machine.attached(self.attachment, 0.1)
        if is_reported:
            self.machine.message(report(0), 0.9)
        self.announce(Move(MOVER, 0, 1, "m-1"), 1.0)

    def announce(self, move: Move, now: float) -> None:
        self.machine.message(move, now)
        self.proof = proof_in(self.run())

    def run(self) -> list[object]:
        effects, self.machine.effects[:] = list(self.machine.effects), []
        return list(effects)

    def deliver(self, *seqs: int, now: float) -> None:
        first = self.attachment.delivered + 1
        self.machine.deliver(self.attachment, held(self.attachment, first, seqs), now)

    def hand_over(self, now: float, move: str = "m-1") -> None:
        self.machine.message(Handover(MOVER, 0, move, DONE, 0.002, proof=self.proof), now)

    def taken(self, now: float) -> list[int]:
        """The sequence numbers of the calls that may be made now; each ends well."""
        seqs = []
        while (call := self.machine.take(now)) is not None:
            assert call.identity is not None
            seqs.append(call.identity[2])
            self.machine.end(call, ACK, now)
        return seqs


def held(attachment: Attachment, first: int, seqs: tuple[int, ...]) -> list[InFlight]:
    return [
        InFlight(attachment, tag, key="k", identity=("p", 0, seq))
        for tag, seq in enumerate(seqs, start=first)
    ]


def taken_over(effects: list[object]) -> Takeover:
    (event,) = (effect for effect in effects if isinstance(effect, Takeover))
    return event


@pytest.mark.parametrize(("redelivered", "why"), [(True, "lost"), (False, "unserved")])
def test_who_served_a_queue_and_was_gone_before_it_was_heard_of_has_lost_it(
    redelivered: bool, why: str
) -> None:
    machine = machine_of(1)
    (attachment,) = (effect.attachment for effect in machine.effects if isinstance(effect, Attach))
    machine.attached(attachment, 0.1)
    arrivals = held(attachment, 1, (1, 2))
    arrivals[0].redelivered = redelivered
    machine.deliver(attachment, arrivals, 0.2)
    event = taken_over(machine.effects)
    assert (event.former, event.why, event.planned) == (None, why, False)


def test_first_deliveries_wait_for_a_handover_that_is_late_and_a_second_copy_is_known() -> None:
    member = Successor()
    member.deliver(1, 2, now=1.01)  # the publisher sent 1 twice; the mover processed it
    assert member.taken(1.01) == []
    assert not [effect for effect in member.run() if isinstance(effect, Takeover)]
    member.hand_over(1.02)
    assert member.taken(1.02) == [2]
    event = taken_over(member.run())
    assert event.former == 0
    assert event.planned
    assert event.pause_s is not None
    assert abs(event.pause_s - 0.012) < 1e-9


@pytest.mark.parametrize(
    "handover",
    [
        Handover(MOVER, 0, "m-2", DONE, 0.002),
        Handover(Identity(2, "third", "2-1"), 0, "m-1", DONE, 0.002),
    ],
    ids=["of another move", "of another member"],
)
def test_a_handover_that_nobody_announced_is_not_believed(handover: Handover) -> None:
    member = Successor()
    member.deliver(1, 2, now=1.01)
    member.machine.message(replace(handover, proof=member.proof), 1.02)
    assert member.taken(1.02) == []
    member.machine.message(Changes(Identity(2, "third", "2-1"), lost=(MOVER,)), 1.03)
    assert member.taken(1.03) == [1, 2]


def test_a_handover_of_a_sender_that_did_not_receive_the_answer_settles_nothing() -> None:
    member = Successor()
    member.proof = "guessed"
    member.deliver(1, 2, now=1.01)
    member.hand_over(1.02)
    assert member.taken(1.02) == [1, 2]


@pytest.mark.parametrize("has_reported", [False, True], ids=["nothing", "that it does not serve it"])
def test_a_live_member_that_has_not_reported_to_serve_the_queue_settles_nothing(has_reported: bool) -> None:
    member = Successor(is_reported=False)
    if has_reported:
        member.machine.message(report(0, is_active=False), 0.9)
        member.announce(Move(MOVER, 0, 1, "m-1"), 1.0)
    assert member.proof == ""
    member.deliver(1, 2, now=1.01)
    member.hand_over(1.02)
    assert member.taken(1.02) == [1, 2]


def test_nobody_hands_over_what_this_member_serves() -> None:
    member = Successor(is_reported=False)
    member.deliver(0, now=1.01)
    assert member.taken(1.01) == [0]
    member.machine.message(report(0), 1.02)
    member.announce(Move(MOVER, 0, 1, "m-2"), 1.03)
    member.hand_over(1.04, move="m-2")
    member.deliver(1, 2, now=1.05)
    assert member.taken(1.05) == [1, 2]


def test_a_handover_is_believed_about_its_own_queue_only() -> None:
    member = machine_of(2)
    member.message(Hello(MOVER), 0.0)
    (attachment,) = (
        effect.attachment
        for effect in member.effects
        if isinstance(effect, Attach) and effect.attachment.queue == 0
    )
    member.attached(attachment, 0.1)
    member.message(report(0, 1), 0.9)
    member.effects.clear()
    member.message(Move(MOVER, 0, 1, "m-1"), 1.0)
    positions = Positions((("p", 4, ((0, 1),)), ("p", 5, ((0, 1),))), (("p", 5, 2, 4),))
    proof = proof_in(list(member.effects))
    member.message(Handover(MOVER, 0, "m-1", positions, 0.002, proof=proof), 1.1)
    processed = member.dispatcher.processed
    assert ("p", 4, 0) in processed
    assert ("p", 5, 0) not in processed
    assert processed.attempts(("p", 5, 2)) == 0


def test_a_handover_that_comes_after_the_wait_is_believed() -> None:
    member = Successor()
    member.deliver(1, 2, now=1.01)
    late = 1.01 + MAX_HANDOFF_S + 0.01
    member.machine.tick(late)
    member.hand_over(late)
    assert member.taken(late) == [2]


def test_first_deliveries_behind_the_handover_start_at_once() -> None:
    member = Successor()
    member.hand_over(1.01)
    member.deliver(1, 2, now=1.013)
    assert member.taken(1.013) == [2]
    pause_s = taken_over(member.run()).pause_s
    assert pause_s is not None
    assert abs(pause_s - 0.005) < 1e-9


def test_how_long_a_queue_stood_still_is_not_known_when_nothing_waited_in_it() -> None:
    member = Successor()
    member.machine.message(Handover(MOVER, 0, "m-1", DONE, 0.002, waiting=False, proof=member.proof), 1.01)
    member.deliver(2, now=60.0)
    assert member.taken(60.0) == [2]
    event = taken_over(member.run())
    assert (event.former, event.planned, event.pause_s) == (0, True, None)


@pytest.mark.parametrize("is_known", [True, False])
def test_the_handover_of_a_member_that_leaves_is_waited_for_whoever_else_comes_and_goes(
    is_known: bool,
) -> None:
    """A newcomer found in the code that the leave may come behind the move, by way of the coordinator."""
    member = Successor()
    if is_known:
        member.machine.message(Leave(MOVER), 1.0)
    member.announce(Move(MOVER, 0, 1, "m-2", "leave"), 1.0)
    member.machine.message(Leave(MOVER), 1.0)
    member.deliver(1, 2, now=1.01)
    member.machine.message(Hello(Identity(2, "another", "2-1")), 1.02)
    assert member.taken(1.02) == []
    member.hand_over(1.03, move="m-2")
    assert member.taken(1.03) == [2]


def test_a_handover_that_never_comes_is_waited_for_no_longer_than_a_handoff_may_take() -> None:
    member = Successor()
    member.deliver(2, 3, now=1.01)
    member.machine.tick(1.0 + MAX_HANDOFF_S)
    assert member.taken(1.0 + MAX_HANDOFF_S) == []
    assert member.machine.takeovers.next_due(1.01) <= 1.01 + MAX_HANDOFF_S
    member.machine.tick(1.01 + MAX_HANDOFF_S)
    assert member.taken(1.01 + MAX_HANDOFF_S) == [2, 3]
    assert taken_over(member.run()).pause_s is None


def test_a_mover_that_is_waited_for_is_looked_at_at_once() -> None:
    member = Successor()
    member.deliver(2, now=1.01)
    (ping,) = (
        effect for effect in member.run() if isinstance(effect, Post) and isinstance(effect.message, Ping)
    )
    assert ping.to == 0
    member.machine.returned(ping.message, 0, 1.012)  # it has no mailbox any more
    assert member.taken(1.012) == [2]


def test_a_move_that_was_given_up_long_ago_holds_nothing_up() -> None:
    member = Successor()
    member.machine.tick(10.0)
    member.deliver(2, now=10.0)
    assert member.taken(10.0) == [2]
    assert not taken_over(member.run()).planned


def test_a_queue_that_is_given_on_while_it_waits_stays_frozen() -> None:
    member = Successor()
    member.deliver(2, 3, now=1.01)
    binding = member.machine.bindings.all[0]
    member.machine.handoffs.start(binding, None, "leave", 1.02)  # nothing runs: it goes at once
    assert binding.attachment is not None
    assert binding.attachment.closed
    member.hand_over(1.03)
    assert member.taken(1.03) == []


def test_who_makes_way_for_a_successor_attaches_again_when_the_move_is_over() -> None:
    member = Successor()
    member.machine.message(Move(MOVER, 0, 2, "m-2"), 2.0)
    (detach,) = (effect for effect in member.run() if isinstance(effect, Detach))
    member.machine.closed(detach.attachment, 2.0)
    for now, attaches in ((1.99 + REATTACH_AFTER_S, 0), (2.01 + REATTACH_AFTER_S, 1)):
        member.machine.tick(now)
        assert sum(isinstance(effect, Attach) for effect in member.run()) == attaches


@pytest.mark.parametrize("is_moving", [False, True])
def test_who_is_replaced_without_its_knowledge_closes_unless_it_hands_the_queue_over(is_moving: bool) -> None:
    member = Successor(is_reported=False)
    member.deliver(1, now=1.1)
    assert member.machine.take(1.1) is not None
    binding = member.machine.bindings.all[0]
    if is_moving:
        member.machine.handoffs.start(binding, None, "leave", 1.2)
    for delivered, now in ((1, 1.3), (2, 3.0)):
        state = QueueState(0, role=Role.SECONDARY, active=True, status=Status.READY, delivered=delivered)
        member.machine.message(QueueReport(MOVER, (state,)), now)
    assert (binding.phase is Phase.DETACHING) is not is_moving


def test_a_lost_connection_forgets_what_was_announced() -> None:
    member = Successor()
    member.machine.disconnected(1.005)
    member.run()
    join_alone(member.machine, 1.01)
    (attachment,) = (effect.attachment for effect in member.run() if isinstance(effect, Attach))
    member.machine.deliver(attachment, held(attachment, 1, (2,)), 1.02)
    assert member.taken(1.02) == [2]


def test_a_call_without_a_verdict_is_reported_at_half_of_its_limit_and_when_it_is_aborted() -> None:
    successor = Successor()
    successor.hand_over(1.0)
    successor.deliver(2, now=1.0)
    call = successor.machine.take(1.0)
    assert call is not None
    reports: list[tuple[float, Failure, float]] = []
    for now in (15.9, 16.0, 20.0, 30.9, 31.0, 31.1):
        successor.machine.tick(now)
        if now == 31.0:
            successor.machine.end(call, INTERRUPTED, now)
        effects = successor.run()
        reports += [(now, one.kind, one.seconds) for one in effects if isinstance(one, CallFailed)]
    assert reports == [(16.0, Failure.SLOW, 15.0), (31.0, Failure.TIMED_OUT, 30.0)]
