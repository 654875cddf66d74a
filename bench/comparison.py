"""Alternatives to a group on RabbitMQ, on the same work in one run.
Throughput, order and losses while consumers come and go.

Four consumers in processes of their own do the same work with the same messages (`peers`): 256 bytes, persistent,
confirmed, of 200 keys in random order. First at full speed with an application that returns at once, then with one
that waits 2 ms for each message, then after a burst at a steady rate, while one consumer leaves, one joins, one is
killed and one takes its place. Judged is the order in which the work of a key was done.
`python -m bench.comparison --plot FILE.png`.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measurement import Measurement
from bench.peers import EXCHANGE, GROUP, TASK
from bench.workers import Worker
from lbg_core.client import BasicProperties, ClientConnection, ConfirmingPublisher, connect
from lbg_core.group import GroupSpec
from lbg_core.publisher import GroupPublisher
from testing.admin.group_on_broker import declare_group
from testing.rabbitmq.node import RabbitNode
from testing.work_log import Judgement, Log, judged

CONSUMERS = 4
KEYS = 200
WAIT_S = 0.002
AT_ONCE = 20_000
WAITING = 8_000
BURST = 1_000
CHANGING_HZ = 1_400
CHANGING_S = 10.0
LEAVE_S, JOIN_S, KILL_S, REPLACE_S = 1.0, 3.5, 6.0, 7.0
STUCK_AFTER_S = 5.0
UNCONFIRMED_BYTES = 1024 * 256

SPEC = GroupSpec(GROUP, GROUP, hash_count=100, queue_count=4, queue_size_mb=1000, client_username="guest")
QUORUM = {"x-queue-type": "quorum"}


@dataclass(frozen=True)
class Approach:
    """`topology`: a group; `classic`, one queue that all compete for; `hash`, a queue for each consumer behind a
    consistent-hash exchange; `hash, single active`, fixed queues behind it that every consumer waits on."""

    name: str
    client: str
    topology: str

    @property
    def own_queue(self) -> bool:
        return self.topology == "hash"


APPROACHES = (
    Approach("lbg", "lbg", "group"),
    Approach("consistent hash, single active consumers, pika", "pika", "hash, single active"),
    Approach("consistent hash, a queue each, pika", "pika", "hash"),
    Approach("consistent hash, a queue each, aio-pika", "aio-pika", "hash"),
    Approach("competing on a classic queue, pika", "pika", "classic"),
    Approach("competing on a classic queue, aio-pika", "aio-pika", "classic"),
)


@dataclass
class Phase:
    """Messages numbered from `first`, the first of them published at `started_ns`."""

    first: int
    started_ns: int
    messages: int = 0


@dataclass
class Outcome:
    at_once_hz: float = 0.0
    waiting_hz: float = 0.0
    steady: Judgement = field(default_factory=Judgement)
    changing: Judgement = field(default_factory=Judgement)


class Sender:
    """Publishes an approach's messages, and waits for each confirm before it counts one as published."""

    def __init__(self, approach: Approach, url: str) -> None:
        self._approach = approach
        self._url = url
        self._random = random.Random(7)
        self.published = 0
        self._connection: ClientConnection | None = None
        self._plain: ConfirmingPublisher | None = None
        self._group: GroupPublisher | None = None
        self._header = BasicProperties(delivery_mode=2).encode()

    async def __aenter__(self) -> Sender:
        if self._approach.topology == "group":
            self._group = GroupPublisher(self._url, group=GROUP)
            await self._group.__aenter__()
        else:
            self._connection = await connect(self._url, name="comparison")
            self._plain = await ConfirmingPublisher.open(
                self._connection, max_unconfirmed_bytes=UNCONFIRMED_BYTES
            )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._group is not None:
            await self._group.close()
        if self._connection is not None:
            await self._connection.close()

    async def send(self, count: int, *, wait_s: float, rate_hz: float | None = None) -> Phase:
        phase = Phase(self.published, time.monotonic_ns(), count)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(count):
            await self._publish(wait_s)
            if rate_hz is not None:
                await asyncio.sleep(max(0.0, began + number / rate_hz - loop.time()))
        if self._group is not None:
            await self._group.flush()
        else:
            assert self._plain is not None
            await self._plain.flush()
        return phase

    async def _publish(self, wait_s: float) -> None:
        key = self._random.randrange(KEYS)
        body = TASK.pack(self.published, key, wait_s) + bytes(256 - TASK.size)
        self.published += 1
        if self._group is not None:
            await self._group.publish(key=f"key-{key}", body=body, topic="task")
            return
        assert self._plain is not None
        classic = self._approach.topology == "classic"
        where = ("", f"{GROUP}.classic") if classic else (EXCHANGE, f"key-{key}")
        self._plain.publish_soon(*where, body, header=self._header)
        if self.published % 50 == 0:
            await self._plain.drain()


