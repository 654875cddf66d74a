"""Approaches to ordered work by key, one workload on each: throughput, pauses, order, repeats, CPU and memory.

For each approach (`peers`) a broker is started on loopback, with a publisher and four consumers in processes of their
own. Messages have 256 bytes and one of 200 keys, and are durable and confirmed. The load is a backlog, first with an
application that returns at once, then with one that waits 2 ms; then even, while consumers join, leave and are killed;
then a backlog again, with the same changes. The consumer that leaves or is killed is the busiest, and one of its name
takes the place of a killed one after a second. Judged is the log of the application. Approaches take turns.
`python -m bench.comparison --rounds 4`; with `--results FILE` a run adds to the earlier ones in the file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.measurement import Measurement
from bench.peers import CONSUMERS, Broker, MissingError
from bench.peers.__main__ import KEYS
from bench.workers import Worker, cpu_s, resident_mb
from testing.work_log import DONE, Judgement, Log, judged, longest_gaps_ms

WAIT_S, WAIT_EVENLY_S = 0.002, 0.001
EVENLY_HZ = 800
INTERVAL_MS = KEYS / EVENLY_HZ * 1000
SETTLE_S = 1.5
REPLACED_AFTER_S = 1.0
STUCK_AFTER_S = 30.0
EVENTS = ("nothing", "join", "leave", "kill")


@dataclass(frozen=True)
class Approach:
    """`peer`: the module of `bench.peers`; `broker` and `consumer`: more for its functions of that name."""

    name: str
    peer: str
    broker: dict[str, Any] = field(default_factory=dict)
    consumer: dict[str, Any] = field(default_factory=dict)


APPROACHES = (
    *(
        Approach(
            f"LBG on {where}, {concurrency} at a time",
            "lbg",
            {"engine": engine},
            {"concurrency": concurrency},
        )
        for engine, where in (("embedded", "the embedded broker"), ("rabbitmq", "RabbitMQ"))
        for concurrency in (1, 16)
    ),
    Approach("RabbitMQ super streams, rstream", "super_streams"),
    Approach("RabbitMQ consistent hash, single active consumers, pika", "hash_exchange"),
    Approach("… with an ack for each message", "hash_exchange", consumer={"ack_every": 1}),
    Approach("NATS partitioned consumer groups, natsio-pcgroups", "nats"),
    Approach("ActiveMQ message groups, stomp.py", "activemq"),
    Approach("Redis streams with leases, redis-py", "redis"),
)


@dataclass(frozen=True)
class Phase:
    """Messages from `first` to before `end`, published from `started_ns` on and all done."""

    first: int
    started_ns: int
    end: int


class Trial:
    """One approach: its consumers, its load, and what comes of it."""

    def __init__(
        self, approach: Approach, broker: Broker, directory: Path, *, seconds: float, changes: int
    ) -> None:
        self._approach = approach
        self._seconds = seconds
        self._changes = changes
        self._broker = broker
        self._logs = directory / "logs"
        self._logs.mkdir()
        self._log = Log(self._logs)
        self._files: dict[str, Path] = {}
        self._consumers: dict[str, Worker] = {}
        self._ended: list[Worker] = []
        self._phases = self._joined = 0

    async def run(self) -> dict[str, Any]:
        peer, url = self._approach.peer, self._broker.url
        await import_module(f"bench.peers.{peer}").declare(url)
        self._publisher = await Worker.start(
            "peers", role="publish", peer=peer, url=url, logs=str(self._logs)
        )
        try:
            await self._publisher.answer("ready")
            await asyncio.gather(*(self._join() for _ in range(CONSUMERS)))
            # Some clients find out by their first messages who serves what.
            await self._phase(lambda: asyncio.sleep(2), wait_s=0, rate_hz=500)
            return await self._measure()
        finally:
            for worker in [self._publisher, *self._consumers.values(), *self._ended]:
                await worker.kill()

    async def _measure(self) -> dict[str, Any]:
        at_once, waiting = [await self._backlog(wait_s) for wait_s in (0, WAIT_S)]
        windows: list[tuple[str, int]] = []
        evenly = await self._phase(
            lambda: self._change_one_by_one(windows), wait_s=WAIT_EVENLY_S, rate_hz=EVENLY_HZ
        )
        loaded = await self._phase(self._change_in_a_row, wait_s=WAIT_S)
        steady = judged(self._log, 0, evenly.first)
        changing = judged(self._log, evenly.first, loaded.end)
        return {
            "approach": self._approach.name,
            "at_once": at_once,
            "waiting": waiting,
            "pauses_ms": self._pauses_ms(evenly, windows),
            "steady": _counts(steady),
            "changing": _counts(changing),
            "changing_messages": loaded.end - evenly.first,
            "consumer_mb": statistics.median(resident_mb(each.pid) for each in self._consumers.values()),
            "broker_mb": resident_mb(self._broker.pid),
        }

    # The load

    async def _backlog(self, wait_s: float) -> dict[str, float]:
        """Rate, the part of it that the busiest consumer had, and CPU for one message."""
        before, sizes = self._cpu_s(), self._sizes()
        phase = await self._phase(lambda: asyncio.sleep(self._seconds), wait_s=wait_s)
        count = phase.end - phase.first
        consumers_s, broker_s = (
            after - earlier for after, earlier in zip(self._cpu_s(), before, strict=True)
        )
        grown = self._sizes()
        return {
            "hz": count / (self._log.last_ns - phase.started_ns) * 1e9,
            "busiest": max(grown[name] - sizes[name] for name in grown) / DONE.size / count,
            "consumer_us": consumers_s / count * 1e6,
            "broker_us": broker_s / count * 1e6,
        }

    async def _phase(
        self,
        meanwhile: Callable[[], Coroutine[Any, Any, None]],
        *,
        wait_s: float,
        rate_hz: float | None = None,
    ) -> Phase:
        await self._publisher.tell(json.dumps({"wait_s": wait_s, "rate_hz": rate_hz}))
        await meanwhile()
        await self._publisher.tell("")
        phase = Phase(**await self._publisher.answer(f"phase-{self._phases}", timeout_s=300))
        self._phases += 1
        seen, since = -1, time.monotonic()
        while self._log.distinct() < phase.end and time.monotonic() - since < STUCK_AFTER_S:
            if self._log.records != seen:
                seen, since = self._log.records, time.monotonic()
            await asyncio.sleep(0.05)
        return phase

    def _cpu_s(self) -> tuple[float, float]:
        """Of the consumers and of the broker."""
        return sum(cpu_s(each.pid) for each in self._consumers.values()), cpu_s(self._broker.pid)

    # The changes

    async def _change_one_by_one(self, windows: list[tuple[str, int]]) -> None:
        await asyncio.sleep(1)
        changes = {"join": self._join, "leave": self._leave, "kill": self._kill_and_replace}
        for event in EVENTS * self._changes:
            windows.append((event, time.monotonic_ns()))
            if event in changes:
                await changes[event]()
            await asyncio.sleep(SETTLE_S)
            await self._caught_up()

    async def _change_in_a_row(self) -> None:
        await asyncio.sleep(1)
        for change in (self._leave, self._join, self._kill_and_replace):
            await change()
            await asyncio.sleep(1.5)

    async def _join(self, name: str | None = None) -> None:
        if name is None:
            name = f"consumer-{self._joined}"
            self._joined += 1
        number = int(name.partition("-")[2])
        self._files[name] = self._log.new_file(name)
        told = {"peer": self._approach.peer, "url": self._broker.url, **self._approach.consumer}
        self._consumers[name] = await Worker.start(
            "peers", role="consume", log=str(self._files[name]), name=name, number=number, **told
        )
        await self._consumers[name].answer("ready")

    async def _leave(self) -> None:
        leaving = self._consumers.pop(await self._busiest())
        self._ended.append(leaving)
        leaving.signal(signal.SIGTERM)
        await leaving.answer("done")

    async def _kill_and_replace(self) -> None:
        name = await self._busiest()
        await self._consumers.pop(name).kill()
        await asyncio.sleep(REPLACED_AFTER_S)
        await self._join(name)

    async def _busiest(self) -> str:
        """Consumer that did the most in half a second."""

        before = self._sizes()
        await asyncio.sleep(0.5)
        after = self._sizes()
        return max(after, key=lambda name: after[name] - before[name])

    def _sizes(self) -> dict[str, int]:
        """Bytes that each consumer has written."""
        return {
            name: self._files[name].stat().st_size if self._files[name].exists() else 0
            for name in self._consumers
        }

    async def _caught_up(self) -> None:
        """Returns when messages are done soon after they are published, of every key; at the latest after a while."""
        deadline = time.monotonic() + STUCK_AFTER_S
        while time.monotonic() < deadline:
            missing = self._log.newest + 1 - self._log.distinct()
            if missing < EVENLY_HZ / 10 and time.monotonic_ns() - self._log.last_ns < 100_000_000:
                return
            await asyncio.sleep(0.2)

    def _pauses_ms(self, phase: Phase, windows: list[tuple[str, int]]) -> dict[str, list[float]]:
        """For each event the longest time between two calls of a key, beyond that between its messages."""
        gaps_ms = longest_gaps_ms(self._log, phase.first, phase.end, [at_ns for _, at_ns in windows])
        pauses_ms: dict[str, list[float]] = {event: [] for event in EVENTS}
        for (event, _), gap_ms in zip(windows, gaps_ms, strict=True):
            pauses_ms[event].append(max(0.0, gap_ms - INTERVAL_MS))
        return pauses_ms


def _counts(judgement: Judgement) -> dict[str, int]:
    return {
        "keys": len(judgement.keys),
        "inverted": judgement.inverted,
        "repeated": judgement.repeated,
        "lost": judgement.lost,
    }


def measure(approach: Approach, **how: Any) -> dict[str, Any] | None:
    """None if something that the approach needs is missing, which is printed."""
    with tempfile.TemporaryDirectory(prefix="lbg-bench-") as place:
        try:
            peer = import_module(f"bench.peers.{approach.peer}")
            with peer.broker(Path(place), **approach.broker) as broker:
                return asyncio.run(Trial(approach, broker, Path(place), **how).run())
        except ModuleNotFoundError as error:
            missing = f"no module {error.name}: install the extra bench; natsio needs Python 3.13"
        except MissingError as error:
            missing = str(error)
    print(f"{approach.name}: {missing}", file=sys.stderr, flush=True)
    return None


def table(outcomes: list[dict[str, Any]]) -> Iterable[str]:
    yield (
        "| | msg/s, app returns at once | consumers µs | broker µs | msg/s, app waits 2 ms | "
        "calls at a time in the busiest | consumers µs | broker µs | pause ms: nothing | join | leave | kill | "
        "keys out of order | repeated | lost | consumer MB | broker MB |"
    )
    yield "|---|" + "--:|" * 16
    for approach in APPROACHES:
        rounds = [each for each in outcomes if each["approach"] == approach.name]
        if not rounds:
            continue
        cells = []
        for backlog in ("at_once", "waiting"):
            cells.append(_median_and_range([each[backlog]["hz"] for each in rounds]))
            if backlog == "waiting":
                # Keys are not spread evenly: the busiest consumer has work all the time, and the others wait for it.
                calls = [each[backlog]["hz"] * each[backlog]["busiest"] * WAIT_S for each in rounds]
                cells.append(f"{statistics.median(calls):.2f}")
            cells += [
                f"{statistics.median(each[backlog][name] for each in rounds):,.0f}"
                for name in ("consumer_us", "broker_us")
            ]
        for event in EVENTS:
            pauses = [pause for each in rounds for pause in each["pauses_ms"][event]]
            cells.append(f"{statistics.median(pauses):,.0f} / {max(pauses):,.0f}")
        for count in ("keys", "repeated", "lost"):
            worst = [each["steady"][count] + each["changing"][count] for each in rounds]
            cells.append(_median_and_range(worst))
        for name in ("consumer_mb", "broker_mb"):
            cells.append(f"{statistics.median(each[name] for each in rounds):,.0f}")
        yield f"| {approach.name} | {' | '.join(cells)} |"


def _median_and_range(values: list[float]) -> str:
    low, high = f"{min(values):,.0f}", f"{max(values):,.0f}"
    return low if low == high else f"{statistics.median(values):,.0f} ({low} to {high})"


def _chosen(arguments: argparse.Namespace) -> list[Approach]:
    return [APPROACHES[number] for number in arguments.only or range(len(APPROACHES))]


def main() -> None:
    parser = Measurement(__doc__)
    parser.add_argument("--only", type=int, action="append", help="number of an approach, from 0")
    parser.add_argument("--rounds", type=int, default=4, help="0: print the table of the results alone")
    parser.add_argument("--seconds", type=float, default=2.0, help="of publishing a backlog")
    parser.add_argument("--changes", type=int, default=1, help="number of joins, leaves and kills in a round")
    parser.add_argument("--results", type=Path, help="file of earlier results, to which these are added")
    arguments = parser.asked()
    outcomes = []
    if arguments.results and arguments.results.exists():
        outcomes = [json.loads(line) for line in arguments.results.read_text().splitlines()]
    for number in range(arguments.rounds):
        chosen = _chosen(arguments)
        for approach in chosen[::-1] if number % 2 else chosen:
            outcome = measure(approach, seconds=arguments.seconds, changes=arguments.changes)
            if outcome is None:
                continue
            outcomes.append(outcome)
            if arguments.results:
                with arguments.results.open("a") as file:
                    file.write(json.dumps(outcome) + "\n")
    print("\n".join(table(outcomes)))


if __name__ == "__main__":
    main()
