"""CPU time of the steps of a real member and a real broker, for `costs`.

Each process is measured from outside (proc(5), /proc/pid/task/*/schedstat). Messages come one by one (`paced`), when
each wakes a process up, or many at a time (`burst`). The client of attachments is this process; the machine's ticks,
the decoding of a message with many states, and assignments are timed here, too.
`python -m bench.simulated_costs --engine embedded` (three minutes; nothing else should run).
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from bench.brokers import ENGINES, Broker, broker
from bench.large_group import keys_of
from bench.measurement import Measurement, Workers
from bench.workers import Worker, say
from lbg_core.client import Channel, ClientConnection, ResourceLocked, connect
from lbg_core.group import GroupSpec, Names
from lbg_core.group.assignment import backed_up, balanced_primaries
from lbg_core.group.member_state import Identity, Positions, QueueState, Role, Status
from lbg_core.group.members_protocol import Beat, Knowledge, Reattached
from lbg_core.group.message_codec import decode, encode
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message
from lbg_sidecar.core.effects import Attach, Effect, Post
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.member_core import Setup
from lbg_sidecar.core.timings import Timings
from lbg_sidecar.io.posts import Posts
from lbg_sidecar.settings import balancing_rules, processing_rules
from testing.admin.group_on_broker import declare_group
from testing.simulation.large.costs import BrokerCosts, Costs, MemberCosts

MODULE = Path(__file__).stem
FEW, MANY = 8, 520
RECEIVERS = 16
PACE_S = 0.003
PACED = 1000
BURST = 20_000
WINDOW = 200
POSTED = 4000
CHANCE = random.Random(1)
JOIN_S = 7.0
CONNECTIONS = 50
REQUESTS = 1000
AT_ONCE = 50
IDLE_S = 8.0

FORGED = Identity(4000, "forged", "0" * 32)
SMALL = Reattached(FORGED, 0, "1" * 32)
"""Of which a member does nothing: the move is not its own."""

LARGE = Knowledge(
    FORGED, Positions(tuple((f"publisher-{n}", n, ((0, 100), (200, 300))) for n in range(200)), ())
)

STATES = Beat(
    FORGED,
    tuple(
        QueueState(n, Role.SECONDARY if n % 16 else Role.PRIMARY, n % 16 == 0, Status.READY)
        for n in range(64)
    ),
)


def cpu_us(pid: int) -> float:
    """CPU time of a process with its threads, in microseconds."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e3


def spec_of(queues: int) -> GroupSpec:
    return GroupSpec(
        f"g{queues}",
        f"g{queues}",
        hash_count=4 * queues,
        queue_count=queues,
        queue_size_mb=64,
        client_username="guest",
    )


class Meter:
    """CPU time of some processes while something is done, less what they use at rest."""

    def __init__(self, **pids: int) -> None:
        self._pids: dict[str, int] = pids
        self.rest_us_s = dict.fromkeys(pids, 0.0)

    async def rest(self, seconds: float) -> None:
        self.rest_us_s = {
            name: used / seconds for name, used in (await self._used(asyncio.sleep(seconds))).items()
        }

    async def each(self, doing: Any, count: int) -> dict[str, float]:
        """Microseconds of each of `count` things that are done."""
        began = time.monotonic()
        used = await self._used(doing)
        took_s = time.monotonic() - began
        return {name: (us - self.rest_us_s[name] * took_s) / count for name, us in used.items()}

    async def _used(self, doing: Any) -> dict[str, float]:
        before = {name: cpu_us(pid) for name, pid in self._pids.items()}
        await doing
        return {name: cpu_us(pid) - before[name] for name, pid in self._pids.items()}


