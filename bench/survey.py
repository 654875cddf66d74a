"""Cost of hundreds of groups on one broker for an operator: creation, surveys, lag.

Groups are made at an even rate through one admin, as manifests arrive. Then another process fakes two members for each
group, over real AMQP: a mailbox each, a consumer on every queue, a status report each second. Told is the CPU time of
this process, which is the operator's part, and of the broker, less what it spends on the members alone.
`python -m bench.survey --groups 500 --rate 5`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measurement import Measurement, percentile
from bench.workers import Worker, cpu_s, say
from lbg_core.admin.describe import Description
from lbg_core.admin.group_reader import survey
from lbg_core.admin.groups import create_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.client import ConnectionSettings, connect
from lbg_core.group import TO_ALL, TO_OBSERVERS, GroupSpec, Names
from testing.broker.embedded import EmbeddedBroker
from testing.rabbitmq.node import RabbitNode

QUEUES, HASHES, MEMBERS = 8, 32, 2
BASELINE_S = 10.0
SURVEY_EVERY_S = 30.0
"""Of the operator: what share of a core its surveys take is reckoned with this."""

LAGS_ASKED = 50
"""Groups that autoscalers ask about, in turn."""

GROUPS_A_CONNECTION = 25


def spec_of(number: int) -> GroupSpec:
    name = f"team-{number % 20}-group-{number}"
    return GroupSpec(
        name, name, hash_count=HASHES, queue_count=QUEUES, queue_size_mb=10, client_username=name
    )


@dataclass(frozen=True)
class Broker:
    url: str
    management_url: str
    pid: int

    def admin(self) -> LiveAdmin:
        api = ManagementApi(ManagementSettings.parse(self.management_url))
        return LiveAdmin(ConnectionSettings.parse(self.url), api)


@contextmanager
def broker_of(engine: str, directory: Path) -> Iterator[Broker]:
    if engine == "rabbitmq":
        with RabbitNode() as node:
            yield Broker(node.amqp_url, node.management_url, node.pid)
    else:
        with EmbeddedBroker(directory / "data") as embedded:
            yield Broker(embedded.url, embedded.management_url, embedded.pid)


@dataclass(frozen=True)
class Cost:
    """Seconds: what each call took, and the CPU of both sides for all of them."""

    took_s: list[float]
    ours_s: float
    brokers_s: float

    def line(self, what: str) -> str:
        count = len(self.took_s)
        p99 = percentile(self.took_s, 0.99)
        return (
            f"| {what} | {statistics.median(self.took_s) * 1e3:,.0f} | {p99 * 1e3:,.0f} "
            f"| {self.ours_s / count * 1e3:.1f} | {self.brokers_s / count * 1e3:.1f} |"
        )


async def cost_of(
    calls: list[Callable[[], Awaitable[Any]]], broker: Broker, *, every_s: float, background: float = 0.0
) -> Cost:
    """Begun `every_s` apart, whether or not the ones before have ended. `background`: of the broker, CPU per second."""
    took: list[float] = []

    async def one(call: Callable[[], Awaitable[Any]]) -> None:
        begun = time.monotonic()
        await call()
        took.append(time.monotonic() - begun)

    begun, ours, brokers = time.monotonic(), time.process_time(), cpu_s(broker.pid)
    tasks = []
    for number, call in enumerate(calls):
        await asyncio.sleep(max(0.0, begun + number * every_s - time.monotonic()))
        tasks.append(asyncio.create_task(one(call)))
    await asyncio.gather(*tasks)
    wall_s = time.monotonic() - begun
    return Cost(took, time.process_time() - ours, cpu_s(broker.pid) - brokers - background * wall_s)


async def measure(broker: Broker, groups: int, rate: float, surveys: int, looks: int) -> list[str]:
    specs = [spec_of(number) for number in range(groups)]
    admin = broker.admin()
    lines = []
    creating = [lambda spec=spec: create_group(admin, spec, password="secret") for spec in specs]
    lines.append((await cost_of(creating, broker, every_s=1 / rate)).line(f"create, {rate:g} a second"))
    again = [lambda spec=spec: create_group(admin, spec, password="secret") for spec in specs[:50]]
    lines.append((await cost_of(again, broker, every_s=0.5)).line("create what is there"))
    members = await Worker.start("survey", role="members", url=broker.url, groups=groups)
    try:
        await members.answer("ready", timeout_s=300)
        await asyncio.sleep(2)
        before = cpu_s(broker.pid)
        await asyncio.sleep(BASELINE_S)
        background = (cpu_s(broker.pid) - before) / BASELINE_S
        by_name = {spec.name: spec for spec in specs}

        async def look_at_all() -> None:
            found = await survey(admin, by_name)
            whole = [one for one in found.values() if isinstance(one, Description) and not one.problems]
            said = sum(len(one.members) for one in whole if isinstance(one.members, tuple))
            if (len(whole), said) != (groups, MEMBERS * groups):
                raise RuntimeError(f"{len(whole)} of {groups} groups are whole, {said} members were heard")

        all_ = await cost_of([look_at_all] * surveys, broker, every_s=5, background=background)
        lines.append(all_.line(f"survey of {groups}"))
        few = [lambda: survey(admin, {spec.name: spec for spec in specs[:5]})] * surveys
        lines.append((await cost_of(few, broker, every_s=2, background=background)).line("survey of 5"))
        asking = [
            lambda number=number: admin.lag_reader.lags({"it": specs[number % min(groups, LAGS_ASKED)]})
            for number in range(looks)
        ]
        lines.append(
            (await cost_of(asking, broker, every_s=0.03, background=background)).line(
                "lag of one, 33 a second"
            )
        )
        together = [lambda: admin.lag_reader.lags(by_name)] * surveys
        lines.append(
            (await cost_of(together, broker, every_s=2, background=background)).line(f"lag of {groups}")
        )
        share = all_.ours_s / surveys / SURVEY_EVERY_S
        lines.append(f"\na survey every {SURVEY_EVERY_S:g} s: {share:.2%} of a core here; ")
        lines[-1] += f"the members' beats alone: {background:.0%} of a core of the broker"
    finally:
        await members.kill()
    await admin.close()
    return lines


async def fake_members(url: str, groups: int, named: str = "") -> None:
    """Until killed. `named`: what the groups are called on the broker, with `{}` for the number of each."""
    beating = []
    for first in range(0, groups, GROUPS_A_CONNECTION):
        connection = await connect(url, name="members")
        channel = await connection.open_channel()
        for number in range(first, min(first + GROUPS_A_CONNECTION, groups)):
            names = Names(named.format(number) if named else spec_of(number).name)
            for index in range(MEMBERS):
                await channel.queue_declare(names.mailbox(index), exclusive=True)
                await channel.queue_bind(names.mailbox(index), names.members, TO_ALL)
                await channel.consume(names.mailbox(index), lambda _: None, no_ack=True)
                for queue in range(QUEUES):
                    await channel.consume(names.queue(queue), lambda _: None)
                beating.append((channel, names.members, _beat(number, index)))
    say("ready")
    while True:
        begun = time.monotonic()
        for number, (channel, exchange, body) in enumerate(beating):
            channel.publish(exchange, TO_OBSERVERS, body)
            if number % 50 == 49:  # spread over the second, as members are
                await asyncio.sleep(max(0.0, begun + number / len(beating) - time.monotonic()))
        await asyncio.sleep(max(0.0, begun + 1 - time.monotonic()))


def _beat(group: int, index: int) -> bytes:
    queues = [
        {"queue": number, "role": "primary", "active": number % MEMBERS == index, "in_flight": 0}
        | {
            "delivered": 1000,
            "status": "Ready",
            "epoch": 3,
        }
        for number in range(QUEUES)
    ]
    counts = dict.fromkeys(("delivered", "acked", "retried", "dropped", "duplicates", "handoffs"), 12345)
    sender = [index, f"pod-{group}-{index}", f"{2 * group + index:016x}"]
    body = {"v": 1, "type": "beat", "sender": sender, "queues": queues, "counts": counts}
    return json.dumps(body, separators=(",", ":")).encode()


def main() -> None:
    parser = Measurement(__doc__, workers={"members": fake_members})
    parser.add_argument("--engine", choices=("embedded", "rabbitmq"), default="embedded")
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--rate", type=float, default=5.0, help="groups made in a second")
    parser.add_argument("--surveys", type=int, default=5)
    parser.add_argument("--looks", type=int, default=500, help="readings of one group's lag")
    told = parser.asked()
    with (
        tempfile.TemporaryDirectory(prefix="lbg-bench-") as directory,
        broker_of(told.engine, Path(directory)) as broker,
    ):
        lines = asyncio.run(measure(broker, told.groups, told.rate, told.surveys, told.looks))
    print(
        f"{told.groups} groups of {QUEUES} queues and {HASHES} hashes on {told.engine}, {MEMBERS} members each\n"
    )
    print("| | p50 ms | p99 ms | CPU here, ms a call | CPU of the broker, ms a call |\n|---|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
