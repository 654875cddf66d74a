"""Random histories of a member from which the broker takes deliveries back: what is acknowledged, given back and
started, judged by a model of the broker's side of the channel."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.dispatcher import Order
from lbg_sidecar.core.effects import Ack, DeadLetter, Republish, Requeue
from lbg_sidecar.message import ACK, INTERRUPTED, Kind, Verdict, drop, retry
from testing.exploration import example_count
from testing.member.native_member import NativeMember

KEYS = ["a", "b", "c"]


class Revocations(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.sent = 0
        self.unsettled: set[int] = set()
        """Tags that the broker has given out and was told nothing of."""
        self.done: set[int] = set()
        """Tags of which the application, and whoever confirms, is done."""
        self.asked: set[int] = set()
        self.running: dict[int, InFlight] = {}
        self.confirming: list[InFlight] = []

    @initialize(order=st.sampled_from(Order), republish=st.booleans(), concurrency=st.integers(1, 4))
    def join(self, order: Order, republish: bool, concurrency: int) -> None:
        self.republish = republish
        self.member = NativeMember(order=order, republish=republish, concurrency=concurrency)
        self.member.join()
        self.look()

    # --- what happens ------------------------------------------------------------------------------------------

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6))
    def deliver(self, keys: list[str]) -> None:
        """Each message is another one, so that none is dropped as a repeat."""
        names = [(key, KEYS.index(key), self.sent + offset) for offset, key in enumerate(keys)]
        self.member.deliver(self.member.attachment, *names, now=self.now)
        self.unsettled.update(range(self.sent + 1, self.sent + len(keys) + 1))
        self.sent += len(keys)
        self.look()

    @rule()
    def start(self) -> None:
        held = self.member.machine.take(self.now)
        if held is None:
            return
        assert held.tag in self.unsettled, "a call of what is not the member's begins"
        assert held.tag not in self.asked, "a call begins of what was asked back"
        assert held.key not in {other.key for other in self.running.values()}, "two calls of a key"
        self.running[held.tag] = held
        self.look()

    @rule(data=st.data(), verdict=st.sampled_from([ACK, ACK, ACK, retry("no"), drop("bad"), INTERRUPTED]))
    def end(self, data: st.DataObject, verdict: Verdict) -> None:
        if self.running:
            self.finish(data.draw(st.sampled_from(sorted(self.running)), label="tag"), verdict)

    def finish(self, tag: int, verdict: Verdict) -> None:
        held = self.running.pop(tag)
        if verdict.kind is Kind.ACK and not self.republish and tag in self.unsettled:
            self.done.add(tag)
        self.member.machine.end(held, verdict, self.now)
        self.look()

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        if self.confirming:
            held = self.confirming.pop(data.draw(st.integers(0, len(self.confirming) - 1), label="which"))
            if held.tag in self.unsettled:
                self.done.add(held.tag)
            self.member.machine.confirmed(held, self.now)
            self.look()

    @rule(data=st.data(), taken=st.booleans())
    def revoke(self, data: st.DataObject, taken: bool) -> None:
        """Some of what is there, and perhaps what is not any more: the two may have crossed."""
        if not self.sent:
            return
        tags = data.draw(st.sets(st.integers(max(1, self.sent - 12), self.sent)), label="tags")
        self.member.machine.revoked(self.member.attachment, sorted(tags), self.now, reassigned=taken)
        if taken:
            self.unsettled -= tags
            self.done -= tags
        self.look()
        if not taken:
            self.asked |= tags & self.unsettled
            busy = {*self.running, *(held.tag for held, _ in self.confirming)}
            assert tags & self.unsettled <= busy, "what was asked for is neither settled nor at work"

    @rule()
    def flush(self) -> None:
        self.member.machine.flush(self.now)
        self.look()

    @rule(seconds=st.sampled_from([0.01, 0.3, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for held in self.running.values():
            held.started_at = self.now  # no call is ever late: that is tried elsewhere
        self.member.machine.tick(self.now)
        self.look()

    # --- the broker's side -------------------------------------------------------------------------------------

    def look(self) -> None:
        self.member.run()
        told, self.member.told = self.member.told, []
        for effect in told:
            match effect:
                case Ack(_, tag, multiple):
                    assert tag in self.unsettled, "an ack of what is not the member's"
                    covered = {other for other in self.unsettled if other <= tag} if multiple else {tag}
                    assert covered <= self.done, "an ack of what is not done"
                    self.unsettled -= covered
                case Requeue(_, tags):
                    assert list(tags) == sorted(tags)
                    assert set(tags) <= self.unsettled
                    assert not set(tags) & (self.done | self.running.keys()), (
                        "what was begun or done is given back"
                    )
                    self.unsettled -= set(tags)
                case DeadLetter(held) | Republish(held):
                    self.confirming.append(held)
                case _:
                    pass

    @invariant()
    def both_sides_count_the_same(self) -> None:
        if hasattr(self, "member"):
            assert self.member.attachment.ack_window.unacked == len(self.unsettled)

    def teardown(self) -> None:
        """Nothing is forgotten: what is the member's is done in the end, and acknowledged."""
        if not hasattr(self, "member"):
            return
        for _ in range(3 * self.sent + 10):
            self.pass_time(40.0)
            self.start()
            for tag in list(self.running):
                self.finish(tag, ACK)
            while self.confirming:
                held = self.confirming.pop()
                if held.tag in self.unsettled:
                    self.done.add(held.tag)
                self.member.machine.confirmed(held, self.now)
                self.look()
            self.flush()
        assert not self.unsettled
        assert self.member.attachment.drained
        assert not self.member.attachment.lanes


TestRevocations = Revocations.TestCase
TestRevocations.settings = settings(max_examples=example_count(200), stateful_step_count=50, deadline=None)
