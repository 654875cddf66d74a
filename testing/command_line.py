"""`lbg` in tests: what a command answered, and where a broker is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True)
class Said:
    """Result of a command."""

    status: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.err.strip().splitlines()[-1] if self.err.strip() else ""


Lbg = Callable[..., Said]


@dataclass(frozen=True)
class Where:
    """A broker's addresses, with the login in them."""

    broker: str
    management: str

    @property
    def options(self) -> tuple[str, ...]:
        return ("--broker", self.broker, "--management", self.management)


_started: list[subprocess.Popen[str]] = []


def start_lbg(
    *arguments: str,
    under: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    stdin: int | None = None,
    stdout: int | IO[str] = subprocess.PIPE,
    stderr: int | IO[str] = subprocess.PIPE,
    terminal: int | None = None,
) -> subprocess.Popen[str]:
    """`lbg ARGUMENTS` as a process, with pipes by default; `end_started` ends it if the test does not. `under`: a
    command that becomes it. `terminal`: a descriptor of one, which becomes its standard input and outputs."""
    if terminal is not None:
        stdin = stdout = stderr = terminal
        environment = {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"} | dict(environment or {})
    process = subprocess.Popen(
        [*under, sys.executable, "-m", "lbgroup", *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=True,
        start_new_session=terminal is not None,
        env={**clean_environment(), **(environment or {})},
    )
    _started.append(process)
    return process


def end_started() -> None:
    """Kill what a test started and left behind, and close its pipes."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LBG_")}
