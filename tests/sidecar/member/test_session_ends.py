"""End of a member's session: its order at member, file and broker, and possible losses."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given, settings

from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.effects import (
    Ack,
    Attach,
    Detach,
    Exit,
    Fail,
    Republish,
    RequestPosition,
    SessionEnded,
    SessionForgotten,
)
from lbg_sidecar.core.session import Session, SessionPosition
from lbg_sidecar.message import ACK, INTERRUPTED
from testing.exploration import example_count
from testing.member.native_member import NativeMember


@dataclass
class File:
    """Content of a position file."""

    committed: int | None = None
    is_over: bool = False
    said: list[tuple[int, bool]] = field(default_factory=list)

    def write(self, committed: int, *, epoch: str | None = None, is_over: bool = False) -> None:
        self.committed, self.is_over = committed, is_over
        self.said.append((committed, is_over))


def with_session(file: File, **rules: object) -> NativeMember:
    position = SessionPosition("s")
    position.committed, position.is_over, position.write = file.committed, file.is_over, file.write
    return NativeMember(session=position, **rules)


def end_of_session(attachment: Attachment, tag: int, sequence: int) -> InFlight:
    held = InFlight(attachment, tag)
    held.sequence, held.ends_session = sequence, True
    return held


def at_its_end(file: File) -> tuple[NativeMember, Attachment]:
    """Everything is processed, and nothing acknowledged."""
    member = with_session(file)
    attachment = member.join()
    member.deliver(attachment, 0, sequence=1)
    member.machine.deliver(attachment, [end_of_session(attachment, 2, 2)], 0.5)
    (only,) = member.take_all()
    member.machine.tick(0.6)
    assert file.said == [], "a message before it is not done"
    member.machine.end(only, ACK, 1.0)
    assert not member.take_all(), "nobody is given the end"
    member.machine.tick(1.1)
    assert file.said == [(1, False), (2, True)]
    assert not member.took(Exit)
    return member, attachment


def cancel(member: NativeMember, attachment: Attachment, now: float) -> None:
    """The broker ends the consumer, and the shell closes its channel."""
    assert member.machine.cancelled(attachment), "it is no news to anybody else"
    member.machine.closed(attachment, now)


def has_left(member: NativeMember, *, after: int) -> None:
    (ended,) = member.took(SessionEnded)
    assert ended.messages == after
    assert len(member.took(Exit)) == 1
    assert not member.took(SessionForgotten)
    assert not member.took(Attach)
    assert not member.took(Fail)


def test_it_acknowledges_the_end_and_leaves_when_the_broker_says_that_it_is_over() -> None:
    file = File()
    member, attachment = at_its_end(file)
    member.machine.flush(1.2)
    (ack,) = member.took(Ack)
    assert (ack.tag, ack.multiple) == (2, True)
    cancel(member, attachment, 1.3)
    has_left(member, after=1)
    assert file.said[2:] == [(0, False)], "its name is free: the next session of that name begins at 1"
    assert member.machine.dispatcher.counts.acked == 1


def test_nothing_is_acknowledged_before_what_was_given_earlier() -> None:
    file = File()
    member = with_session(file, republish=True)
    attachment = member.join()
    member.deliver(attachment, 0, 1, sequence=1)
    member.machine.deliver(attachment, [end_of_session(attachment, 3, 3)], 0.1)
    for _ in range(2):
        (held,) = member.take_all(0.2)
        member.machine.end(held, ACK, 0.2)
    assert not member.take_all(0.2)
    first, second = (effect.in_flight for effect in member.took(Republish))
    member.machine.confirmed(second, 0.3)
    for now in (0.3, 1.0, 10.0):
        member.machine.flush(now)
        assert not member.took(Ack), "the broker would forget a session whose end has not come here"
    member.machine.confirmed(first, 10.1)
    member.machine.flush(10.1)
    assert [(ack.tag, ack.multiple) for ack in member.took(Ack)] == [(3, True)]
    assert file.said == [(3, True)]
    cancel(member, attachment, 10.2)
    has_left(member, after=2)


def test_one_that_leaves_acknowledges_nothing_beyond_what_its_file_says() -> None:
    file = File()
    member = with_session(file, republish=True)
    attachment = member.join()
    member.deliver(attachment, 0, 1, 2, sequence=1)
    for _ in range(3):
        (held,) = member.take_all(0.1)
        member.machine.end(held, ACK, 0.1)
    first, _, third = (effect.in_flight for effect in member.took(Republish))
    member.machine.confirmed(first, 0.2)
    member.machine.confirmed(third, 0.2)
    member.machine.stop("SIGTERM", 0.3)
    member.machine.stop("SIGTERM", 0.4)
    (detach,) = member.took(Detach)
    assert (detach.ack_tag, detach.single_tags) == (1, ())
    assert file.said == [(1, False)]


def test_a_connection_that_is_lost_with_the_last_ack_is_made_again_to_say_it() -> None:
    file = File()
    member, _ = at_its_end(file)
    member.machine.disconnected(1.2)
    member.machine.tick(1.3)
    assert not member.took(Exit), "nobody else would end the session"
    member.machine.connected(0, 2.0)
    (attach,) = member.took(Attach)
    assert attach.arguments["x-session-committed"] == 2
    member.machine.attached(attach.attachment, 2.0)
    cancel(member, attach.attachment, 2.1)
    has_left(member, after=1)


def test_a_session_that_is_not_known_any_more_when_it_comes_back_is_over_and_no_news() -> None:
    file = File()
    member, _ = at_its_end(file)
    member.machine.flush(1.2)
    member.machine.disconnected(1.2)
    member.machine.connected(0, 2.0)
    (attach,) = member.took(Attach)
    assert member.machine.refused(attach.attachment, 406, "it is not known and so has been given 0")
    member.machine.closed(attach.attachment, 2.1)
    has_left(member, after=1)
    assert file.committed == 0


def test_a_connection_that_is_lost_after_the_news_is_not_missed() -> None:
    member, attachment = at_its_end(File())
    assert member.machine.cancelled(attachment)
    member.machine.disconnected(1.3)
    has_left(member, after=1)


def test_one_that_stands_down_when_the_news_comes_leaves() -> None:
    member, attachment = at_its_end(File())
    assert member.machine.cancelled(attachment)
    member.machine.stand_down("the application is gone", 1.2)
    member.machine.closed(attachment, 1.3)
    has_left(member, after=1)


def test_one_that_was_killed_between_says_so_again_and_leaves() -> None:
    for is_known in (True, False):
        file = File()
        at_its_end(file)
        member = with_session(file)
        member.machine.connected(0, 5.0)
        (attach,) = member.took(Attach)
        assert attach.arguments["x-session-committed"] == 2
        if is_known:
            member.machine.attached(attach.attachment, 5.0)
            cancel(member, attach.attachment, 5.1)
        else:
            assert member.machine.refused(attach.attachment, 406, "it is not known and so has been given 0")
            member.machine.closed(attach.attachment, 5.1)
        has_left(member, after=1)
        assert (file.committed, file.is_over) == (0, False)


def test_an_application_that_keeps_the_position_is_not_asked_for_one_that_is_over() -> None:
    member = NativeMember(session=SessionPosition("s"))
    assert member.machine.part(Session).position is not None
    member.machine.part(Session).position.report(0)
    attachment = member.join()
    member.machine.deliver(attachment, [end_of_session(attachment, 1, 1)], 0.5)
    assert not member.take_all()
    member.machine.disconnected(1.0)
    assert not member.took(RequestPosition)
    member.machine.part(Session).position.report(
        0
    )  # it does not know of the end, and says so whenever it comes back
    member.machine.connected(0, 2.0)
    (attach,) = member.took(Attach)
    assert attach.arguments["x-session-committed"] == 1
    assert member.machine.refused(attach.attachment, 406, "it is not known and so has been given 0")
    member.machine.closed(attach.attachment, 2.1)
    has_left(member, after=0)


def test_the_word_of_the_application_counts_for_an_end_in_a_file_as_well() -> None:
    member = with_session(File(committed=9, is_over=True))
    assert member.machine.part(Session).position is not None
    member.machine.part(Session).position.report(3)
    member.join()
    assert (
        member.machine.part(Session).position.committed,
        member.machine.part(Session).position.is_over,
    ) == (3, False)


MESSAGES = 4


class Ending:
    """A broker with one session of a few messages and its end, and one member after another that serves it. Acks and
    the broker's word may be on their way when a connection goes."""

    def __init__(self) -> None:
        self.file = File()
        self.acknowledged: set[int] = set()
        self.now = 0.0
        self.has_left = False
        self.start()

    @property
    def is_forgotten(self) -> bool:
        return len(self.acknowledged) == MESSAGES + 1

    def start(self) -> None:
        self.member = with_session(self.file, republish=True)
        self.connect()

    def connect(self) -> None:
        self.now += 1
        self.acks: list[Ack] = []
        self.unconfirmed: list[InFlight] = []
        self.running: list[InFlight] = []
        self.attachment: Attachment | None = None
        self.first = 0
        self.member.machine.connected(0, self.now)
        self.look()

    def look(self) -> None:
        """Effects of the member."""
        for attach in self.member.took(Attach):
            self.attach(attach)
        self.unconfirmed += [effect.in_flight for effect in self.member.took(Republish)]
        self.acks += self.member.took(Ack)
        assert not self.member.took(SessionForgotten), "what happened here, one of both does not know"
        if self.member.took(Exit):
            assert self.is_forgotten
            assert len(self.member.took(SessionEnded)) == 1
            self.has_left = True

    def attach(self, attach: Attach) -> None:
        told = int(attach.arguments.get("x-session-committed", 0))
        if self.is_forgotten:
            assert told == MESSAGES + 1, "the session has come to life again"
            assert self.member.machine.refused(attach.attachment, 406, "it is not known")
            self.member.machine.closed(attach.attachment, self.now)
            return
        assert self.acknowledged == set(range(1, len(self.acknowledged) + 1)), (
            "there is a hole in what is done"
        )
        assert told >= len(self.acknowledged), "the broker would refuse it"
        self.acknowledged = set(range(1, told + 1))
        self.attachment, self.first = attach.attachment, told + 1
        self.member.machine.attached(attach.attachment, self.now)
        for sequence in range(told + 1, MESSAGES + 1):
            self.member.deliver(attach.attachment, sequence, now=self.now, sequence=sequence)
        if not self.is_forgotten:
            end = end_of_session(attach.attachment, MESSAGES + 1 - told, MESSAGES + 1)
            self.member.machine.deliver(attach.attachment, [end], self.now)

    def work(self) -> None:
        self.running += self.member.take_all(self.now)
        if self.running:
            self.member.machine.end(self.running.pop(), ACK, self.now)
            self.running += self.member.take_all(self.now)

    def confirm(self, which: int) -> None:
        if self.unconfirmed:
            held = self.unconfirmed.pop(which % len(self.unconfirmed))
            self.member.machine.confirmed(held, self.now)

    def hear(self) -> None:
        """The acks arrive."""
        for ack in self.acks:
            last = self.first + ack.tag - 1
            self.acknowledged |= set(range(self.first, last + 1)) if ack.multiple else {last}
        self.acks.clear()

    def say(self) -> None:
        """The broker's word that the session is over arrives."""
        attachment = self.attachment
        if self.is_forgotten and attachment is not None:
            self.attachment = None
            if not self.member.machine.cancelled(attachment):
                raise AssertionError("it does not know that its session is over")
            self.member.machine.closed(attachment, self.now)

    def lose(self) -> None:
        self.member.machine.disconnected(self.now)
        self.look()
        if self.has_left:
            return
        for held in self.running:
            self.member.machine.end(held, INTERRUPTED, self.now)
        self.connect()

    def step(self, step: str, which: int) -> None:
        if self.has_left:
            return
        self.now += 0.3
        match step:
            case "work":
                self.work()
            case "confirm":
                self.confirm(which)
            case "hear":
                self.hear()
            case "say":
                self.say()
            case "lose":
                self.lose()
            case "kill":
                self.start()
        if self.has_left:
            return
        self.member.machine.tick(self.now)
        self.member.machine.flush(self.now)
        self.look()


WORDS = st.sampled_from(["work"] * 4 + ["confirm"] * 4 + ["hear", "hear", "say", "lose", "kill"])


@settings(max_examples=example_count(500), deadline=None)
@given(st.lists(st.tuples(WORDS, st.integers(0, 3)), max_size=60))
def test_whatever_is_lost_on_the_way_the_member_of_a_session_that_is_over_leaves(
    steps: list[tuple[str, int]],
) -> None:
    world = Ending()
    for step, which in steps:
        world.step(step, which)
    for step in ("work", "confirm", "hear", "say") * (2 * MESSAGES + 2):
        world.step(step, 0)
    assert world.has_left
    assert world.is_forgotten
    assert (world.file.committed, world.file.is_over) == (0, False)
