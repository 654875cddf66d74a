"""The whole path of a message on RabbitMQ quorum queues, beside the least that can be called publishing and consuming.

Ours: a GroupPublisher in one process, four members with lanes and journals in processes of their own, each serving one
of the group's four queues, an application in each that returns at once, acknowledgements. Bare: one process that
writes the same messages, encoded beforehand, to the same exchange, and one that counts deliveries in the raw bytes of
the same four queues and acknowledges each read. In turn, in every round, on one node. A rate is messages over the time
from the first publish to the last acknowledgement. `python -m bench.whole_path --messages 60000 --rounds 3`.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika

from bench.measurement import Measurement
from bench.publish_group import SPEC, BareGroupPublisher, emptied
from bench.wire import BareConsumer
from bench.workers import Worker, cpu_s, say
from lbg_core.amqp.methods import BasicConsume, BasicQos
from lbg_core.group import Names
from lbg_core.group.members_protocol import Takeover
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message
from lbg_sidecar.core.effects import Done, Effect, Moved
from testing.admin.group_on_broker import declare_group
from testing.rabbitmq.node import RabbitNode
from testing.waiting import until

MEMBERS = SPEC.queue_count
BODY = bytes(256)
KEYS = [f"N{number:05d}" for number in range(5000)]
REPORT_EVERY_S = 0.05
BARE_PREFETCH = 1000


# Workers


class Tally:
    """Messages that a consumer has acknowledged, reported at intervals."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.at_ns = 0
        self.serving: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._told = 0

    def more(self, count: int) -> None:
        self.acknowledged += count
        self.at_ns = time.monotonic_ns()

    def observe(self, effect: Effect) -> None:
        match effect:
            case Done(deliveries, settled) if settled:
                self.more(len(deliveries))
            case Takeover():
                self.serving.add(effect.queue)
            case Moved():
                self.serving.discard(effect.queue)
            case _:
                pass

    def tell(self) -> None:
        say("tally", acknowledged=self.acknowledged, at_ns=self.at_ns, serving=sorted(self.serving))
        self._loop.call_later(REPORT_EVERY_S, self.tell)


async def member(url: str, name: str, journal: str | None, **_: Any) -> None:
    tally = Tally()

    async def handle(message: Message) -> None:
        assert len(message.data) == len(BODY)

    settings = MemberSettings(
        broker=url,
        group=SPEC.name,
        name=name,
        rebalance_delay_s=0.3,
        journal=Path(journal) if journal else None,
    )
    async with Member(settings, handle, observer=tally.observe) as joined:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, joined.stop, "measured")
        say("ready")
        tally.tell()
        await joined.run()
    say("done")


class BareReader(BareConsumer):
    def on_raw(self, data: bytes) -> None:
        before = self.seen
        super().on_raw(data)
        if self.seen > before:
            self.tally.more(self.seen - before)

    tally: Tally


async def bare_reader(url: str, **_: Any) -> None:
    loop = asyncio.get_running_loop()
    queues = [Names(SPEC.name).queue(queue) for queue in range(SPEC.queue_count)]
    script = [BasicQos(0, BARE_PREFETCH, False), *(BasicConsume(queue, queue) for queue in queues)]
    where = pika.URLParameters(url)
    _, reader = await loop.create_connection(lambda: BareReader(*script), where.host, where.port)
    reader.tally = Tally()
    loop.add_signal_handler(signal.SIGTERM, reader.done.set_result, None)
    await reader.ready
    say("ready")
    reader.tally.tell()
    await reader.done
    reader.transport.close()
    say("done")


async def group_publisher(url: str, messages: int, **_: Any) -> None:
    async with GroupPublisher(url, group=SPEC.name) as publisher:
        say("ready")
        await _told_to_go()
        started_ns = time.monotonic_ns()
        for number in range(messages):
            await publisher.publish(key=KEYS[number % len(KEYS)], body=BODY, topic="flight")
        await publisher.flush()
        say("published", started_ns=started_ns)
        await _told_to_go()
    say("done")


async def bare_publisher(url: str, messages: int, **_: Any) -> None:
    where = pika.URLParameters(url)
    loop = asyncio.get_running_loop()
    _, publisher = await loop.create_connection(BareGroupPublisher, where.host, where.port)
    await publisher.ready
    publisher.messages = messages
    publisher.encode()
    say("ready")
    await _told_to_go()
    started_ns = time.monotonic_ns()
    publisher.start()
    await publisher.done
    say("published", started_ns=started_ns)
    await _told_to_go()
    publisher.transport.close()
    say("done")


async def _told_to_go() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


WORKERS: dict[str, Callable[..., Awaitable[None]]] = {
    "member": member,
    "bare reader": bare_reader,
    "group publisher": group_publisher,
    "bare publisher": bare_publisher,
}


# The measurement


@dataclass(frozen=True)
class Contender:
    name: str
    publisher: str
    consumer: str
    consumers: int = 1
    journal: bool = False


