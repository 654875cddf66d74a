"""`noting_app` as a process of a test, and waiting for a sidecar without standing still."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testing import ROOT
from testing.app.notes import Notes
from testing.sidecar.process import SidecarProcess
from testing.waiting import GUARD_S, stop, until

NOTING_APP = Path(__file__).with_name("noting_app.py")


async def until_so(
    sidecar: SidecarProcess, condition: Callable[[], Any], *, timeout_s: float = GUARD_S
) -> None:
    """Raises AssertionError with the sidecar's log when it ends, or when `condition` does not come."""

    def holds() -> bool:
        if condition():
            return True
        assert sidecar.process.poll() is None, sidecar.text
        return False

    try:
        await until(holds, timeout_s=timeout_s, every_s=0.05)
    except TimeoutError:
        raise AssertionError(sidecar.text) from None


async def exit_status(sidecar: SidecarProcess, *, within_s: float = GUARD_S) -> int:
    """Raises AssertionError with its log when it does not end."""
    try:
        await until(lambda: sidecar.process.poll() is not None, timeout_s=within_s, every_s=0.05)
    except TimeoutError:
        raise AssertionError(sidecar.text) from None
    assert sidecar.process.returncode is not None
    return sidecar.process.returncode


class NotingApp:
    """`noting_app` with notes of its own, which it goes on with after a kill."""

    def __init__(self, directory: Path, name: str = "a", *, work_s: float = 0.002) -> None:
        self.notes_file = directory / f"{name}.notes"
        self.notes = Notes(self.notes_file)
        self._hang = directory / f"{name}.notes.hang"
        self._stubborn = directory / f"{name}.notes.stubborn"
        self._arguments = [str(self.notes_file), str(work_s)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> str:
        """For LBG_COMMAND: the sidecar starts it."""
        return shlex.join([sys.executable, str(NOTING_APP), *self._arguments, "command"])

    def hang(self) -> None:
        """Later calls never end."""
        self._hang.touch()

    def ignore_the_end(self) -> None:
        """Processes started later end by SIGKILL alone."""
        self._stubborn.touch()

    def freeze(self) -> None:
        """SIGSTOP."""
        assert self._process is not None
        stop(self._process.pid)

    def start(self, channel: str, socket: Path) -> None:
        command = [sys.executable, "-m", "testing.app.noting_app", *self._arguments, channel, str(socket)]
        self._process = subprocess.Popen(command, cwd=ROOT)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
