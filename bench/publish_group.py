"""The group publisher beside a bare one, on RabbitMQ quorum queues and on the embedded broker.

Durable publishing with confirms to one group of 4 queues and 100 hashes, 256-byte bodies, 5,000 keys. The bare one
writes messages encoded beforehand (with the same headers) and counts confirms. Each contender is a process of its own
and takes its turn in every round, with emptied queues. Also: what the parts cost alone, in this process, in
microseconds a message. `python -m bench.publish_group --messages 50000 --rounds 3`.
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
from collections.abc import Callable
from pathlib import Path

import pika

from bench.wire import BarePublisher
from lbg_core.client import connect
from lbg_core.group import GroupSpec, Names, PublishedRecord
from lbg_core.journal import JournalWriter
from lbg_core.publisher import GroupPublisher, PublishingSettings, RowOptions, open_source, publish_rows
from lbg_core.publisher.input.rows import read_rows
from lbg_core.publisher.send_window import SendWindow
from lbg_core.publisher.stamper import HeaderEncoder, StampedMessage, properties_of
from testing import ROOT
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.rabbitmq.node import RabbitNode

SPEC = GroupSpec("bench", "bench", hash_count=100, queue_count=4, queue_size_mb=4000, client_username="guest")
BODY = bytes(256)
FLIGHTS = ROOT / "examples" / "flights-sample.csv.gz"


def stamped(count: int) -> list[StampedMessage]:
    machine = SendWindow(SPEC)
    messages = [machine.accept(f"N{number % 5000:05d}", "flight", BODY) for number in range(count)]
    for message in messages:
        message.sent_at_us = time.time_ns() // 1000
    return messages


class BareGroupPublisher(BarePublisher):
    def encode(self) -> None:
        heading = HeaderEncoder("bench-0a0b0c0d", "application/json")
        self.encoded = []
        for message in stamped(self.messages):
            header = heading.of(message)
            self.machine.publish(1, Names("bench").exchange, message.routing_key, header, message.body)
            self.encoded.append(self.machine.take_output())

    def start(self) -> None:
        self.started_at = time.perf_counter()
        self.pump()

    def pump(self) -> None:
        more = min(self.messages, self.confirmed + 1024) - self.published
        if more >= 100 or 0 < more == self.messages - self.published:
            self.transport.write(b"".join(self.encoded[self.published : self.published + more]))
            self.published += more


async def bare(url: str, messages: int) -> float:
    parameters = pika.URLParameters(url)
    _, publisher = await asyncio.get_running_loop().create_connection(
        BareGroupPublisher, parameters.host, parameters.port
    )
    await publisher.ready
    publisher.messages = messages
    publisher.encode()
    publisher.start()
    await publisher.done
    publisher.transport.close()
    return time.perf_counter() - publisher.started_at


async def ours(url: str, messages: int, *, keeps: str = "", one_per_key: bool = False) -> float:
    with tempfile.TemporaryDirectory() as directory:
        publisher = GroupPublisher(
            url,
            group="bench",
            settings=PublishingSettings(one_per_key=one_per_key),
            state=Path(directory, "state") if "state" in keeps else None,
            journal=Path(directory, "journal") if "journal" in keeps else None,
        )
        async with publisher:
            started = time.perf_counter()
            for number in range(messages):
                await publisher.publish(key=f"N{number % 5000:05d}", body=BODY, topic="flight")
            await publisher.flush()
            return time.perf_counter() - started


async def flights(url: str, messages: int) -> float:
    """Reading, parsing and publishing the sample; seconds for as many messages as asked for."""
    with tempfile.TemporaryDirectory() as directory, open_source(str(FLIGHTS)) as source:
        async with GroupPublisher(url, group="bench", state=Path(directory, "state")) as publisher:
            started = time.perf_counter()
            await publish_rows(publisher, source, RowOptions(key_field="tailnum"))
            return (time.perf_counter() - started) * messages / publisher.accepted_count


CONTENDERS = {
    "bare, encoded beforehand": bare,
    "GroupPublisher": ours,
    "… with state file": lambda url, messages: ours(url, messages, keeps="state"),
    "… with state file and journal": lambda url, messages: ours(url, messages, keeps="state journal"),
    "… one unconfirmed per key": lambda url, messages: ours(url, messages, one_per_key=True),
    "flights from .csv.gz, with state file": flights,
}


async def emptied(url: str) -> None:
    connection = await connect(url)
    channel = await connection.open_channel()
    for queue in range(SPEC.queue_count):
        await channel.queue_purge(Names("bench").queue(queue))
    await connection.close()


def in_a_process(name: str, url: str, messages: int) -> float:
    """Messages a second."""
    asyncio.run(emptied(url))
    time.sleep(1)
    command = [
        sys.executable,
        "-m",
        "bench.publish_group",
        "--contender",
        name,
        url,
        "--messages",
        str(messages),
    ]
    seconds: float = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return messages / seconds


def measure(engine: str, url: str, messages: int, rounds: int) -> None:
    asyncio.run(declare_group(url, SPEC))
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name in CONTENDERS:
            rates[name].append(in_a_process(name, url, messages))
    base = statistics.median(rates["bare, encoded beforehand"])
    print(f"\n| {engine}: publish with confirm, messages/s | median | best | of bare |\n|---|--:|--:|--:|")
    for name, seen in rates.items():
        median = statistics.median(seen)
        print(f"| {name} | {median:,.0f} | {max(seen):,.0f} | {median / base:.2f} |", flush=True)


def per_message_us(work: Callable[[], object], count: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / count * 1e6


def parts(count: int = 50_000) -> None:
    messages = stamped(count)
    heading = HeaderEncoder("bench-0a0b0c0d", "application/json")

    def machine_alone() -> None:
        machine = SendWindow(SPEC)
        machine.connected(fenced=True)
        tag = 0
        for number in range(count):
            machine.accept(f"N{number % 5000:05d}", "flight", BODY)
            if number % 64 == 63:
                tag += len(machine.step(0.0).sends)
                machine.answered(tag, multiple=True, ok=True, now=0.0)

    def journal_alone() -> None:
        with tempfile.TemporaryDirectory() as directory, JournalWriter(directory, "bench") as journal:
            for message in messages:
                journal.append(
                    PublishedRecord(
                        "p", message.key, message.hash, message.queue, message.seq, 1, 2, 0, "g", 100
                    )
                )

    def rows_alone() -> None:
        with open_source(str(FLIGHTS)) as source:
            for _ in read_rows(source, RowOptions(key_field="tailnum")):
                pass

    flight_count = 24_951
    costs = {
        "the ordering machine: accept, step, answer": per_message_us(machine_alone, count),
        "header from the template": per_message_us(
            lambda: [heading.of(message) for message in messages], count
        ),
        "header by BasicProperties": per_message_us(
            lambda: [properties_of(message, "p", "application/json").encode() for message in messages], count
        ),
        "journal record": per_message_us(journal_alone, count),
        "flights row: decompress, parse, JSON body": per_message_us(rows_alone, flight_count),
    }
    print("\n| part, alone | µs a message |\n|---|--:|")
    for name, cost in costs.items():
        print(f"| {name} | {cost:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--contender", nargs=2, metavar=("NAME", "URL"), help="(what a contender's process is told)"
    )
    arguments = parser.parse_args()
    if arguments.contender:
        name, url = arguments.contender
        print(json.dumps(asyncio.run(CONTENDERS[name](url, arguments.messages))))
        return
    parts()
    with RabbitNode() as node:
        measure("RabbitMQ, quorum queues", node.amqp_url, arguments.messages, arguments.rounds)
    with tempfile.TemporaryDirectory() as directory, EmbeddedBroker(Path(directory, "data")) as broker:
        measure("embedded broker", broker.url, arguments.messages, arguments.rounds)


if __name__ == "__main__":
    main()
