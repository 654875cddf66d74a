"""A partitioned queue beside exclusive queues on the same broker, and how long a partition stands still when it moves.

Eight partitions or eight queues with a single active consumer, four consumers, 256-byte durable messages with keys,
limits and a topic exchange as groups have them: publishing with confirms into them, consuming what lies there, and both
at once. Broker, publisher and consumers are processes of their own; both kinds take turns. Then one consumer has all
partitions under load and acknowledges at once, a second one joins and leaves again and again: a partition's pause ends
with the first message at the latter, and began with the last one at the former, or with that first message's
publishing if that was later. The rebalance delay is before it.
`python -m bench.partitioned --messages 50000 --rounds 3 --moves 400`.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.measurement import Measurement
from bench.workers import Worker, say
from lbg_core.client import (
    AckBatcher,
    BasicProperties,
    Channel,
    ClientConnection,
    ConfirmingPublisher,
    Delivery,
    connect,
)
from lbg_core.group import hash_of
from testing.broker.embedded import EmbeddedBroker

EXCHANGE, PARENT = "bench.x", "bench.q"
PARTITIONS, CONSUMERS = 8, 4
BODY = bytes(256)
KEYS = 200
WINDOW_BYTES = 2000 * len(BODY)
PREFETCH = 1000
LIMIT: dict[str, object] = {"x-max-length-bytes": 4_000_000_000, "x-overflow": "reject-publish"}
KINDS = ("partitioned", "exclusive")
ACTIVITIES = ("publish", "consume", "both at once")
DELAY_MS = 60
RATE_HZ = 2000


async def declare(url: str, kind: str, *, delay_ms: int = 0) -> None:
    connection = await connect(url, name="bench-declare")
    channel = await connection.open_channel()
    for name in (PARENT, *map("bench.{}".format, range(PARTITIONS))):
        await channel.queue_delete(name)
    await channel.exchange_delete(EXCHANGE)
    await channel.exchange_declare(EXCHANGE, "topic", durable=True)
    if kind == "partitioned":
        arguments = {
            "x-queue-type": "partitioned",
            "x-partition-count": PARTITIONS,
            "x-rebalance-delay": delay_ms,
        }
        await channel.queue_declare(PARENT, durable=True, arguments=LIMIT | arguments)
        await channel.queue_bind(PARENT, EXCHANGE, "bench.#")
    else:
        for number in range(PARTITIONS):
            name = f"bench.{number}"
            await channel.queue_declare(
                name, durable=True, arguments=LIMIT | {"x-single-active-consumer": True}
            )
            await channel.queue_bind(name, EXCHANGE, f"bench.{number}.#")
    await connection.close()


def keyed() -> list[tuple[str, bytes]]:
    """For each key its routing key and header."""
    keys = [f"N{number:05d}" for number in range(KEYS)]
    headers = [BasicProperties(headers={"lbg-key": key}, delivery_mode=2).encode() for key in keys]
    return [
        (f"bench.{hash_of(key, PARTITIONS)}.flight", header)
        for key, header in zip(keys, headers, strict=True)
    ]


async def publish(url: str, messages: int) -> None:
    """Worker: publishes all as fast as confirms allow."""
    connection = await connect(url, name="bench-publish")
    publisher = await ConfirmingPublisher.open(connection, max_unconfirmed_bytes=WINDOW_BYTES)
    routes = keyed()
    started = time.monotonic()
    for number in range(messages):
        routing_key, header = routes[number % KEYS]
        last = publisher.publish_soon(EXCHANGE, routing_key, BODY, header=header)
        if number % 100 == 99:
            await publisher.drain()
    await publisher.flush()
    await last
    say("done", started=started, ended=time.monotonic())


async def consume(url: str, messages: int, queues: list[list[str]]) -> None:
    """Worker: one connection for each list of queues, acks in batches, until that many messages came."""
    first: list[float] = []
    seen = 0
    done = asyncio.Event()

    def receiver(acks: AckBatcher) -> Callable[[list[Delivery]], None]:
        def on_deliveries(deliveries: list[Delivery]) -> None:
            nonlocal seen
            if not first:
                first.append(time.monotonic())
            for delivery in deliveries:
                acks.settle(delivery.delivery_tag)
            seen += len(deliveries)
            if seen >= messages:
                done.set()

        return on_deliveries

    connections: list[ClientConnection] = []
    batchers: list[AckBatcher] = []
    for names in queues:
        connections.append(await connect(url, name="bench-consume"))
        for name in names:
            channel = await connections[-1].open_channel()
            batchers.append(AckBatcher(channel))
            await channel.consume(name, receiver(batchers[-1]), prefetch_count=PREFETCH // len(names))
    say("ready")
    await done.wait()
    for acks in batchers:
        acks.flush()
    ended = time.monotonic()
    for connection in connections:
        await connection.close()
    say("done", started=first[0], ended=ended)


async def rate_of(activity: str, url: str, kind: str, messages: int) -> float:
    """Messages in a second."""
    queues = [[PARENT]] * CONSUMERS
    if kind == "exclusive":
        queues = [[f"bench.{2 * number}", f"bench.{2 * number + 1}"] for number in range(CONSUMERS)]
    workers = []
    if activity != "publish":
        told = {"role": "consume", "url": url, "messages": messages, "queues": queues}
        workers.append(await Worker.start("partitioned", **told))
        await workers[-1].answer("ready")
        if activity == "both at once":
            await asyncio.sleep(0.2)  # until the partitions are shared out
    if activity != "consume":
        workers.append(await Worker.start("partitioned", role="publish", url=url, messages=messages))
    spent = [await worker.answer("done", timeout_s=300) for worker in workers]
    for worker in workers:
        await worker.kill()
    return float(messages / (spent[0]["ended"] - spent[-1]["started"]))


async def throughput(url: str, messages: int, rounds: int) -> dict[str, dict[str, float]]:
    rates: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in ACTIVITIES} for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS if number % 2 else KINDS[::-1]:
            await declare(url, kind)
            for activity in ACTIVITIES:
                rates[kind][activity].append(await rate_of(activity, url, kind, messages))
                await asyncio.sleep(0.5)
    return {
        kind: {name: statistics.median(some) for name, some in each.items()} for kind, each in rates.items()
    }


class Moves:
    """Time and consumer of each partition's last message.
    Clocks of one machine agree (CLOCK_MONOTONIC)."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []
        self._last: dict[bytes, tuple[int, float]] = {}

    def receiver(self, who: int, channel: Channel) -> Callable[[list[Delivery]], None]:
        acks = AckBatcher(channel)

        def on_deliveries(deliveries: list[Delivery]) -> None:
            now = time.monotonic()
            for delivery in deliveries:
                acks.settle(delivery.delivery_tag)
                partition, _, published_at = delivery.body.partition(b" ")
                former, at = self._last.get(partition, (who, now))
                if former == 0 and who == 1:
                    self.pauses_s.append(now - max(at, float(published_at)))
                self._last[partition] = (who, now)
            acks.flush()

        return on_deliveries


