"""Our client beside pika, aio-pika and a bare read loop, on a RabbitMQ quorum queue: consume with ack, publish
with confirm.

Messages are persistent, 256 bytes. Each contender is a process of its own, alone on the machine with the node, and
takes its turn in every round. The bare loop does the least that can be called consuming and publishing: it counts
method numbers in what it reads, and writes messages encoded beforehand. `python -m bench.wire --rounds 3`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import aio_pika
import pika
from pika.adapters.blocking_connection import BlockingChannel

from bench.measurement import Measurement
from bench.ours import BODY, PREFETCH, QUEUE, UNCONFIRMED, lbg_consume, lbg_publish
from lbg_core.amqp import Connection, Event, MethodEvent, Role
from lbg_core.amqp.methods import (
    BasicConsume,
    BasicQos,
    ChannelOpen,
    ConfirmSelect,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    Method,
)
from lbg_core.client import BasicProperties, connect
from testing.rabbitmq.node import RabbitNode

ACK_EVERY = 100
"""Messages per acknowledgement of the other clients, where they batch."""


# Bare


class Bare(asyncio.Protocol):
    """Opens a connection with our machine, then leaves the machine out of it."""

    def __init__(self, *script: Method) -> None:
        self.machine = Connection(Role.CLIENT, heartbeat_s=0)
        self.script = list(script)
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.machine.initiate()
        transport.write(self.machine.take_output())

    def data_received(self, data: bytes) -> None:
        if self.ready.done():
            self.on_raw(data)
            return
        for event in self.machine.receive_data(data):
            self.on_event(event)
        self.transport.write(self.machine.take_output())

    def on_event(self, event: Event) -> None:
        assert isinstance(event, MethodEvent)
        match event.method:
            case ConnectionStart():
                self.machine.send(0, ConnectionStartOk(response=b"\0guest\0guest"))
            case ConnectionTune():
                self.machine.send(0, self.machine.tune_ok(event.method))
                self.machine.send(0, ConnectionOpen("/"))
            case ConnectionOpenOk():
                self.machine.send(1, ChannelOpen())
            case _:
                self.machine.send(1, self.script.pop(0))
                if not self.script:
                    self.ready.set_result(None)  # the answer, and what comes with it, is read raw

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the broker closed the connection"))

    def on_raw(self, data: bytes) -> None:
        raise NotImplementedError


ACK = struct.Struct(">BHIIQBB")
SELECT_OK = b"\x01\x00\x01\x00\x00\x00\x04\x00\x55\x00\x0b\xce"
CHANNEL_CLOSE = b"\x01\x00\x01\x00\x00\x00\x0b\x00\x14\x00\x28\x00\xc8\x00\x00\x00\x00\x00\xce"


class BareConsumer(Bare):
    messages = 0
    seen = 0
    rest = b""

    def on_raw(self, data: bytes) -> None:
        data = self.rest + data
        self.rest = data[-3:]
        new = data.count(b"\x00\x3c\x00\x3c")  # basic.deliver; the bodies are zeros
        if new:
            self.seen += new
            self.transport.write(ACK.pack(1, 1, 13, 0x3C0050, self.seen, 1, 0xCE))
            if self.seen == self.messages:
                self.transport.write(CHANNEL_CLOSE)
        if b"\x00\x14\x00\x29\xce" in data:
            self.done.set_result(None)


async def bare_consume(url: str, messages: int) -> float:
    script = (BasicQos(0, PREFETCH, False), BasicConsume(QUEUE, "t"))
    parameters = pika.URLParameters(url)
    _, bare = await asyncio.get_running_loop().create_connection(
        lambda: BareConsumer(*script), parameters.host, parameters.port
    )
    bare.messages = messages
    await bare.ready
    started = time.perf_counter()
    await bare.done
    elapsed = time.perf_counter() - started
    bare.transport.close()
    return elapsed


class BarePublisher(Bare):
    messages = 0
    confirmed = 0
    published = 0

    def __init__(self) -> None:
        super().__init__(ConfirmSelect())
        self.singles: set[int] = set()

    def start(self) -> None:
        self.machine.publish(1, "", QUEUE, BasicProperties(delivery_mode=2).encode(), BODY)
        self.message = self.machine.take_output()
        self.pump()

    def pump(self) -> None:
        more = min(self.messages, self.confirmed + UNCONFIRMED) - self.published
        if more >= 100 or 0 < more == self.messages - self.published:
            self.published += more
            self.transport.write(self.message * more)

    rest = b""

    def on_raw(self, data: bytes) -> None:
        data = (self.rest + data).removeprefix(SELECT_OK)
        if not self.published:
            return  # that was all: nothing is started yet
        whole = len(data) // ACK.size * ACK.size
        self.rest = data[whole:]
        for _, _, _, _, tag, multiple, _ in ACK.iter_unpack(data[:whole]):
            if multiple:
                self.confirmed = max(self.confirmed, tag)
            else:
                self.singles.add(tag)
        while self.confirmed + 1 in self.singles:
            self.confirmed += 1
            self.singles.remove(self.confirmed)
        if self.confirmed == self.messages:
            self.done.set_result(None)
        else:
            self.pump()


async def bare_publish(url: str, messages: int) -> float:
    parameters = pika.URLParameters(url)
    _, bare = await asyncio.get_running_loop().create_connection(
        BarePublisher, parameters.host, parameters.port
    )
    await bare.ready
    bare.messages = messages
    started = time.perf_counter()
    bare.start()
    await bare.done
    elapsed = time.perf_counter() - started
    bare.transport.close()
    return elapsed


# pika


def pika_consume(url: str, messages: int) -> float:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    seen = 0

    def on_message(
        channel: BlockingChannel, method: pika.spec.Basic.Deliver, _: pika.BasicProperties, body: bytes
    ) -> None:
        nonlocal seen
        seen += 1
        if seen % ACK_EVERY == 0 or seen == messages:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if seen == messages:
            channel.stop_consuming()

    started = time.perf_counter()
    channel.basic_consume(QUEUE, on_message)
    channel.start_consuming()
    channel.close()
    elapsed = time.perf_counter() - started
    connection.close()
    return elapsed


# aio-pika


async def aio_pika_consume(url: str, messages: int, *, ack_every: int = 1) -> float:
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    await channel.set_qos(PREFETCH)
    queue = await channel.get_queue(QUEUE)
    done = asyncio.get_running_loop().create_future()
    seen = finished = 0

    async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        nonlocal seen, finished
        seen += 1
        if seen % ack_every == 0 or seen == messages:
            await message.ack(multiple=ack_every > 1)
        finished += 1
        if finished == messages:
            done.set_result(None)

    started = time.perf_counter()
    await queue.consume(on_message)
    await done
    await channel.close()
    elapsed = time.perf_counter() - started
    await connection.close()
    return elapsed


async def aio_pika_consume_batched(url: str, messages: int) -> float:
    return await aio_pika_consume(url, messages, ack_every=ACK_EVERY)


async def aio_pika_publish(url: str, messages: int) -> float:
    connection = await aio_pika.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    exchange = channel.default_exchange
    started = time.perf_counter()
    waiting: set[asyncio.Future[object]] = set()
    for _ in range(messages):
        message = aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        waiting.add(asyncio.ensure_future(exchange.publish(message, QUEUE)))
        if len(waiting) >= UNCONFIRMED:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait(waiting)
    elapsed = time.perf_counter() - started
    await connection.close()
    return elapsed


@dataclass(frozen=True)
class Contender:
    name: str
    messages: int
    run: Callable[[str, int], Any]  # seconds, or a coroutine of them
    uvloop: bool = False


CONSUMERS = (
    Contender("bare read loop", 100_000, bare_consume),
    Contender("lbg", 100_000, lbg_consume),
    Contender("lbg on uvloop", 100_000, lbg_consume, uvloop=True),
    Contender("pika, acks batched", 30_000, pika_consume),
    Contender("aio-pika, acks batched", 15_000, aio_pika_consume_batched),
    Contender("aio-pika", 10_000, aio_pika_consume),
)
PUBLISHERS = (
    Contender("bare, encoded before", 50_000, bare_publish),
    Contender("lbg", 50_000, lbg_publish),
    Contender("lbg on uvloop", 50_000, lbg_publish, uvloop=True),
    Contender("aio-pika", 10_000, aio_pika_publish),
)
ACTIVITIES = {"consume": CONSUMERS, "publish": PUBLISHERS}


async def prepare(url: str, messages: int) -> None:
    """An empty quorum queue, or one with so many messages."""
    connection = await connect(url, name="bench-prepare")
    channel = await connection.open_channel()
    await channel.queue_delete(QUEUE)
    await channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
    await connection.close()
    if messages:
        await lbg_publish(url, messages)


def work(activity: str, index: int, url: str) -> float:
    contender = ACTIVITIES[activity][index]
    if not asyncio.iscoroutinefunction(contender.run):
        return contender.run(url, contender.messages)
    factory = None
    if contender.uvloop:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(contender.run(url, contender.messages))


def has_uvloop() -> bool:
    return find_spec("uvloop") is not None


def measure(rounds: int, activities: list[str]) -> dict[str, dict[str, float]]:
    """Median rates in messages per second: activity -> contender."""
    rates: dict[str, dict[str, list[float]]] = {activity: {} for activity in activities}
    with RabbitNode() as node:
        for _ in range(rounds):
            for activity in activities:
                for index, contender in enumerate(ACTIVITIES[activity]):
                    if contender.uvloop and not has_uvloop():
                        continue
                    asyncio.run(prepare(node.amqp_url, contender.messages if activity == "consume" else 0))
                    time.sleep(0.5)  # what the node still does for the last message is not this one's
                    argv = [
                        sys.executable,
                        "-m",
                        "bench.wire",
                        "--worker",
                        activity,
                        str(index),
                        node.amqp_url,
                    ]
                    answer = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout
                    rates[activity].setdefault(contender.name, []).append(
                        contender.messages / json.loads(answer)
                    )
    return {
        activity: {name: statistics.median(found) for name, found in by_name.items()}
        for activity, by_name in rates.items()
    }


def print_table(rates: dict[str, dict[str, float]], rounds: int) -> None:
    print(
        f"RabbitMQ quorum queue, 256 bytes, persistent, prefetch {PREFETCH}, {UNCONFIRMED} unconfirmed, ",
        end="",
    )
    print(f"median of {rounds} rounds\n")
    print("| | msg/s | of the bare loop | times aio-pika | times pika |\n|---|---|---|---|---|")
    for activity, by_name in rates.items():
        bare = next(iter(by_name.values()))
        plain = by_name["aio-pika"]
        blocking = by_name.get("pika, acks batched")
        title = "consume with ack" if activity == "consume" else "publish with confirm"
        for name, rate in by_name.items():
            times_pika = f"{rate / blocking:.1f}" if blocking else ""
            ratios = f"{rate / bare:.2f} | {rate / plain:.1f} | {times_pika}"
            print(f"| {title}: {name} | {rate:,.0f} | {ratios} |")


def main() -> None:
    parser = Measurement(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(ACTIVITIES))
    parser.add_argument("--worker", nargs=3, metavar=("ACTIVITY", "INDEX", "URL"), help=argparse.SUPPRESS)
    arguments = parser.asked()
    if arguments.worker:
        activity, index, url = arguments.worker
        print(json.dumps(work(activity, int(index), url)))
        return
    activities = [arguments.only] if arguments.only else list(ACTIVITIES)
    print_table(measure(arguments.rounds, activities), arguments.rounds)


if __name__ == "__main__":
    main()
