"""Pauses of a group's queues in a three-node RabbitMQ cluster when a node is killed, at random.

`python -m bench.leader_kill --kills 10`. A group of six queues receives 2,000 messages a second. Its leaders are spread
over the nodes, and so are its three members; each of these, and the publisher, has all three addresses. One node, by
chance, is killed (SIGKILL) or stands still (SIGSTOP), and is started again when all queues are served; then its leaders
and its member return to it. The pause of a queue is the longest time between two calls of the application, on any
member, the second after the fault. Loss and order are those of the applications' records, by the check of journals.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import statistics
import struct
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bench.measurement import Measurement, percentile
from bench.workers import Worker, say
from lbg_core.client import ConnectionSettings
from lbg_core.group import GroupSpec, Names, hash_of, queue_of
from lbg_core.publisher import GroupPublisher, PublisherEvent, events
from lbg_sidecar import Member, MemberSettings, Message
from testing.admin.group_on_broker import declare_group
from testing.aside import aside
from testing.rabbitmq.cluster import RabbitCluster
from testing.rabbitmq.node import NodeFailedError, RabbitNode
from testing.waiting import until
from testing.work_log import GrowingFiles, Judgement, judge_records

T = TypeVar("T")

GROUP = "bench"
KEYS_PER_QUEUE = 8
WITHIN_S = 120.0
QUIET_S = 2.0
"""Queues that were served evenly for this long are over the fault."""

_BODY = struct.Struct("<II")  # number, key
_CALL = struct.Struct("<QIII")


class Call(NamedTuple):
    """One call of the application, as it began (CLOCK_MONOTONIC). `home`: the node of its member."""

    at_ns: int
    number: int
    key: int
    home: int


@dataclass
class Pauses:
    """Milliseconds, one for each fault and queue, by what the killed node had of the queue."""

    with_leader: list[float] = field(default_factory=list)
    with_client: list[float] = field(default_factory=list)
    """No leader, but the queue's member or the publisher."""
    with_nothing: list[float] = field(default_factory=list)
    on_start: list[float] = field(default_factory=list)
    """While the node is started, until the cluster is whole."""
    on_rebalance: list[float] = field(default_factory=list)
    """After that, while leaders return to it."""
    on_restart: list[float] = field(default_factory=list)
    """After that, while its member is restarted."""
    leaders: list[int] = field(default_factory=list)
    """Leaders on the killed node, one number for each fault."""
    published: int = 0
    seconds: float = 0.0
    judgement: Judgement = field(default_factory=Judgement)

    @property
    def all(self) -> list[float]:
        return self.with_leader + self.with_client + self.with_nothing


