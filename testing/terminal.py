"""A terminal with a shell, into which tests paste what pages show."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from testing.command_line import clean_environment
from testing.waiting import GUARD_S

PROMPT = "ready> "


class Terminal:
    """An interactive bash in a directory. `path`: its directories of commands, before those of the system."""

    def __init__(self, directory: Path, path: Path) -> None:
        self._ours, theirs = pty.openpty()
        self._said = bytearray()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", "bash", "--norc"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=directory,
            env={
                **clean_environment(),
                "PATH": f"{path}:{os.environ['PATH']}",
                "PYTHONUNBUFFERED": "1",
                "TERM": "dumb",
                "PS1": PROMPT,
            },
        )
        os.close(theirs)
        os.set_blocking(self._ours, False)

    @property
    def screen(self) -> str:
        with suppress(BlockingIOError, OSError):
            while part := os.read(self._ours, 1 << 16):
                self._said += part
        return self._said.decode().replace("\r\n", "\n")

    def type(self, text: str) -> None:
        """At the prompt: what comes before it is lost with Ctrl-C."""
        self.shows(lambda screen: screen.endswith(PROMPT))
        assert os.write(self._ours, text.encode()) == len(text.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.write(self._ours, b"\x03")

    def leave(self) -> None:
        """Ends the shell. Raises AssertionError if its last command failed."""
        self.type("exit\n")
        assert self.process.wait(GUARD_S) == 0, self.screen

    def shows(self, done: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + GUARD_S
        while not done(self.screen):
            assert self.process.poll() is None, self.screen
            assert time.monotonic() < deadline, self.screen
            time.sleep(0.02)

    @property
    def handled(self) -> list[dict[str, Any]]:
        """Messages that `lbg consume` printed."""
        return [json.loads(line) for line in self.screen.splitlines() if line.startswith('{"id"')]

    def close(self) -> None:
        os.close(self._ours)  # the shell and what it runs get SIGHUP
        self.process.wait()