class Trial:
    """One approach: its consumers, its load, and what comes of it."""

    def __init__(self, approach: Approach, url: str, directory: str) -> None:
        self._approach = approach
        self._url = url
        self._directory = Path(directory)
        self._log = Log(self._directory)
        self._consumers: dict[str, Worker] = {}
        self._started = 0

    async def run(self) -> Outcome:
        await declare(self._approach, self._url)
        try:
            await asyncio.gather(*(self._start(f"consumer-{number}") for number in range(CONSUMERS)))
            async with Sender(self._approach, self._url) as sender:
                return await self._phases(sender)
        finally:
            for consumer in self._consumers.values():
                await consumer.kill()

    async def _phases(self, sender: Sender) -> Outcome:
        outcome = Outcome()
        await sender.send(
            1000, wait_s=0, rate_hz=500
        )  # a member learns who serves what from what is delivered
        await self._all_done(sender)
        for wait_s in (0.0, WAIT_S):
            phase = await sender.send(WAITING if wait_s else AT_ONCE, wait_s=wait_s)
            await self._all_done(sender)
            rate_hz = phase.messages / (self._log.last_ns - phase.started_ns) * 1e9
            if wait_s:
                outcome.waiting_hz = rate_hz
            else:
                outcome.at_once_hz = rate_hz
        changes = asyncio.create_task(self._change())
        changing = await sender.send(BURST, wait_s=WAIT_S)
        await sender.send(int(CHANGING_HZ * CHANGING_S), wait_s=WAIT_S, rate_hz=CHANGING_HZ)
        await changes
        await self._all_done(sender)
        outcome.steady = judged(self._log, 0, changing.first)
        outcome.changing = judged(self._log, changing.first, sender.published)
        return outcome

    async def _start(self, name: str) -> None:
        queues = {
            "group": [],
            "classic": [f"{GROUP}.classic"],
            "hash": [f"{GROUP}.{name}"],
            "hash, single active": [f"{GROUP}.active.{number}" for number in range(CONSUMERS)],
        }[self._approach.topology]
        first = self._started % CONSUMERS
        self._started += 1
        worker = await Worker.start(
            "peers",
            client=self._approach.client,
            url=self._url,
            name=name,
            log=str(self._log.new_file(name)),
            queues=queues[first:] + queues[:first] if len(queues) > 1 else queues,
            own_queue=self._approach.own_queue,
        )
        self._consumers[name] = worker
        await worker.answer("ready")

    async def _change(self) -> None:
        """One leaves, one joins, one is killed and one of its name, and so with its queue, takes its place."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def at(seconds: float) -> None:
            await asyncio.sleep(began + seconds - loop.time())

        await at(LEAVE_S)
        leaving = self._consumers["consumer-0"]
        leaving.signal(signal.SIGTERM)
        await at(JOIN_S)
        await self._start("consumer-4")
        await at(KILL_S)
        await self._consumers["consumer-1"].kill()
        await at(REPLACE_S)
        await self._start("consumer-1")
        await leaving.answer("done")

    async def _all_done(self, sender: Sender) -> None:
        """Until everything is done, or nothing was for a while: then the rest will never be."""
        seen, since = -1, time.monotonic()
        while self._log.distinct() < sender.published and time.monotonic() - since < STUCK_AFTER_S:
            if self._log.records != seen:
                seen, since = self._log.records, time.monotonic()
            await asyncio.sleep(0.05)


async def declare(approach: Approach, url: str) -> None:
    """Declares the approach's objects, empty; a consumer declares a queue of its own itself."""
    if approach.topology == "group":
        await declare_group(url, SPEC)
        return
    connection = await connect(url, name="comparison")
    channel = await connection.open_channel()
    if approach.topology == "classic":
        await channel.queue_delete(f"{GROUP}.classic")
        await channel.queue_declare(f"{GROUP}.classic", durable=True)
    else:
        await channel.exchange_delete(EXCHANGE)
        await channel.exchange_declare(EXCHANGE, "x-consistent-hash", durable=True)
    if approach.topology == "hash, single active":
        for number in range(CONSUMERS):
            queue = f"{GROUP}.active.{number}"
            await channel.queue_declare(
                queue, durable=True, arguments={**QUORUM, "x-single-active-consumer": True}
            )
            await channel.queue_bind(queue, EXCHANGE, "10")
    await connection.close()