class Bench:
    """A group on a cluster, with a member for each node."""

    def __init__(
        self, cluster: RabbitCluster, directory: Path, *, queues: int, rate_hz: float, heartbeat_s: int
    ) -> None:
        self._cluster = cluster
        self._spec = GroupSpec(
            GROUP,
            GROUP,
            hash_count=8 * queues,
            queue_count=queues,
            queue_size_mb=1000,
            client_username="guest",
        )
        self._rate_hz = rate_hz
        self._urls = [f"{url}?heartbeat={heartbeat_s}" for url in cluster.urls]
        self._directory = directory
        self._files = GrowingFiles(_CALL)
        self._members: list[Worker] = []
        self._calls: list[Call] = []
        self._published = 0
        self._address = ""
        keys = keys_of(self._spec)
        self._keys = list(keys)
        self._queue_of = list(keys.values())

    async def run(self, faults: int, *, frozen: bool) -> Pauses:
        pauses = Pauses()
        await declare_group(self._cluster.urls[0], self._spec)
        try:
            self._members = [await self._member(home) for home in range(len(self._urls))]
            async with GroupPublisher(self._urls, group=GROUP, on_event=self._on_event) as publisher:
                feeding = asyncio.create_task(self._feed(publisher))
                try:
                    await self._flows(time.monotonic_ns())
                    begun = time.monotonic()
                    for number in range(faults):
                        await self._fault(pauses, frozen=frozen)
                        print(f"\r{number + 1} of {faults}", end="", file=sys.stderr, flush=True)
                    print(file=sys.stderr)
                    pauses.seconds = time.monotonic() - begun
                finally:
                    feeding.cancel()
                    await asyncio.gather(feeding, return_exceptions=True)
                await publisher.flush()
                pauses.published = publisher.accepted_count
            await self._seen(pauses.published)
        finally:
            for member in self._members:
                await member.kill()
        pauses.judgement = judge_records(
            [(call.at_ns, call.number, call.key) for call in self._calls], 0, pauses.published
        )
        return pauses

    async def _member(self, home: int) -> Worker:
        """A member that is connected to this node as long as it is there."""
        file = self._directory / f"{len(self._files)}.calls"
        self._files.add(file)
        urls = [*self._urls[home:], *self._urls[:home]]
        worker = await Worker.start("leader_kill", role="member", urls=urls, home=home, file=str(file))
        await worker.answer("ready")
        return worker

    async def _feed(self, publisher: GroupPublisher) -> None:
        """Evenly, and not faster to make up for a moment lost."""
        loop = asyncio.get_running_loop()
        at = loop.time()
        while True:
            key = self._published % len(self._keys)
            body = _BODY.pack(self._published, key).ljust(256, b"\0")
            await publisher.publish(key=self._keys[key], body=body, topic="bench")
            self._published += 1
            at = max(at + 1 / self._rate_hz, loop.time() - 0.005)
            await asyncio.sleep(max(0.0, at - loop.time()))

    def _on_event(self, event: PublisherEvent) -> None:
        if isinstance(event, events.Connected):
            self._address = event.address

    async def _fault(self, pauses: Pauses, *, frozen: bool) -> None:
        home = random.randrange(len(self._urls))
        node = self._cluster.nodes[home]
        leaders = await _asked(self._leaders)
        has_publisher = self._address == ConnectionSettings.parse(self._urls[home]).address
        self._read()
        servers = {self._queue_of[call.key]: call.home for call in self._calls[-round(self._rate_hz) :]}
        pauses.leaders.append(sum(leader is node for leader in leaders.values()))
        at_ns = time.monotonic_ns()
        if frozen:
            node.freeze()
        else:
            await aside(node.kill)
        await self._flows(at_ns)
        for queue, pause_ms in self._longest(at_ns).items():
            has_client = has_publisher or servers.get(queue) == home
            into = pauses.with_client if has_client else pauses.with_nothing
            (pauses.with_leader if leaders[queue] is node else into).append(pause_ms)
        if node.frozen:
            node.thaw()  # the others took it for lost; started anew it is one of them again for sure
            await aside(node.kill)

        async def start() -> None:
            await aside(node.start)
            await aside(self._cluster.wait_whole, WITHIN_S)

        async def rebalance() -> None:
            await _asked(self._cluster.rebalance)

        async def restart_member() -> None:
            await self._members[home].stop()
            self._members[home] = await self._member(home)

        for step, into in (
            (start, pauses.on_start),
            (rebalance, pauses.on_rebalance),
            (restart_member, pauses.on_restart),
        ):
            at_ns = time.monotonic_ns()
            await step()
            await self._flows(time.monotonic_ns())
            into += self._longest(at_ns).values()

    def _leaders(self) -> dict[int, RabbitNode]:
        names = Names(GROUP)
        return {queue: self._cluster.leader_of(names.queue(queue)) for queue in range(self._spec.queue_count)}

    # The applications' records

    def _read(self) -> None:
        """Adds what was written since."""
        self._calls += sorted(map(Call._make, self._files.news()))

    async def _seen(self, count: int) -> None:
        def are() -> bool:
            self._read()
            return len({call.number for call in self._calls}) >= count

        await until(are, timeout_s=WITHIN_S, every_s=1, what="every message")

    async def _flows(self, since_ns: int) -> None:
        """Returns when every queue was served evenly since then for `QUIET_S`, at three quarters of its rate at least.

        Raises TimeoutError.
        """
        expected = 0.75 * QUIET_S * self._rate_hz / self._spec.queue_count

        def are() -> bool:
            from_ns = time.monotonic_ns() - round(QUIET_S * 1e9)
            self._read()
            times = self._times(from_ns)
            return from_ns > since_ns and all(len(times.get(queue, ())) > expected for queue in range(queues))

        queues = self._spec.queue_count
        await until(are, timeout_s=WITHIN_S, every_s=0.25, what="every queue to be served")

    def _times(self, from_ns: int) -> Mapping[int, list[int]]:
        """Calls of each queue from then on."""
        times: dict[int, list[int]] = {}
        # Records of several files are read one after the other, so they are in order to a second.
        first = bisect_left(self._calls, from_ns - 1_000_000_000, key=lambda call: call.at_ns)
        for call in self._calls[first:]:
            if call.at_ns >= from_ns:
                times.setdefault(self._queue_of[call.key], []).append(call.at_ns)
        return times

    def _longest(self, at_ns: int) -> dict[int, float]:
        """Longest gap of each queue that ended after `at_ns`, in ms."""
        return {
            queue: max(later - earlier for earlier, later in pairwise(sorted(times)) if later > at_ns) / 1e6
            for queue, times in self._times(at_ns - 1_000_000_000).items()
        }


