"""kill -9 under load: every confirmed message comes back, in order, and what was seen says so."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lbg_core.amqp import AckEvent, DeliverEvent
from lbg_core.amqp.methods import (
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueDeclare,
    QueueDeclareOk,
)
from testing.amqp.plain_client import ClosedError, PlainClient
from testing.broker.embedded import EmbeddedBroker
from testing.exploration import repetitions
from testing.waiting import GUARD_S

pytestmark = pytest.mark.process

QUEUE = "stream"
WINDOW = 400
KILLS = repetitions(5, few=3)


@dataclass
class CountingPublisher:
    """Publishes 0, 1, 2, … with confirms; what is unconfirmed when the broker dies is sent again, in order.

    A body is the number and how often it has been sent.
    """

    port: int
    confirmed: int = -1
    """Everything up to this number is confirmed."""
    last: int | None = None
    attempts: int = 0

    def wait_for(self, confirmed: int) -> None:
        """Until so many are confirmed."""
        while self.confirmed < confirmed:
            time.sleep(0.001)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with PlainClient(self.port, timeout_s=5) as client:
                    self._publish(client, stop)
            except OSError:
                time.sleep(0.02)

    def _publish(self, client: PlainClient, stop: threading.Event) -> None:
        client.ask(ConfirmSelect(), ConfirmSelectOk)
        self.attempts += 1
        base = sent = self.confirmed + 1
        while not stop.is_set() or self.confirmed < sent - 1:
            while sent - self.confirmed <= WINDOW and not stop.is_set():
                client.publish(b"%d %d" % (sent, self.attempts), QUEUE)
                sent += 1
            for event in client.take_events():
                if type(event) is not AckEvent:
                    raise ClosedError(repr(event))  # an orderly stop says so first
                tag = base + event.delivery_tag - 1
                assert event.multiple or tag == self.confirmed + 1
                self.confirmed = max(self.confirmed, tag)


@dataclass
class Consumer:
    """Consumes with cumulative acks, and judges what comes."""

    port: int
    next_number: int = 0
    seen: set[bytes] = field(default_factory=set)
    repeats: int = 0
    errors: list[str] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with PlainClient(self.port, timeout_s=1) as client:
                    self._consume(client, stop)
            except OSError:
                time.sleep(0.02)

    def _consume(self, client: PlainClient, stop: threading.Event) -> None:
        client.ask(BasicQos(0, 300, False), BasicQosOk)
        client.ask(BasicConsume(QUEUE, "c"), BasicConsumeOk)
        unacked = 0
        while not stop.is_set():
            for event in client.take_events():
                assert type(event) is DeliverEvent, event
                self._judge(event)
                unacked += 1
                if unacked >= 100:
                    client.wire.ack(1, event.delivery_tag, multiple=True)
                    unacked = 0

    def _judge(self, event: DeliverEvent) -> None:
        number = int(event.body.split()[0])
        if number > self.next_number:
            self.errors.append(f"{number} came before {self.next_number}")
        if event.body in self.seen:
            self.repeats += 1
            if not event.redelivered:
                self.errors.append(f"{event.body!r} came again and does not say so")
        self.seen.add(event.body)
        self.next_number = max(self.next_number, number + 1)


@contextlib.contextmanager
def publishing(broker: EmbeddedBroker, *, until_confirmed: int) -> Iterator[CountingPublisher]:
    """A publisher at work on a queue that nobody consumes, when so many of its messages are confirmed."""
    with PlainClient(broker.port) as client:
        client.ask(QueueDeclare(QUEUE, durable=True), QueueDeclareOk)
    publisher = CountingPublisher(broker.port)
    stop = threading.Event()
    thread = threading.Thread(target=publisher.run, args=(stop,))
    thread.start()
    try:
        publisher.wait_for(until_confirmed)
        yield publisher
    finally:
        stop.set()
        thread.join(GUARD_S)


def test_confirmed_messages_survive_kill_9_in_order(tmp_path: Path) -> None:
    rng = random.Random(7)
    with EmbeddedBroker(tmp_path / "data") as broker:
        with PlainClient(broker.port) as client:
            arguments = {"x-single-active-consumer": True}
            client.ask(QueueDeclare(QUEUE, durable=True, arguments=arguments), QueueDeclareOk)
        publisher, consumer = CountingPublisher(broker.port), Consumer(broker.port)
        stop_publishing, stop_consuming = threading.Event(), threading.Event()
        threads = [
            threading.Thread(target=publisher.run, args=(stop_publishing,)),
            threading.Thread(target=consumer.run, args=(stop_consuming,)),
        ]
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            publisher.wait_for(publisher.confirmed + rng.randint(100, 500))
            broker.kill()
            broker.start()
        publisher.wait_for(publisher.confirmed + 100)
        stop_publishing.set()
        threads[0].join(GUARD_S)
        deadline = time.monotonic() + GUARD_S
        while consumer.next_number <= publisher.confirmed and time.monotonic() < deadline:
            time.sleep(0.02)
        stop_consuming.set()
        threads[1].join(GUARD_S)
        assert consumer.errors == []
        assert publisher.confirmed > 1000
        assert consumer.next_number > publisher.confirmed
        assert publisher.attempts > 1
        assert consumer.repeats > 0


def test_a_backlog_survives_kill_9_whole(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        with publishing(broker, until_confirmed=5000) as publisher:
            broker.kill()
            confirmed = publisher.confirmed
        broker.start()
        with PlainClient(broker.port) as client:
            count = client.ask(QueueDeclare(QUEUE, True), QueueDeclareOk).message_count
            assert confirmed + 1 <= count <= confirmed + 1 + WINDOW
            client.send(BasicConsume(QUEUE, "c", no_ack=True))
            numbers = [int(delivery.body.split()[0]) for delivery in client.deliveries(count)]
            assert numbers == list(range(count))


def test_an_orderly_stop_under_load_loses_nothing_and_exits_cleanly(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        with publishing(broker, until_confirmed=2000) as publisher:
            assert broker.stop() == 0
            confirmed = publisher.confirmed
        broker.start()
        with PlainClient(broker.port) as client:
            assert client.ask(QueueDeclare(QUEUE, True), QueueDeclareOk).message_count > confirmed


@dataclass
class StreamReader:
    """Reads a stream on from where it was, and keeps each body by its offset."""

    port: int
    bodies: list[bytes] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), PlainClient(self.port, timeout_s=1) as client:
                self._read(client, stop)

    def _read(self, client: PlainClient, stop: threading.Event) -> None:
        client.ask(BasicQos(0, 300, False), BasicQosOk)
        arguments = {"x-stream-offset": len(self.bodies)}
        client.ask(BasicConsume(QUEUE, "c", arguments=arguments), BasicConsumeOk)
        while not stop.is_set():
            for event in client.take_events():
                assert type(event) is DeliverEvent, event
                assert event.headers["x-stream-offset"] == len(self.bodies)
                self.bodies.append(event.body)
                client.wire.ack(1, event.delivery_tag, multiple=False)
            client.flush()


def test_a_stream_survives_kill_9_with_all_that_was_confirmed_or_delivered(tmp_path: Path) -> None:
    rng = random.Random(11)
    with EmbeddedBroker(tmp_path / "data") as broker:
        with PlainClient(broker.port) as client:
            client.ask(
                QueueDeclare(QUEUE, durable=True, arguments={"x-queue-type": "stream"}), QueueDeclareOk
            )
        publisher, reader = CountingPublisher(broker.port), StreamReader(broker.port)
        stop_publishing, stop_reading = threading.Event(), threading.Event()
        threads = [
            threading.Thread(target=publisher.run, args=(stop_publishing,)),
            threading.Thread(target=reader.run, args=(stop_reading,)),
        ]
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            publisher.wait_for(publisher.confirmed + rng.randint(100, 500))
            broker.kill()
            broker.start()
        publisher.wait_for(publisher.confirmed + 100)
        stop_publishing.set()
        threads[0].join(GUARD_S)
        with PlainClient(broker.port) as client:
            count = client.ask(QueueDeclare(QUEUE, passive=True), QueueDeclareOk).message_count
            client.ask(BasicQos(0, WINDOW, False), BasicQosOk)
            client.send(BasicConsume(QUEUE, "c", arguments={"x-stream-offset": "first"}))
            stored = []
            while len(stored) < count:
                for delivery in client.deliveries(min(WINDOW, count - len(stored))):
                    assert delivery.headers["x-stream-offset"] == len(stored)
                    stored.append(delivery.body)
                    client.wire.ack(1, delivery.delivery_tag, multiple=False)
        deadline = time.monotonic() + GUARD_S
        while len(reader.bodies) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        stop_reading.set()
        threads[1].join(GUARD_S)
        assert reader.bodies == stored
        first_seen = list(dict.fromkeys(int(body.split()[0]) for body in stored))
        assert first_seen == list(range(len(first_seen)))
        assert len(first_seen) > publisher.confirmed > 1000
        assert publisher.attempts > 1
