"""The embedded broker beside a RabbitMQ quorum queue: durable publish with confirm, and consume with ack.

The same client, messages and windows on both, in turn, each broker alone on the machine while it is measured. The
broker is a process of its own, and so is the client. `python -m bench.engines --messages 50000 --rounds 3`.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lbg_broker.client import AckBatcher, BasicProperties, Delivery, Publisher, connect

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.embedded import EmbeddedBroker
from support.rabbitmq import RabbitNode

BODY = bytes(256)
QUEUE = "bench"
PREFETCH = 1000
UNCONFIRMED = 2000


async def publish(url: str, messages: int) -> float:
    """Seconds from the first publish to the last confirm."""
    connection = await connect(url, name="bench-publisher")
    publisher = await Publisher.open(connection, max_unconfirmed_bytes=UNCONFIRMED * len(BODY))
    header = BasicProperties(delivery_mode=2, headers={"lbg-key": "N14228", "lbg-seq": 12345}).encode()
    started = time.perf_counter()
    last = None
    for number in range(messages):
        last = publisher.publish_soon("", QUEUE, BODY, header=header)
        if number % 100 == 99:
            await publisher.drain()
    await publisher.flush()
    assert last is not None
    await last
    elapsed = time.perf_counter() - started
    await connection.close()
    return elapsed


async def consume(url: str, messages: int) -> float:
    """Seconds from basic.consume to the last acknowledgement applied."""
    connection = await connect(url, name="bench-consumer")
    channel = await connection.open_channel()
    acks = AckBatcher(channel)
    done = asyncio.get_running_loop().create_future()
    seen = 0

    def on_deliveries(deliveries: list[Delivery]) -> None:
        nonlocal seen
        for delivery in deliveries:
            acks.settle(delivery.delivery_tag)
        seen += len(deliveries)
        if seen >= messages and not done.done():
            done.set_result(None)

    started = time.perf_counter()
    await channel.consume(QUEUE, on_deliveries, prefetch_count=PREFETCH)
    await done
    acks.flush()
    await channel.close()
    elapsed = time.perf_counter() - started
    await connection.close()
    return elapsed


async def declare(url: str, arguments: dict[str, object]) -> None:
    connection = await connect(url, name="bench-declare")
    channel = await connection.open_channel()
    await channel.queue_delete(QUEUE)
    await channel.queue_declare(QUEUE, durable=True, arguments=arguments)
    await connection.close()


def in_process_of_its_own(activity: str, url: str, messages: int) -> float:
    argv = [sys.executable, "-m", "bench.engines", "--worker", activity, url, str(messages)]
    return float(json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout))


@contextmanager
def brokers(directory: Path) -> Iterator[dict[str, str]]:
    with EmbeddedBroker(directory / "data") as embedded, RabbitNode() as rabbit:
        yield {"embedded": embedded.url, "RabbitMQ quorum": rabbit.amqp_url}


def measure(messages: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Rates in messages per second: engine -> activity -> one a round."""
    rates: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="lbg-bench-") as directory, brokers(Path(directory)) as urls:
        for _ in range(rounds):
            for engine, url in urls.items():
                arguments: dict[str, object] = {"x-single-active-consumer": True, "x-queue-type": "quorum"}
                asyncio.run(declare(url, arguments))
                for activity in ("publish", "consume"):
                    elapsed = in_process_of_its_own(activity, url, messages)
                    rates.setdefault(engine, {}).setdefault(activity, []).append(messages / elapsed)
                time.sleep(1)  # what a broker does after the last message is not the next one's
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", nargs=3, metavar=("ACTIVITY", "URL", "MESSAGES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        activity, url, messages = arguments.worker
        print(json.dumps(asyncio.run((publish if activity == "publish" else consume)(url, int(messages)))))
        return
    rates = measure(arguments.messages, arguments.rounds)
    print(f"{arguments.messages} messages of 256 bytes, persistent, median of {arguments.rounds} rounds\n")
    print("| | embedded msg/s | RabbitMQ quorum msg/s | ratio |\n|---|---|---|---|")
    for activity in ("publish", "consume"):
        ours, theirs = (
            statistics.median(rates[engine][activity]) for engine in ("embedded", "RabbitMQ quorum")
        )
        what = "publish with confirm" if activity == "publish" else "consume with ack"
        print(f"| {what} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
