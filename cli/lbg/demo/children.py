"""The demo's processes: each in a group of its own, none of which outlives the demo."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lbg.failing import Failure

LBG = (sys.executable, "-m", "lbg")
TERM_TIMEOUT_S = 5.0
LINE_MAX_BYTES = 8 * 1024 * 1024
"""The validator's report is one line, with every move in it."""

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Child:
    """One process. `is_expected_to_end` is set before the demo ends it on purpose."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    is_expected_to_end: bool = False
    readers: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """To the process and whatever it started."""
        if not self.is_running:
            return  # its number may be somebody else's by now
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def last_words(self) -> str:
        """The last line it wrote to standard error."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else "it said nothing"


class Children:
    """Every process of a demo. Leaving the block ends them all: politely first, unless by an exception."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: list[Child] = []
        # Loaded here: after the fork of a child nothing may be imported any more.
        self._die_with_parent = _die_with_parent() if sys.platform == "linux" else None

    async def __aenter__(self) -> Children:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *args: object) -> None:
        running = [child for child in self._children if child.is_running] if kind is None else []
        for child in running:
            child.is_expected_to_end = True
            child.signal(signal.SIGTERM)
        ending = [asyncio.ensure_future(child.process.wait()) for child in running]
        if ending:
            await asyncio.wait(ending, timeout=TERM_TIMEOUT_S)
        for child in self._children:
            child.signal(signal.SIGKILL)
            await child.process.wait()
            for reader in child.readers:
                reader.cancel()

    async def start(
        self,
        name: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> Child:
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
                preexec_fn=self._die_with_parent,
            )
        child = Child(name, process, log)
        if on_line is not None:
            child.readers.append(asyncio.ensure_future(_read_lines(process, on_line)))
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raises Failure for a child that ended on its own with an error."""
        for child in self._children:
            unread = any(not reader.done() for reader in child.readers)
            if not child.is_running and child.process.returncode and not (child.is_expected_to_end or unread):
                raise Failure(
                    f"{child.name} ended with status {child.process.returncode}: {child.last_words()}"
                )


async def _read_lines(process: asyncio.subprocess.Process, on_line: Callable[[str], None]) -> None:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        on_line(line.decode("utf-8", "replace"))


def _die_with_parent() -> Callable[[], None]:
    """Linux: have the kernel kill the child when the demo is killed itself (prctl(2), PR_SET_PDEATHSIG)."""
    libc = ctypes.CDLL(None)

    def ask_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))

    return ask_kernel


def lbg_arguments(*parts: str | Sequence[str] | None) -> list[str]:
    """A command line; None is left out, sequences are spread."""
    arguments: list[str] = []
    for part in parts:
        if part is not None:
            arguments += [part] if isinstance(part, str) else part
    return arguments
