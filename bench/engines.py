"""The embedded broker beside a RabbitMQ quorum queue: durable publish with confirm, and consume with ack.

The same client, messages and windows on both, in turn, each broker alone on the machine while it is measured. The
broker is a process of its own, and so is the client. `python -m bench.engines --messages 50000 --rounds 3`; `--cluster`
adds three RabbitMQ nodes, with the client at the queue's leader and at another node.
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
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.measurement import Measurement
from bench.ours import QUEUE, lbg_consume, lbg_publish
from lbg_core.client import connect
from testing.broker.embedded import EmbeddedBroker
from testing.rabbitmq.cluster import RabbitCluster
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


ENGINES = ("embedded", "RabbitMQ quorum")
ON_CLUSTER = ("three nodes, at the leader", "three nodes, at another")


@contextmanager
def brokers(directory: Path, *, with_cluster: bool) -> Iterator[dict[str, tuple[str, str]]]:
    """For each engine where the queue is declared, and so led, and where the client is connected."""
    with ExitStack() as running:
        embedded = running.enter_context(EmbeddedBroker(directory / "data")).url
        rabbit = running.enter_context(RabbitNode()).amqp_url
        places = dict(zip(ENGINES, ((embedded, embedded), (rabbit, rabbit)), strict=True))
        if with_cluster:
            leader, other, _ = running.enter_context(RabbitCluster()).urls
            places |= zip(ON_CLUSTER, ((leader, leader), (leader, other)), strict=True)
        yield places


def measure(messages: int, rounds: int, *, with_cluster: bool) -> dict[str, dict[str, list[float]]]:
    """Rates in messages per second: engine -> activity -> one a round."""
    rates: dict[str, dict[str, list[float]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="lbg-bench-") as directory,
        brokers(Path(directory), with_cluster=with_cluster) as places,
    ):
        for _ in range(rounds):
            for engine, (leader, url) in places.items():
                arguments: dict[str, object] = {"x-single-active-consumer": True, "x-queue-type": "quorum"}
                asyncio.run(declare(leader, arguments))
                for activity in ("publish", "consume"):
                    elapsed = in_process_of_its_own(activity, url, messages)
                    rates.setdefault(engine, {}).setdefault(activity, []).append(messages / elapsed)
                time.sleep(1)  # what a broker does after the last message is not the next one's
    return rates


def main() -> None:
    parser = Measurement(__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cluster", action="store_true", help="measure three RabbitMQ nodes, too")
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
    rates = measure(arguments.messages, arguments.rounds, with_cluster=arguments.cluster)
    print(f"{arguments.messages} messages of 256 bytes, persistent, median of {arguments.rounds} rounds\n")
    print("| | embedded msg/s | RabbitMQ quorum msg/s | ratio |\n|---|---|---|---|")
    for activity in ("publish", "consume"):
        ours, theirs = (statistics.median(rates[engine][activity]) for engine in ENGINES)
        what = "publish with confirm" if activity == "publish" else "consume with ack"
        print(f"| {what} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} |")
    for engine in ON_CLUSTER if arguments.cluster else ():
        for activity, found in rates[engine].items():
            print(
                f"{engine}: {activity} {statistics.median(found):,.0f}/s ({min(found):,.0f} to {max(found):,.0f})"
            )


if __name__ == "__main__":
    main()
