"""Time that a sidecar adds from publish to application, over the least consumer.

A GroupPublisher sends 1,000 evenly spaced messages of 256 bytes a second to a group of four queues on the embedded
broker; each says when it was published (CLOCK_MONOTONIC, which processes of one machine share). How old it is is noted
when a bare read loop has its bytes, when a member calls a function in its own process, and when a lean application
of another process has the bytes that `lbg sidecar` sent: a request for each, a batch, a frame of the stream. The
differences say what the member takes, and what the way to another process does. In turn, in every round.
`python -m bench.sidecar_latency --rate 1000 --seconds 10 --rounds 3`.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pika

from bench.lean_applications import DIGITS, MARK, Tally, keep
from bench.measurement import Measurement, percentile
from bench.publish_group import SPEC
from bench.sidecars import Sidecar, Stage
from bench.wire import ACK, Bare
from bench.workers import Worker, say
from lbg_core.amqp.methods import BasicConsume, BasicQos
from lbg_core.group import Names
from lbg_sidecar import Member, MemberSettings, Message

PREFETCH = 256
CREDIT = 256
WARM_UP_S = 1.0
SETTLE_S = 2.0
"""A member attaches to its queues after it has joined."""

BARE = "bare consumer"
SIDECARS = {"sidecar, stream": "stream", "sidecar, push": "http", "sidecar, batch push": "http-batch"}
CONTENDERS = (BARE, "member, in process", *SIDECARS)


# Workers


class BareConsumer(Bare):
    """Finds the marks in what it reads, and acknowledges every read."""

    def __init__(self, tally: Tally) -> None:
        queues = [Names(SPEC.name).queue(queue) for queue in range(SPEC.queue_count)]
        super().__init__(BasicQos(0, PREFETCH, False), *(BasicConsume(queue, queue) for queue in queues))
        self._tally = tally
        self._rest = b""

    def on_raw(self, data: bytes) -> None:
        data = self._rest + data
        last = data.rfind(MARK)
        after = last + len(MARK) + DIGITS
        whole = max(0, len(data) - len(MARK) + 1)  # from there on there may be half a mark
        if last >= 0:
            whole = last if after > len(data) else max(after, whole)
        self._rest = data[whole:]
        if self._tally.more(data[:whole]):
            self.transport.write(ACK.pack(1, 1, 13, 0x3C0050, self._tally.seen, 1, 0xCE))


async def bare(url: str, messages: int, ages: str, **_: Any) -> None:
    loop = asyncio.get_running_loop()
    tally = Tally(messages, ages=True)
    where = pika.URLParameters(url)
    _, consumer = await loop.create_connection(lambda: BareConsumer(tally), where.host, where.port)
    loop.add_signal_handler(signal.SIGTERM, consumer.done.set_result, None)
    await consumer.ready
    say("ready")
    await consumer.done
    consumer.transport.close()
    _finish(tally, ages)


async def member(url: str, messages: int, ages: str, **_: Any) -> None:
    tally = Tally(messages, ages=True)

    async def handle(message: Message) -> None:
        tally.more(message.data)

    async with Member(MemberSettings(broker=url, group=SPEC.name, name="latency"), handle) as joined:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, joined.stop, "measured")
        say("ready")
        await joined.run()
    _finish(tally, ages)


def _finish(tally: Tally, ages: str) -> None:
    keep(tally, ages)
    tally.tell()


WORKERS: dict[str, Callable[..., Awaitable[None]]] = {BARE: bare, "member, in process": member}


# The measurement


async def ages_ms(stage: Stage, role: str, rate: int, seconds: float) -> list[float]:
    """Age of each message when `role` had it, without those of the first second."""
    room = stage.room()
    ages, url = f"{room}/ages", stage.broker.url
    messages = int(rate * (WARM_UP_S + seconds))
    sidecar = application = publisher = None
    try:
        if role not in SIDECARS:
            application = await Worker.start(
                "sidecar_latency", role=role, url=url, messages=messages, ages=ages
            )
            await application.answer("ready")
        elif role == "sidecar, stream":
            sidecar = await Sidecar.start(url, room, {"LBG_APP": "stream"})
            application = await Worker.start(
                "lean_applications",
                role="stream",
                messages=messages,
                socket=sidecar.local_socket,
                credit=CREDIT,
                ages=ages,
            )
            await application.answer("ready")
        else:
            application = await Worker.start("lean_applications", role="http", messages=messages, ages=ages)
            port = (await application.answer("ready"))["port"]
            target = {"LBG_TARGET": f"http://127.0.0.1:{port}/", "LBG_HEALTH_PATH": "/healthz"}
            sidecar = await Sidecar.start(url, room, {"LBG_APP": SIDECARS[role], **target})
        publisher = await Worker.start("sidecars", role="publisher", url=url, messages=messages, rate=rate)
        await publisher.answer("ready")
        if sidecar is not None:
            await application.tell("go")
            await sidecar.said("the application is ready")
        await asyncio.sleep(SETTLE_S)
        await publisher.tell("go")
        await publisher.answer("done", timeout_s=seconds + 60)
        await application.answer("done")
        if sidecar is not None:
            await sidecar.leave()
        seen = (await application.stop())["seen"]
        if seen != messages:
            raise RuntimeError(f"{role}: {messages} were published and {seen} seen")
        return read(ages)[int(rate * WARM_UP_S) :]
    finally:
        for process in (sidecar, application, publisher):
            if process is not None:
                await process.kill()


def read(place: str) -> list[float]:
    return [age_ns / 1e6 for age_ns in array("Q", Path(place).read_bytes())]


async def measure(rate: int, seconds: float, rounds: int) -> dict[str, list[list[float]]]:
    """Contender -> the ages of one round each."""
    found: dict[str, list[list[float]]] = {role: [] for role in CONTENDERS}
    async with Stage.set() as stage:
        for _ in range(rounds):
            for role in CONTENDERS:
                found[role].append(await ages_ms(stage, role, rate, seconds))
    return found


def print_table(found: dict[str, list[list[float]]], rate: int) -> None:
    rounds = len(found[BARE])
    print(f"{rate:,} messages/s, from publish to the application, ms; median of {rounds} rounds\n")
    print("| | p50 | p90 | p99 | added p50 | added p90 | added p99 | messages |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    shares = (0.5, 0.9, 0.99)
    by_round = {
        role: [[percentile(ages, share) for share in shares] for ages in some] for role, some in found.items()
    }
    for role, some in by_round.items():
        values = [statistics.median(column) for column in zip(*some, strict=True)]
        added = [
            statistics.median(mine[at] - bare[at] for mine, bare in zip(some, by_round[BARE], strict=True))
            for at in range(len(shares))
        ]
        shown = [*values, *added] if role != BARE else values
        cells = [f"{value:.2f}" for value in shown] + [""] * (2 * len(shares) - len(shown))
        print(f"| {role} | {' | '.join(cells)} | {sum(map(len, found[role])):,} |")


def main() -> None:
    parser = Measurement(__doc__, workers=WORKERS)
    parser.add_argument("--rate", type=int, default=1000, help="messages per second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.asked()
    print_table(asyncio.run(measure(arguments.rate, arguments.seconds, arguments.rounds)), arguments.rate)


if __name__ == "__main__":
    main()
