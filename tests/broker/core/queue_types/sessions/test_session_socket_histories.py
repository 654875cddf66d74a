"""Random histories of a sessions queue on a running broker, over real sockets and with kills of its process.

The laws are those that clients can see: a message is in one session for ever and under one number, numbers have no
holes, who says how far it is gets nothing of that again, and in the end nothing that was confirmed is missing.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pytest

from lbg_core.client import (
    BasicProperties,
    Channel,
    ClientConnection,
    ClientError,
    ConfirmingPublisher,
    Delivery,
    ResourceLocked,
    connect,
)
from testing.broker.embedded import EmbeddedBroker
from testing.broker_core.sessions import act_on, queue_json
from testing.exploration import over_seeds
from testing.waiting import until

NAMES = ("a", "b", "c")
PREFETCH = 5
HEADER = BasicProperties(delivery_mode=2).encode()
STEPS = ("publish", "join", "join", "take", "commit", "ack", "ack", "requeue", "abort", "close", "kill")


@pytest.fixture(scope="module")
def broker(process: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("sessions") / "data") as running:
        yield running
        assert "Traceback" not in running.log_file.read_text()


@dataclass
class Session:
    """Deliveries of its consumers, one after the other. `position`: up to their commits.
    `told`: up to where the broker has received that and not died since, as acks may die with it."""

    seen: dict[int, bytes] = field(default_factory=dict)
    position: int = 0
    told: int = 0
    ended: bool = False


@dataclass(eq=False)
class Consumer:
    name: str
    connection: ClientConnection
    channel: Channel
    held: dict[int, int] = field(default_factory=dict)
    """Tags it has not acknowledged, with their sequence numbers."""


class History:
    def __init__(self, broker: EmbeddedBroker, queue: str) -> None:
        self.broker, self.queue = broker, queue
        self.sessions: dict[str, Session] = {}
        self.consumers: dict[str, Consumer] = {}
        self.home: dict[bytes, tuple[str, int]] = {}
        self.published = 0
        self.confirmed: set[bytes] = set()
        self.broken: list[str] = []
        self.works = False

    async def play(self, steps: list[tuple[str, str, bool]]) -> None:
        await self.open()
        for step, name, says in steps:
            await self.perform(step, name, says)
            assert not self.broken
        self.works = True
        for name in tuple(self.sessions) or NAMES[:1]:
            await self.leave(name, abort=False)
            await self.join(name, says=True)
        await asyncio.to_thread(act_on, self.broker, "close", self.queue)
        everybody = self.sessions.values()
        await until(lambda: self.broken or all(session.ended for session in everybody), what="the ends")
        assert not self.broken
        assert self.confirmed <= self.home.keys()
        await until(self.is_over, what="the broker to have nothing left")
        for consumer in self.consumers.values():
            await consumer.connection.close()
        await self.connection.close()

    def is_over(self) -> bool:
        left = queue_json(self.broker, self.queue)
        return (left["messages"], left["sessions"]) == (0, [])

    async def open(self) -> None:
        self.connection = await connect(self.broker.url, name="history")
        channel = await self.connection.open_channel()
        await channel.queue_declare(self.queue, durable=True, arguments={"x-queue-type": "sessions"})
        self.publisher = await ConfirmingPublisher.open(self.connection)

    async def perform(self, step: str, name: str, says: bool) -> None:
        match step:
            case "publish":
                bodies = [b"%d" % number for number in range(self.published, self.published + 7)]
                self.published += len(bodies)
                for body in bodies:
                    self.publisher.publish_soon("", self.queue, body, header=HEADER)
                await self.publisher.flush()
                self.confirmed.update(bodies)
            case "join" if name not in self.consumers:
                await self.join(name, says=says)
            case "take" if name in self.consumers:
                with pytest.raises(ResourceLocked):
                    await self.consume(name, await self.connection.open_channel(), lambda _: None)
            case "commit" if name in self.consumers:
                self.commit(self.consumers[name])
            case "ack" if name in self.consumers:
                self.acknowledge(self.consumers[name])
            case "requeue" if name in self.consumers and self.consumers[name].held:
                consumer = self.consumers[name]
                consumer.channel.nack(max(consumer.held), multiple=True, requeue=True)
                consumer.held.clear()
            case "abort" | "close" if name in self.consumers:
                await self.leave(name, abort=step == "abort")
            case "kill":
                await self.kill()
        await asyncio.sleep(0.02)

    async def kill(self) -> None:
        await asyncio.to_thread(self.broker.kill)
        for name in list(self.consumers):
            await self.leave(name, abort=True)
        for session in self.sessions.values():
            session.told = 0  # nor what the disk did not have yet
        self.connection.abort()
        await asyncio.to_thread(self.broker.start)
        await self.open()

    async def join(self, name: str, *, says: bool) -> None:
        """`says`: how far the session is."""
        connection = await connect(self.broker.url, name="history")
        consumer = Consumer(name, connection, await connection.open_channel())
        session = self.sessions.setdefault(name, Session())
        if says:
            session.told = session.position
        self.consumers[name] = consumer
        committed = {"x-session-committed": session.position} if says else {}
        await self.consume(name, consumer.channel, partial(self.on_deliveries, consumer), **committed)

    async def consume(self, name: str, channel: Channel, on_deliveries: object, **committed: int) -> None:
        await channel.consume(
            self.queue,
            on_deliveries,
            prefetch_count=PREFETCH,
            consumer_tag=name,
            arguments={
                "x-session": name,
                **{key.replace("_", "-"): value for key, value in committed.items()},
            },
        )

    async def leave(self, name: str, *, abort: bool) -> None:
        consumer = self.consumers.pop(name, None)
        if consumer is None:
            return
        if abort:
            self.sessions[name].told = 0  # its last acks may not have been read
            consumer.connection.abort()
        else:
            with suppress(ClientError):
                await consumer.connection.close()

    def commit(self, consumer: Consumer) -> None:
        """As far as it has everything: of what was requeued nothing is committed that is not here."""
        session = self.sessions[consumer.name]
        held = set(consumer.held.values())
        while session.position + 1 in held:
            session.position += 1

    def acknowledge(self, consumer: Consumer) -> None:
        """Commit all it has, and then tell the broker."""
        self.commit(consumer)
        session = self.sessions[consumer.name]
        for tag, number in list(consumer.held.items()):
            if number <= session.position:
                del consumer.held[tag]
                consumer.channel.ack(tag)
        session.told = session.position

    def on_deliveries(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        if self.consumers.get(consumer.name) is not consumer:
            return  # it is gone, and what its socket still holds comes again
        session = self.sessions[consumer.name]
        for delivery in deliveries:
            number = int(delivery.headers["x-session-seq"])
            body = bytes(delivery.body)
            if "x-session-end" in delivery.headers:
                body, session.ended = b"the end of " + consumer.name.encode(), True
            self.judge(session, consumer.name, number, body)
            consumer.held[delivery.delivery_tag] = number
        if self.works:
            self.acknowledge(consumer)

    def judge(self, session: Session, name: str, number: int, body: bytes) -> None:
        known = session.seen.get(number)
        if known is None and number != max(session.seen, default=0) + 1:
            self.broken.append(f"{name}: {number} after {max(session.seen, default=0)}")
        if known not in (None, body):
            self.broken.append(f"{name}: {number} is {body!r} and was {known!r}")
        if number <= session.told:
            self.broken.append(f"{name}: {number} again, though {session.told} was committed")
        if self.home.setdefault(body, (name, number)) != (name, number):
            self.broken.append(f"{body!r} is {name} {number} and was {self.home[body]}")
        session.seen[number] = body


def test_a_history_with_a_kill_while_messages_are_out(broker: EmbeddedBroker) -> None:
    steps = ("publish", "join", "take", "commit", "abort", "join", "take", "ack", "kill", "join")
    play(broker, [(step, "a", True) for step in steps])


@over_seeds(12)
def test_the_laws_hold_over_real_sockets(broker: EmbeddedBroker, seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(8, 20)
    play(broker, [(rng.choice(STEPS), rng.choice(NAMES), rng.random() < 0.5) for _ in range(count)])


def play(broker: EmbeddedBroker, steps: list[tuple[str, str, bool]]) -> None:
    asyncio.run(History(broker, f"history-{secrets.token_hex(4)}").play(steps))
