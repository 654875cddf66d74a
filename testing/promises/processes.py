"""The processes of a cell: members with their applications, the publisher, commands, and the brokers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from lbg_core.group import SESSIONS
from testing import ROOT
from testing.broker.embedded import EmbeddedBroker
from testing.promises.load import Generator
from testing.promises.matrix import GROUP, Cell
from testing.rabbitmq.node import RabbitNode

ENDS_WITHIN_S = 60.0
TICK_S = 0.05

CONCURRENCY = 4
"""Of members whose queues move by load: with the default a member of eight keys has never much to do."""

APPS = {"serial-stream": "stream", "serial-batch": "http-batch"}
"""LBG_APP of a channel, where that has another name."""


class Process:
    """A Python process in a session of its own, with a log. It ends with this one."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self.process: asyncio.subprocess.Process | None = None

    async def start(
        self, *argv: str, environment: Mapping[str, str] | None = None, piped: bool = False
    ) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LBG_")}
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", "KILL", sys.executable, *argv),
                cwd=ROOT,
                env={**clean, **(environment or {})},
                stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        return self.process is not None and self.process.returncode is not None

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    async def ended(self, within_s: float = ENDS_WITHIN_S) -> int | None:
        """Its exit status, None if it still runs then."""
        assert self.process is not None
        try:
            return await asyncio.wait_for(self.process.wait(), within_s)
        except TimeoutError:
            return None

    async def kill(self) -> None:
        """And what it started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()

    def last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else ""

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


class MemberProcess:
    """One life of a member: `NAME.LIFE`, with the settings that everybody has by default, and its application."""

    def __init__(self, cell: Cell, broker: str, group: str, name: str, life: int, directory: Path) -> None:
        self.name = name
        self.life = f"{name}.{life}"
        self.lines = directory / f"{self.life}.lines"
        self._cell = cell
        self._broker = broker
        self._group = group
        self._socket = directory / f"{self.life}.app"
        self._local = directory / f"{self.life}.local"
        self._observed = directory / f"{self.life}.seen"
        self.member = Process(self.life, directory / f"{self.life}.log")
        self._app = Process(f"{self.life} app", directory / f"{self.life}.app.log")

    async def start(self) -> None:
        application = ("-m", "testing.promises.application", self._cell.channel, str(self.lines))
        time_ms = str(self._cell.time_of(self.name))
        who: dict[str, str | int] = {"broker": self._broker, "group": self._group, "name": self.name}
        if self._cell.is_by_load:
            who["concurrency"] = CONCURRENCY
        match self._cell.channel:
            case "callable":
                await self.member.start(*application, time_ms, json.dumps(who))
            case "command" | "serial-command":
                options = [word for option, value in who.items() for word in (f"--{option}", str(value))]
                await self.member.start(
                    *("-m", "lbgroup", "consume", *options, "--", sys.executable, *application, time_ms)
                )
            case channel:
                environment = {f"LBG_{option.upper()}": str(value) for option, value in who.items()}
                environment |= {"LBG_LOCAL": f"unix:{self._local}", "LBG_OBSERVED": f"unix:{self._observed}"}
                environment["LBG_APP"] = APPS.get(channel, channel)
                is_server = environment["LBG_APP"].startswith("http")
                if is_server:
                    environment["LBG_TARGET"] = f"unix:{self._socket}:/"
                where = self._socket if is_server else self._local
                await self._app.start(*application, time_ms, str(where))
                await self.member.start("-m", "lbgroup", "sidecar", environment=environment)

    @property
    def is_sidecar(self) -> bool:
        return self._app.process is not None

    async def leave(self) -> str | None:
        """As a pod ends: SIGTERM to the member, then to the application. Returns what went wrong."""
        self.member.terminate()
        status = await self.member.ended()
        problem = None
        if status is None:
            problem = f"{self.life} did not end within {ENDS_WITHIN_S:g} s"
        elif status:
            problem = f"{self.life} ended with status {status}: {self.member.last_line()}"
        if self.is_sidecar:
            self._app.terminate()
            if await self._app.ended() is None:
                problem = problem or f"the application of {self.life} did not end"
        return problem

    async def session_over(self, within_s: float) -> bool:
        """True if it ended after its session did. A sidecar stays, not ready, until it is stopped."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            if self.member.has_ended:
                return True
            if self.is_sidecar and b" 503 " in await self._readiness():
                return True
            await asyncio.sleep(0.2)
        return False

    async def _readiness(self) -> bytes:
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._observed))
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = await reader.readline()
            writer.close()
        except OSError:
            return b""
        return answer

    async def kill(self) -> None:
        await self.member.kill()
        await self._app.kill()


