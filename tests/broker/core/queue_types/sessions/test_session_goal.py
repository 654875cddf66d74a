"""The goal of «Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers», over sockets and on disk:
consumers insert messages into a table without a unique index and die in between, and so does the broker; in the end the
table has every message exactly once.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lbg_core.amqp import AckEvent, BasicProperties, DeliverEvent, MethodEvent
from lbg_core.amqp.methods import (
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueDeclare,
    QueueDeclareOk,
)
from testing.amqp.plain_client import ClosedError, PlainClient
from testing.broker.embedded import EmbeddedBroker
from testing.broker_core.sessions import act_on, queue_json
from testing.waiting import until

pytestmark = pytest.mark.process

MESSAGES = 8000
ARGUMENTS = {"x-queue-type": "sessions"}


class Table:
    """A database that accepts everything, and positions in it."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        self._database.execute("CREATE TABLE processed (body TEXT, session TEXT, sequence INTEGER)")
        self._database.execute("CREATE TABLE position (session TEXT PRIMARY KEY, sequence INTEGER)")

    def insert(self, body: bytes, session: str, sequence: int) -> None:
        """The message and the position, in one transaction."""
        with self._lock, self._database:
            self._database.execute("BEGIN")
            self._database.execute(
                "INSERT INTO processed VALUES (?, ?, ?)", (body.decode(), session, sequence)
            )
            self._database.execute("INSERT OR REPLACE INTO position VALUES (?, ?)", (session, sequence))

    def position(self, session: str) -> int:
        with self._lock:
            query = "SELECT coalesce(max(sequence), 0) FROM position WHERE session = ?"
            ((position,),) = self._database.execute(query, (session,)).fetchall()
            return int(position)

    def rows(self) -> list[tuple[str, str, int]]:
        with self._lock:
            return self._database.execute("SELECT body, session, sequence FROM processed").fetchall()


@dataclass
class Consumer:
    """One session's consumer. It dies at random, in the middle of its work, and starts again from its position."""

    port: int
    session: str
    table: Table
    rng: random.Random
    deaths: int = 0
    refusals: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    ended: bool = False

    def run(self, stop: threading.Event) -> None:
        while not self.ended and not stop.is_set():
            try:
                with PlainClient(self.port, timeout_s=2) as client:
                    self._consume(client)
            except OSError:
                self.deaths += 1
                time.sleep(0.01)

    def _consume(self, client: PlainClient) -> None:
        client.ask(BasicQos(0, 100, False), BasicQosOk)
        position = self.table.position(self.session)
        arguments = {"x-session": self.session, "x-session-committed": position}
        client.send(BasicConsume("q", self.session, arguments=arguments))
        lives = self.rng.randrange(200, 2000)
        for count in itertools.count():
            while not client.events:
                client.receive()
            event = client.events.pop(0)
            if isinstance(event, MethodEvent):
                if isinstance(event.method, ChannelClose):
                    self.refusals.append(event.method.reply_text)
                    raise ClosedError(event.method.reply_text)
                assert isinstance(event.method, BasicConsumeOk | BasicCancel), event
                if isinstance(event.method, BasicCancel):
                    return
                continue
            assert isinstance(event, DeliverEvent)
            headers = BasicProperties.decode(event.header).headers or {}
            position += 1
            if headers["x-session-seq"] != position:
                self.errors.append(f"{headers['x-session-seq']} came and not {position}")
            if headers.get("x-session-end"):
                self.ended = True
            else:
                self.table.insert(event.body, self.session, position)
            if count == lives:
                raise ClosedError("dies with everything unacknowledged")
            if count % 40 == 39 or self.ended:
                client.wire.ack(1, event.delivery_tag, multiple=True)


def publish(port: int, numbers: range) -> None:
    with PlainClient(port) as client:
        client.ask(QueueDeclare("q", durable=True, arguments=ARGUMENTS), QueueDeclareOk)
        client.ask(ConfirmSelect(), ConfirmSelectOk)
        for number in numbers:
            client.publish(b"%d" % number, "q")
        confirmed = 0
        while confirmed < len(numbers):
            client.receive()
            confirmed = max(event.delivery_tag for event in client.events if type(event) is AckEvent)


def test_every_message_is_processed_exactly_once_by_whoever_dies_in_between(tmp_path: Path) -> None:
    rng = random.Random(11)
    table = Table()
    stop = threading.Event()
    with EmbeddedBroker(tmp_path / "data") as broker:
        publish(broker.port, range(MESSAGES // 2))
        consumers = [Consumer(broker.port, name, table, random.Random(name)) for name in ("a", "b", "c")]
        threads = [threading.Thread(target=consumer.run, args=(stop,)) for consumer in consumers]
        for thread in threads:
            thread.start()
        try:
            for _ in range(4):
                time.sleep(rng.uniform(0.05, 0.3))
                broker.kill()
                broker.start()
            publish(broker.port, range(MESSAGES // 2, MESSAGES))
            act_on(broker, "close")
            asyncio.run(until(lambda: all(consumer.ended for consumer in consumers)))
            asyncio.run(until(lambda: not queue_json(broker)["sessions"]))
        finally:
            stop.set()
            for thread in threads:
                thread.join(20)
        rows = table.rows()
        assert [consumer.errors for consumer in consumers] == [[], [], []]
        assert sorted(int(body) for body, _, _ in rows) == list(range(MESSAGES))
        assert all(consumer.deaths > 2 for consumer in consumers)
        assert {session for _, session, _ in rows} == {"a", "b", "c"}
        assert all("RESOURCE_LOCKED" in text for consumer in consumers for text in consumer.refusals)
        assert queue_json(broker)["messages"] == 0


def test_a_kill_of_the_broker_takes_no_message_from_its_session(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        publish(broker.port, range(20))
        seen = {}
        for round_ in range(2):
            for name in ("a", "b"):
                with PlainClient(broker.port) as client:
                    client.ask(BasicQos(0, 5, False), BasicQosOk)
                    client.send(BasicConsume("q", name, arguments={"x-session": name}))
                    got = [
                        (BasicProperties.decode(delivery.header).headers, delivery.body)
                        for delivery in client.deliveries(5)
                    ]
                assert seen.setdefault(name, got) == got
            if round_ == 0:
                broker.kill()
                broker.start()
        shown = {one["session"]: one for one in queue_json(broker)["sessions"]}
        assert {name: (one["last_sequence"], one["acknowledged"]) for name, one in shown.items()} == {
            "a": (5, 0),
            "b": (5, 0),
        }
        assert queue_json(broker)["pool"] == 10