class Sender:
    """Publishes to a members exchange, with confirms."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @classmethod
    async def open(cls, connection: ClientConnection) -> Sender:
        channel = await connection.open_channel()
        await channel.confirm_select()
        return cls(channel)

    async def paced(self, exchange: str, key: str, body: bytes, count: int) -> None:
        for _ in range(count):
            self._channel.publish(exchange, key, body)
            await asyncio.sleep(PACE_S)

    async def burst(self, exchange: str, key: str, body: bytes, count: int) -> None:
        for _ in range(0, count, WINDOW):
            for _ in range(WINDOW):
                self._channel.publish(exchange, key, body)
            await self._channel.basic_qos(0)
        await asyncio.sleep(0.2)


# Workers


async def member(url: str, group: str, **_options: Any) -> None:
    async def handle(message: Message) -> None: ...

    async with Member(MemberSettings(broker=url, group=group, name="m"), handle) as real:
        say("ready")
        await real.run()


async def receivers(url: str, exchange: str, **_options: Any) -> None:
    for _number in range(RECEIVERS):
        channel = await (await connect(url)).open_channel()
        queue = (await channel.queue_declare("", exclusive=True)).queue
        await channel.queue_bind(queue, exchange, "fan")
        await channel.consume(queue, lambda _: None, no_ack=True)
    say("ready")
    await asyncio.Event().wait()


async def poster(url: str, exchange: str, **_options: Any) -> None:
    """Sends as a member does: small and large messages, in this order, when it is told."""
    channel = await (await connect(url)).open_channel()
    await channel.confirm_select()
    posts = Posts(channel, exchange, lambda _body, _index: None)
    say("ready")
    for number, message in enumerate((SMALL, LARGE)):
        await asyncio.to_thread(sys.stdin.readline)
        for _ in range(0, POSTED, AT_ONCE):
            for _ in range(AT_ONCE):
                posts.send(Post(message, to="nobody"))
            await channel.basic_qos(0)
        say(f"sent-{number}")
    await asyncio.Event().wait()


# Measurements


class CostMeasurement:
    def __init__(self, node: Broker) -> None:
        self._node = node
        self.member: dict[str, float] = {}
        self.broker: dict[str, float] = {}

    async def run(self) -> Costs:
        for queues in (FEW, MANY):
            await declare_group(self._node.url, spec_of(queues))
        connection = await connect(self._node.url)
        try:
            await self._broker_alone(connection)
            await self._posts()
            await self._attachments()
            await self._member(connection)
        finally:
            await connection.close()
        self._core()
        return Costs(MemberCosts(**_rounded(self.member)), BrokerCosts(**_rounded(self.broker)))

    async def _broker_alone(self, connection: ClientConnection) -> None:
        """Messages to nobody and to 16, claims, bindings and counts."""
        exchange, meter = Names(f"g{FEW}").members, Meter(broker=self._node.pid)
        sender = await Sender.open(connection)
        small, large = encode(SMALL), encode(LARGE)
        await sender.burst(exchange, "nobody", small, BURST)  # warm
        await meter.rest(3.0)

        async def cost(doing: Any, count: int) -> float:
            return (await meter.each(doing, count))["broker"]

        paced = await cost(sender.paced(exchange, "nobody", small, PACED), PACED)
        burst = await cost(sender.burst(exchange, "nobody", small, BURST), BURST)
        burst_large = await cost(sender.burst(exchange, "nobody", large, BURST // 10), BURST // 10)
        byte = max(0.0, burst_large - burst) / (len(large) - len(small))
        self.broker |= {"publish_us": burst, "publish_byte_us": byte}

        worker = await Worker.start(MODULE, role="receivers", url=self._node.url, exchange=exchange)
        await worker.answer("ready")
        fan_paced = (await cost(sender.paced(exchange, "fan", small, PACED), PACED) - paced) / RECEIVERS
        count = BURST // RECEIVERS // WINDOW * WINDOW
        fan_burst = (await cost(sender.burst(exchange, "fan", small, count), count) - burst) / RECEIVERS
        fan_large = (
            await cost(sender.burst(exchange, "fan", large, WINDOW), WINDOW) - burst_large
        ) / RECEIVERS
        await worker.kill()
        byte = max(0.0, fan_large - fan_burst) / (len(large) - len(small))
        write = fan_paced - fan_burst
        self.broker |= {"deliver_us": fan_burst, "deliver_byte_us": byte, "write_us": write}
        self.broker["wakeup_us"] = paced - burst - write  # the confirm is written

        other = await connect(self._node.url)
        channels = [await connection.open_channel() for _ in range(AT_ONCE)]
        queue = (await channels[0].queue_declare("lbg.taken", exclusive=True)).queue
        name = Names(f"g{FEW}").queue(0)
        self.broker |= {
            "declare_us": await cost(_at_once(lambda _one, _n: _refused(other, "lbg.taken")), REQUESTS),
            "bind_us": await cost(
                _at_once(lambda one, n: channels[one].queue_bind(queue, exchange, f"x{one}-{n}")), REQUESTS
            ),
            "count_us": await cost(
                _at_once(lambda one, _: channels[one].queue_declare(name, passive=True)), REQUESTS
            ),
        }
        await other.close()
        before = time.process_time()
        await _at_once(lambda one, _: channels[one].queue_declare(name, passive=True))
        self.member["count_us"] = (time.process_time() - before) / REQUESTS * 1e6

    async def _posts(self) -> None:
        exchange = Names(f"g{FEW}").members
        worker = await Worker.start(MODULE, role="poster", url=self._node.url, exchange=exchange)
        await worker.answer("ready")
        meter, costs = Meter(poster=worker.pid), []
        for number in range(2):

            async def sent(number: int) -> None:
                await worker.tell("")
                await worker.answer(f"sent-{number}")

            costs.append((await meter.each(sent(number), POSTED))["poster"])
        await worker.kill()
        size = len(encode(SMALL))
        byte = max(0.0, costs[1] - costs[0]) / (len(encode(LARGE)) - size)
        self.member |= {"publish_us": costs[0] - byte * size, "publish_byte_us": byte}

    async def _attachments(self) -> None:
        """Consumers, each with a channel of its own; and connections."""
        meter = Meter(broker=self._node.pid)
        await meter.rest(2.0)
        connection = await connect(self._node.url)
        names, channels = Names(f"g{MANY}"), list[Channel]()

        async def attach(queue: int) -> None:
            channel = await connection.open_channel()
            channels.append(channel)
            await channel.consume(names.queue(queue), lambda _: None, prefetch_count=100)

        async def attach_all() -> None:
            await asyncio.gather(*map(attach, range(MANY)))
            await asyncio.sleep(0.2)

        async def close_all() -> None:
            await asyncio.gather(*(channel.close() for channel in channels))
            await asyncio.sleep(0.2)

        async def connect_in_turn() -> None:
            for _ in range(CONNECTIONS):
                await (await connect(self._node.url)).close()

        for member_cost, broker_cost, doing in (
            ("attach_us", "consume_us", attach_all),
            ("detach_us", "close_us", close_all),
        ):
            before = time.process_time()
            self.broker[broker_cost] = (await meter.each(doing(), MANY))["broker"]
            self.member[member_cost] = (time.process_time() - before) / MANY * 1e6
        await connection.close()
        self.broker["connect_us"] = 2 * (await meter.each(connect_in_turn(), CONNECTIONS))["broker"]

    async def _member(self, connection: ClientConnection) -> None:
        worker = await Worker.start(MODULE, role="member", url=self._node.url, group=f"g{FEW}")
        await worker.answer("ready")
        meter = Meter(member=worker.pid, broker=self._node.pid)
        await asyncio.sleep(JOIN_S)
        await meter.rest(IDLE_S)
        await self._messages(connection, meter)
        await worker.kill()

    async def _messages(self, connection: ClientConnection, meter: Meter) -> None:
        """In the mailbox, and in the queues."""
        exchange, sender = Names(f"g{FEW}").members, await Sender.open(connection)
        small = encode(SMALL)
        paced = (await meter.each(sender.paced(exchange, "0", small, PACED), PACED))["member"]
        burst = (await meter.each(sender.burst(exchange, "0", small, BURST), BURST))["member"]
        byte = decode_byte_us()
        self.member |= {
            "wakeup_us": paced - burst,
            "message_us": burst - byte * len(small),
            "message_byte_us": byte,
        }
        keys = keys_of(FEW)
        async with GroupPublisher(self._node.url, group=f"g{FEW}") as publisher:

            async def publish() -> None:
                for number in range(BURST):
                    await publisher.publish(key=keys[number % FEW], body=b"x" * 64, topic="bench")
                await publisher.flush()
                await asyncio.sleep(0.5)

            used = await meter.each(publish(), BURST)
        self.member["delivery_us"] = used["member"]
        self.broker["message_us"] = used["broker"]

    def _core(self) -> None:
        """Ticks of a machine alone, and the primaries of live sets that are new."""
        few, many = tick_us(FEW), tick_us(MANY)
        each = max(0.0, many - few) / (MANY - FEW)
        self.member |= {"tick_us": few - FEW * each, "tick_queue_us": each}
        members = CHANCE.randrange(400, 500)  # of which nothing is cached
        queues = 4 * members
        lives = [
            frozenset(CHANCE.sample(range(members - 1), members - 10)) | {members - 1} for _ in range(21)
        ]
        before = time.process_time()
        balanced_primaries(queues, lives[0])
        first = time.process_time()
        for live in lives[1:]:
            balanced_primaries(queues, live)
        each_s = (time.process_time() - first) / 20
        self.member["assignment_queue_us"] = each_s / queues * 1e6
        self.member["homes_us"] = (first - before - each_s) / queues / members * 1e6
        index = members - 1
        lives = [lives[0] - {gone} for gone in sorted(lives[0])[:21]]
        for live in lives:
            balanced_primaries(queues, live)
        backed_up(queues, lives[0], index, 2)
        before = time.process_time()
        for live in lives[1:]:
            backed_up(queues, live, index, 2)
        self.member["rank_us"] = (time.process_time() - before) / 20 / queues * 1e6


def decode_byte_us() -> float:
    body = encode(STATES)
    began = time.process_time()
    for _ in range(1000):
        decode(body)
    return (time.process_time() - began) / 1000 / len(body) * 1e6


def tick_us(queues: int) -> float:
    """Of a machine that is alone, attached to all queues, and at rest."""
    spec, settings, chance = spec_of(queues), MemberSettings(group="g", name="m"), random.Random(1)
    machine = ExclusiveMember(
        Setup(
            "m",
            balancing=balancing_rules(settings, spec, is_native=False),
            rules=processing_rules(settings, spec, concurrency=16),
            timings=Timings(),
            uniform=chance.random,
            incarnation=lambda: f"{chance.getrandbits(128):032x}",
        )
    )
    machine.connected(0, 0.0)
    now = 0.0

    def run(ticks: int) -> None:
        nonlocal now
        for _ in range(ticks):
            now = max(machine.next_due(now), now + 0.001)
            machine.tick(now)
            effects: list[Effect] = machine.effects[:]
            machine.effects.clear()
            for effect in effects:
                if isinstance(effect, Attach):
                    machine.attached(effect.attachment, now)

    run(200)
    began = time.process_time()
    run(1000)
    return (time.process_time() - began) / 1000 * 1e6


async def _refused(connection: ClientConnection, queue: str) -> None:
    channel = await connection.open_channel()
    with suppress(ResourceLocked):
        await channel.queue_declare(queue, exclusive=True)
        raise RuntimeError("a mailbox was declared twice")


async def _at_once(request: Callable[[int, int], Awaitable[object]]) -> None:
    """So many requests, of which `AT_ONCE` are on the way at a time."""

    async def one_after_another(one: int) -> None:
        for number in range(REQUESTS // AT_ONCE):
            await request(one, number)

    await asyncio.gather(*map(one_after_another, range(AT_ONCE)))


def _rounded(costs: dict[str, float]) -> dict[str, float]:
    """To two digits that count; what is below the noise is 0."""
    return {name: float(f"{max(0.0, us):.2g}") for name, us in costs.items()}


def median(parts: Sequence[Any]) -> Any:
    """Of each cost."""
    return type(parts[0])(
        **{one.name: statistics.median(getattr(part, one.name) for part in parts) for one in fields(parts[0])}
    )


def main() -> int:
    workers: Workers = {"member": member, "receivers": receivers, "poster": poster}
    parser = Measurement(__doc__, workers=workers)
    parser.add_argument("--engine", choices=ENGINES, default="embedded")
    parser.add_argument("--runs", type=int, default=3, help="of which the median of each cost counts")
    asked = parser.asked()
    runs = []
    for _ in range(asked.runs):
        with (
            tempfile.TemporaryDirectory(prefix="lbg-bench-") as place,
            broker(asked.engine, Path(place)) as node,
        ):
            runs.append(asyncio.run(CostMeasurement(node).run()))
    for part in (median([one.member for one in runs]), median([one.broker for one in runs])):
        print(f"\n{type(part).__name__}(")
        for one in fields(part):
            print(f"    {one.name}={getattr(part, one.name):g},")
        print(")", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
