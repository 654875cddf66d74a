"""Invariants of a sessions queue, checked delivery by delivery: consumer and number of
each message, and the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from lbg_broker.core.queue_types.session_distribution import SessionRouter
from lbg_broker.core.queue_types.session_headers import END, SEQUENCE
from lbg_broker.core.queue_types.sessions import SessionRegistry
from lbg_core.amqp.methods import BasicAck, BasicCancel, BasicNack
from testing.broker_core.world import Client, Delivery, World

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
    def floor(self) -> int:
        """The number up to which everything is settled."""
        return next((number - 1 for number in sorted(self.seen) if number not in self.settled), self.highest)

    @property
    def is_over(self) -> bool:
        return self.ended and self.settled >= set(self.seen)

    def lose(self) -> None:
        """Its consumer is gone with everything that it held."""
        self.back |= self.out
        self.out.clear()
        self.holder, self.consuming = None, False


class SessionJudge:
    """A world with a sessions queue, and what was seen of it. `sessions` are those that are not over."""

    durable: ClassVar[bool] = True

    def begin(self) -> None:
        self.world = World()
        self.sessions: dict[str, SessionModel] = {}
        self.over: dict[str, SessionModel] = {}
        """The last that was over of each name: until the disk knows it, a crash brings it back."""
        self.lines: dict[str, int] = {}
        """The line that each has, or had."""
        self.untold: list[tuple[int, str, int]] = []
        """Client that waits for its End-of-Session, and the spool that the disk has no longer."""
        self.heard: dict[int, int] = {}
        """Number of End-of-Sessions that each client received."""
        self.tags: dict[int, dict[int, tuple[str, int]]] = {}
        self.home: dict[bytes, tuple[str, int]] = {}
        """Session and number of each body at its first delivery, which never change."""
        self.serial = 0
        self.unconfirmed: dict[int, bytes] = {}
        self.confirmed: set[bytes] = set()
        self.done: set[bytes] = set()
        self.purged: set[bytes] = set()
        self.closed = False
        self.told_to_end: set[str] = set()
        self.restart()

    def restart(self) -> None:
        self.clients: dict[int, Client] = {}
        self.untold.clear()
        self.publisher = self.world.client().confirms()
        arguments = {"x-queue-type": "sessions"}
        self.publisher.queue("q", durable=self.durable, arguments=arguments)
        self.unconfirmed.clear()
        self.answered = 0
        self.published = 0

    @property
    def policy(self) -> SessionRouter:
        policy = self.world.queue().policy
        assert isinstance(policy, SessionRouter)
        return policy

    @property
    def book(self) -> SessionRegistry:
        return self.policy.sessions

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
        self.lines |= {session.name: session.line.id for session in self.book}
        self.forget_those_over()
        self.hear_of_ends()

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
        (line,) = [session.line for session in self.book if session.name == name]
        row = self.world.store.rows[line.id, True].get(sequence - 1)
        return row is not None and row[1:] == (delivery.header, delivery.body)

    # --- bookkeeping -------------------------------------------------------------------------------------------

    def forget(self, client: Client) -> None:
        self.clients.pop(client.number, None)
        self.tags.pop(client.number, None)
        self.untold = [one for one in self.untold if one[0] != client.number]
        for model in self.sessions.values():
            if model.holder == client.number:
                model.lose()

    def forget_those_over(self) -> None:
        for name, model in list(self.sessions.items()):
            if model.is_over and name not in {one["session"] for one in self.shown_all()}:
                if model.consuming:
                    assert model.holder is not None
                    self.untold.append((model.holder, name, self.lines[name]))
                self.over[name] = self.sessions.pop(name)
                self.over[name].lose()

    def hear_of_ends(self) -> None:
        for number, client in self.clients.items():
            heard = self.heard.get(number, 0)
            cancels = client.said(BasicCancel)
            self.heard[number] = len(cancels)
            for cancel in cancels[heard:]:
                (told,) = (one for one in self.untold if one[:2] == (number, cancel.consumer_tag))
                assert told[2] not in self.world.store.records, "a crash would undo what it was told"
                self.untold.remove(told)

    def shown_all(self) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = self.world.queue().policy.describe()["sessions"]
        return shown

    def shown(self, name: str) -> dict[str, Any]:
        nobody = {"last_sequence": 0, "acknowledged": 0, "messages": 0}
        return next((one for one in self.shown_all() if one["session"] == name), nobody)

    def bodies_on_disk(self) -> list[bytes]:
        return [
            row[2]
            for line in self.world.queue().lines
            for row in self.world.store.rows[line.id, True].values()
            if row[2]
        ]

    def bodies_in_pool(self) -> set[bytes]:
        """Possible content of the pool: published messages that were never assigned."""
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
