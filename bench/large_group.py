"""A group of many members in few processes: forming, at rest, and after SIGKILL of a quarter of the processes.

One message waits in each queue before the members start. All processes are up before they get the word to join, so
the seconds until the group is formed are those of the members and the broker, not of the interpreter. Served: each
queue's message was handled, by the applications' own records. Agreed: all members have the same live set, which is
the set of all. Balanced: in the last two rounds of messages each queue stayed with one member, and loads differ by at
most one. Times are CLOCK_MONOTONIC, which processes of one machine share; CPU and memory are those of proc(5). The
membership messages at rest are counted by a queue that is bound as mailboxes are. A queue is served again when a
surviving member begins a call for it; the publisher goes round all queues, so that is known to one round. Silent: plain
clients with the connections, channels, consumers and queues of the members, which publish nothing and ask nothing; the
rest of the broker's CPU at rest is what the members cause, and the seconds until they are there are the least that
forming takes. `--without-rest` forms and kills only. The engine `cluster` is three RabbitMQ nodes, over which clients
are spread; its CPU is that of all three.
`python -m bench.large_group --members 64 --queues 256 --processes 4 --engine embedded`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any

from bench.brokers import ENGINES, Broker, broker
from bench.core_speed import loop_ms
from bench.measurement import Measurement
from bench.silent_clients import silent_clients
from bench.workers import Worker, cpu_s, resident_mb, say
from lbg_core.client import Delivery, connect
from lbg_core.group import BALANCED, BY_LOAD, Assignment, GroupSpec, Names, hash_of, queue_of
from lbg_core.group.topology import mailbox_of
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message
from lbg_sidecar.core.effects import Effect, LiveSet
from testing.admin.group_on_broker import declare_group
from testing.waiting import until
from testing.work_log import GrowingFiles

GROUP = "bench"
READY_S = 120.0
KILLED_SHARE = 4
"""One in so many processes is killed."""

_BODY = struct.Struct("<II")
_CALL = struct.Struct("<QIII")


@dataclass(frozen=True, slots=True)
class Size:
    members: int
    queues: int
    processes: int
    assignment: Assignment = BALANCED

    @property
    def spec(self) -> GroupSpec:
        """Of four hashes a queue."""
        return GroupSpec(
            GROUP,
            GROUP,
            hash_count=4 * self.queues,
            queue_count=self.queues,
            queue_size_mb=64,
            client_username="guest",
            assignment=self.assignment,
        )

    def members_of(self, process: int) -> list[int]:
        """Numbers of the members in one process; shares differ by at most one."""
        return list(range(process, self.members, self.processes))


@dataclass(frozen=True, slots=True)
class Times:
    """Waits of a run, in seconds."""

    limit_s: float = 300.0
    """For each thing that is waited for: forming, balance, and what a crash causes."""
    settling_s: float = 90.0
    """Before a rest: members report every second for 30 s after they join, and count queues less and less often."""
    silent_settling_s: float = 30.0
    """The same for silent clients, which have nothing to settle: for the broker's statistics."""
    rest_s: float = 30.0
    counted_s: float = 10.0
    load_s: float = 5.0
    """Before and after SIGKILL."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the application, as it began."""

    at_ns: int
    member: int
    key: int
    round: int


@dataclass(slots=True)
class Result:
    """Times in seconds; None: not within the limit. CPU in percent of a core."""

    served_s: float | None = None
    agreed_s: float | None = None
    balanced_s: float | None = None
    member_cpu: float = 0.0
    broker_cpu: float = 0.0
    loop_ms: float = 0.0
    """A fixed loop at the same time; see `core_speed`."""
    silent_s: float = 0.0
    """Until the silent clients had their connections, channels and consumers."""
    silent_cpu: float = 0.0
    silent_loop_ms: float = 0.0
    """Of the broker with clients that do nothing, and as many objects."""
    silent_objects: dict[str, int] = field(default_factory=dict)
    messages_per_member_s: float = 0.0
    member_mb: float = 0.0
    broker_mb: list[float] = field(default_factory=list)
    """Of each node."""
    objects: dict[str, int] = field(default_factory=dict)
    consumers: list[int] = field(default_factory=list)
    """At each node of a cluster: those of the clients that are connected there."""
    killed_members: int = 0
    killed_queues: int = 0
    served_again_s: float | None = None
    agreed_again_s: float | None = None
    published: int = 0
    lost: int = 0
    inverted: int = 0
    repeated: int = 0

    @property
    def is_formed(self) -> bool:
        """True if all queues were served and all members agreed: only then is more measured."""
        return self.served_s is not None and self.agreed_s is not None

    @property
    def is_sound(self) -> bool:
        """True if every wait ended, and no message was lost or out of order."""
        waits = (
            self.served_s,
            self.agreed_s,
            self.balanced_s,
            self.served_again_s,
            self.agreed_again_s,
        )
        return None not in waits and not self.lost and not self.inverted


