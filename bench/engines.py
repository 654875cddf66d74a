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

from bench.measurement import Measurement
from bench.ours import QUEUE, lbg_consume, lbg_publish
from lbg_core.client import connect
from testing.broker.embedded import EmbeddedBroker
from testing.rabbitmq.node import RabbitNode


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
    parser = Measurement(__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", nargs=3, metavar=("ACTIVITY", "URL", "MESSAGES"), help=argparse.SUPPRESS)
    arguments = parser.asked()
    if arguments.worker:
        activity, url, messages = arguments.worker
        print(
            json.dumps(
                asyncio.run((lbg_publish if activity == "publish" else lbg_consume)(url, int(messages)))
            )
        )
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