def measure(chosen: list[Approach]) -> dict[str, Outcome]:
    outcomes = {}
    with RabbitNode(plugins=["rabbitmq_consistent_hash_exchange"]) as node:
        for number, approach in enumerate(chosen):
            url = node.new_vhost(f"approach-{number}")
            with tempfile.TemporaryDirectory(prefix="lbg-bench-") as directory:
                outcomes[approach.name] = asyncio.run(Trial(approach, url, directory).run())
    return outcomes


def print_table(outcomes: dict[str, Outcome]) -> None:
    print(
        f"{CONSUMERS} consumers, {KEYS} keys; messages/s, then of {BURST + CHANGING_HZ * CHANGING_S:,.0f} messages "
        "while consumers leave, join and die\n"
    )
    print(
        "| | msg/s, app returns at once | msg/s, app waits 2 ms | keys out of order, no change | "
        "keys out of order, changes | messages out of order | repeated | lost |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, outcome in outcomes.items():
        changing = outcome.changing
        print(
            f"| {name} | {outcome.at_once_hz:,.0f} | {outcome.waiting_hz:,.0f} | "
            f"{len(outcome.steady.keys)} | {len(changing.keys)} | {changing.inverted} | "
            f"{changing.repeated} | {changing.lost + outcome.steady.lost} |"
        )


DARK, LIGHT = "#1f5a8a", "#9dc3de"
ALARM, FAINT = "#b8442f", "#e9b8ab"
THICK = 0.38


def draw(outcomes: dict[str, Outcome], keys: int, file: Path) -> None:
    """The picture of the comparison: docs/comparison.png."""
    from matplotlib import pyplot

    names = ["\n".join(name.rsplit(", ", 1)) for name in outcomes]
    found = list(outcomes.values())
    figure, (rates, order) = pyplot.subplots(1, 2, figsize=(11, 4.6), sharey=True, layout="constrained")
    _pairs(
        rates,
        ("application returns at once", [each.at_once_hz for each in found], LIGHT),
        ("application waits 2 ms", [each.waiting_hz for each in found], DARK),
    )
    rates.set_title("Messages per second, four consumers", loc="left", fontsize=11)
    _pairs(
        order,
        ("nothing changes", [len(each.steady.keys) for each in found], FAINT),
        ("consumers leave, join and are killed", [len(each.changing.keys) for each in found], ALARM),
    )
    order.set_title(f"Sub-streams out of order, of {keys}", loc="left", fontsize=11)
    order.set_xlim(right=keys * 1.12)
    rates.set_yticks(range(len(names)), names, fontsize=9)
    rates.invert_yaxis()
    figure.savefig(file, dpi=130)
    pyplot.close(figure)


def _pairs(axes: Any, *pairs: tuple[str, list[float], str]) -> None:
    for number, (label, values, colour) in enumerate(pairs):
        places = [at + (number - 0.5) * THICK for at in range(len(values))]
        bars = axes.barh(places, values, THICK, label=label, color=colour)
        axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=3, fontsize=8)
    axes.margins(x=0.14)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="x", labelsize=9)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.06), ncols=2, fontsize=8, frameon=False)


def main() -> None:
    parser = Measurement(__doc__)
    parser.add_argument("--only", type=int, action="append", help="number of an approach, from 0")
    parser.add_argument("--plot", type=Path, help="write a picture of it here (PNG)")
    arguments = parser.asked()
    chosen = [APPROACHES[number] for number in arguments.only or range(len(APPROACHES))]
    if arguments.plot is not None:
        import matplotlib as mpl  # of the extra `bench`: missing, it is reported before measuring

        mpl.use("Agg")
    outcomes = measure(chosen)
    print_table(outcomes)
    if arguments.plot is not None:
        draw(outcomes, KEYS, arguments.plot)


if __name__ == "__main__":
    main()
