"""Pause of a queue whose leader's node is killed, in a three-node RabbitMQ cluster.

`python -m bench.leader_kill --kills 10`. Members are on every node, each with all three addresses; a publisher feeds
one queue evenly. Then the node of its leader is killed (SIGKILL) or stands still (SIGSTOP), and comes back. The pause
is from the last call of the application before to the first after, on any member. By turns the queue's member is
connected to the leader's own node, so that it loses its connection too, and to another one.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench.measurement import Measurement
from lbg_core.group import GroupSpec, Names
from lbg_core.publisher import GroupPublisher
from testing.admin.group_on_broker import declare_group
from testing.aside import aside
from testing.member.process import Call, MemberProcess
from testing.rabbitmq.cluster import RabbitCluster
from testing.rabbitmq.node import RabbitNode
from testing.waiting import until

GROUP = "bench"
HASHES = 16
QUEUE = 0
RATE_HZ = 500
BACK_WITHIN_S = 120
QUIET_S = 3.0  # a queue that gave something and then nothing new for this long is over its fault


@dataclass
class Pauses:
    """Milliseconds, one for each fault."""

    on_its_node: list[float] = field(default_factory=list)
    elsewhere: list[float] = field(default_factory=list)

    @property
    def all(self) -> list[float]:
        return self.on_its_node + self.elsewhere


class Bench:
    """A group of one queue. `members[i]` is connected to node i first."""

    def __init__(self, cluster: RabbitCluster, directory: Path, *, heartbeat_s: int) -> None:
        self.cluster = cluster
        self.spec = GroupSpec(
            GROUP, GROUP, hash_count=HASHES, queue_count=1, queue_size_mb=1000, client_username="guest"
        )
        self.urls = [f"{url}?heartbeat={heartbeat_s}" for url in cluster.urls]
        self._directory = directory
        self._gone: list[MemberProcess] = []
        self.members = [self._member(f"m{at}", at) for at in range(3)]
        self.published = 0
        self._keys = [f"key-{number}" for number in range(40)]

    async def run(self, kills: int, *, frozen: bool) -> Pauses:
        pauses = Pauses()
        await declare_group(self.cluster.urls[0], self.spec)
        async with GroupPublisher(self.urls, group=GROUP) as publisher:
            feeding = asyncio.create_task(self._feed(publisher))
            try:
                for member in self.members:
                    await member.start()
                    await member.joined()
                for number in range(kills):
                    await self._fault(pauses, frozen=frozen, own_node=number % 2 == 0)
                    print(f"\r{number + 1} of {kills}", end="", file=sys.stderr, flush=True)
                print(file=sys.stderr)
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
                await publisher.flush()
                await until(lambda: len(self._seen()) >= self.published, timeout_s=60, what="every message")
            finally:
                feeding.cancel()
                for member in self.members:
                    await member.close()
        return pauses

    async def _feed(self, publisher: GroupPublisher) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time()
        while True:
            await publisher.publish(key=self._keys[self.published % 40], body=bytes(256), topic="bench")
            self.published += 1
            at = max(at + 1 / RATE_HZ, loop.time() - 0.002)
            await asyncio.sleep(max(0.0, at - loop.time()))

    async def _fault(self, pauses: Pauses, *, frozen: bool, own_node: bool) -> None:
        leader = await aside(self.cluster.leader_of, Names(GROUP).queue(QUEUE))
        others = [node for node in self.cluster.nodes if node is not leader]
        await self._serve_from(leader if own_node else others[0])
        at_ns = time.monotonic_ns()
        if frozen:
            leader.freeze()
        else:
            await aside(leader.kill)
        first_ns = await self._first_after(at_ns)
        last_ns = max(call.at_ns for call in self._calls() if call.at_ns < first_ns)
        into = pauses.on_its_node if own_node else pauses.elsewhere
        into.append((first_ns - last_ns) / 1e6)
        if frozen:
            leader.thaw()  # the others took it for lost; started anew it is one of them again for sure
            await aside(leader.kill)
        await aside(leader.start)
        await aside(self.cluster.wait_whole, BACK_WITHIN_S)
        await asyncio.sleep(1)

    async def _serve_from(self, node: RabbitNode) -> None:
        """Let a member that is connected to this node serve the queue: a new one takes the lowest index."""
        server = await self._served_by()
        server.signal(signal.SIGTERM)
        await server.ended()
        self._gone.append(server)
        self.members.remove(server)
        at = self.cluster.nodes.index(node)
        member = self._member(server.name, at)
        self.members.append(member)
        await member.start()
        await member.joined()
        async with asyncio.timeout(60):
            while await self._served_by() is not member:  # noqa: ASYNC110 (a handover tells nobody here)
                await asyncio.sleep(0.2)
        await asyncio.sleep(0.5)

    def _member(self, name: str, at: int) -> MemberProcess:
        urls = [*self.urls[at:], *self.urls[:at]]
        return MemberProcess(name, self._directory, broker=urls, group=GROUP, rebalance_delay_s=0.5)

    async def _served_by(self) -> MemberProcess:
        """Member that was called last."""
        since = time.monotonic_ns()

        def latest() -> MemberProcess | None:
            calls = [(call.at_ns, member) for member in self.members for call in member.calls()]
            at_ns, member = max(calls, key=lambda pair: pair[0], default=(0, None))
            return member if at_ns > since else None

        await until(latest, timeout_s=60, what="the queue to be served")
        member = latest()
        assert member is not None
        return member

    async def _first_after(self, at_ns: int) -> int:
        """The first call whose message was delivered after the fault: what was prefetched is done within moments, so
        the pause is the longest gap until calls flow again."""
        deadline = time.monotonic() + BACK_WITHIN_S
        while time.monotonic() < deadline:
            await asyncio.sleep(QUIET_S)
            times = sorted(call.at_ns for call in self._calls() if call.at_ns > at_ns - 1_000_000_000)
            gaps = [(later - earlier, later) for earlier, later in pairwise(times)]
            flows = [at for at in times if at > time.monotonic_ns() - 1_000_000_000]
            if gaps and len(flows) > RATE_HZ / 4:
                return max(gap for gap in gaps if gap[1] > at_ns)[1]
        logs = "\n".join(f"{member.name}:\n{member.log()[-3000:]}" for member in self.members)
        raise TimeoutError(f"the queue did not come back:\n{logs}")

    def _calls(self) -> Iterable[Call]:
        return (call for member in [*self._gone, *self.members] for call in member.calls())

    def _seen(self) -> set[tuple[int, int]]:
        return {call.name for call in self._calls()}


def line(what: str, times: list[float]) -> str:
    if not times:
        return f"| {what} | – | – | – | 0 |"
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, round(len(ordered) * 0.99))]
    return f"| {what} | {statistics.median(ordered):.0f} | {p99:.0f} | {ordered[-1]:.0f} | {len(ordered)} |"


async def measure(kills: int, *, frozen: bool, heartbeat_s: int) -> Pauses:
    with tempfile.TemporaryDirectory(prefix="lbg-bench-") as place:
        cluster = RabbitCluster()
        await aside(cluster.start)
        try:
            return await Bench(cluster, Path(place), heartbeat_s=heartbeat_s).run(kills, frozen=frozen)
        finally:
            await aside(cluster.close)


def main() -> None:
    parser = Measurement(__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--freezes", type=int, default=0)
    parser.add_argument("--heartbeat", type=int, default=5, help="seconds; a frozen node is noticed by it")
    arguments = parser.asked()
    print("| pause of the queue, ms | p50 | p99 | max | n |\n|---|---|---|---|---|")
    for name, count, frozen in (("SIGKILL", arguments.kills, False), ("SIGSTOP", arguments.freezes, True)):
        if count:
            pauses = asyncio.run(measure(count, frozen=frozen, heartbeat_s=arguments.heartbeat))
            print(line(f"{name} of the leader's node, all", pauses.all))
            print(line("… its member connected to that node", pauses.on_its_node))
            print(line("… its member connected to another node", pauses.elsewhere), flush=True)


if __name__ == "__main__":
    main()
