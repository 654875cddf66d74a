"""Child processes that are `lbg` commands: none outlives its parent."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lbgroup.commands import CliError

LBG = (sys.executable, "-m", "lbgroup")
LINE_MAX_BYTES = 8 * 1024 * 1024
"""The validator's report is one line, with every move in it."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Loaded here: after the fork of a child nothing may be imported any more."""


def die_with_parent() -> None:
    """Called in a child, before its program. Linux: the kernel kills it when the thread that started it ends, as when
    the process is killed (prctl(2), PR_SET_PDEATHSIG)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


@dataclass(slots=True)
class ChildProcess:
    """One process. `is_expected_to_end` is set before it is ended on purpose."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    reader: asyncio.Task[None] | None = None
    is_expected_to_end: bool = False

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        self.is_expected_to_end = True
        if self.is_running:  # else its number may be somebody else's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def last_line(self) -> str:
        """Last line of its standard error."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"


class ProcessGroup:
    """Processes that end with the block at the latest."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: list[ChildProcess] = []

    async def __aenter__(self) -> ProcessGroup:
        return self

    async def __aexit__(self, *args: object) -> None:
        for child in self._children:
            child.signal(signal.SIGKILL)
            await child.process.wait()
            if child.reader is not None:
                child.reader.cancel()

    async def start(
        self,
        name: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> ChildProcess:
        """Start `lbg ARGUMENTS`; `on_line` gets each line of its standard output."""
        log = self._directory / f"{name}.log"
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *LBG,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if on_line else asyncio.subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
                limit=LINE_MAX_BYTES,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        child = ChildProcess(name, process, log)
        if on_line is not None:
            child.reader = asyncio.ensure_future(_read_lines(process, on_line))
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raises CliError for a child that ended on its own with an error."""
        for child in self._children:
            is_read = child.reader is None or child.reader.done()
            if child.process.returncode and is_read and not child.is_expected_to_end:
                status = child.process.returncode
                raise CliError(f"{child.name} ended with status {status}: {child.last_line()}")


async def _read_lines(process: asyncio.subprocess.Process, on_line: Callable[[str], None]) -> None:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        on_line(line.decode("utf-8", "replace"))