async def _asked(call: Callable[[], T]) -> T:
    """Again where a busy node does not answer, as erl_call has it now and then. Raises NodeFailedError after 10 s."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return await aside(call)
        except NodeFailedError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


def keys_of(spec: GroupSpec) -> dict[str, int]:
    """Keys with their queues, as many of each queue, by turns."""
    found: dict[int, list[str]] = {queue: [] for queue in range(spec.queue_count)}
    number = 0
    while any(len(keys) < KEYS_PER_QUEUE for keys in found.values()):
        key = f"key-{number}"
        found[queue_of(hash_of(key, spec.hash_count), spec.queue_count)].append(key)
        number += 1
    return {found[queue][place]: queue for place in range(KEYS_PER_QUEUE) for queue in found}


async def member(urls: list[str], home: int, file: str, **_: Any) -> None:
    """Until SIGTERM. Says nothing of connections that are lost."""
    logging.disable()
    calls = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def handle(message: Message) -> None:
        os.write(calls, _CALL.pack(time.monotonic_ns(), *_BODY.unpack_from(message.data), home))

    settings = MemberSettings(broker=urls, group=GROUP, name=f"m{home}", rebalance_delay_s=0.5)
    async with Member(settings, handle) as member:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, member.stop, "SIGTERM")
        say("ready")
        await member.run()
    say("done")


def line(what: str, times: list[float]) -> str:
    if not times:
        return f"| {what} | – | – | – | 0 |"
    p99 = percentile(times, 0.99)
    return f"| {what} | {statistics.median(times):.0f} | {p99:.0f} | {max(times):.0f} | {len(times)} |"


def table(what: str, found: Pauses) -> str:
    judgement = found.judgement
    return "\n".join(
        (
            line(f"{what}, every queue", found.all),
            line("… its leader was there", found.with_leader),
            line("… only its member or the publisher", found.with_client),
            line("… nothing of it", found.with_nothing),
            line("the node is started, every queue", found.on_start),
            line("leaders are rebalanced, every queue", found.on_rebalance),
            line("the member is restarted, every queue", found.on_restart),
            "",
            f"leaders on the node: {', '.join(map(str, found.leaders))}; {found.published:,} messages in "
            f"{found.seconds:.0f} s; lost {judgement.lost}, inverted {judgement.inverted}, "
            f"repeated {judgement.repeated}\n",
        )
    )


async def measure(count: int, *, frozen: bool, queues: int, rate_hz: float, heartbeat_s: int) -> Pauses:
    with tempfile.TemporaryDirectory(prefix="lbg-bench-") as place:
        cluster = RabbitCluster()
        await aside(cluster.start)
        try:
            bench = Bench(cluster, Path(place), queues=queues, rate_hz=rate_hz, heartbeat_s=heartbeat_s)
            return await bench.run(count, frozen=frozen)
        finally:
            await aside(cluster.close)


def main() -> int:
    parser = Measurement(__doc__, workers={"member": member})
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--freezes", type=int, default=0)
    parser.add_argument("--queues", type=int, default=6)
    parser.add_argument("--rate", type=float, default=2000, help="messages a second")
    parser.add_argument("--heartbeat", type=int, default=5, help="seconds; a frozen node is noticed by it")
    asked = parser.asked()
    is_sound = True
    for what, count, frozen in (("SIGKILL", asked.kills, False), ("SIGSTOP", asked.freezes, True)):
        if count:
            found = asyncio.run(
                measure(
                    count, frozen=frozen, queues=asked.queues, rate_hz=asked.rate, heartbeat_s=asked.heartbeat
                )
            )
            print("| pause of a queue, ms | p50 | p99 | max | n |\n|---|---|---|---|---|")
            print(table(what, found), flush=True)
            is_sound = is_sound and not found.judgement.lost and not found.judgement.inverted
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