class Records:
    """The calls that all applications recorded, read as the files grow."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.calls: list[Call] = []
        self.seen: set[tuple[int, int]] = set()
        self._owners: dict[int, dict[int, set[int]]] = {}
        self._files = GrowingFiles(_CALL, files)

    def read(self) -> None:
        """Adds what was written since; the calls of one process are in order."""
        for call in starmap(Call, self._files.news()):
            self.calls.append(call)
            self.seen.add((call.key, call.round))
            self._owners.setdefault(call.round, {}).setdefault(call.key, set()).add(call.member)

    def complete(self, queues: int) -> list[int]:
        """Rounds of which the message of every queue was handled, in order."""
        return sorted(round_ for round_, owners in self._owners.items() if len(owners) == queues)

    def owners(self, rounds: Sequence[int]) -> list[set[int]]:
        """The members that handled the messages of these rounds, for each queue."""
        owners: dict[int, set[int]] = {}
        for round_ in rounds:
            for key, members in self._owners[round_].items():
                owners[key] = owners.get(key, set()) | members
        return list(owners.values())

    def inverted(self) -> int:
        """Messages whose first call came after that of a later message of their key."""
        latest: dict[int, int] = {}
        seen: set[tuple[int, int]] = set()
        count = 0
        for call in sorted(self.calls, key=lambda call: call.at_ns):
            if (call.key, call.round) not in seen:
                seen.add((call.key, call.round))
                count += call.round < latest.get(call.key, -1)
                latest[call.key] = max(call.round, latest.get(call.key, -1))
        return count


class Bench:
    """One group on one broker."""

    def __init__(
        self, broker: Broker, size: Size, times: Times, rate: float, directory: Path, *, rests: bool
    ) -> None:
        self._broker = broker
        self._rests = rests
        self._size = size
        self._times = times
        self._rate = rate
        self._files = [directory / f"process-{number}.calls" for number in range(size.processes)]
        self._records = Records(self._files)
        self._workers: list[Worker] = []
        self._publisher: Worker | None = None
        self._pauses = 0

    async def run(self) -> Result:
        result = Result()
        await declare_group(self._broker.urls[0], self._size.spec)
        try:
            await self._silence(result)
            await self._start()
            if await self._form(result):
                if self._rests:
                    await self._rest(result)
                await self._kill(result)
                await self._compare(result)
        finally:
            for worker in [*self._workers, *([self._publisher] if self._publisher else [])]:
                await worker.kill()
        return result

    async def _silence(self, result: Result) -> None:
        """The broker at rest without members."""
        worker = await Worker.start(
            "large_group",
            role="clients",
            group=GROUP,
            urls=self._broker.urls,
            members=self._size.members,
            queues=self._size.queues,
        )
        self._workers = [worker]
        result.silent_s = (await worker.answer("ready", timeout_s=self._times.limit_s))["seconds"]
        if self._rests:
            await self._silent_rest(result)
        self._workers = []
        await worker.kill()

    async def _silent_rest(self, result: Result) -> None:
        await asyncio.sleep(self._times.silent_settling_s)
        result.silent_cpu, result.silent_loop_ms = await self._broker_cpu()
        result.silent_objects = await self._broker.objects()

    async def _broker_cpu(self) -> tuple[float, float]:
        """And the milliseconds of a fixed loop meanwhile."""
        before, begun = sum(map(cpu_s, self._broker.pids)), time.monotonic()
        speed_ms = await loop_ms(self._times.rest_s)
        used_s = sum(map(cpu_s, self._broker.pids)) - before
        return used_s / (time.monotonic() - begun) * 100, speed_ms

    async def _start(self) -> None:
        """Starts all processes, which wait for the word, and puts a message into each queue."""
        urls, queues = self._broker.urls, self._size.queues
        self._publisher = await Worker.start("large_group", role="publisher", urls=urls, queues=queues)
        await self._publisher.answer("ready", timeout_s=READY_S)
        await self._publish(0.0)
        for number, file in enumerate(self._files):
            members = self._size.members_of(number)
            self._workers.append(
                await Worker.start("large_group", role="members", urls=urls, members=members, file=str(file))
            )
        for worker in self._workers:
            await worker.answer("ready", timeout_s=READY_S)

    async def _form(self, result: Result) -> bool:
        """False if not all queues were served, or not all members agreed, within the limit."""
        begun_ns = time.monotonic_ns()
        for worker in self._workers:
            await worker.tell("join")
        result.served_s, result.agreed_s = await asyncio.gather(
            self._served(begun_ns),
            self._agreed(self._workers, self._size.members, begun_ns),
        )
        if not result.is_formed:
            return False
        await self._resume()
        result.balanced_s = await self._balanced(begun_ns)
        return True

    async def _rest(self, result: Result) -> None:
        await self._pause()
        await self._all_seen()
        await asyncio.sleep(self._times.settling_s)
        pids = [worker.pid for worker in self._workers]
        before = sum(map(cpu_s, pids))
        result.broker_cpu, result.loop_ms = await self._broker_cpu()
        result.member_cpu = (sum(map(cpu_s, pids)) - before) / self._times.rest_s / self._size.members * 100
        result.member_mb = sum(map(resident_mb, pids)) / self._size.members
        result.broker_mb = [resident_mb(pid) for pid in self._broker.pids]
        result.objects = await self._broker.objects()
        result.consumers = await self._broker.consumers()
        result.messages_per_member_s = await self._membership_messages()

    async def _membership_messages(self) -> float:
        """Messages that a mailbox receives in a second, on average."""
        members = range(self._size.members)
        bindings = [binding for index in members for binding in mailbox_of(Names(GROUP), index)[1]]
        receivers = Counter(binding.routing_key for binding in bindings)
        received = 0

        def count(deliveries: list[Delivery]) -> None:
            nonlocal received
            received += sum(receivers[delivery.routing_key] for delivery in deliveries)

        connection = await connect(self._broker.urls[0], name="bench-count")
        try:
            channel = await connection.open_channel()
            queue = (await channel.queue_declare("", exclusive=True)).queue
            for binding in dict.fromkeys(bindings):
                await channel.queue_bind(queue, binding.exchange, binding.routing_key)
            await channel.consume(queue, count, no_ack=True)
            received = 0
            await asyncio.sleep(self._times.counted_s)
            return received / self._times.counted_s / self._size.members
        finally:
            await connection.close()  # while the queue exists, no message to a missing mailbox is returned

    async def _kill(self, result: Result) -> None:
        await self._resume()
        await asyncio.sleep(self._times.load_s + self._size.queues / self._rate)
        count = max(1, self._size.processes // KILLED_SHARE)
        victims, survivors = self._workers[-count:], self._workers[:-count]
        gone = {
            member
            for process in range(self._size.processes - count, self._size.processes)
            for member in self._size.members_of(process)
        }
        self._records.read()
        latest = {call.key: call.member for call in self._records.calls}
        result.killed_members = len(gone)
        result.killed_queues = sum(member in gone for member in latest.values())
        killed_ns = time.monotonic_ns()
        self._workers = survivors
        for victim in victims:
            victim.signal(signal.SIGKILL)
        result.served_again_s, result.agreed_again_s = await asyncio.gather(
            self._served(killed_ns, gone),
            self._agreed(survivors, self._size.members - len(gone), killed_ns),
        )
        for victim in victims:
            await victim.kill()
        await asyncio.sleep(self._times.load_s)
        await self._pause()
        await self._all_seen()

    async def _compare(self, result: Result) -> None:
        """Compares the messages that were confirmed with the calls of the applications."""
        records = self._records
        result.published = self._rounds * self._size.queues
        result.lost = result.published - len(records.seen)
        result.repeated = len(records.calls) - len(records.seen)
        result.inverted = records.inverted()

    # Waiting

    async def _served(self, since_ns: int, gone: Collection[int] = ()) -> float | None:
        """Seconds from `since_ns` until each queue had a call at a member that is not gone."""
        first: dict[int, int] = {}
        read = 0

        def are_served() -> bool:
            nonlocal read
            self._records.read()
            for call in self._records.calls[read:]:
                if call.at_ns > since_ns and call.member not in gone:
                    first[call.key] = min(call.at_ns, first.get(call.key, call.at_ns))
            read = len(self._records.calls)
            return len(first) == self._size.queues

        if not await self._holds(are_served):
            return None
        return (max(first.values()) - since_ns) / 1e9

    async def _agreed(self, workers: Sequence[Worker], members: int, begun_ns: int) -> float | None:
        def agree() -> bool:
            views = [worker.last("view").get("live") for worker in workers]
            return all(view is not None and view == views[0] for view in views) and len(views[0]) == members

        if not await self._holds(agree):
            return None
        return (max(worker.last("view")["at_ns"] for worker in workers) - begun_ns) / 1e9

    async def _balanced(self, begun_ns: int) -> float | None:
        def is_balanced() -> bool:
            self._records.read()
            complete = self._records.complete(self._size.queues)
            owners = self._records.owners(complete[-2:])
            if len(complete) < 2 or any(len(members) > 1 for members in owners):
                return False
            loads = Counter(member for members in owners for member in members)
            least, rest = divmod(self._size.queues, self._size.members)
            is_busy = len(loads) == min(self._size.members, self._size.queues)
            return is_busy and set(loads.values()) <= {least, least + bool(rest)}

        if not await self._holds(is_balanced, every_s=0.5):
            return None
        first = self._records.complete(self._size.queues)[-2]
        return (min(call.at_ns for call in self._records.calls if call.round == first) - begun_ns) / 1e9

    async def _all_seen(self) -> bool:
        count = self._rounds * self._size.queues

        def are_seen() -> bool:
            self._records.read()
            return len(self._records.seen) >= count

        return await self._holds(are_seen, every_s=0.5)

    async def _holds(self, condition: Callable[[], bool], *, every_s: float = 0.05) -> bool:
        """False after the limit. Raises RuntimeError if a process of members ends that was not killed."""

        def holds() -> bool:
            if any(worker.has_ended for worker in self._workers):
                raise RuntimeError("a process of members ended")
            return condition()

        try:
            await until(holds, timeout_s=self._times.limit_s, every_s=every_s)
        except TimeoutError:
            return False
        return True

    # The publisher

    @property
    def _rounds(self) -> int:
        """Rounds that are published and confirmed, as of the last pause."""
        assert self._publisher is not None
        return int(self._publisher.last(f"paused-{self._pauses}")["rounds"])

    async def _resume(self) -> None:
        await self._publish(self._rate)

    async def _pause(self) -> None:
        await self._publish(0.0)

    async def _publish(self, rate: float) -> None:
        """Tells it the messages per second; at 0 it completes its round, and answers when all is confirmed."""
        assert self._publisher is not None
        if rate:
            await self._publisher.tell(json.dumps({"rate": rate}))
            return
        number = self._pauses + 1
        await self._publisher.tell(json.dumps({"rate": 0, "number": number}))
        await self._publisher.answer(f"paused-{number}", timeout_s=self._times.limit_s)
        self._pauses = number


# Workers


async def members(urls: list[str], members: list[int], file: str, **_: Any) -> None:
    """Members in one process, until it is killed. Reports the live set when it is the same at all of them."""
    calls = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    views: dict[int, frozenset[int]] = {}
    said: list[frozenset[int] | None] = [None]

    def observer(member: int) -> Any:
        def observe(effect: Effect) -> None:
            if isinstance(effect, LiveSet):
                views[member] = effect.live
                agreed = len(views) == len(members) and all(view == effect.live for view in views.values())
                view = effect.live if agreed else None
                if view != said[0]:
                    said[0] = view
                    live = None if view is None else sorted(view)
                    say("view", at_ns=time.monotonic_ns(), live=live)

        return observe

    def handler(member: int) -> Any:
        async def handle(message: Message) -> None:
            at_ns = time.monotonic_ns()
            os.write(calls, _CALL.pack(at_ns, member, *_BODY.unpack(message.data)))

        return handle

    group = [
        Member(
            MemberSettings(broker=from_place(urls, member), group=GROUP, name=f"m{member}"),
            handler(member),
            observer=observer(member),
        )
        for member in members
    ]
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(member.__aenter__() for member in group))
    say("joined")
    await asyncio.gather(*(member.run() for member in group))


def from_place(urls: list[str], place: int) -> list[str]:
    """All addresses, beginning with another one for each place."""
    first = place % len(urls)
    return [*urls[first:], *urls[:first]]


async def publisher(urls: list[str], queues: int, **_: Any) -> None:
    """Rounds of one message for each queue, evenly spaced, and not faster to make up for a moment lost."""
    keys = keys_of(queues)
    loop = asyncio.get_running_loop()
    orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    reader = asyncio.create_task(_orders(orders))
    rounds, rate = 0, 0.0
    async with GroupPublisher(urls, group=GROUP) as publisher:
        say("ready")
        at = loop.time()
        while not reader.done() or not orders.empty():
            order = await orders.get() if not rate or not orders.empty() else {}
            rate = order.get("rate", rate)
            if rate or not rounds:
                for queue, key in enumerate(keys):
                    await publisher.publish(key=key, body=_BODY.pack(queue, rounds), topic="bench")
                    at = max(at + (1 / rate if rate else 0.0), loop.time() - 0.002)
                    await asyncio.sleep(max(0.0, at - loop.time()))
                rounds += 1
            if not rate:
                await publisher.flush()
                say(f"paused-{order['number']}", rounds=rounds)


async def _orders(orders: asyncio.Queue[dict[str, Any]]) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        orders.put_nowait(json.loads(line))


def keys_of(queues: int) -> list[str]:
    """One key for each queue."""
    keys: dict[int, str] = {}
    number = 0
    while len(keys) < queues:
        key = f"key-{number}"
        keys.setdefault(queue_of(hash_of(key, 4 * queues), queues), key)
        number += 1
    return [keys[queue] for queue in range(queues)]


# Output


def measure(engine: str, size: Size, times: Times, rate: float, *, rests: bool) -> Result:
    with tempfile.TemporaryDirectory(prefix="lbg-bench-") as place, broker(engine, Path(place)) as node:
        return asyncio.run(Bench(node, size, times, rate, Path(place), rests=rests).run())


def at_rest(result: Result) -> dict[str, str]:
    def objects(counts: dict[str, int]) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in counts.items())

    times = result.broker_cpu / result.silent_cpu if result.silent_cpu else 0.0
    return {
        "CPU of a member, of a core": f"{result.member_cpu:.2f} %",
        "CPU of the broker, of a core": f"{result.broker_cpu:.1f} %",
        "CPU of the broker with silent clients": f"{result.silent_cpu:.1f} %; with members {times:.2f} times that",
        "a fixed loop meanwhile, and with silent clients": f"{result.loop_ms:.1f} ms, {result.silent_loop_ms:.1f} ms",
        "membership messages to a member": f"{result.messages_per_member_s:.1f}/s",
        "RSS of the broker": ", ".join(f"{mb:.0f} MB" for mb in result.broker_mb),
        "RSS of the members' processes, for each member": f"{result.member_mb:.1f} MB",
        "on the broker": objects(result.objects),
        "consumers at each node": ", ".join(map(str, result.consumers)) or "–",
        "on the broker with silent clients": objects(result.silent_objects),
    }


def table(engine: str, size: Size, result: Result) -> str:
    def seconds(value: float | None) -> str:
        return "not within the limit" if value is None else f"{value:.2f} s"

    rows = {
        "silent clients are there": seconds(result.silent_s),
        "all queues served": seconds(result.served_s),
        "all members agree": seconds(result.agreed_s),
    }
    if result.is_formed:
        killed = f"{result.killed_members} members with {result.killed_queues} queues"
        rest = at_rest(result) if result.objects else {}
        rows |= {
            "balanced": seconds(result.balanced_s),
            **{f"at rest: {what}": value for what, value in rest.items()},
            f"SIGKILL of {killed}: all served": seconds(result.served_again_s),
            "SIGKILL: all members agree": seconds(result.agreed_again_s),
            "lost, inverted, repeated": f"{result.lost}, {result.inverted}, {result.repeated}"
            f" of {result.published:,}",
        }
    title = f"\n{engine}, {size.members} members in {size.processes} processes, {size.queues} queues, {size.assignment}"
    lines = [title, "", "| what | measured |", "|---|---|"]
    return "\n".join(lines + [f"| {what} | {value} |" for what, value in rows.items()])


def main() -> int:
    parser = Measurement(
        __doc__, workers={"members": members, "clients": silent_clients, "publisher": publisher}
    )
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--queues", type=int, default=256)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--assignment", choices=(BALANCED, BY_LOAD), default=BALANCED)
    parser.add_argument("--engine", choices=ENGINES, action="append", help="by default the first two")
    parser.add_argument("--rate", type=float, default=1000, help="messages per second")
    parser.add_argument("--limit-s", type=float, default=Times().limit_s, help="longest wait for each thing")
    parser.add_argument("--without-rest", action="store_true", help="do not measure the group at rest")
    asked = parser.asked()
    size = Size(asked.members, asked.queues, asked.processes, asked.assignment)
    if not 2 <= size.processes <= size.members:
        parser.error("--processes is 2 at least, and --members at most")
    is_sound = True
    for engine in asked.engine or ENGINES[:2]:
        result = measure(engine, size, Times(limit_s=asked.limit_s), asked.rate, rests=not asked.without_rest)
        print(table(engine, size, result), flush=True)
        is_sound = is_sound and result.is_sound
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
