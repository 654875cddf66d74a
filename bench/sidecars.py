"""The stage of what is measured of the sidecar: the embedded broker, a group with messages in it, and `lbg sidecar`,
each the process that ships, with the settings that ship.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lean_applications import body, told_to_go
from bench.measurement import Measurement
from bench.publish_group import SPEC
from bench.workers import Worker, cpu_s, say
from lbg_core.publisher import GroupPublisher
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.command_line import clean_environment
from testing.waiting import until

KEYS = [f"N{number:05d}" for number in range(5000)]
CONTENT_TYPE = "application/json"


@dataclass(frozen=True)
class Memory:
    """Of one process, in MB of 10**6 bytes: all that is resident, and its share of what others map too."""

    rss_mb: float
    pss_mb: float


class Sidecar:
    """`lbg sidecar`, seen from the measurement."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path) -> None:
        self._process = process
        self._directory = directory

    @classmethod
    async def start(cls, broker_url: str, directory: Path, environment: Mapping[str, str]) -> Sidecar:
        log = directory / "sidecar.log"
        with log.open("w") as opened:
            process = await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "lbgroup", "sidecar"),
                env={
                    **clean_environment(),
                    "LBG_BROKER": broker_url,
                    "LBG_GROUP": SPEC.name,
                    "LBG_LOCAL": f"unix:{directory}/local.sock",
                    "LBG_OBSERVED": "127.0.0.1:0",
                    **environment,
                },
                stdout=opened,
                stderr=opened,
            )
        sidecar = cls(process, directory)
        try:
            await sidecar.said("observed listener")
        except BaseException:
            await sidecar.kill()
            raise
        return sidecar

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def local_socket(self) -> str:
        return str(self._directory / "local.sock")

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def memory(self) -> Memory:
        """proc(5), /proc/pid/smaps_rollup."""
        fields = {}
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, value, *_ = line.split()
            fields[name] = int(value) * 1024 / 1e6
        return Memory(fields["Rss:"], fields["Pss:"])

    async def said(self, text: str, *, timeout_s: float = 120) -> None:
        """Until its log has a line with this."""
        log = self._directory / "sidecar.log"
        await until(
            lambda: self._process.returncode is not None or text in log.read_text(),
            timeout_s=timeout_s,
            what=text,
        )
        if self._process.returncode is not None:
            raise RuntimeError(f"the sidecar ended: {log.read_text()[-2000:]}")

    async def leave(self) -> None:
        """SIGTERM. Raises RuntimeError unless it left in order, with nothing to be delivered again."""
        self._process.terminate()
        status = await self._process.wait()
        if status != 0:
            raise RuntimeError(
                f"the sidecar ended with {status}: {(self._directory / 'sidecar.log').read_text()[-2000:]}"
            )

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@dataclass(frozen=True)
class Flow:
    """One run: messages a second, and microseconds of CPU for a message."""

    rate: float
    ours_us: float
    application_us: float
    broker_us: float
    per_request: float


class Stage:
    """A broker with the group of `SPEC`, and a directory."""

    def __init__(self, broker: EmbeddedBroker, directory: Path) -> None:
        self.broker = broker
        self._directory = directory
        self._runs = 0

    @classmethod
    @asynccontextmanager
    async def set(cls) -> AsyncIterator[Stage]:
        with (
            tempfile.TemporaryDirectory(prefix="lbg-bench-") as directory,
            EmbeddedBroker(Path(directory, "data")) as broker,
        ):
            await declare_group(broker.url, SPEC)
            yield cls(broker, Path(directory))

    def room(self) -> Path:
        """A directory of one run."""
        self._runs += 1
        room = self._directory / str(self._runs)
        room.mkdir()
        return room

    async def fill(self, messages: int) -> None:
        """Have so many messages wait in the group's queues."""
        publisher = await Worker.start("sidecars", role="publisher", url=self.broker.url, messages=messages)
        try:
            await publisher.answer("ready")
            await publisher.tell("go")
            await publisher.answer("done", timeout_s=300)
        finally:
            await publisher.kill()

    async def flow(self, sidecar: Sidecar, application: Worker, messages: int) -> Flow:
        """From the first message that the application sees to the last, everything being ready before."""
        pids = (sidecar.pid, application.pid, self.broker.pid)
        await asyncio.sleep(1)  # what is still done for the last message before is not this run's
        before = [cpu_s(pid) for pid in pids]
        await application.tell("go")
        done = await application.answer("done", timeout_s=300)
        spent_us = [(cpu_s(pid) - at) / messages * 1e6 for pid, at in zip(pids, before, strict=True)]
        await sidecar.leave()
        seen = done["seen"]
        if seen != messages:
            raise RuntimeError(f"{messages} were published and {seen} seen")
        rate = messages / (done["last_ns"] - done["first_ns"]) * 1e9
        return Flow(rate, *spent_us, per_request=messages / done["requests"])


async def publisher(url: str, messages: int, rate: float = 0.0, **_: Any) -> None:
    """As fast as it can, or evenly spaced and not faster to make up for a moment lost."""
    loop = asyncio.get_running_loop()
    async with GroupPublisher(url, group=SPEC.name, content_type=CONTENT_TYPE) as publisher:
        say("ready")
        await told_to_go()
        at = loop.time()
        for number in range(messages):
            await publisher.publish(key=KEYS[number % len(KEYS)], body=body(), topic="flight")
            if rate:
                at = max(at + 1 / rate, loop.time() - 0.002)
                if at > loop.time():
                    await asyncio.sleep(at - loop.time())
        await publisher.flush()
    say("done", published=messages)


WORKERS: dict[str, Callable[..., Awaitable[None]]] = {"publisher": publisher}


def main() -> None:
    parser = Measurement(__doc__, workers=WORKERS)
    parser.asked()
    parser.error("it only works for other measurements")


if __name__ == "__main__":
    main()
