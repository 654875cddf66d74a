"""Message groups beside a plain shared queue: what it costs that one consumer at a time has messages of each group.

Both queues are on the same embedded broker and take turns in every round, with the same publisher, the same messages
(256 bytes, durable, their group, one of 10,000, in a header) and the same four consumers with a prefetch of 250 each,
who acknowledge cumulatively what they get, at once. *Backlog*: all messages wait before the consumers come. *Flow*: the
consumers wait, and are there while all is published with confirms. Publisher and consumers are a process each; the
clock runs from the first delivery to the last acknowledgement. `python -m bench.message_groups --rounds 3`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.measurement import Measurement
from bench.workers import Worker, cpu_s, say
from lbg_core.client import AckBatcher, BasicProperties, ConfirmingPublisher, Delivery, connect
from testing.broker.embedded import EmbeddedBroker

HEADER = "cart"
BODY = bytes(256)
CONSUMERS = 4
PREFETCH = 250
UNCONFIRMED = 2000
QUEUES: dict[str, dict[str, Any]] = {"plain": {}, "message groups": {"x-group-header": HEADER}}


async def publish(url: str, queue: str, messages: int, groups: int, **_: Any) -> None:
    """Each group in turn. Says when the last message is confirmed."""
    headers = [
        BasicProperties(delivery_mode=2, headers={HEADER: f"cart-{one}"}).encode() for one in range(groups)
    ]
    connection = await connect(url, name="bench-publisher")
    publisher = await ConfirmingPublisher.open(connection, max_unconfirmed_bytes=UNCONFIRMED * len(BODY))
    for number in range(messages):
        last = publisher.publish_soon("", queue, BODY, header=headers[number % groups])
        if number % 100 == 99:
            await publisher.drain()
    await publisher.flush()
    await last
    await connection.close()
    say("done")


async def consume(url: str, queue: str, messages: int, **_: Any) -> None:
    """Says when all consumers are there, and when the last message is acknowledged."""
    left, started = messages, 0.0
    done = asyncio.Event()

    def receiver(acks: AckBatcher) -> Any:
        def on_deliveries(deliveries: list[Delivery]) -> None:
            nonlocal left, started
            started = started or time.perf_counter()
            for delivery in deliveries:
                acks.settle(delivery.delivery_tag)
            left -= len(deliveries)
            if not left:
                done.set()

        return on_deliveries

    connections = [await connect(url, name="bench-consumer") for _ in range(CONSUMERS)]
    channels = [await connection.open_channel() for connection in connections]
    batches = [AckBatcher(channel) for channel in channels]
    for channel, acks in zip(channels, batches, strict=True):
        await channel.consume(queue, receiver(acks), prefetch_count=PREFETCH)
    say("ready")
    await done.wait()
    for channel, acks in zip(channels, batches, strict=True):
        acks.flush()
        await channel.close()
    say("done", elapsed_s=time.perf_counter() - started)
    for connection in connections:
        await connection.close()


async def fresh(url: str, queue: str) -> None:
    connection = await connect(url, name="bench-declare")
    channel = await connection.open_channel()
    await channel.queue_delete(queue)
    await channel.queue_declare(queue, durable=True, arguments=QUEUES[queue])
    await connection.close()


class Case:
    """One queue under one load, round by round."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.broker_us: list[float] = []


async def one(broker: EmbeddedBroker, case: Case, told: dict[str, Any], *, backlog: bool) -> None:
    await fresh(broker.url, told["queue"])
    publisher = consumer = None
    try:
        if backlog:
            publisher = await Worker.start("message_groups", role="publish", **told)
            await publisher.answer("done")
        else:
            consumer = await Worker.start("message_groups", role="consume", **told)
            await consumer.answer("ready")
        before = cpu_s(broker.pid)
        if backlog:
            consumer = await Worker.start("message_groups", role="consume", **told)
        else:
            publisher = await Worker.start("message_groups", role="publish", **told)
        assert consumer is not None
        done = await consumer.answer("done", timeout_s=600)
        case.rates.append(told["messages"] / done["elapsed_s"])
        case.broker_us.append((cpu_s(broker.pid) - before) / told["messages"] * 1e6)
    finally:
        for worker in (publisher, consumer):
            if worker is not None:
                await worker.kill()


async def measure(messages: int, groups: int, rounds: int) -> dict[tuple[str, str], Case]:
    cases = {(load, queue): Case() for load in ("backlog", "flow") for queue in QUEUES}
    with (
        tempfile.TemporaryDirectory(prefix="lbg-bench-") as directory,
        EmbeddedBroker(Path(directory) / "data") as broker,
    ):
        for _ in range(rounds):
            for (load, queue), case in cases.items():
                told = {"url": broker.url, "queue": queue, "messages": messages, "groups": groups}
                await one(broker, case, told, backlog=load == "backlog")
                await asyncio.sleep(1)  # what a broker does after the last message is not the next one's
    return cases


def main() -> None:
    parser = Measurement(__doc__, workers={"publish": publish, "consume": consume})
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.asked()
    cases = asyncio.run(measure(asked.messages, asked.groups, asked.rounds))
    print(
        f"{asked.messages:,} messages in {asked.groups:,} groups, {CONSUMERS} consumers, median of {asked.rounds} "
        f"rounds, {os.cpu_count()} cores; µs are CPU of the broker a message\n"
    )
    print("| | plain msg/s | groups msg/s | ratio | plain µs | groups µs |\n|---|--:|--:|--:|--:|--:|")
    for load in ("backlog", "flow"):
        plain, grouped = (cases[load, queue] for queue in QUEUES)
        rates = [statistics.median(case.rates) for case in (plain, grouped)]
        spent = [statistics.median(case.broker_us) for case in (plain, grouped)]
        print(
            f"| {load} | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[1] / rates[0]:.2f} | "
            f"{spent[0]:.0f} | {spent[1]:.0f} |"
        )


if __name__ == "__main__":
    main()
