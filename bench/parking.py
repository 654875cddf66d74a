"""Parked keys at size: order and loss over kills and a repartition, and the throughput of all other keys.

`python -m bench.parking --messages 200000 --keys 10000 --poisoned 0.01 --kills 50`. Members are processes. The first
message of each poisoned key fails until all are published. Members are killed (SIGKILL) and start again all the while,
and in the middle the number of queues changes. At the end the application is repaired, and the keys are released. The
judge is the application: each message that it processes is a line in a file of its member, with the time.

`--throughput` measures instead how long all other keys take, with and without poison, and without kills, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.processed_log import TIMEOUT_S, Members, broker, judge, until_processed
from lbg_core.admin.groups import create_group, enable_parking
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.admin.parked_messages import ParkingStopped, open_parked_stream, release_parked
from lbg_core.admin.repartition import repartition_group
from lbg_core.client import ConnectionSettings
from lbg_core.group import GroupSpec
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict, retry

GROUP = "parking"
MEMBERS = 3
QUEUES = 8


async def member(url: str, name: str, directory: Path, poisoned: int) -> None:
    """Processes messages until SIGTERM: a line of time, key and number for each."""
    healed = directory / "healed"
    with (directory / f"{name}.{time.monotonic_ns()}.log").open("wb", buffering=0) as log:

        async def handle(message: Message) -> Verdict | None:
            key = int(message.key or 0)
            if key < poisoned and not healed.exists():
                return retry("it is poison")
            log.write(b"%d %d %s\n" % (time.monotonic_ns(), key, bytes(message.data)))
            return None

        settings = MemberSettings(
            broker=url,
            group=GROUP,
            name=name,
            max_attempts=2,
            retry_first_s=0.02,
            retry_max_s=0.1,
            rebalance_delay_s=0.5,
            when_exhausted="park",
        )
        async with Member(settings, handle) as running:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.stop)
            await running.run()


async def publish(url: str, messages: int, keys: int) -> None:
    async with GroupPublisher(url, group=GROUP) as publisher:
        for number in range(messages):
            await publisher.publish(key=str(number % keys), body=b"%d" % number, topic="t")
        await publisher.flush()


async def make_group(url: str, management: str) -> LiveAdmin:
    admin = LiveAdmin(ConnectionSettings.parse(url), ManagementApi(ManagementSettings.parse(management)))
    spec = GroupSpec(
        GROUP, GROUP, hash_count=1024, queue_count=QUEUES, queue_size_mb=200, client_username="guest"
    )
    await create_group(admin, spec, with_user=False)
    await enable_parking(admin, GROUP)
    return admin


async def proof(url: str, management: str, directory: Path, arguments: argparse.Namespace) -> None:
    messages, keys = arguments.messages, arguments.keys
    poisoned = round(keys * arguments.poisoned)
    chance = random.Random(arguments.seed)
    admin = await make_group(url, management)
    members = Members("parking", url, str(directory), str(poisoned))
    for number in range(MEMBERS):
        await members.start(f"m{number}")
    kills = 0

    async def kill(count: int) -> None:
        nonlocal kills
        for _ in range(count):
            await asyncio.sleep(chance.uniform(0.5, 1.5))
            await members.kill_one(chance)
            kills += 1

    began = time.monotonic()
    publishing = asyncio.create_task(publish(url, messages, keys))
    await kill(arguments.kills // 2)
    repartitioned = await repartition_group(admin, GROUP, QUEUES // 2, timeout_s=TIMEOUT_S)
    print(f"repartitioned: {repartitioned.was} to {repartitioned.now} queues", flush=True)
    await kill(arguments.kills // 4)
    await publishing
    others = messages - sum(1 for number in range(messages) if number % keys < poisoned)
    await until_processed(directory, others)
    print(f"all other keys are processed after {time.monotonic() - began:.0f} s, {kills} kills", flush=True)
    before = judge(directory, messages)
    assert before["keys"] == keys - poisoned, before
    (directory / "healed").touch()
    killing = asyncio.create_task(kill(arguments.kills - kills))
    rounds = published = 0
    async with open_parked_stream([ConnectionSettings.parse(url)], GROUP) as stream:
        print(f"parked: {len(stream.keys)} keys, {stream.keys.messages} messages", flush=True)
    while True:
        try:
            async with open_parked_stream([ConnectionSettings.parse(url)], GROUP) as stream:
                if not len(stream.keys):
                    break
                released = await release_parked(stream, None, timeout_s=60)
                rounds, published = rounds + released.rounds, published + released.published
        except ParkingStopped as stopped:
            print(stopped, flush=True)
    await killing
    await until_processed(directory, messages)
    print(
        f"released in {rounds} rounds, {published} messages; {kills} kills; {time.monotonic() - began:.0f} s"
    )
    await members.stop()
    await admin.close()
    print(judge(directory, messages))


async def throughput(url: str, management: str, directory: Path, arguments: argparse.Namespace) -> None:
    rates: dict[str, list[float]] = {"without poison": [], "with poison": []}
    messages, keys = arguments.messages, arguments.keys
    admin = await make_group(url, management)
    for turn in range(arguments.rounds):
        for what in rates:
            poisoned = round(keys * arguments.poisoned) if what == "with poison" else 0
            here = directory / f"{turn}-{what}"
            here.mkdir()
            members = Members("parking", url, str(here), str(poisoned))
            for number in range(MEMBERS):
                await members.start(f"m{number}")
            await asyncio.sleep(3)
            began = time.monotonic()
            await publish(url, messages, keys)
            others = messages - sum(1 for number in range(messages) if number % keys < poisoned)
            await until_processed(here, others)
            rates[what].append(others / (time.monotonic() - began))
            print(f"{what}: {rates[what][-1]:,.0f} messages/s of other keys", flush=True)
            await asyncio.sleep(2)
            (here / "healed").touch()
            async with open_parked_stream([ConnectionSettings.parse(url)], GROUP) as stream:
                await release_parked(stream, None, timeout_s=TIMEOUT_S)
            await members.stop()
    await admin.close()
    ratio = statistics.median(rates["with poison"]) / statistics.median(rates["without poison"])
    print(f"with poison / without: {ratio:.3f}")


def main() -> None:
    if sys.argv[1:2] == ["--member"]:
        url, directory, poisoned, name = sys.argv[2:6]
        asyncio.run(member(url, name, Path(directory), int(poisoned)))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--poisoned", type=float, default=0.01)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", choices=["embedded", "rabbitmq"], default="embedded")
    parser.add_argument("--throughput", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lbg-bench-") as directory:
        logs = Path(directory, "logs")
        logs.mkdir()
        with broker(arguments.engine, Path(directory)) as (url, management):
            work = throughput if arguments.throughput else proof
            asyncio.run(work(url, management, logs, arguments))


if __name__ == "__main__":
    main()