class PublisherProcess:
    """`lbg publish -`, fed with the generator's rows until it is told to end."""

    def __init__(self, broker: str, group: str, generator: Generator, directory: Path) -> None:
        self._argv = [
            *("-m", "lbgroup", "publish", "-", "--group", group, "--key", "key", "--broker", broker),
            *("--name", "generator", "--format", "jsonl"),
        ]
        self.process = Process("publisher", directory / "publisher.log")
        self._input = directory / "input.jsonl"
        self._generator = generator
        self._over = asyncio.Event()
        self._feeding: asyncio.Task[None] | None = None

    async def start(self, rate: float) -> None:
        """The backlog at once, and then so many a second."""
        await self.process.start(*self._argv, piped=True)
        self._feeding = asyncio.create_task(self._feed(rate))

    async def _feed(self, rate: float) -> None:
        await self._give(self._generator.backlog())
        began_at = time.monotonic()
        given = 0
        while not self._over.is_set():
            due = int((time.monotonic() - began_at) * rate) - given
            if due:
                given += due
                await self._give(self._generator.rows(due))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), max(TICK_S, 1 / rate / 4))

    async def _give(self, rows: bytes) -> None:
        """They are on file before the publisher has them."""
        with self._input.open("ab") as file:
            file.write(rows)
        assert self.process.process is not None
        assert self.process.process.stdin is not None
        self.process.process.stdin.write(rows)
        await self.process.process.stdin.drain()

    async def end(self, within_s: float) -> str | None:
        """End of input. Returns what went wrong: status 0 says that the broker confirmed every row."""
        self._over.set()
        assert self._feeding is not None
        try:
            await asyncio.wait_for(self._feeding, within_s)
        except (TimeoutError, OSError) as error:
            return f"the publisher takes no more rows ({error!r}): {self.process.last_line()}"
        assert self.process.process is not None
        assert self.process.process.stdin is not None
        self.process.process.stdin.close()
        status = await self.process.ended(within_s)
        return f"the publisher ended with {status}: {self.process.last_line()}" if status != 0 else None

    async def kill(self) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.wait((self._feeding,))
        await self.process.kill()


class Brokers:
    """An embedded broker for each cell, and one RabbitMQ node for all. `prepare` in the main thread."""

    def __init__(self) -> None:
        self._rabbit: RabbitNode | None = None
        self._cells = 0

    def prepare(self, engines: set[str]) -> None:
        if "rabbitmq" in engines:
            self._rabbit = RabbitNode()
            self._rabbit.start()

    def close(self) -> None:
        if self._rabbit is not None:
            self._rabbit.close()
            self._rabbit = None

    def group(self) -> str:
        """A name that no other cell of this run has."""
        self._cells += 1
        return f"{GROUP}-{self._cells}"

    @asynccontextmanager
    async def of(self, cell: Cell, directory: Path) -> AsyncIterator[tuple[str, str]]:
        """(AMQP, management) addresses for this cell."""
        if cell.engine == "rabbitmq":
            assert self._rabbit is not None
            yield self._rabbit.amqp_url, self._rabbit.management_url
            return
        broker = EmbeddedBroker(directory / "broker")
        await asyncio.to_thread(broker.start)
        try:
            yield broker.url, broker.management_url
        finally:
            await asyncio.to_thread(broker.kill)


async def lbg(directory: Path, *words: str, within_s: float = ENDS_WITHIN_S) -> tuple[int | None, str]:
    """The exit status of a command of `lbg`, None where it did not end, and its output."""
    with tempfile.NamedTemporaryFile(dir=directory, prefix="lbg-", suffix=".log", delete=False) as file:
        command = Process("lbg", Path(file.name))
    await command.start("-m", "lbgroup", *words)
    status = await command.ended(within_s)
    await command.kill()
    return status, command.log.read_text(errors="replace")


def is_closed_first(cell: Cell) -> bool:
    """True if a member's session is closed before it leaves for good (docs/modes.md)."""
    return cell.mode == SESSIONS
