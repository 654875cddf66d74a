"""The processes of a run: members, which have one life after another, and publishers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from testing import ROOT
from testing.chaos.application import CALM, Mood
from testing.chaos.member import COULD_NOT_JOIN
from testing.half_open import HalfOpenProxy

RESTART_S = 1.0
LEAVE_WITHIN_S = 60.0
_CUT_OFF = re.compile(r"; ([\d,]+) running calls? (?:was|were) aborted")


class Process:
    """One process in a session of its own, so that a signal reaches what it started too."""

    def __init__(self, argv: list[str], log: Path) -> None:
        self._argv = argv
        self.log = log
        self._process: asyncio.subprocess.Process | None = None
        self.ends_on_purpose = False

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", "KILL", sys.executable, *self._argv),
                cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    async def ended(self, timeout_s: float | None = None) -> int:
        """Its exit status. Raises TimeoutError."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), timeout_s)

    async def kill(self) -> None:
        self.ends_on_purpose = True
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        if self._process is not None:
            await self.ended()

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


class Wire:
    """Path of one member or publisher to the broker's nodes.
    A proxy for each, which can be cut or fall silent."""

    def __init__(self, ports: list[int]) -> None:
        self._proxies = [HalfOpenProxy(("127.0.0.1", port)) for port in ports]

    async def open(self) -> None:
        for proxy in self._proxies:
            await proxy.start()

    async def close(self) -> None:
        for proxy in self._proxies:
            await proxy.stop()

    def urls(self, login: str, heartbeat_s: int) -> list[str]:
        return [
            f"amqp://{login}@127.0.0.1:{proxy.port}/?heartbeat={heartbeat_s}&connection_timeout=5"
            for proxy in self._proxies
        ]

    def cut(self) -> None:
        for proxy in self._proxies:
            proxy.reset()

    def silence(self) -> None:
        for proxy in self._proxies:
            proxy.silence()

    def heal(self) -> None:
        for proxy in self._proxies:
            proxy.heal()


