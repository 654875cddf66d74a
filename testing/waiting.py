"""Waiting for what another process or task will do."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

GUARD_S = 300.0
"""Longest wait for any event that has to come: less than a test's own limit, which names no event. Ten times what the
slowest event needs on an idle machine."""


async def until(
    condition: Callable[[], object], *, timeout_s: float = GUARD_S, every_s: float = 0.005, what: str = ""
) -> None:
    """Return when `condition` holds. Raises TimeoutError naming `what`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        if loop.time() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what or condition}")
        await asyncio.sleep(every_s)


async def until_answer(
    read: Callable[[], Awaitable[T]], holds: Callable[[T], object] = bool, *, every_s: float = 0.05
) -> T:
    """Returns the first answer for which `holds`, of somebody who says nothing unless asked. Raises TimeoutError."""
    async with asyncio.timeout(GUARD_S):
        while not holds(answer := await read()):  # noqa: ASYNC110 (only asking tells)
            await asyncio.sleep(every_s)
    return answer


async def passes(condition: Callable[[], object]) -> None:
    """Turn the loop until it is so; the test's own timeout is the limit."""
    while not condition():  # noqa: ASYNC110 (what counts is the turns of the loop)
        await asyncio.sleep(0)


def whole_lines(path: Path) -> list[str]:
    """Those that are there to their end, of a file that another process writes; [] if there is none yet."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def stop(pid: int) -> None:
    """SIGSTOP; returns when every thread stands: one that waits for a processor goes on for a while after the signal.

    Raises TimeoutError.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + GUARD_S
    while not _stands(pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} has not stopped {GUARD_S:g} s after SIGSTOP")
        time.sleep(0.002)


def _stands(pid: int) -> bool:
    states = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            states.append((thread / "stat").read_text().rpartition(") ")[2][0])
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            continue
    return all(state in "TZX" for state in states)
