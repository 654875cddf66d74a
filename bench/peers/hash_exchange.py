"""RabbitMQ's consistent-hash exchange before quorum queues with single active consumers, by pika.

Every consumer waits on every queue. Started together, each is the first on its share; later nothing rebalances them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel

from bench.peers import ACK_AFTER_S, ACK_EVERY, CONSUMERS, GROUP, PARTITIONS, PREFETCH, Broker, Work
from bench.workers import say
from lbg_core.client import BasicProperties, ConfirmingPublisher, connect
from testing.rabbitmq.node import RabbitNode

EXCHANGE = f"{GROUP}.hash"
QUEUES = [f"{GROUP}.{number}" for number in range(PARTITIONS)]
WEIGHT = "10"
"""Of a queue's binding to the exchange."""

HEAD_START_S = 1.0
UNCONFIRMED_BYTES = 1024 * 256


@contextmanager
def broker(directory: Path) -> Iterator[Broker]:
    with RabbitNode(plugins=["rabbitmq_consistent_hash_exchange"]) as node:
        yield Broker(node.amqp_url, node.pid)


async def declare(url: str) -> None:
    connection = await connect(url, name="comparison")
    channel = await connection.open_channel()
    await channel.exchange_declare(EXCHANGE, "x-consistent-hash", durable=True)
    for queue in QUEUES:
        arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
        await channel.queue_declare(queue, durable=True, arguments=arguments)
        await channel.queue_bind(queue, EXCHANGE, WEIGHT)
    await connection.close()


async def publisher(url: str) -> HashPublisher:
    connection = await connect(url, name="comparison")
    return HashPublisher(await ConfirmingPublisher.open(connection, max_unconfirmed_bytes=UNCONFIRMED_BYTES))


class HashPublisher:
    """Of LBG's client: pika's blocking one cannot await confirms together."""

    def __init__(self, publisher: ConfirmingPublisher) -> None:
        self._publisher = publisher
        self._header = BasicProperties(delivery_mode=2).encode()
        self.flush = publisher.flush

    async def send(self, messages: list[tuple[str, bytes]]) -> None:
        for key, body in messages:
            self._publisher.publish_soon(EXCHANGE, key, body, header=self._header)
        await self._publisher.drain()


async def consume(work: Work, url: str, name: str, number: int, ack_every: int = ACK_EVERY) -> None:
    PikaConsumer(work, url, number, ack_every).run()


class PikaConsumer:
    """A blocking connection that takes one message after another."""

    def __init__(self, work: Work, url: str, number: int, ack_every: int) -> None:
        self._work = work
        self._ack_every = ack_every
        share = PARTITIONS // CONSUMERS
        first = number * share % PARTITIONS
        self._queues = QUEUES[first:] + QUEUES[:first]
        self._own = self._queues[:share]
        self._leaving = False
        self._last_tag = self._undone_acks = 0
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self._connection.channel()
        self._channel.basic_qos(prefetch_count=PREFETCH)

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_leaving", True))
        for queue in self._queues:
            if queue == self._queues[len(self._own)]:
                self._connection.sleep(HEAD_START_S)
            self._channel.basic_consume(queue, self._on_message)
        say("ready")
        while not self._leaving:
            self._connection.process_data_events(time_limit=ACK_AFTER_S)
            self._ack()
        self._connection.close()

    def _on_message(
        self, channel: BlockingChannel, method: pika.spec.Basic.Deliver, _: pika.BasicProperties, body: bytes
    ) -> None:
        if self._leaving:
            return  # it goes back to the queue
        self._work.do_blocking(body)
        self._last_tag = method.delivery_tag
        self._undone_acks += 1
        if self._undone_acks >= self._ack_every:
            self._ack()

    def _ack(self) -> None:
        if self._undone_acks:
            self._channel.basic_ack(self._last_tag, multiple=True)
            self._undone_acks = 0
