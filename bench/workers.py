"""Processes of a measurement: each runs `python -m bench.MODULE --worker`, is told in JSON what to do, and answers in
lines of JSON on its standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from testing import ROOT

_TICKS_HZ = os.sysconf("SC_CLK_TCK")


class Worker:
    """One process, seen from the measurement. It is killed when the measurement dies."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._answers: dict[str, dict[str, Any]] = {}
        self._changed = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, module: str, **told: Any) -> Worker:
        command = ("setpriv", "--pdeathsig", "KILL", sys.executable, "-m", f"bench.{module}", "--worker")
        process = await asyncio.create_subprocess_exec(
            *command,
            json.dumps(told),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """True if it ended by itself or was killed."""
        return self._process.returncode is not None

    def last(self, kind: str) -> dict[str, Any]:
        """Latest report of this kind; {} before the first."""
        return self._answers.get(kind, {})

    async def answer(self, kind: str, *, timeout_s: float = 60) -> dict[str, Any]:
        """First report of this kind.
        Raises TimeoutError, and RuntimeError if the worker ends instead."""
        async with asyncio.timeout(timeout_s):
            while kind not in self._answers:
                if self._reader.done():
                    raise RuntimeError(
                        f"a worker ended without saying {kind!r}: status {self._process.returncode}"
                    )
                self._changed.clear()
                await self._changed.wait()
        return self._answers[kind]

    async def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def stop(self) -> dict[str, Any]:
        """SIGTERM; returns what it says as `done`."""
        self.signal(signal.SIGTERM)
        done = await self.answer("done")
        await self._process.wait()
        return done

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reader

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                said = json.loads(line)
                self._answers[said.pop("kind")] = said
                self._changed.set()
        finally:
            self._changed.set()


def say(kind: str, **fields: Any) -> None:
    """In a worker: one answer."""
    os.write(1, json.dumps({"kind": kind, **fields}).encode() + b"\n")


def cpu_s(pid: int) -> float:
    """CPU time that a living process has used, its threads included (proc(5), /proc/pid/stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_HZ


def resident_mb(pid: int) -> float:
    """Resident memory in MB of 10^6 bytes (proc(5), /proc/pid/statm)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