class MemberSlot:
    """A member that is started again whenever it ends: each time a new life with a ledger and a log of its own.

    `lives` numbers those of all slots. `on_problem` is told what must never happen, and `on_cut_off` at the end of a
    life that says it moved queues before they were drained: the life, since when (ns) and how many messages.
    """

    def __init__(
        self,
        name: str,
        wire: Wire,
        directory: Path,
        settings: dict[str, Any],
        *,
        as_command: bool,
        lives: Iterator[int],
        on_problem: Callable[[str], None],
        on_cut_off: Callable[[int, int, int], None],
    ) -> None:
        self.name = name
        self.wire = wire
        self.lock = asyncio.Lock()
        self.lived: list[int] = []
        self.settings = settings
        self._directory = directory
        self._as_command = as_command
        self._lives = lives
        self._on_problem = on_problem
        self._on_cut_off = on_cut_off
        self._begun_ns = 0
        self._mood = directory / f"{name}.mood"
        self._process: Process | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def life(self) -> int:
        """The number of the present life, or of the last one."""
        return self.lived[-1]

    def lives_since(self, life: int) -> tuple[int, ...]:
        return tuple(each for each in self.lived if each >= life)

    async def start(self) -> None:
        self.lived.append(next(self._lives))
        self._begun_ns = time.monotonic_ns()
        ledger = self._directory / f"{self.life}.ledger"
        argv = self._command_argv(ledger) if self._as_command else self._member_argv(ledger)
        process = self._process = Process(argv, self._directory / f"{self.name}-{self.life}.log")
        await process.start()
        self._watch = asyncio.create_task(self._stay(process))

    def feel(self, mood: Mood = CALM) -> None:
        mood.write(self._mood)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.signal(number)

    async def kill(self) -> None:
        process = self._process
        if process is not None:
            await process.kill()
            self._is_over(process)
        await self._unwatch()

    async def leave(self) -> None:
        """SIGTERM, and wait for the end."""
        process = self._process
        if process is None:
            return
        process.ends_on_purpose = True
        process.signal(signal.SIGTERM)
        try:
            status = await process.ended(LEAVE_WITHIN_S)
        except TimeoutError:
            self._on_problem(
                f"{self.name} did not leave within {LEAVE_WITHIN_S:g} s:\n{process.last_words()}"
            )
            await process.kill()
        else:
            if status not in (0, COULD_NOT_JOIN) and self._is_broken(process, status):
                self._on_problem(f"{self.name} left with status {status}:\n{process.last_words()}")
        self._is_over(process)
        await self._unwatch()

    async def joined(self, timeout_s: float = 60) -> None:
        """Raises TimeoutError, with what it said last."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while "live members" not in self._process.log.read_text(errors="replace"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} did not join: {self._process.last_words()}")
            await asyncio.sleep(0.1)

    async def _stay(self, process: Process) -> None:
        """Start it again when it could not join, as an orchestrator would; anything else is a problem."""
        status = await process.ended()
        if process.ends_on_purpose:
            return
        if self._is_broken(process, status):
            self._on_problem(f"{self.name} ended by itself with status {status}:\n{process.last_words()}")
        self._is_over(process)
        await asyncio.sleep(RESTART_S)
        await self.start()

    def _is_over(self, process: Process) -> None:
        cut_off = sum(
            int(count.replace(",", "")) for count in _CUT_OFF.findall(process.log.read_text(errors="replace"))
        )
        if cut_off:
            self._on_cut_off(self.life, self._begun_ns, cut_off)

    def _is_broken(self, process: Process, status: int) -> bool:
        said = process.log.read_text(errors="replace")
        if status == -signal.SIGTERM and not said:
            return False  # it was asked to leave before it had begun
        if self._as_command:
            return status <= 0 or "Traceback" in said
        return status != COULD_NOT_JOIN

    async def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        if self._process is not None and not self._process.ends_on_purpose:
            await self._process.kill()  # the watch had just started another
        self._process = None

    def _member_argv(self, ledger: Path) -> list[str]:
        told = {
            "settings": {**self.settings, "name": self.name},
            "ledger": str(ledger),
            "mood": str(self._mood),
        }
        return ["-m", "testing.chaos.member", json.dumps(told)]

    def _command_argv(self, ledger: Path) -> list[str]:
        settings = self.settings
        return [
            *(
                "-m",
                "lbgroup",
                "consume",
                "--broker",
                ",".join(settings["broker"]),
                "--group",
                settings["group"],
            ),
            *(
                "--name",
                self.name,
                "--index",
                str(settings["index"]),
                "--prefetch",
                str(settings["prefetch"]),
            ),
            *("--rebalance-delay", str(settings["rebalance_delay_s"])),
            *("--call-timeout", str(settings["call_timeout_s"])),
            *("--", sys.executable, "-m", "testing.chaos.command", str(ledger), str(self._mood)),
        ]


class PublisherSlot:
    """A publisher with a state file: started again after a kill, it goes on where it was."""

    def __init__(self, wire: Wire, directory: Path, told: dict[str, Any]) -> None:
        self.wire = wire
        self.lock = asyncio.Lock()
        self.name = told["name"]
        self.report = directory / f"{self.name}.report"
        told = {
            **told,
            "file": str(directory / f"{self.name}.jsonl.gz"),
            "state": str(directory / f"{self.name}.state"),
            "report": str(self.report),
        }
        argv = ["-m", "testing.chaos.publisher", json.dumps(told)]
        self.process = Process(argv, directory / f"{self.name}.log")
        self._begins = asyncio.Event()

    async def start(self) -> None:
        self.process.ends_on_purpose = False
        await self.process.start()
        self._begins.set()

    async def kill(self) -> None:
        self._begins.clear()
        await self.process.kill()

    async def done(self) -> int:
        """The status with which it ended by itself, however often it was killed on the way."""
        while True:
            await self._begins.wait()
            status = await self.process.ended()
            if not self.process.ends_on_purpose:
                return status
            await asyncio.sleep(0.05)
