"""Time that messages wait for their call where load is uneven, by assignment: skewed keys, and a member that is slow.

Four members are processes of their own, of one call at a time that sleeps for 10 ms, on 32 queues. Messages come at
random times, at 0.8 of what the members do of a backlog; with a slow member at 0.8 of what is left. Times are
CLOCK_MONOTONIC, which processes of one machine share. `python -m bench.by_load --engine embedded`.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.handoff import broker
from bench.measurement import Measurement
from lbg_core.group import BALANCED, BY_LOAD, Assignment, GroupSpec, hash_of
from lbg_core.publisher import GroupPublisher
from testing.admin.group_on_broker import declare_group
from testing.member.process import SLOWER, Call, MemberProcess
from testing.waiting import until

MEMBERS, QUEUES, HASHES, KEYS = 4, 32, 256, 1000
WORK_S = 0.01
SHARE = 0.8
BACKLOG = 6000
AFTER_S = 30.0
"""From the slowdown until no message may be older than 5 s."""


@dataclass(frozen=True)
class Case:
    """`exponent` of the frequencies of keys (Zipf; 0: all alike). `slow`: index of the member that becomes slow."""

    title: str
    assignment: Assignment
    exponent: float = 0.0
    slow: int | None = None


CASES = (
    Case("keys alike", BALANCED),
    Case("keys by Zipf 0.8", BALANCED, 0.8),
    Case("keys by Zipf 0.8", BY_LOAD, 0.8),
    Case("index 2 four times slower", BALANCED, slow=2),
    Case("index 2 four times slower", BY_LOAD, slow=2),
    Case("index 0 four times slower", BY_LOAD, slow=0),
)


STEADY = (Case("keys by Zipf 0.8", BY_LOAD, 0.8),)


class Group:
    def __init__(self, url: str, name: str, directory: Path, case: Case) -> None:
        self.spec = GroupSpec(
            name,
            name,
            hash_count=HASHES,
            queue_count=QUEUES,
            queue_size_mb=1000,
            client_username="guest",
            assignment=case.assignment,
        )
        told = {"broker": url, "group": name, "concurrency": 1, "rebalance_delay_s": 1.0}
        self.members = [
            MemberProcess(f"{name}-{number}", directory, work_s=WORK_S, **told) for number in range(MEMBERS)
        ]
        self.keys: dict[tuple[int, int], int] = {}
        """Of what is published, by hash and sequence number."""
        self._sequences = Counter[int]()
        self._url = url

    @asynccontextmanager
    async def running(self) -> AsyncIterator[GroupPublisher]:
        await declare_group(self._url, self.spec)
        try:
            for member in self.members:
                await member.start()
                await member.joined()
            async with GroupPublisher(self._url, group=self.spec.name) as publisher:
                yield publisher
        finally:
            for member in self.members:
                await member.close()

    def calls(self) -> list[Call]:
        return sorted(
            (call for member in self.members for call in member.calls()), key=lambda call: call.at_ns
        )

    def moves(self, since_ns: int) -> int:
        return sum(len(member.since(since_ns, "moved")) for member in self.members)

    async def publish(
        self, publisher: GroupPublisher, weights: Sequence[float], *, rate_hz: float, seconds: float
    ) -> None:
        chance, loop = random.Random(1), asyncio.get_running_loop()
        at, keys = loop.time(), range(KEYS)
        end = at + seconds
        while (at := at + chance.expovariate(rate_hz)) < end:
            (key,) = chance.choices(keys, weights)
            await asyncio.sleep(max(0.0, at - loop.time()))
            await self.publish_one(publisher, key)

    async def publish_one(self, publisher: GroupPublisher, key: int) -> None:
        await publisher.publish(key=f"key-{key}", body=bytes(256), topic="bench")
        hash_ = hash_of(f"key-{key}", HASHES)
        self.keys[hash_, self._sequences[hash_]] = key
        self._sequences[hash_] += 1


def weights_of(case: Case) -> list[float]:
    return [1 / rank**case.exponent for rank in range(1, KEYS + 1)]


async def capacity_hz(url: str, directory: Path) -> float:
    """Messages a second of all members, of a backlog of keys that are alike, without its first and last fifth."""
    group = Group(url, "capacity", directory, CASES[0])
    async with group.running() as publisher:
        for number in range(BACKLOG):
            await group.publish_one(publisher, number % KEYS)
        await until(lambda: len(group.calls()) == BACKLOG, every_s=1.0, what="the backlog to be done")
        calls = group.calls()
    first, last = calls[BACKLOG // 5], calls[BACKLOG * 4 // 5]
    return (BACKLOG * 3 / 5) / (last.at_ns - first.at_ns) * 1e9


async def row_of(
    case: Case, url: str, directory: Path, rate_hz: float, *, settle_s: float, seconds: float
) -> str:
    group = Group(url, f"case-{CASES.index(case)}", directory, case)
    if case.slow is not None:
        rate_hz *= (MEMBERS - 1 + 1 / SLOWER) / MEMBERS
    async with group.running() as publisher:
        load = asyncio.create_task(
            group.publish(publisher, weights_of(case), rate_hz=SHARE * rate_hz, seconds=settle_s + seconds)
        )
        if case.slow is None:
            await asyncio.sleep(settle_s)
        else:
            await asyncio.sleep(settle_s - AFTER_S)
            group.members[case.slow].signal(signal.SIGHUP)
            await asyncio.sleep(AFTER_S)
        since_ns = time.monotonic_ns()
        await load
        until_ns = time.monotonic_ns()
        if case.assignment == BY_LOAD:
            await until(lambda: len(group.calls()) >= len(group.keys), every_s=1.0, what="the rest")
        calls = group.calls()
    waited_s = sorted(
        (call.at_ns - call.published_ns) / 1e9 for call in calls if since_ns <= call.at_ns < until_ns
    )
    times = Counter(call.name for call in calls)
    last: dict[int, int] = {}
    inverted = 0
    for call in calls:
        key = group.keys[call.name]
        inverted += call.seq < last.get(key, -1) and times[call.name] == 1
        last[key] = max(call.seq, last.get(key, -1))
    p50, p99 = (waited_s[len(waited_s) * percent // 100] for percent in (50, 99))
    return (
        f"| {case.title}, {case.assignment} | {p50:.3f} | {p99:.3f} | {waited_s[-1]:.2f} | {group.moves(0)} "
        f"| {group.moves(since_ns)} | {len(group.keys) - len(times)}, {inverted}, {sum(times.values()) - len(times)} |"
    )


async def measure(engine: str, cases: Sequence[Case], *, settle_s: float, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="lbg-bench-") as place, broker(engine, Path(place)) as url:
        rate_hz = await capacity_hz(url, Path(place))
        print(f"\n{engine}: {rate_hz:.0f} messages a second of a backlog (seconds)")
        print(
            "| load, assignment | p50 | p99 | max | moves | in this time | not called, inverted, repeated |"
        )
        print("|---|---|---|---|---|---|---|", flush=True)
        for case in cases:
            row = await row_of(case, url, Path(place), rate_hz, settle_s=settle_s, seconds=seconds)
            print(row, flush=True)


def main() -> None:
    parser = Measurement(__doc__)
    parser.add_argument("--engine", choices=["embedded", "rabbitmq"], action="append")
    parser.add_argument("--settle", type=float, default=60.0, help="seconds until what is measured begins")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of which the waits are measured")
    parser.add_argument(
        "--steady", action="store_true", help="only skewed keys by load, for long: what moves in this time"
    )
    arguments = parser.asked()
    cases = STEADY if arguments.steady else CASES
    for engine in arguments.engine or ["embedded", "rabbitmq"]:
        asyncio.run(measure(engine, cases, settle_s=arguments.settle, seconds=arguments.seconds))


if __name__ == "__main__":
    main()