CONTENDERS = (
    Contender("bare publisher and reader", "bare publisher", "bare reader"),
    Contender("lbg: publisher, 4 members, journals", "group publisher", "member", MEMBERS, journal=True),
    Contender("lbg: publisher, 4 members", "group publisher", "member", MEMBERS),
)


@dataclass(frozen=True)
class Result:
    """Messages per second, and microseconds of CPU a message of each part."""

    rate: float
    publishing_us: float
    consuming_us: float
    broker_us: float


class Run:
    """One contender's turn."""

    def __init__(self, contender: Contender, node: RabbitNode, directory: str, messages: int) -> None:
        self._contender = contender
        self._url = node.amqp_url
        self._node_pid = node.pid
        self._directory = directory
        self._messages = messages
        self._consumers: list[Worker] = []

    async def measured(self) -> Result:
        contender, messages = self._contender, self._messages
        await emptied(self._url)
        publisher = await Worker.start(
            "whole_path", role=contender.publisher, url=self._url, messages=messages
        )
        workers = [publisher]
        try:
            for number in range(contender.consumers):
                consumer = await self._consumer(number)
                self._consumers.append(consumer)
                workers.append(consumer)
            for worker in workers:
                await worker.answer("ready")
            if contender.consumer == "member":
                await self._one_queue_each()
            await asyncio.sleep(1)  # what the node still does for the last message is not this run's
            before, already = self._cpu_s(publisher), self._acknowledged()
            await publisher.tell("go")
            published = await publisher.answer("published", timeout_s=120)
            await until(lambda: self._acknowledged() - already >= messages, timeout_s=120, what="every ack")
            spent = [
                (after - at) / messages * 1e6
                for at, after in zip(before, self._cpu_s(publisher), strict=True)
            ]
            last_ns = max(consumer.last("tally")["at_ns"] for consumer in self._consumers)
            await publisher.tell("end")
            for worker in workers[1:]:
                await worker.stop()
            await publisher.answer("done")
            return Result(messages / (last_ns - published["started_ns"]) * 1e9, *spent)
        finally:
            for worker in workers:
                await worker.kill()

    async def _consumer(self, number: int) -> Worker:
        journal = f"{self._directory}/{number}" if self._contender.journal else None
        return await Worker.start(
            "whole_path", role=self._contender.consumer, url=self._url, name=f"m{number}", journal=journal
        )

    async def _one_queue_each(self) -> None:
        """A queue that nothing goes through shows no owner: messages, until every member serves one queue."""
        async with GroupPublisher(self._url, group=SPEC.name) as publisher:

            def is_balanced() -> bool:
                serving = [consumer.last("tally").get("serving", []) for consumer in self._consumers]
                return sorted(serving) == [[queue] for queue in range(SPEC.queue_count)]

            number = 0
            async with asyncio.timeout(60):
                while not is_balanced():
                    await publisher.publish(key=KEYS[number % len(KEYS)], body=BODY, topic="flight")
                    number += 1
                    await asyncio.sleep(0.002)
            await publisher.flush()
        await until(lambda: self._acknowledged() >= number, what="what went before")

    def _acknowledged(self) -> int:
        return sum(consumer.last("tally").get("acknowledged", 0) for consumer in self._consumers)

    def _cpu_s(self, publisher: Worker) -> tuple[float, float, float]:
        consumers_s = sum(cpu_s(consumer.pid) for consumer in self._consumers)
        return cpu_s(publisher.pid), consumers_s, cpu_s(self._node_pid)


def measure(messages: int, rounds: int) -> dict[str, list[Result]]:
    results: dict[str, list[Result]] = {contender.name: [] for contender in CONTENDERS}
    with RabbitNode() as node:
        asyncio.run(declare_group(node.amqp_url, SPEC))
        for _ in range(rounds):
            for contender in CONTENDERS:
                with tempfile.TemporaryDirectory(prefix="lbg-bench-") as directory:
                    run = Run(contender, node, directory, messages)
                    results[contender.name].append(asyncio.run(run.measured()))
    return results


def print_table(results: dict[str, list[Result]], messages: int) -> None:
    bare = [result.rate for result in next(iter(results.values()))]
    print(
        f"{messages} messages of 256 bytes on 4 quorum queues, median of {len(bare)} rounds; µs are CPU a message\n"
    )
    print("| | msg/s | of bare | publisher µs | consumers µs | broker µs |\n|---|--:|--:|--:|--:|--:|")
    for name, found in results.items():
        rate = statistics.median(result.rate for result in found)
        of_bare = statistics.median(result.rate / other for result, other in zip(found, bare, strict=True))
        parts = zip(*((each.publishing_us, each.consuming_us, each.broker_us) for each in found), strict=True)
        spent = " | ".join(f"{statistics.median(part):.1f}" for part in parts)
        print(f"| {name} | {rate:,.0f} | {of_bare:.2f} | {spent} |", flush=True)


def main() -> None:
    parser = Measurement(__doc__, workers=WORKERS)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.asked()
    print_table(measure(arguments.messages, arguments.rounds), arguments.messages)


if __name__ == "__main__":
    main()
