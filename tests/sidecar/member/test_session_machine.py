"""A member with a session: where it asks the broker to go on, what it keeps, and how the session ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings

from lbg_core.group import Engine, GroupSpec
from lbg_sidecar import MemberSettings
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.effects import (
    Ack,
    Attach,
    Detach,
    Fail,
    Refuse,
    Republish,
    RequestPosition,
    SessionForgotten,
    SessionInUse,
    StoodDown,
)
from lbg_sidecar.core.session import Session, SessionPosition
from lbg_sidecar.io.startup import Group, machine_of
from lbg_sidecar.message import ACK, INTERRUPTED, Verdict, drop, retry
from testing.exploration import example_count
from testing.member.native_member import NativeMember


def with_session(committed: int | None = None, **rules: object) -> tuple[NativeMember, list[int]]:
    """A member, and what its file was told."""
    position = SessionPosition("s")
    position.committed = committed
    kept: list[int] = []
    position.write = lambda committed, *, epoch=None, is_over=False: kept.append(committed)
    return NativeMember(session=position, **rules), kept


def asked(member: NativeMember) -> dict[str, object]:
    (attach,) = member.took(Attach)
    return dict(attach.arguments)


def test_it_asks_for_its_session_where_it_is() -> None:
    for committed, arguments in (
        (None, {}),
        (0, {"x-session-committed": 0}),
        (7, {"x-session-committed": 7}),
    ):
        member, _ = with_session(committed)
        member.machine.connected(0, 0.0)
        assert asked(member) == {"x-session": "s", **arguments}


def test_a_number_of_another_epoch_is_no_repeat_and_is_kept_with_its_epoch() -> None:
    position = SessionPosition("s")
    position.committed, position.epoch = 7, "before"
    kept: list[tuple[int, str | None]] = []
    position.write = lambda committed, *, epoch=None, is_over=False: kept.append((committed, epoch))
    member = NativeMember(session=position)
    member.machine.connected(0, 0.0)
    assert asked(member) == {"x-session": "s", "x-session-committed": 7, "x-session-epoch": "before"}
    held = InFlight(Attachment(0, 1), 1)
    for sequence, epoch, is_covered in ((7, "before", True), (8, "before", False), (3, "restored", False)):
        held.sequence, held.epoch = sequence, epoch
        assert position.covers(held) is is_covered
    position.done(held)
    held.sequence = 4
    position.done(held)
    assert kept == [(3, "restored"), (4, "restored")]
    assert (position.committed, position.epoch) == (4, "restored")


def test_what_the_application_says_counts_beside_what_it_did_since_in_the_same_epoch() -> None:
    position = SessionPosition("s")
    position.report(5, "e")
    assert (position.committed, position.epoch) == (5, "e")
    position.report(4, "e")
    assert (position.committed, position.epoch) == (5, "e")
    position.report(6, "e")
    assert (position.committed, position.epoch) == (6, "e")
    position.report(2, "where another consumer went on")
    assert (position.committed, position.epoch) == (2, "where another consumer went on")


def test_one_message_after_another_whatever_their_keys() -> None:
    member, kept = with_session()
    attachment = member.join()
    member.deliver(attachment, ("a", 1, 0), ("b", 2, 0), sequence=1)
    (first,) = member.take_all()
    assert (first.sequence, kept) == (1, [])
    member.machine.end(first, ACK, 1.0)
    assert kept == [1], "it is kept before anything can be acknowledged"
    assert not member.took(Ack)
    assert [held.sequence for held in member.take_all()] == [2]


def test_a_message_that_fails_holds_the_position_and_one_that_is_refused_does_not() -> None:
    member, kept = with_session()
    attachment = member.join()
    member.deliver(attachment, 0, 1, sequence=1)
    (first,) = member.take_all()
    member.machine.end(first, retry("no", after_s=1), 1.0)
    assert not member.take_all(1.5)
    member.machine.tick(2.5)
    (again,) = member.take_all(2.5)
    assert again is first
    member.machine.end(again, drop("never"), 2.6)
    assert kept == []
    member.machine.confirmed(again, 2.7)
    assert kept == [1]
    assert [held.sequence for held in member.take_all(2.8)] == [2]


def test_a_dead_letter_is_refused_in_its_place() -> None:
    for last, effects in ((ACK, [Ack, Refuse, Ack]), (drop("never"), [Ack, Refuse, Refuse])):
        for leaves in (False, True):
            member, _ = with_session()
            attachment = member.join()
            member.deliver(attachment, 0, 1, 2, sequence=1)
            for verdict in (ACK, drop("never"), last):
                (held,) = member.take_all(1.0)
                member.machine.end(held, verdict, 1.0)
                if verdict is not ACK:
                    member.machine.confirmed(held, 1.0)
            if leaves:
                member.machine.stop("SIGTERM", 1.0)
            else:
                member.machine.flush(1.0)
            member.run()
            found = [one for one in member.told if isinstance(one, Ack | Refuse | Detach)]
            tags = [one.ack_tag if isinstance(one, Detach) else one.tag for one in found]
            if leaves:
                assert found.pop() == Detach(attachment, tags[2] if last is ACK else None)
            assert [type(one) for one in found] == effects[: len(found)]
            assert tags == [1, 2, 3] + [None] * (leaves and last is not ACK)


def test_a_copy_of_a_processed_message_is_refused_as_the_application_is_not_called_with_its_number() -> None:
    member, _ = with_session()
    attachment = member.join()
    member.deliver(attachment, 7, 7, sequence=1)
    (held,) = member.take_all(1.0)
    member.machine.end(held, ACK, 1.0)
    assert not member.take_all(1.0)
    member.machine.flush(1.0)
    member.run()
    assert [one for one in member.told if isinstance(one, Ack | Refuse)] == [
        Ack(attachment, 1),
        Refuse(attachment, 2),
    ]


def test_it_comes_back_after_what_the_application_has_done() -> None:
    member, _ = with_session()
    attachment = member.join()
    member.deliver(attachment, 0, 1, sequence=1)
    (first,) = member.take_all()
    member.machine.end(first, ACK, 1.0)
    member.machine.disconnected(1.1)
    member.machine.connected(0, 2.0)
    assert asked(member)["x-session-committed"] == 1


def test_what_ends_after_its_connection_is_committed_all_the_same() -> None:
    member, kept = with_session()
    attachment = member.join()
    member.deliver(attachment, 0, sequence=1)
    (first,) = member.take_all()
    member.machine.disconnected(1.0)
    again = member.join(1.5)
    member.deliver(again, 0, now=1.5, sequence=1)
    member.machine.end(first, ACK, 2.0)
    assert kept == [1]
    assert not member.take_all(2.1), "it comes again, and is not given again"
    member.machine.flush(2.2)
    assert [ack.tag for ack in member.took(Ack)] == [1]


def test_what_is_republished_is_kept_when_it_is_confirmed() -> None:
    member, kept = with_session(republish=True)
    attachment = member.join()
    member.deliver(attachment, 0, 1, sequence=1)
    for _ in range(2):
        (held,) = member.take_all()
        member.machine.end(held, ACK, 1.0)
    first, second = (effect.in_flight for effect in member.took(Republish))
    member.machine.confirmed(second, 1.1)
    assert kept == [], "the first is not confirmed, and the position is one number"
    member.machine.confirmed(first, 1.2)
    assert kept == [2]


def test_the_word_of_the_application_counts_and_nothing_is_written_then() -> None:
    member, kept = with_session(committed=9)
    assert member.machine.part(Session).position is not None
    member.machine.part(Session).position.report(5)
    attachment = member.join()
    member.deliver(attachment, 5, sequence=6)
    (held,) = member.take_all()
    member.machine.end(held, ACK, 1.0)
    assert kept == []
    assert member.machine.describe(1.0)["session"] == {
        "name": "s",
        "committed": 6,
        "kept_by": "application",
        "ended": False,
        "taken": False,
    }


def test_an_application_that_comes_back_may_have_committed_what_it_did_not_answer() -> None:
    member, _ = with_session()
    assert member.machine.part(Session).position is not None
    member.machine.part(Session).position.report(0)
    attachment = member.join()
    member.deliver(attachment, 0, 1, sequence=1)
    (first,) = member.take_all()
    member.machine.end(first, INTERRUPTED, 1.0)  # it died
    member.machine.part(Session).position.report(1)
    assert [held.sequence for held in member.take_all(1.1)] == [2]


def test_an_application_that_knows_less_than_it_acknowledged_is_not_believed() -> None:
    position = SessionPosition("s")
    position.report(10)
    position.report(3)
    assert position.committed == 10


def test_a_taken_session_is_waited_for_and_told_of_once() -> None:
    member, _ = with_session(committed=3)
    now = 0.0
    member.machine.connected(0, now)
    for _ in range(5):
        (attach,) = member.took(Attach)
        assert member.machine.refused(attach.attachment, 405, "session 's' has a consumer")
        member.machine.closed(attach.attachment, now)
        now += 11
        member.machine.tick(now)
    assert len(member.took(SessionInUse)) == 1
    assert asked(member)["x-session-committed"] == 3


def test_an_application_is_asked_again_before_a_taken_session_is_tried_again() -> None:
    member, _ = with_session()
    assert member.machine.part(Session).position is not None
    member.machine.part(Session).position.report(3)
    member.machine.connected(0, 0.0)
    (attach,) = member.took(Attach)
    member.machine.refused(attach.attachment, 405, "taken")
    member.machine.closed(attach.attachment, 0.0)
    member.machine.tick(0.9)
    assert not member.took(Attach)
    assert not member.took(RequestPosition)
    member.machine.tick(1.1)
    assert member.took(RequestPosition)
    member.machine.stand_down("it is asked", 1.1)
    assert member.took(StoodDown)
    member.machine.disconnected(1.2)
    member.machine.part(Session).position.report(12)
    member.machine.connected(0, 2.0)
    assert asked(member)["x-session-committed"] == 12


def test_an_application_is_asked_again_after_a_lost_connection() -> None:
    member, _ = with_session()
    assert member.machine.part(Session).position is not None
    member.machine.part(Session).position.report(3)
    member.join()
    member.machine.disconnected(1.0)
    assert member.took(RequestPosition)
    member.machine.stop("SIGTERM", 1.1)
    member.machine.disconnected(1.2)
    assert not member.took(RequestPosition)


def test_a_file_that_the_broker_disagrees_with_is_given_up_with_a_word() -> None:
    member, kept = with_session(committed=345)
    member.machine.connected(0, 0.0)
    (attach,) = member.took(Attach)
    assert member.machine.refused(attach.attachment, 406, "committed 345 is beyond 12")
    member.machine.closed(attach.attachment, 0.0)
    (told,) = member.took(SessionForgotten)
    assert (told.committed, told.why) == (345, "committed 345 is beyond 12")
    member.machine.tick(1.0)
    (attach,) = member.took(Attach)
    assert dict(attach.arguments) == {"x-session": "s"}
    member.machine.attached(attach.attachment, 1.0)
    member.deliver(attach.attachment, 12, now=1.0, sequence=13)
    (held,) = member.take_all(1.1)
    member.machine.end(held, ACK, 1.2)
    assert kept == [13]


def test_an_application_that_the_broker_disagrees_with_ends_the_member() -> None:
    member, _ = with_session()
    assert member.machine.part(Session).position is not None
    member.machine.part(Session).position.report(345)
    member.machine.connected(0, 0.0)
    (attach,) = member.took(Attach)
    assert member.machine.refused(attach.attachment, 406, "committed 345 is beyond 12")
    (fail,) = member.took(Fail)
    assert "345" in str(fail.error)
    assert "beyond 12" in str(fail.error)
    assert "\n" not in str(fail.error)


def test_it_keeps_its_place_when_the_group_changed_while_the_connection_was_gone() -> None:
    member, kept = with_session()
    attachment = member.join()
    member.deliver(attachment, 0, sequence=1)
    (held,) = member.take_all()
    member.machine.disconnected(0.5)
    spec = GroupSpec(
        "g", "g", hash_count=24, queue_count=1, queue_size_mb=1, client_username="g", mode="Sessions"
    )
    machine = machine_of(
        MemberSettings(broker="amqp://localhost", group="g", name="s"),
        Group(spec, Engine("LBG", (0, 1, 0))),
        concurrency=1,
        chance=Random(0),
        former=member.machine,
    )
    machine.end(held, ACK, 1.0)
    assert kept == [1]
    machine.connected(0, 2.0)
    (attach,) = (effect for effect in machine.effects if isinstance(effect, Attach))
    assert attach.arguments["x-session-committed"] == 1


def test_another_refusal_is_nobody_s_in_particular() -> None:
    member, _ = with_session()
    member.machine.connected(0, 0.0)
    (attach,) = member.took(Attach)
    assert not member.machine.refused(attach.attachment, 406, "x-session must be text")
    assert not member.machine.refused(attach.attachment, 404, "no queue")


@dataclass
class Table:
    """An application's database. `rows` is what was inserted, `committed` is written with each row when `together`; a
    file, of its own, comes a moment later."""

    together: bool
    rows: list[int] = field(default_factory=list)
    committed: int = 0
    file: int | None = None


class SessionWorld:
    """One session's line at a broker, and one member after another that serves it."""

    def __init__(self, together: bool) -> None:
        self.table = Table(together)
        self.last = 0  # the last number that the broker has given out
        self.acknowledged = 0
        self.kills = 0
        self.now = 0.0
        self.start()

    def start(self) -> None:
        position = SessionPosition("s")
        if self.table.together:
            position.report(self.table.committed)
        else:
            position.committed = self.table.file
            position.write = self._keep
        self.member = NativeMember(session=position)
        self.running: InFlight | None = None
        self.connect()

    def _keep(self, committed: int, *, epoch: str | None = None, is_over: bool = False) -> None:
        self.table.file = committed

    def connect(self) -> None:
        self.now += 1
        self.member.machine.connected(0, self.now)
        (attach,) = self.member.took(Attach)
        told = attach.arguments.get("x-session-committed")
        assert told is None or self.acknowledged <= int(told) <= self.last, "the broker would refuse it"
        self.acknowledged = self.acknowledged if told is None else int(told)
        self.attachment = attach.attachment
        self.member.machine.attached(self.attachment, self.now)
        self.given = self.acknowledged
        self.give()

    def give(self) -> None:
        while self.given < self.last:
            self.given += 1
            self.member.deliver(self.attachment, self.given, now=self.now, sequence=self.given)

    def publish(self) -> None:
        self.last += 1
        self.give()

    def call(self) -> None:
        if self.running is None:
            self.running = self.member.machine.take(self.now)

    def write(self, *, answers: bool) -> None:
        """The application inserts its row, and may die before it says so."""
        held, self.running = self.running, None
        if held is None:
            return
        assert held.sequence is not None
        self.table.rows.append(held.sequence)
        if self.table.together:
            self.table.committed = held.sequence
        if answers:
            self.answer(held, ACK)
        else:
            self.kill()

    def answer(self, held: InFlight, verdict: Verdict) -> None:
        self.now += 0.01
        self.member.machine.end(held, verdict, self.now)
        self.member.machine.flush(self.now)
        for ack in self.member.took(Ack):
            if not ack.attachment.closed:
                self.acknowledged = max(self.acknowledged, self.given - self.attachment.delivered + ack.tag)

    def kill(self) -> None:
        self.kills += 1
        self.start()

    def lose(self) -> None:
        """The connection: the call is aborted before it has written anything."""
        held, self.running = self.running, None
        self.member.machine.disconnected(self.now)
        if held is not None:
            self.answer(held, INTERRUPTED)
        self.connect()


STEPS = st.sampled_from(["publish", "publish", "call", "write", "write", "die after writing", "kill", "lose"])


@settings(max_examples=example_count(300), deadline=None)
@given(st.lists(STEPS, max_size=60), st.booleans())
def test_each_message_is_done_once_or_once_more_for_a_kill(steps: list[str], together: bool) -> None:
    world = SessionWorld(together)
    for step in steps:
        match step:
            case "publish":
                world.publish()
            case "call":
                world.call()
            case "write" | "die after writing":
                world.call()
                world.write(answers=step == "write")
            case "kill":
                world.kill()
            case "lose":
                world.lose()
    while len(set(world.table.rows)) < world.last:
        world.call()
        world.write(answers=True)
    rows = world.table.rows
    assert sorted(set(rows)) == list(range(1, world.last + 1))
    assert sorted(rows) == rows, "in order, and a repeat comes at once after what it repeats"
    assert len(rows) - world.last <= (0 if together else world.kills)
