"""Time that a member adds from publish to application, over the least consumer.

A GroupPublisher sends evenly spaced messages to a group of four RabbitMQ quorum queues; each carries the time it was
published (CLOCK_MONOTONIC, which processes of one machine share). One consumer, a process of its own, takes all of
them, acknowledges, and notes how old each is: a bare read loop when the bytes are read, a member with journal when the
application is called. They take turns. `python -m bench.latency --rate 1000 --seconds 10 --rounds 3`.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import struct
import tempfile
import time
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pika

from bench.measurement import Measurement, percentile
from bench.publish_group import SPEC, emptied
from bench.wire import ACK, Bare
from bench.workers import Worker, say
from lbg_core.amqp.methods import BasicConsume, BasicQos
from lbg_core.group import Names
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message
from testing.admin.group_on_broker import declare_group
from testing.rabbitmq.node import RabbitNode

MARK = b"published"
_AT_NS = struct.Struct(">Q")
_STAMP_BYTES = len(MARK) + _AT_NS.size
_FILL = bytes(256 - _STAMP_BYTES)
KEYS = [f"N{number:05d}" for number in range(5000)]
PREFETCH = 256
WARM_UP_S = 1.0


# Workers


async def publisher(url: str, rate: int, seconds: float, **_: Any) -> None:
    """Evenly spaced, and not faster to make up for a moment lost."""
    loop = asyncio.get_running_loop()
    async with GroupPublisher(url, group=SPEC.name) as publisher:
        at = loop.time()
        ends_at = at + WARM_UP_S + seconds
        number = 0
        while at < ends_at:
            body = MARK + _AT_NS.pack(time.monotonic_ns()) + _FILL
            await publisher.publish(key=KEYS[number % len(KEYS)], body=body, topic="flight")
            number += 1
            at = max(at + 1 / rate, loop.time() - 0.002)
            await asyncio.sleep(max(0.0, at - loop.time()))
        await publisher.flush()
    say("done", published=number)


class BareConsumer(Bare):
    """Finds the marks in what it reads, and acknowledges every read."""

    def __init__(self) -> None:
        queues = [Names(SPEC.name).queue(queue) for queue in range(SPEC.queue_count)]
        super().__init__(BasicQos(0, PREFETCH, False), *(BasicConsume(queue, queue) for queue in queues))
        self.ages_ns = array("Q")
        self._rest = b""

    def on_raw(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        data = self._rest + data
        before, start = len(self.ages_ns), 0
        while 0 <= (found := data.find(MARK, start)) <= len(data) - _STAMP_BYTES:
            start = found + _STAMP_BYTES
            self.ages_ns.append(now_ns - _AT_NS.unpack_from(data, found + len(MARK))[0])
        self._rest = data[max(start, len(data) - _STAMP_BYTES + 1) :]
        if len(self.ages_ns) > before:
            self.transport.write(ACK.pack(1, 1, 13, 0x3C0050, len(self.ages_ns), 1, 0xCE))


async def bare(url: str, result: str, **_: Any) -> None:
    loop = asyncio.get_running_loop()
    where = pika.URLParameters(url)
    _, consumer = await loop.create_connection(BareConsumer, where.host, where.port)
    loop.add_signal_handler(signal.SIGTERM, consumer.done.set_result, None)
    await consumer.ready
    say("ready")
    await consumer.done
    consumer.transport.close()
    _finish(consumer.ages_ns, result)


async def member(url: str, result: str, journal: str, **_: Any) -> None:
    ages_ns = array("Q")

    async def handle(message: Message) -> None:
        ages_ns.append(time.monotonic_ns() - _AT_NS.unpack_from(message.data, len(MARK))[0])

    settings = MemberSettings(broker=url, group=SPEC.name, name="latency", journal=Path(journal))
    async with Member(settings, handle) as joined:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, joined.stop, "measured")
        say("ready")
        await joined.run()
    _finish(ages_ns, result)


def _finish(ages_ns: array[int], result: str) -> None:
    Path(result).write_bytes(ages_ns.tobytes())
    say("done", seen=len(ages_ns))


WORKERS: dict[str, Callable[..., Awaitable[None]]] = {
    "publisher": publisher,
    "bare consumer": bare,
    "member": member,
}
CONSUMERS = ("bare consumer", "member")


# The measurement


async def ages_ms(url: str, role: str, *, rate: int, seconds: float) -> list[float]:
    """Age of each message when `role` had it, without those of the first second."""
    await emptied(url)
    with tempfile.TemporaryDirectory(prefix="lbg-bench-") as directory:
        result = Path(directory, "ages")
        told = {"url": url, "result": str(result), "journal": f"{directory}/journal"}
        consumer = await Worker.start("latency", role=role, **told)
        load = None
        try:
            await consumer.answer("ready")
            await asyncio.sleep(0.5)  # a member attaches to its queues after it has joined
            load = await Worker.start("latency", role="publisher", url=url, rate=rate, seconds=seconds)
            published = (await load.answer("done", timeout_s=seconds + 60))["published"]
            await asyncio.sleep(0.5)
            seen = (await consumer.stop())["seen"]
            if seen != published:
                raise RuntimeError(f"{role}: {published} were published and {seen} seen")
            return _read(result)[int(rate * WARM_UP_S) :]
        finally:
            for worker in (consumer, load):
                if worker is not None:
                    await worker.kill()


def _read(result: Path) -> list[float]:
    return [age_ns / 1e6 for age_ns in array("Q", result.read_bytes())]


def measure(rate: int, seconds: float, rounds: int) -> dict[str, list[list[float]]]:
    """Consumer -> the ages of one round each."""
    found: dict[str, list[list[float]]] = {role: [] for role in CONSUMERS}
    with RabbitNode() as node:
        asyncio.run(declare_group(node.amqp_url, SPEC))
        for _ in range(rounds):
            for role in CONSUMERS:
                found[role].append(asyncio.run(ages_ms(node.amqp_url, role, rate=rate, seconds=seconds)))
    return found


def print_table(found: dict[str, list[list[float]]], rate: int) -> None:
    rounds = len(found["member"])
    print(f"{rate:,} messages/s, from publish to the application, ms; median of {rounds} rounds\n")
    print("| | p50 | p90 | p99 | max | messages |\n|---|--:|--:|--:|--:|--:|")
    shares = (0.5, 0.9, 0.99, 1.0)
    medians = {
        role: [statistics.median(percentile(ages, share) for ages in some) for share in shares]
        for role, some in found.items()
    }
    for role, values in medians.items():
        count = sum(len(ages) for ages in found[role])
        print(f"| {role} | {' | '.join(f'{value:.2f}' for value in values)} | {count:,} |")
    added = [ours - theirs for ours, theirs in zip(medians["member"], medians["bare consumer"], strict=True)]
    print(f"| added by the member | {' | '.join(f'{value:.2f}' for value in added[:3])} | | |")


def main() -> None:
    parser = Measurement(__doc__, workers=WORKERS)
    parser.add_argument("--rate", type=int, default=1000, help="messages per second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.asked()
    print_table(measure(arguments.rate, arguments.seconds, arguments.rounds), arguments.rate)


if __name__ == "__main__":
    main()
