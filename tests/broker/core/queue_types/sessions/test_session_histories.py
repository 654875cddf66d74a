"""Random histories of publishers, sessions that come, go, take over and end, and crashes of the broker at every
boundary of a batch, against what must be true: a message is in one session for ever, under one number; numbers have no
holes; a session goes on right after its position; nothing confirmed is lost; the end comes after everything else.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lbg_broker.core import spool, state
from lbg_broker.core.errors import Refusal
from lbg_broker.core.queue_types import sessions as lines
from lbg_core.amqp.methods import BasicAck, BasicNack, QueuePurge
from testing.broker_core.session_judge import SessionJudge, SessionModel
from testing.broker_core.world import Client
from testing.exploration import example_count

NAMES = ("a", "b", "c")
WINDOW = 4
UNSETTLED_BYTES = 4


class SessionHistories(SessionJudge, RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._sizes = (spool.WINDOW_MESSAGES, lines.WINDOW_MESSAGES, state.UNSETTLED_BYTES)
        spool.WINDOW_MESSAGES = lines.WINDOW_MESSAGES = WINDOW
        state.UNSETTLED_BYTES = UNSETTLED_BYTES
        self.begin()

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            spool.WINDOW_MESSAGES, lines.WINDOW_MESSAGES, state.UNSETTLED_BYTES = self._sizes

    # --- what happens ------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 12))
    def publish(self, count: int) -> None:
        bodies = []
        for _ in range(count):
            self.serial += 1
            self.published += 1
            self.unconfirmed[self.published] = b"%d" % self.serial
            bodies.append(b"%d" % self.serial)
        self.publisher.publish(*bodies)
        self.hear()

    @rule(data=st.data(), name=st.sampled_from(NAMES), prefetch=st.integers(0, 5), joined=st.booleans())
    def consume(self, data: st.DataObject, name: str, prefetch: int, joined: bool) -> None:
        model = self.sessions.get(name, SessionModel())
        joins = joined and self.clients and model.holder is None
        client = self.some_client(data) if joins else self.world.client()
        shown = self.shown(name)
        committed = data.draw(
            st.none() | st.integers(0, model.highest) | st.just(shown["last_sequence"] + 1), label="committed"
        )
        arguments: dict[str, Any] = {"x-session": name}
        if committed is not None:
            arguments["x-session-committed"] = committed
        client.consume("q", tag=name, prefetch=prefetch, arguments=arguments)
        if client.refusal is not None:
            assert self.may_be_refused(client.refusal[0], model, committed, shown)
            self.forget(client)
            self.hear()
            return
        assert model.holder is None, "a second consumer"
        if committed is not None:
            assert shown["acknowledged"] <= committed <= shown["last_sequence"]
            for sequence in range(1, committed + 1):
                model.settle(sequence)
                self.done.add(model.seen[sequence])
        self.sessions[name] = model
        model.holder, model.consuming, model.had = client.number, True, shown["messages"]
        self.clients[client.number] = client
        self.tags.setdefault(client.number, {})
        self.hear()

    def may_be_refused(
        self, code: int, model: SessionModel, committed: int | None, shown: dict[str, Any]
    ) -> bool:
        if code == 405:
            return model.holder is not None
        assert code == 406
        assert committed is not None
        return committed > shown["last_sequence"] or committed < shown["acknowledged"]

    @rule(data=st.data(), multiple=st.booleans(), how=st.sampled_from(["ack", "ack", "requeue", "reject"]))
    def settle(self, data: st.DataObject, multiple: bool, how: str) -> None:
        held = [number for number, tags in self.tags.items() if tags]
        if not held:
            return
        client = self.clients[data.draw(st.sampled_from(held), label="client")]
        tags = self.tags[client.number]
        tag = data.draw(st.sampled_from(sorted(tags)), label="tag")
        for settled in [other for other in sorted(tags) if other <= tag] if multiple else [tag]:
            name, sequence = tags.pop(settled)
            model = self.sessions[name]
            if how == "requeue":
                model.out.discard(sequence)
                model.back.add(sequence)
            else:
                model.settle(sequence)
                self.done.add(model.seen[sequence])
            if not model.consuming and not model.out:
                model.holder = None
        client.say(BasicAck(tag, multiple) if how == "ack" else BasicNack(tag, multiple, how == "requeue"))
        self.hear()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        consuming = [name for name, model in self.sessions.items() if model.consuming]
        if consuming:
            name = data.draw(st.sampled_from(consuming), label="session")
            model = self.sessions[name]
            assert model.holder is not None
            self.clients[model.holder].cancel(name)
            model.consuming = False
            if not model.out:
                model.holder = None
            self.hear()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), close=st.booleans())
    def lose(self, data: st.DataObject, close: bool) -> None:
        client = self.some_client(data)
        self.forget(client)
        if close:
            client.close()
        else:
            client.lose()
        self.hear()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), paused=st.booleans())
    def pause(self, data: st.DataObject, paused: bool) -> None:
        self.some_client(data).pause(paused)
        self.hear()

    @rule()
    def hand_to_disk(self) -> None:
        self.world.seal()
        self.hear()

    @rule()
    def disk_done(self) -> None:
        self.world.finish()
        self.hear()

    @rule()
    def purge(self) -> None:
        before = self.bodies_in_pool()
        self.world.administer(QueuePurge("q"))
        self.purged |= before
        self.hear()

    @precondition(lambda self: self.serial > 20)
    @rule()
    def close_queue(self) -> None:
        self.world.act("close")
        self.closed = True
        self.hear()

    @rule(name=st.sampled_from(NAMES))
    def close_session(self, name: str) -> None:
        try:
            self.world.act("close-session", session=name)
            self.told_to_end.add(name)
        except Refusal:
            assert name not in self.sessions
        self.hear()

    @rule(written=st.booleans())
    def crash(self, written: bool) -> None:
        if not self.durable:
            return
        for client in list(self.clients.values()):
            self.forget(client)
        self.world.crash(written=written)
        self.restart()
        there = {shown["session"]: shown for shown in self.world.queue().policy.describe()["sessions"]}
        self.closed = self.world.queue().policy.describe()["closed"]
        for name in set(self.sessions) | set(self.over):
            model, before = self.sessions.get(name), self.over.get(name)
            if name not in there:
                assert model is None or not model.seen or model.is_over
                self.sessions.pop(name, None)
            elif (
                before is not None and (model is None or not model.seen) and there[name]["state"] == "closing"
            ):
                self.sessions[name] = before
            elif model is None:
                raise AssertionError(f"{name} is there and was over on disk")
        self.over.clear()
        for model in self.sessions.values():
            model.unsure |= model.settled
        on_disk = self.bodies_on_disk()
        lost = self.confirmed - self.done - self.purged - set(on_disk)
        assert not lost, f"confirmed and lost: {sorted(lost)}"

    def some_client(self, data: st.DataObject) -> Client:
        return self.clients[data.draw(st.sampled_from(sorted(self.clients)), label="client")]

    # --- what is always true -----------------------------------------------------------------------------------

    @invariant()
    def a_message_is_in_one_line_and_under_its_number(self) -> None:
        if not self.durable:
            return
        on_disk = self.bodies_on_disk()
        assert len(on_disk) == len(set(on_disk)), "a message is in two lines"

    @invariant()
    def a_session_has_no_more_than_its_room(self) -> None:
        for session in self.book:
            if session.consumer is not None:
                has = session.line.ready + session.line.outstanding
                assert has <= max(session.room, self.sessions[session.name].had) + session.ending

    @invariant()
    def counts_are_exact(self) -> None:
        for session in self.book:
            model = self.sessions.get(session.name)
            if model is not None:
                assert session.line.outstanding == len(model.out)
                if not model.unsure:
                    assert self.shown(session.name)["acknowledged"] == model.floor

    @invariant()
    def what_can_be_delivered_is(self) -> None:
        """After the disk has caught up nobody with room waits beside a message."""
        if self.world.sealed is not None or self.world.broker.has_changes:
            return
        for session in self.book:
            if session.consumer is not None and session.line.ready:
                assert session.consumer.credit() == 0, f"{session.name} has room and gets nothing"
        if self.world.queue().spool.ready:
            assert not any(session.has_room for session in self.book)

    @invariant()
    def whose_session_is_over_has_heard_so(self) -> None:
        """After the disk has caught up."""
        if self.world.sealed is None and not self.world.broker.has_changes:
            assert not self.untold

    @invariant()
    def whoever_has_room_takes_its_turn_once(self) -> None:
        turn = sorted(session.name for session in self.policy.turn)
        assert turn == sorted(session.name for session in self.book if session.has_room)


class FleetingHistories(SessionHistories):
    """The same on a queue that does not outlive the process."""

    durable = False


TestSessionHistories = SessionHistories.TestCase
TestSessionHistories.settings = settings(
    max_examples=example_count(60), stateful_step_count=50, deadline=None
)
TestFleetingHistories = FleetingHistories.TestCase
TestFleetingHistories.settings = settings(
    max_examples=example_count(25), stateful_step_count=40, deadline=None
)
