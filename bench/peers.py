"""The consumers that `comparison` compares: ours, pika's and aio-pika's, each used as its documentation recommends.

All do the same work for each message, in `Work`, one message at a time per key as far as they can know, and acknowledge
after it, manually, the peers cumulatively where messages are done in order. SIGTERM means: leave in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import pika
from pika.adapters.blocking_connection import BlockingChannel

from bench.workers import say
from lbg_sidecar import Member, MemberSettings, Message
from testing.work_log import DONE

GROUP = "compare"
EXCHANGE = "compare.hash"
PREFETCH = 250
"""Of what RabbitMQ's guide to consumer acknowledgements calls usually best, 100 to 300."""

ACK_EVERY = 50
ACK_AFTER_S = 0.02
"""One cumulative acknowledgement for so many messages, or after so long."""

REBALANCE_DELAY_S = 0.5
HEAD_START_S = 1.0
WEIGHT = "10"
"""Of a queue's binding to the consistent-hash exchange."""

TASK = struct.Struct(">IId")  # number of the message, key, how long its work takes in seconds


class Work:
    """Work of an application on a message: a wait, as for a database, and a visible effect."""

    def __init__(self, log: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def do(self, body: bytes) -> None:
        number, key, wait_s = TASK.unpack_from(body)
        if wait_s:
            await asyncio.sleep(wait_s)
        os.write(self._log, DONE.pack(time.monotonic_ns(), number, key))

    def do_blocking(self, body: bytes) -> None:
        number, key, wait_s = TASK.unpack_from(body)
        if wait_s:
            time.sleep(wait_s)
        os.write(self._log, DONE.pack(time.monotonic_ns(), number, key))


async def lbg(work: Work, url: str, name: str, **_: Any) -> None:
    async def handle(message: Message) -> None:
        await work.do(message.data)

    settings = MemberSettings(broker=url, group=GROUP, name=name, rebalance_delay_s=REBALANCE_DELAY_S)
    async with Member(settings, handle) as member:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, member.stop, "SIGTERM")
        say("ready")
        await member.run()


class PikaConsumer:
    """A blocking connection that takes one message after another, from one queue or several."""

    def __init__(self, work: Work, url: str, queues: list[str], own_queue: bool) -> None:
        self._work = work
        self._queues = queues
        self._own_queue = own_queue
        self._leaving = False
        self._last_tag = self._undone_acks = 0
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self._connection.channel()
        self._channel.basic_qos(prefetch_count=PREFETCH)

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_leaving", True))
        if self._own_queue:
            (own,) = self._queues
            self._channel.queue_declare(own, durable=True, arguments={"x-queue-type": "quorum"})
            self._channel.queue_bind(own, EXCHANGE, routing_key=WEIGHT)
        first, *others = self._queues
        self._channel.basic_consume(first, self._on_message)
        if others:
            # Started together, each consumer is the first on one queue; later nothing rebalances them.
            self._connection.sleep(HEAD_START_S)
        for queue in others:
            self._channel.basic_consume(queue, self._on_message)
        say("ready")
        while not self._leaving:
            self._turn()
        if self._own_queue:
            self._empty_own_queue(self._queues[0])
        self._connection.close()

    def _turn(self) -> None:
        self._connection.process_data_events(time_limit=ACK_AFTER_S)
        self._ack()

    def _on_message(
        self, channel: BlockingChannel, method: pika.spec.Basic.Deliver, _: pika.BasicProperties, body: bytes
    ) -> None:
        if self._leaving and not self._own_queue:
            return  # it goes back to the queue
        self._work.do_blocking(body)
        self._last_tag = method.delivery_tag
        self._undone_acks += 1
        if self._undone_acks >= ACK_EVERY:
            self._ack()

    def _ack(self) -> None:
        if self._undone_acks:
            self._channel.basic_ack(self._last_tag, multiple=True)
            self._undone_acks = 0

    def _empty_own_queue(self, queue: str) -> None:
        """Nothing more is to be routed here; what is here is worked off first, so that nothing is lost."""
        self._channel.queue_unbind(queue, EXCHANGE, routing_key=WEIGHT)
        while True:
            before = self._last_tag
            self._turn()
            ready = self._channel.queue_declare(queue, passive=True).method.message_count
            if not ready and self._last_tag == before:
                self._channel.queue_delete(queue)
                return


async def pika_consumer(work: Work, url: str, queues: list[str], own_queue: bool, **_: Any) -> None:
    PikaConsumer(work, url, queues, own_queue).run()


class AioPikaConsumer:
    """A queue's iterator, one message after another."""

    def __init__(self, work: Work, queue: aio_pika.abc.AbstractQueue) -> None:
        self._work = work
        self._queue = queue
        self._last: aio_pika.abc.AbstractIncomingMessage | None = None
        self._undone_acks = 0
        self.handled = 0
        self.messages = queue.iterator()

    async def run(self) -> None:
        acking = asyncio.create_task(self._ack_regularly())
        async with self.messages as messages:
            say("ready")
            async for message in messages:
                await self._work.do(message.body)
                self.handled += 1
                self._last = message
                self._undone_acks += 1
                if self._undone_acks >= ACK_EVERY:
                    await self.ack()
        acking.cancel()

    async def ack(self) -> None:
        last, self._last = self._last, None
        self._undone_acks = 0
        if last is not None:
            await last.ack(multiple=True)

    async def _ack_regularly(self) -> None:
        while True:
            await asyncio.sleep(ACK_AFTER_S)
            await self.ack()


async def aio_pika_consumer(work: Work, url: str, queues: list[str], own_queue: bool, **_: Any) -> None:
    connection = await aio_pika.connect_robust(url)
    channel = await connection.channel()
    await channel.set_qos(PREFETCH)
    (name,) = queues
    if own_queue:
        queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
        await queue.bind(EXCHANGE, WEIGHT)
    else:
        queue = await channel.get_queue(name)
    consumer = AioPikaConsumer(work, queue)
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    running = asyncio.create_task(consumer.run())
    await leaving.wait()
    if own_queue:
        await queue.unbind(EXCHANGE, WEIGHT)
        before = -1
        while consumer.handled != before or queue.declaration_result.message_count:
            before = consumer.handled
            await asyncio.sleep(ACK_AFTER_S * 2)
            queue = await channel.declare_queue(name, passive=True)
    await consumer.ack()
    await consumer.messages.close()
    await running
    if own_queue:
        await queue.delete(if_unused=False, if_empty=False)  # quorum queues know neither
    await connection.close()


CLIENTS: dict[str, Callable[..., Awaitable[None]]] = {
    "lbg": lbg,
    "pika": pika_consumer,
    "aio-pika": aio_pika_consumer,
}


async def run(told: dict[str, Any]) -> None:
    await CLIENTS[told.pop("client")](Work(told.pop("log")), **told)
    say("done")


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[2])))  # after --worker