async def load(url: str) -> None:
    """Worker: a message to each partition in turn, evenly spaced; its body is the partition's number and the time."""
    connection = await connect(url, name="bench-load")
    publisher = await ConfirmingPublisher.open(connection, max_unconfirmed_bytes=WINDOW_BYTES)
    routes = {route.split(".")[1]: (route, header) for route, header in keyed()}
    at = time.monotonic()
    while True:
        for number, (routing_key, header) in routes.items():
            body = f"{number} {time.monotonic()}".encode()
            publisher.publish_soon(EXCHANGE, routing_key, body, header=header)
            at = max(at + 1 / RATE_HZ, time.monotonic() - 0.002)
            await asyncio.sleep(max(0.0, at - time.monotonic()))


async def pauses(url: str, moves: int) -> list[float]:
    """Seconds that each moved partition stood still."""
    await declare(url, "partitioned", delay_ms=DELAY_MS)
    publisher = await Worker.start("partitioned", role="load", url=url)
    seen = Moves()
    connection = await connect(url, name="bench-moves")
    stays = await connection.open_channel()
    await stays.consume(PARENT, seen.receiver(0, stays), prefetch_count=PREFETCH)
    await asyncio.sleep(1)
    while len(seen.pauses_s) < moves:
        comes = await connection.open_channel()
        await comes.consume(PARENT, seen.receiver(1, comes), prefetch_count=PREFETCH)
        await asyncio.sleep(4 * DELAY_MS / 1000)
        await comes.close()
        await asyncio.sleep(4 * DELAY_MS / 1000)
    await publisher.kill()
    await connection.close()
    return seen.pauses_s


def main() -> None:
    parser = Measurement(__doc__, workers={"publish": publish, "consume": consume, "load": load})
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--moves", type=int, default=400)
    asked = parser.asked()
    with (
        tempfile.TemporaryDirectory(prefix="lbg-bench-") as directory,
        EmbeddedBroker(Path(directory) / "data") as broker,
    ):
        rates = asyncio.run(throughput(broker.url, asked.messages, asked.rounds))
        stood_ms = sorted(1000 * pause for pause in asyncio.run(pauses(broker.url, asked.moves)))
    print(f"{asked.messages} durable messages of 256 bytes, {CONSUMERS} consumers, {asked.rounds} rounds\n")
    print("| | 8 partitions, msg/s | 8 exclusive queues, msg/s | ratio |\n|---|---|---|---|")
    for activity in ACTIVITIES:
        ours, others = (rates[kind][activity] for kind in KINDS)
        print(f"| {activity} | {ours:,.0f} | {others:,.0f} | {ours / others:.2f} |")
    p50, p99 = statistics.median(stood_ms), stood_ms[int(0.99 * len(stood_ms))]
    print(f"\n{len(stood_ms)} moved partitions at {RATE_HZ} messages/s, beyond the rebalance delay: ", end="")
    print(f"pause p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {stood_ms[-1]:.1f} ms")


if __name__ == "__main__":
    main()
