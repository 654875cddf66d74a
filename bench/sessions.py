"""A sessions queue beside a plain one on the same broker: as many consumers, the same messages, acks in batches.

Durable queues, messages of 256 bytes, each consumer a connection with a prefetch of 1,000. *Flow*: a publisher with
confirms and the consumers are at work at the same time. *Drain*: the consumers work off what was there; the broker's
CPU has the publishing before in it. On the plain queue nothing says whose a message is, and one that is acknowledged
before its batch is never written; a session's message is on disk before it is delivered, and from a backlog it is
written a second time, when it gets its number. `python -m bench.sessions --messages 50000 --rounds 3`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.measurement import Measurement
from bench.ours import BODY, PREFETCH, QUEUE, UNCONFIRMED
from bench.workers import cpu_s
from lbg_core.client import (
    AckBatcher,
    BasicProperties,
    ClientConnection,
    ConfirmingPublisher,
    Delivery,
    connect,
)
from testing.broker.embedded import EmbeddedBroker

KINDS: dict[str, dict[str, object]] = {"plain": {}, "sessions": {"x-queue-type": "sessions"}}
HEADER = BasicProperties(content_type="application/json", delivery_mode=2, headers={"lbg-key": "k"}).encode()


class Consumers:
    """`count` of them; `done` when they have acknowledged `messages`."""

    def __init__(self, url: str, kind: str, *, count: int, messages: int) -> None:
        self._url, self._kind = url, kind
        self._count, self._left = count, messages
        self._connections: list[ClientConnection] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connect(self) -> None:
        self._connections = [await connect(self._url, name="bench") for _ in range(self._count)]

    async def consume(self) -> None:
        for number, connection in enumerate(self._connections):
            channel = await connection.open_channel()
            acks = AckBatcher(channel)
            arguments: dict[str, Any] = {"x-session": f"s{number}"} if self._kind == "sessions" else {}

            def on_deliveries(deliveries: list[Delivery], acks: AckBatcher = acks) -> None:
                for delivery in deliveries:
                    acks.settle(delivery.delivery_tag)
                self._left -= len(deliveries)
                if self._left <= 0 and not self.done.done():
                    self.done.set_result(None)

            await channel.consume(QUEUE, on_deliveries, prefetch_count=PREFETCH, arguments=arguments)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()


async def publish(url: str, messages: int) -> None:
    connection = await connect(url, name="bench")
    publisher = await ConfirmingPublisher.open(connection, max_unconfirmed_bytes=UNCONFIRMED * len(BODY))
    for number in range(messages):
        last = publisher.publish_soon("", QUEUE, BODY, header=HEADER)
        if number % 100 == 99:
            await publisher.drain()
    await publisher.flush()
    await last
    await connection.close()


async def run(activity: str, kind: str, url: str, count: int, messages: int) -> float:
    """Seconds until the last message has come and its acknowledgement is on its way."""
    connection = await connect(url, name="bench-declare")
    channel = await connection.open_channel()
    await channel.queue_delete(QUEUE)
    await channel.queue_declare(QUEUE, durable=True, arguments=KINDS[kind])
    await connection.close()
    consumers = Consumers(url, kind, count=count, messages=messages)
    await consumers.connect()
    if activity == "drain":
        await publish(url, messages)
        started = time.perf_counter()
        await consumers.consume()
    else:
        await consumers.consume()
        started = time.perf_counter()
        await publish(url, messages)
    await consumers.done
    elapsed = time.perf_counter() - started
    await consumers.close()
    return elapsed


def in_process_of_its_own(*told: object) -> float:
    argv = [sys.executable, "-m", "bench.sessions", "--worker", *map(str, told)]
    return float(json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    parser = Measurement(__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument(
        "--worker",
        nargs=5,
        metavar=("ACTIVITY", "KIND", "URL", "CONSUMERS", "MESSAGES"),
        help=argparse.SUPPRESS,
    )
    asked = parser.asked()
    if asked.worker:
        activity, kind, url, count, messages = asked.worker
        print(json.dumps(asyncio.run(run(activity, kind, url, int(count), int(messages)))))
        return
    rates: dict[tuple[str, str], list[float]] = {}
    costs: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as directory, EmbeddedBroker(Path(directory, "data")) as broker:
        for _ in range(asked.rounds):
            for activity in ("flow", "drain"):
                for kind in KINDS:
                    told = (activity, kind, broker.url, asked.consumers, asked.messages)
                    before = cpu_s(broker.pid)
                    elapsed = in_process_of_its_own(*told)
                    rates.setdefault((activity, kind), []).append(asked.messages / elapsed)
                    cpu_us = (cpu_s(broker.pid) - before) * 1e6
                    costs.setdefault((activity, kind), []).append(cpu_us / asked.messages)
                    time.sleep(1)  # what the broker does after the last message is not the next one's
    print(
        f"{asked.messages} messages of {len(BODY)} bytes, {asked.consumers} consumers, "
        f"median of {asked.rounds} rounds\n"
    )
    print(
        "| | plain msg/s | sessions msg/s | ratio | broker CPU, plain µs | sessions µs |\n|---|--:|--:|--:|--:|--:|"
    )
    for activity in ("flow", "drain"):
        plain, sessions = (statistics.median(rates[activity, kind]) for kind in KINDS)
        cost, dearer = (statistics.median(costs[activity, kind]) for kind in KINDS)
        print(
            f"| {activity} | {plain:,.0f} | {sessions:,.0f} | {sessions / plain:.2f} | {cost:.1f} | {dearer:.1f} |"
        )


if __name__ == "__main__":
    main()
