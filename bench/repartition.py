"""Queues and partitions that change online: order and loss under kills, and the pauses of publishers and keys.

`python -m bench.repartition --mode Exclusive --engine rabbitmq --messages 1000000`: so many messages wait in 8 queues,
2,000 a second more come in, and members process them. The number of queues goes to 12 and to 5. Members and the command
are killed (SIGKILL) all the while. The judge is the application: each message that it processes is a line in a file of
its member.

`--pauses` measures pauses instead, at 2,000 messages a second without a backlog and without kills, in turn with changes
and without. A pause of a key is its longest time without a message in the 2 s from a change on, or in 2 s without one;
keys that the change does not move are counted. A publish is timed until its confirm.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from bench.measurement import percentile
from bench.processed_log import TIMEOUT_S, Members, broker, judge, processed, until_processed
from lbg_core.admin.groups import create_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.admin.repartition import repartition_group
from lbg_core.client import BasicProperties, ConfirmingPublisher, ConnectionSettings, connect
from lbg_core.group import GroupSpec, Names, hash_of, queue_of, routing_key
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message

GROUP = "changed"
MEMBERS = 3
COUNTS = (8, 12, 5)
RATE_HZ = 2000
HASHES = 1024
PROBES_HZ = 100
PAUSE_S = 2.0


async def member(url: str, name: str, directory: Path) -> None:
    """Processes messages until SIGTERM: a line of time, key and number for each."""
    with (directory / f"{name}.{time.monotonic_ns()}.log").open("wb", buffering=0) as log:

        async def handle(message: Message) -> None:
            number = bytes(message.data)
            if number:
                log.write(b"%d %d %s\n" % (time.monotonic_ns(), int(message.key or 0), number))

        settings = MemberSettings(broker=url, group=GROUP, name=name)
        async with Member(settings, handle) as running:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.stop)
            await running.run()


async def make_group(url: str, management: str, mode: str) -> LiveAdmin:
    admin = LiveAdmin(ConnectionSettings.parse(url), ManagementApi(ManagementSettings.parse(management)))
    spec = GroupSpec(
        GROUP,
        GROUP,
        hash_count=HASHES,
        queue_count=COUNTS[0],
        queue_size_mb=200,
        client_username="guest",
        mode=mode,
        **({"rebalance_delay_s": 0.5} if mode == "Partitioned" else {}),
    )
    await create_group(admin, spec, with_user=False)
    return admin


class Load:
    """Messages with numbers from 0 on, of keys in turn."""

    def __init__(self, publisher: GroupPublisher, keys: int) -> None:
        self.published = 0
        self._publisher = publisher
        self._keys = keys

    async def publish(self, count: int) -> None:
        for _ in range(count):
            number = self.published
            await self._publisher.publish(key=str(number % self._keys), body=b"%d" % number, topic="t")
            self.published += 1
        await self._publisher.flush()

    async def go_on(self) -> None:
        """RATE_HZ messages a second, until it is cancelled."""
        began, before = time.monotonic(), self.published
        while True:
            due = int((time.monotonic() - began) * RATE_HZ) - (self.published - before)
            for _ in range(due):
                number = self.published
                await self._publisher.publish(key=str(number % self._keys), body=b"%d" % number, topic="t")
                self.published += 1
            await asyncio.sleep(0.002)


async def changed_under_kills(url: str, management: str, count: int, chance: random.Random) -> int:
    """Runs the command until it ends by itself; returns how often it was killed."""
    argv = [sys.executable, "-m", "lbgroup", "group", "repartition", GROUP, "--queues", str(count)]
    where = ["--broker", url, "--management", management, "--timeout", "5"]
    kills = 0
    while True:
        process = await asyncio.create_subprocess_exec(*argv, *where, stderr=asyncio.subprocess.DEVNULL)
        try:
            await asyncio.wait_for(process.wait(), chance.uniform(0.3, 3.0) if kills < 3 else None)
        except TimeoutError:
            process.kill()
            await process.wait()
            kills += 1
            continue
        if process.returncode == 0:
            return kills


async def proof(url: str, management: str, directory: Path, arguments: argparse.Namespace) -> None:
    chance = random.Random(arguments.seed)
    admin = await make_group(url, management, arguments.mode)
    members = Members("repartition", url, str(directory))
    kills = 0

    async def kill_members() -> None:
        nonlocal kills
        while kills < arguments.kills:
            await asyncio.sleep(chance.uniform(0.5, 3.0))
            await members.kill_one(chance)
            kills += 1

    async with GroupPublisher(url, group=GROUP) as publisher:
        load = Load(publisher, arguments.keys)
        began = time.monotonic()
        await load.publish(arguments.messages)
        print(f"backlog: {arguments.messages} messages after {time.monotonic() - began:.0f} s", flush=True)
        for number in range(MEMBERS):
            await members.start(f"m{number}")
        going_on = asyncio.create_task(load.go_on())
        killing = asyncio.create_task(kill_members())
        for count in COUNTS[1:]:
            await asyncio.sleep(5)
            began = time.monotonic()
            commands = await changed_under_kills(url, management, count, chance)
            print(
                f"{count} queues after {time.monotonic() - began:.1f} s; command killed {commands} times",
                flush=True,
            )
        began = time.monotonic()
        await repartition_group(admin, GROUP, COUNTS[-1], timeout_s=TIMEOUT_S)
        print(f"no key moves after {time.monotonic() - began:.0f} s more; {kills} members killed", flush=True)
        going_on.cancel()
        killing.cancel()
        await asyncio.gather(going_on, killing, return_exceptions=True)
        await publisher.flush()
        refused = publisher.report().refused
    await until_processed(directory, load.published)
    await members.stop()
    await admin.close()
    print({"published": load.published, "refused": refused, **judge(directory, load.published)})


async def probe(url: str, latencies_s: list[float]) -> None:
    """Times the confirms of single messages, until it is cancelled."""
    connection = await connect(url)
    publisher = await ConfirmingPublisher.open(connection)
    number = 0
    while True:
        number += 1
        key = f"probe-{number}"
        began = time.monotonic()
        await publisher.publish(
            Names(GROUP).exchange,
            routing_key(GROUP, hash_of(key, HASHES), "t"),
            b"",
            properties=BasicProperties(headers={"lbg-key": key}, delivery_mode=2),
        )
        latencies_s.append(time.monotonic() - began)
        await asyncio.sleep(1 / PROBES_HZ)


def longest_gaps_s(times: dict[int, list[float]], keys: list[int], since: float) -> list[float]:
    """For each key the longest time without a message, in `PAUSE_S` from `since` on."""
    gaps = []
    for key in keys:
        inside = [at for at in times.get(key, ()) if since <= at <= since + PAUSE_S]
        gaps.append(max((later - at for at, later in pairwise(inside)), default=PAUSE_S))
    return gaps


async def pauses(url: str, management: str, directory: Path, arguments: argparse.Namespace) -> None:
    admin = await make_group(url, management, arguments.mode)
    members = Members("repartition", url, str(directory))
    for number in range(MEMBERS):
        await members.start(f"m{number}")
    keys, count = 100, COUNTS[0]
    latencies: dict[str, list[float]] = {"with": [], "without": []}
    moments: dict[str, list[tuple[float, list[int]]]] = {"with": [], "without": []}
    async with GroupPublisher(url, group=GROUP) as publisher:
        load = Load(publisher, keys)
        going_on = asyncio.create_task(load.go_on())
        await asyncio.sleep(5)
        for turn in range(arguments.turns):
            then = 12 if count == COUNTS[0] else COUNTS[0]
            stay = [
                key
                for key in range(keys)
                if queue_of(hash_of(str(key), HASHES), count) == queue_of(hash_of(str(key), HASHES), then)
            ]
            for what in ("without", "with") if turn % 2 else ("with", "without"):
                probing = asyncio.create_task(probe(url, latencies[what]))
                await asyncio.sleep(0.5)
                moments[what].append((time.monotonic(), stay))
                if what == "with":
                    await repartition_group(admin, GROUP, then, timeout_s=30.0)
                    count = then
                await asyncio.sleep(PAUSE_S + 0.5)
                probing.cancel()
                await asyncio.gather(probing, return_exceptions=True)
        going_on.cancel()
        await asyncio.gather(going_on, return_exceptions=True)
        await publisher.flush()
    await until_processed(directory, load.published)
    await members.stop()
    await admin.close()
    times: dict[int, list[float]] = {}
    for at_ns, key, _ in sorted(processed(directory)):
        times.setdefault(key, []).append(at_ns / 1e9)
    for what in ("without", "with"):
        gaps = [gap for since, stay in moments[what] for gap in longest_gaps_s(times, stay, since)]
        print(
            f"{what} a change: publish p99 {percentile(latencies[what], 0.99) * 1e3:.2f} ms "
            f"({len(latencies[what])} publishes), "
            f"longest pause of a key that stays p99 {percentile(gaps, 0.99) * 1e3:.1f} ms ({len(gaps)} keys)"
        )
    print(judge(directory, load.published))


def main() -> None:
    if sys.argv[1:2] == ["--member"]:
        url, directory, name = sys.argv[2:5]
        asyncio.run(member(url, name, Path(directory)))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=("Exclusive", "Partitioned"), default="Partitioned")
    parser.add_argument("--engine", choices=("embedded", "rabbitmq"), default="embedded")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=50, help="of members")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pauses", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lbg-bench-") as directory:
        logs = Path(directory, "logs")
        logs.mkdir()
        with broker(arguments.engine, Path(directory)) as (url, management):
            work = pauses if arguments.pauses else proof
            asyncio.run(work(url, management, logs, arguments))


if __name__ == "__main__":
    main()
