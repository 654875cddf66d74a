"""A command as a process: it leads a group of its own, and dies with this one."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shlex
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..errors import CommandFailed

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


async def spawn(command: Sequence[str]) -> Process:
    """With pipes to its standard input and output. Raises CommandFailed when it cannot be started at all."""
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,  # a process group of its own, to be killed as a whole
            preexec_fn=_die_with(os.getpid()),
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CommandFailed(shlex.join(command), why) from error


def signal_group(process: Process, number: signal.Signals) -> None:
    """To the command and everything it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def has_ended(process: Process, within_s: float) -> bool:
    """End its input and, after half of the time, send SIGTERM to the group; returns when it has ended, or then."""
    assert process.stdin is not None
    process.stdin.close()
    await _wait_for_end(process, within_s / 2)
    if process.returncode is None:
        signal_group(process, signal.SIGTERM)
        await _wait_for_end(process, within_s / 2)
    return process.returncode is not None


async def _wait_for_end(process: Process, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await process.wait()


def described(status: int) -> str:
    """How it ended, for a person."""
    if status < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def _die_with(parent: int) -> Callable[[], None] | None:
    """On Linux the command is killed when the member is, also by SIGKILL: what it holds is delivered elsewhere."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return before_exec
