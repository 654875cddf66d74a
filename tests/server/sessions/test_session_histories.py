"""Random histories of publishers, sessions that come, go, take over and end, and crashes of the broker at every
boundary of a batch, against what must be true: a message is in one session for ever, under one number; numbers have no
holes; a session goes on right after its position; nothing confirmed is lost; the end comes after everything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lbg_broker.amqp.methods import BasicAck, BasicCancel, BasicNack, QueuePurge
from lbg_broker.server.core import spool
from lbg_broker.server.core.errors import Refusal
from lbg_broker.server.core.kinds.sessions import line as lines
from lbg_broker.server.core.kinds.sessions.numbering import END, SEQUENCE
from support.broker_world import Client, Delivery, World

NAMES = ("a", "b", "c")
WINDOW = 4
ENDS = b"end of session"


@dataclass
class SessionModel:
    """A session, from its beginning to its end, as consumers saw it."""

    seen: dict[int, bytes] = field(default_factory=dict)
    """Every sequence number that was ever delivered, and the body it came with."""
    out: set[int] = field(default_factory=set)
    """Delivered, and neither settled nor returned."""
    back: set[int] = field(default_factory=set)
    """Returned: must come again before anything new."""
    settled: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    """Settled when the broker died: each may come again, once, in its place."""
    ended: bool = False
    holder: int | None = None
    """The connection that consumes from it, or holds what it was given."""
    consuming: bool = False
    had: int = 0
    """Messages that were its own when its consumer came."""

    @property
    def highest(self) -> int:
        return max(self.seen, default=0)

    def settle(self, sequence: int) -> None:
        self.out.discard(sequence)
        self.back.discard(sequence)
        self.unsure.discard(sequence)
        self.settled.add(sequence)

    @property
    def is_over(self) -> bool:
        return self.ended and self.settled >= set(self.seen)

    def lose(self) -> None:
        """Its consumer is gone with everything that it held."""
        self.back |= self.out
        self.out.clear()
        self.holder, self.consuming = None, False


class SessionHistories(RuleBasedStateMachine):
    durable: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._sizes = (spool.WINDOW_MESSAGES, lines.WINDOW_MESSAGES)
        spool.WINDOW_MESSAGES = lines.WINDOW_MESSAGES = WINDOW
        self.world = World()
        self.sessions: dict[str, SessionModel] = {}
        self.over: dict[str, SessionModel] = {}
        """The last that was over of each name: until the disk knows it, a crash brings it back."""
        self.tags: dict[int, dict[int, tuple[str, int]]] = {}
        self.home: dict[bytes, tuple[str, int]] = {}
        """Where a body was seen first: its session and number, for ever."""
        self.serial = 0
        self.unconfirmed: dict[int, bytes] = {}
        self.confirmed: set[bytes] = set()
        self.done: set[bytes] = set()
        self.purged: set[bytes] = set()
        self.closed = False
        self.told_to_end: set[str] = set()
        self.restart()

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            spool.WINDOW_MESSAGES, lines.WINDOW_MESSAGES = self._sizes

    def restart(self) -> None:
        self.clients: dict[int, Client] = {}
        self.publisher = self.world.client().confirms()
        arguments = {"x-queue-type": "sessions"}
        self.publisher.queue("q", durable=self.durable, arguments=arguments)
        self.unconfirmed.clear()
        self.answered = 0
        self.published = 0

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

    # --- what is heard -----------------------------------------------------------------------------------------

    def hear(self) -> None:
        for number, method in self.publisher.methods[self.answered :]:
            if number == 1 and isinstance(method, BasicAck):
                tags = [tag for tag in self.unconfirmed if tag <= method.delivery_tag]
                for tag in tags if method.multiple else [method.delivery_tag]:
                    self.confirmed.add(self.unconfirmed.pop(tag))
            elif isinstance(method, BasicNack):
                assert self.closed
                del self.unconfirmed[method.delivery_tag]
        self.answered = len(self.publisher.methods)
        for client in list(self.clients.values()):
            for delivery in client.take():
                self.judge(client, delivery)
        self.forget_those_over()

    def judge(self, client: Client, delivery: Delivery) -> None:
        name, sequence = delivery.consumer_tag, delivery.headers[SEQUENCE]
        model = self.sessions[name]
        assert model.holder == client.number
        body = ENDS if delivery.headers.get(END) else delivery.body
        new = sequence not in model.seen
        if new:
            assert not model.back, f"{sequence} came before {sorted(model.back)}"
            assert sequence == model.highest + 1, f"{sequence} came after {model.highest}"
            assert not model.ended, "something came after the end"
            assert body == ENDS or body not in self.home, f"{body!r} was in {self.home[body]}"
            model.seen[sequence] = self.home_of(body, name, sequence)
        else:
            assert model.seen[sequence] == body
            assert sequence in model.back | model.unsure, f"{sequence} came again and was not given back"
            assert not [other for other in model.back if other < sequence]
            assert delivery.redelivered
        if body == ENDS:
            model.ended = True
            assert sequence == model.highest
            if name not in self.told_to_end:
                assert self.world.queue().policy.describe()["pool"] == 0
        model.back.discard(sequence)
        model.settled.discard(sequence)
        model.unsure = {other for other in model.unsure if other > sequence}
        model.out.add(sequence)
        self.tags[client.number][delivery.delivery_tag] = (name, sequence)
        if self.durable:
            assert self.is_on_disk(name, sequence, delivery), "delivered before the disk knew whose it is"

    def home_of(self, body: bytes, name: str, sequence: int) -> bytes:
        if body != ENDS:
            self.home[body] = (name, sequence)
        return body

    def is_on_disk(self, name: str, sequence: int, delivery: Delivery) -> bool:
        (line,) = [session.line for session in self.world.queue().policy._book if session.name == name]
        row = self.world.store.rows[line.id, True].get(sequence - 1)
        return row is not None and row[1:] == (delivery.header, delivery.body)

    # --- bookkeeping -------------------------------------------------------------------------------------------

    def forget(self, client: Client) -> None:
        self.clients.pop(client.number, None)
        self.tags.pop(client.number, None)
        for model in self.sessions.values():
            if model.holder == client.number:
                model.lose()

    def forget_those_over(self) -> None:
        for name, model in list(self.sessions.items()):
            if model.is_over and name not in {one["session"] for one in self.shown_all()}:
                if model.consuming:
                    assert model.holder is not None
                    assert BasicCancel(name, True) in self.clients[model.holder].said(BasicCancel)
                self.over[name] = self.sessions.pop(name)
                self.over[name].lose()

    def shown_all(self) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = self.world.queue().policy.describe()["sessions"]
        return shown

    def shown(self, name: str) -> dict[str, Any]:
        nobody = {"last_sequence": 0, "acknowledged": 0, "messages": 0}
        return next((one for one in self.shown_all() if one["session"] == name), nobody)

    def some_client(self, data: st.DataObject) -> Client:
        return self.clients[data.draw(st.sampled_from(sorted(self.clients)), label="client")]

    def bodies_on_disk(self) -> list[bytes]:
        return [
            row[2]
            for line in self.world.queue().lines
            for row in self.world.store.rows[line.id, True].values()
            if row[2]
        ]

    def bodies_in_pool(self) -> set[bytes]:
        """What may be in the pool: everything published that nobody was ever given."""
        if not self.world.queue().spool.ready:
            return set()
        everything = {b"%d" % number for number in range(1, self.serial + 1)}
        return everything - set(self.home) - self.purged

    def finish(self) -> None:
        """Everybody comes back and works off everything: whatever was confirmed is processed then."""
        if not self.durable:
            return
        for client in list(self.clients.values()):
            self.forget(client)
            client.lose()
        self.world.commit()
        self.world.act("close")
        self.closed = True
        for name in dict.fromkeys((*(shown["session"] for shown in self.shown_all()), "last")):
            client = self.world.client()
            self.clients[client.number], self.tags[client.number] = client, {}
            model = self.sessions.setdefault(name, SessionModel())
            model.holder, model.consuming, model.had = client.number, True, self.shown(name)["messages"]
            client.consume("q", tag=name, prefetch=3, arguments={"x-session": name})
        for _ in range(400):
            self.world.commit()
            self.hear()
            busy = [client for client in self.clients.values() if self.tags[client.number]]
            if not busy:
                break
            for client in busy:
                for name, sequence in self.tags[client.number].values():
                    self.sessions[name].settle(sequence)
                    self.done.add(self.sessions[name].seen[sequence])
                self.tags[client.number].clear()
                client.ack(0, multiple=True)
        assert self.shown_all() == []
        assert all(model.ended for model in self.sessions.values())
        assert self.confirmed <= self.done | self.purged

    # --- what is always true -----------------------------------------------------------------------------------

    @invariant()
    def a_message_is_in_one_line_and_under_its_number(self) -> None:
        if not self.durable:
            return
        on_disk = self.bodies_on_disk()
        assert len(on_disk) == len(set(on_disk)), "a message is in two lines"

    @invariant()
    def a_session_has_no_more_than_its_room(self) -> None:
        for session in self.world.queue().policy._book:
            if session.consumer is not None:
                has = session.line.ready + session.line.outstanding
                assert has <= max(session.room, self.sessions[session.name].had) + session.ending

    @invariant()
    def counts_are_exact(self) -> None:
        queue = self.world.queue()
        for session in queue.policy._book:
            model = self.sessions.get(session.name)
            if model is not None:
                assert session.line.outstanding == len(model.out)

    @invariant()
    def what_can_be_delivered_is(self) -> None:
        """After the disk has caught up nobody with room waits beside a message."""
        if self.world.sealed is not None or self.world.broker.has_changes:
            return
        policy = self.world.queue().policy
        for session in policy._book:
            if session.consumer is not None:
                if session.line.ready:
                    assert session.consumer.credit() == 0, f"{session.name} has room and gets nothing"
                if policy.describe()["pool"] and not session.ending:
                    assert not session.has_room


class FleetingHistories(SessionHistories):
    """The same on a queue that does not outlive the process."""

    durable = False


TestSessionHistories = SessionHistories.TestCase
TestSessionHistories.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestFleetingHistories = FleetingHistories.TestCase
TestFleetingHistories.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
