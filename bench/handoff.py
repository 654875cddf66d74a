"""Pause of a queue that moves, and the time until members agree on the roster.

Members are processes of their own; one of them leaves and joins, is killed, is stopped, again and again, while all
messages go to a queue that it serves. Times are CLOCK_MONOTONIC, which processes of one machine share. On RabbitMQ
the floor is measured on the same node: consumers that only acknowledge (`bench.bare_consumers`).
`python -m bench.handoff --engine embedded --members 4 --moves 200 --kills 50`.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.bare_consumers import floor
from bench.bystander import Bystander
from bench.measurement import Measurement, percentile
from lbg_core.group import GroupSpec, hash_of, queue_of
from lbg_core.publisher import GroupPublisher
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.member.process import Call, MemberProcess
from testing.rabbitmq.node import RabbitNode
from testing.waiting import until

GROUP = "bench"
HASHES = 64
REBALANCE_DELAY_S = 0.3
STOPS = 3
SLOW_MS = 100


@dataclass
class Results:
    """Milliseconds, one for each time it happened."""

    planned: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    killed: list[float] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)
    crash_agreed: list[float] = field(default_factory=list)
    join_agreed: list[float] = field(default_factory=list)
    floor_planned: list[float] = field(default_factory=list)
    floor_killed: list[float] = field(default_factory=list)
    syncs: list[float] = field(default_factory=list)
    slow_kills: list[tuple[float, float]] = field(default_factory=list)
    """Of those slower than `SLOW_MS`: the time, and the slowest sync of a bystander meanwhile."""
    repeated_on_moves: int = 0
    repeated_on_kills: int = 0


class Bench:
    """One group on one broker: `members` processes, of which the last is the one things happen to."""

    def __init__(self, url: str, directory: Path, *, members: int, rate_hz: int) -> None:
        self.url = url
        self.spec = GroupSpec(
            GROUP, GROUP, hash_count=HASHES, queue_count=members, queue_size_mb=1000, client_username="guest"
        )
        self.rate_hz = rate_hz
        self.results = Results()
        self.queue = 0  # the one that gets all messages
        told = {"broker": url, "group": GROUP, "rebalance_delay_s": REBALANCE_DELAY_S}
        self.others = [MemberProcess(f"m{number}", directory, **told) for number in range(members - 1)]
        self._directory = directory
        self._told = told
        self.victim = MemberProcess("victim", directory, **told)
        self._keys = self._keys_of_queues()
        self._publishing = asyncio.Event()
        self._dead: list[MemberProcess] = []

    async def run(self, *, moves: int, kills: int, stops: int) -> Results:
        await declare_group(self.url, self.spec)
        async with GroupPublisher(self.url, group=GROUP) as publisher:
            load = asyncio.create_task(self._publish(publisher))
            try:
                for member in self.others:
                    await member.start()
                    await member.joined()
                await self._start_victim()
                await self._moves(moves)
                with Bystander(self._directory) as bystander:
                    await self._kills(kills, bystander)
                self.results.syncs += bystander.all_ms()
                await self._stops(stops)
            finally:
                load.cancel()
                await asyncio.gather(load, return_exceptions=True)
                for member in [*self.others, self.victim]:
                    await member.close()
        return self.results

    # The load

    def _keys_of_queues(self) -> list[list[str]]:
        keys: list[list[str]] = [[] for _ in range(self.spec.queue_count)]
        for number in range(4000):
            key = f"key-{number}"
            keys[queue_of(hash_of(key, HASHES), self.spec.queue_count)].append(key)
        return [some[:20] for some in keys]

    async def _publish(self, publisher: GroupPublisher) -> None:
        """Evenly spaced, and not faster to make up for a moment lost."""
        loop = asyncio.get_running_loop()
        number = 0
        at = loop.time()
        while True:
            await self._publishing.wait()
            keys = self._keys[self.queue]
            await publisher.publish(key=keys[number % len(keys)], body=bytes(256), topic="bench")
            number += 1
            at = max(at + 1 / self.rate_hz, loop.time() - 0.002)
            await asyncio.sleep(max(0.0, at - loop.time()))

    # The parts

    async def _start_victim(self) -> None:
        await self.victim.start()
        await self.victim.joined()
        await self._balanced(0)

    async def _balanced(self, since_ns: int) -> None:
        """The victim serves a queue, and that queue gets the load. An idle queue shows no owner, so each is fed."""
        self._publishing.set()
        loop = asyncio.get_running_loop()
        turn, deadline = 0, loop.time() + 60
        while loop.time() < deadline:
            served = self._served_by_victim(since_ns)
            if served:
                self.queue = min(served)
                await asyncio.sleep(REBALANCE_DELAY_S + 0.5)
                if self.queue in self._served_by_victim(since_ns):
                    return
            self.queue = turn % self.spec.queue_count
            turn += 1
            await asyncio.sleep(0.02)
        raise TimeoutError(f"the victim gets no queue: {self.victim.log()[-3000:]}")

    def _served_by_victim(self, since_ns: int) -> set[int]:
        served: set[int] = set()
        for event in self.victim.events:
            if event.at_ns >= since_ns and event.kind == "taken_over":
                served.add(event.fields["queue"])
            elif event.at_ns >= since_ns and event.kind == "moved":
                served.discard(event.fields["queue"])
        return served

    async def _moves(self, count: int) -> None:
        while len(self.results.planned) < count:
            queue = self.queue
            # Away, because it leaves …
            at_ns = time.monotonic_ns()
            self.victim.signal(signal.SIGUSR1)
            await until(lambda at=at_ns: self.victim.since(at, "left"), what="the victim to leave")
            await asyncio.sleep(0.1)
            self._note_pause(queue, at_ns, to_victim=False)
            # … and back, because it joins.
            await asyncio.sleep(REBALANCE_DELAY_S + 0.2)
            at_ns = time.monotonic_ns()
            self.victim.signal(signal.SIGUSR2)
            await until(lambda at=at_ns: self.victim.since(at, "joined"), what="the victim to join")
            (joined, *_) = self.victim.since(at_ns, "live")
            index = self.victim.since(at_ns, "joined")[0].fields["index"]
            await self._agreed(joined.at_ns, lambda live, i=index: i in live, self.results.join_agreed)
            await until(
                lambda at=at_ns, q=queue: any(
                    e.fields["queue"] == q for e in self.victim.since(at, "taken_over")
                ),
                what="its queue to come back",
            )
            await asyncio.sleep(0.1)
            self._note_pause(queue, at_ns, to_victim=True)
            await asyncio.sleep(0.2)
            _progress("moves", len(self.results.planned), count)
        self.results.repeated_on_moves = self._repeats()

    async def _kills(self, count: int, bystander: Bystander) -> None:
        repeats = self._repeats()
        for number in range(count):
            queue = self.queue
            joined = [event for event in self.victim.events if event.kind == "joined"]
            index = joined[-1].fields["index"]
            at_ns = await self.victim.kill()
            await self._agreed(at_ns, lambda live, i=index: i not in live, self.results.crash_agreed)
            await asyncio.sleep(0.3)
            self._note_first(queue, at_ns, self.results.killed)
            if (killed_ms := self.results.killed[-1]) > SLOW_MS:
                slowest_ms = bystander.slowest_ms(at_ns, at_ns + int(killed_ms * 1e6))
                self.results.slow_kills.append((killed_ms, slowest_ms))
            await self._replace_victim()
            _progress("kills", number + 1, count)
        self.results.repeated_on_kills = self._repeats() - repeats

    async def _stops(self, count: int) -> None:
        for number in range(count):
            queue, at_ns = self.queue, time.monotonic_ns()
            self.victim.signal(signal.SIGSTOP)
            await until(
                lambda q=queue, at=at_ns: self._first_elsewhere(q, at), timeout_s=60, what="a successor"
            )
            self._note_first(queue, at_ns, self.results.stopped)
            await self.victim.kill()
            await asyncio.sleep(0.5)
            await self._replace_victim()
            _progress("stops", number + 1, count)

    async def _replace_victim(self) -> None:
        self._dead.append(self.victim)
        self.victim = MemberProcess("victim", self._directory, **self._told)
        await asyncio.sleep(REBALANCE_DELAY_S + 0.2)
        await self._start_victim()

    # What came of it

    def _note_pause(self, queue: int, since_ns: int, *, to_victim: bool) -> None:
        """From the last call where the queue was to the first where it is, and how long of that the first message
        there had been published."""
        window = since_ns - 1_000_000_000
        theirs = [call for member in self.others for call in _calls(member, queue, window)]
        its = list(_calls(self.victim, queue, window))
        old, new = (theirs, its) if to_victim else (its, theirs)
        first = min(
            (call for call in new if call.at_ns > since_ns), key=lambda call: call.at_ns, default=None
        )
        if first is None:
            return
        last_ns = max((call.at_ns for call in old if call.at_ns < first.at_ns), default=None)
        if last_ns is not None:
            self.results.planned.append((first.at_ns - last_ns) / 1e6)
            self.results.waited.append((first.at_ns - max(last_ns, first.published_ns)) / 1e6)

    def _first_elsewhere(self, queue: int, since_ns: int) -> int | None:
        calls = [call.at_ns for member in self.others for call in _calls(member, queue, since_ns)]
        return min(calls, default=None)

    def _note_first(self, queue: int, since_ns: int, into: list[float]) -> None:
        first_ns = self._first_elsewhere(queue, since_ns)
        if first_ns is not None:
            into.append((first_ns - since_ns) / 1e6)

    async def _agreed(self, since_ns: int, holds: Callable[[list[int]], bool], into: list[float]) -> None:
        """Time at which the last of the others agreed."""

        def when(member: MemberProcess) -> int | None:
            # What it said last before may have held already, if it was faster than who is asked.
            events = member.since(since_ns - 50_000_000, "live")
            return next((event.at_ns for event in events if holds(event.fields["live"])), None)

        await until(lambda: all(when(member) for member in self.others), what="everybody to agree")
        into.append(max(0, max((when(member) or 0) - since_ns for member in self.others)) / 1e6)

    def _repeats(self) -> int:
        members = [*self.others, *self._dead, self.victim]
        names = [call.name for member in members for call in member.calls()]
        return len(names) - len(set(names))


def _calls(member: MemberProcess, queue: int, since_ns: int) -> Iterator[Call]:
    return (call for call in member.calls(since_ns) if call.queue == queue)


def _progress(what: str, done: int, of: int) -> None:
    if sys.stderr.isatty() or done == of:
        print(f"\r{what}: {done} of {of}", end="" if done < of else "\n", file=sys.stderr, flush=True)


@contextmanager
def broker(engine: str, directory: Path) -> Iterator[str]:
    if engine == "embedded":
        with EmbeddedBroker(directory / "data") as embedded:
            yield embedded.url
    else:
        with RabbitNode() as node:
            yield node.amqp_url


def percentiles(times: Iterable[float]) -> str:
    ordered = sorted(times)
    if not ordered:
        return "– | – | – | –"
    p99 = percentile(ordered, 0.99)
    return f"{statistics.median(ordered):.1f} | {p99:.1f} | {ordered[-1]:.1f} | {len(ordered)}"


def table(engine: str, members: int, results: Results) -> str:
    rows = {
        "planned move, last call there to first call here": results.planned,
        "… of that, a message waited": results.waited,
        "SIGKILL to first call elsewhere": results.killed,
        "SIGSTOP to first call elsewhere": results.stopped,
        "SIGKILL until all others agree": results.crash_agreed,
        "join until all others agree": results.join_agreed,
        "a bystander's sync of the disk during the kills": results.syncs,
    }
    if results.floor_planned:
        rows["floor: channel.close to first delivery elsewhere"] = results.floor_planned
        rows["floor: SIGKILL to first delivery elsewhere"] = results.floor_killed
    lines = [f"\n{engine}, {members} members (ms)", "| what | p50 | p99 | max | n |", "|---|---|---|---|---|"]
    lines += [f"| {what} | {percentiles(times)} |" for what, times in rows.items()]
    for killed_ms, slowest_ms in results.slow_kills:
        lines.append(
            f"\na kill of {killed_ms:.0f} ms, the slowest sync of a bystander meanwhile: {slowest_ms:.0f} ms"
        )
    lines.append(
        f"\nrepeated: {results.repeated_on_moves} on planned moves, {results.repeated_on_kills} after kills"
    )
    return "\n".join(lines)


async def measure(engine: str, members: int, arguments: argparse.Namespace) -> Results:
    with tempfile.TemporaryDirectory(prefix="lbg-bench-") as place, broker(engine, Path(place)) as url:
        bench = Bench(url, Path(place), members=members, rate_hz=arguments.rate)
        counts = {"moves": arguments.moves, "kills": arguments.kills}
        results = await bench.run(**counts, stops=arguments.stops)
        if engine == "rabbitmq":
            results.floor_planned, results.floor_killed = await floor(
                url, Path(place), members=members, rate_hz=arguments.rate, **counts
            )
        return results


def main() -> None:
    parser = Measurement(__doc__)
    parser.add_argument("--engine", choices=["embedded", "rabbitmq"], action="append")
    parser.add_argument("--members", type=int, action="append")
    parser.add_argument("--rate", type=int, default=2000, help="messages per second")
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--stops", type=int, default=STOPS)
    arguments = parser.asked()
    for engine in arguments.engine or ["embedded", "rabbitmq"]:
        for members in arguments.members or [4, 16]:
            print(table(engine, members, asyncio.run(measure(engine, members, arguments))), flush=True)


if __name__ == "__main__":
    main()
