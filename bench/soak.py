"""A long run under random faults: `make soak`, or `python -m bench.soak --minutes 30 --seed 7`.

A broker, members with their applications, a publisher and the validator run as separate processes, as a user would
start them. Every few seconds something breaks: a member or the publisher is killed, the broker is killed and started
again on the same data, a member's connection falls silent, a member is frozen, an application is slow. At the end
the publisher's report is held against what the validator saw. Exit status 1 on any loss or inversion.

The schedule comes from the seed alone, so a run's faults can be played again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.half_open import HalfOpenProxy

LBG = [sys.executable, "-m", "lbg"]
GROUP = "soak"


@dataclass(frozen=True)
class SoakSettings:
    """What one run does; times in seconds."""

    duration_s: float
    seed: int
    rate: int
    members: int
    queues: int
    fault_every_s: float
    work_dir: Path


@dataclass
class Child:
    """One process of the run, in a process group of its own so that a kill takes its application too."""

    name: str
    argv: list[str]
    log: Path
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    async def wait(self, timeout_s: float | None = None) -> int:
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), timeout_s)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.wait()


@dataclass
class Soak:
    settings: SoakSettings
    members: list[Child] = field(default_factory=list)
    proxies: list[HalfOpenProxy] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)
    faults: dict[str, int] = field(default_factory=dict)
    started_at: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.started_at:8.1f}s  {text}", flush=True)

    def child(self, name: str, *argv: str) -> Child:
        return Child(name, [*LBG, *argv], self.settings.work_dir / f"{name}.log")

    def slow_file(self, member: int) -> Path:
        return self.settings.work_dir / f"slow-{member}"

    async def run(self) -> int:
        work, settings = self.settings.work_dir, self.settings
        port, management_port = free_port(), free_port()
        url = f"amqp://guest:guest@127.0.0.1:{port}/"
        management = f"http://guest:guest@127.0.0.1:{management_port}"
        write_input(work / "input.jsonl", round(settings.duration_s * settings.rate), settings.seed)
        self.broker = self.child(
            "broker", "broker", "serve", "--data-dir", str(work / "data"),
            "--listen", f"127.0.0.1:{port}", "--management", f"127.0.0.1:{management_port}",
        )  # fmt: skip
        await self.broker.start()
        await port_open(port)
        create = self.child(
            "create", "group", "create", GROUP, "--broker", url, "--management", management, "--hash-prefix", GROUP,
            "--hash-count", str(settings.queues * 8), "--queue-count", str(settings.queues), "--queue-size-mb", "64",
            "--password-file", str(self.password_file()),
        )  # fmt: skip
        await create.start()
        if await create.wait(30) != 0:
            raise SystemExit(f"could not create the group: {create.log.read_text()}")
        validator = self.child(
            "validator", "validate", "--broker", url, "--group", GROUP, "--json",
            "--expect", str(work / "published.json"), "--idle-timeout", "60",
        )  # fmt: skip
        await validator.start()
        for number in range(settings.members):
            proxy = HalfOpenProxy(("127.0.0.1", port))
            await proxy.start()
            self.proxies.append(proxy)
            self.members.append(self.member(number, proxy.port))
            await self.members[-1].start()
        self.publisher = self.child(
            "publisher", "publish", "--broker", url, "--group", GROUP, "--key", "key", "--rate", str(settings.rate),
            "--state", str(work / "publisher.state"), "--report", str(work / "published.json"),
            str(work / "input.jsonl"),
        )  # fmt: skip
        await self.publisher.start()
        try:
            await self.break_things()
            self.say("no more faults: the rest is published, delivered and judged")
            if await self.publisher.wait(settings.duration_s + 300) != 0:
                raise SystemExit(f"the publisher failed: {self.publisher.log.read_text()[-2000:]}")
            status = await validator.wait(600)
        finally:
            for child in [self.publisher, validator, *self.members, self.broker]:
                child.signal(signal.SIGCONT)
                child.signal(signal.SIGKILL)
            for proxy in self.proxies:
                await proxy.stop()
        return self.verdict(status, validator.log)

    def password_file(self) -> Path:
        path = self.settings.work_dir / "password"
        path.write_text("soak")
        return path

    def member(self, number: int, port: int) -> Child:
        return self.child(
            f"member-{number}", "consume", "--broker", f"amqp://guest:guest@127.0.0.1:{port}/?heartbeat=3",
            "--group", GROUP, "--name", f"member-{number}", "--concurrency", "16", "--republish",
            "--", sys.executable, "-m", "bench.soak_app", str(self.slow_file(number)),
        )  # fmt: skip

    async def break_things(self) -> None:
        """One fault every few seconds until the publisher is through; faults of different members overlap."""
        chance = random.Random(self.settings.seed)
        kinds: list[Callable[[int, random.Random], Coroutine[Any, Any, None]]] = [
            self.kill_member, self.kill_member, self.leave_member, self.kill_broker,
            self.silence, self.freeze, self.slow, self.kill_publisher,
        ]  # fmt: skip
        async with asyncio.TaskGroup() as group:
            end = time.monotonic() + self.settings.duration_s
            while time.monotonic() < end:
                await asyncio.sleep(chance.uniform(0.5, 1.5) * self.settings.fault_every_s)
                fault, victim = chance.choice(kinds), chance.randrange(self.settings.members)
                group.create_task(self.one_fault(fault, victim, random.Random(chance.random())))

    async def one_fault(
        self,
        fault: Callable[[int, random.Random], Coroutine[Any, Any, None]],
        victim: int,
        chance: random.Random,
    ) -> None:
        if victim in self.busy:
            return
        self.busy.add(victim)
        try:
            self.faults[fault.__name__] = self.faults.get(fault.__name__, 0) + 1
            await fault(victim, chance)
        finally:
            self.busy.discard(victim)

    async def kill_member(self, victim: int, chance: random.Random) -> None:
        self.say(f"SIGKILL member-{victim}")
        await self.members[victim].kill()
        await asyncio.sleep(chance.uniform(0, 8))
        await self.members[victim].start()

    async def leave_member(self, victim: int, chance: random.Random) -> None:
        self.say(f"SIGTERM member-{victim}")
        self.members[victim].signal(signal.SIGTERM)
        try:
            await self.members[victim].wait(60)
        except TimeoutError:
            raise SystemExit(f"member-{victim} did not leave within 60 s of SIGTERM") from None
        await asyncio.sleep(chance.uniform(0, 8))
        await self.members[victim].start()

    async def kill_broker(self, victim: int, chance: random.Random) -> None:
        self.say("SIGKILL broker")
        await self.broker.kill()
        await asyncio.sleep(chance.uniform(0, 3))
        await self.broker.start()

    async def silence(self, victim: int, chance: random.Random) -> None:
        silence_s = chance.uniform(1, 15)
        self.say(f"half-open socket of member-{victim} for {silence_s:.1f} s")
        self.proxies[victim].silence()
        await asyncio.sleep(silence_s)
        self.proxies[victim].heal()

    async def freeze(self, victim: int, chance: random.Random) -> None:
        freeze_s = chance.uniform(1, 15)
        self.say(f"SIGSTOP member-{victim} for {freeze_s:.1f} s")
        self.members[victim].signal(signal.SIGSTOP)
        await asyncio.sleep(freeze_s)
        self.members[victim].signal(signal.SIGCONT)

    async def slow(self, victim: int, chance: random.Random) -> None:
        delay_s, slow_s = chance.choice([0.01, 0.1, 1.0, 5.0]), chance.uniform(2, 10)
        self.say(f"slow app of member-{victim}: {delay_s} s a message for {slow_s:.1f} s")
        self.slow_file(victim).write_text(str(delay_s))
        await asyncio.sleep(slow_s)
        self.slow_file(victim).unlink()

    async def kill_publisher(self, victim: int, chance: random.Random) -> None:
        process = self.publisher.process
        if process is None or process.returncode is not None:
            return
        self.say("SIGKILL publisher")
        await self.publisher.kill()
        await self.publisher.start()

    def verdict(self, status: int, log: Path) -> int:
        published = json.loads((self.settings.work_dir / "published.json").read_text())
        seen = json.loads(log.read_text().strip().splitlines()[-1])
        self.say(f"faults: {self.faults}")
        self.say(f"published {published['published']}; validator: {json.dumps(seen)[:2000]}")
        self.say("passed: nothing lost, nothing out of order" if status == 0 else "FAILED")
        return status


def write_input(path: Path, rows: int, seed: int) -> None:
    """`rows` JSON lines over 500 keys, unevenly used, as sub-streams are."""
    chance = random.Random(seed)
    with path.open("w") as file:
        for number in range(rows):
            file.write(f'{{"key": "k{int(500 * chance.random() ** 2)}", "n": {number}}}\n')


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def port_open(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port} after 10 s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="default: random, printed")
    parser.add_argument("--rate", type=int, default=500, help="messages per second")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--fault-every", type=float, default=4.0, help="seconds, on average")
    parser.add_argument("--keep", type=Path, default=None, help="keep logs and data in this directory")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}", flush=True)
    with contextlib.ExitStack() as stack:
        work = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lbg-soak-")))
        work.mkdir(parents=True, exist_ok=True)
        settings = SoakSettings(
            duration_s=arguments.minutes * 60,
            seed=seed,
            rate=arguments.rate,
            members=arguments.members,
            queues=arguments.queues,
            fault_every_s=arguments.fault_every,
            work_dir=work,
        )
        sys.exit(asyncio.run(Soak(settings).run()))


if __name__ == "__main__":
    main()
