"""Approaches that `comparison` compares: for each a broker, a publisher and a consumer, a module each.

A module has `broker(directory)`, a context manager that starts its broker on loopback; `declare(url)`;
`publisher(url)`, a `Publisher`; and `consume(work, url, name, …)`, which says "ready" and returns after SIGTERM. Each
client is used as its documentation recommends, and acknowledges after the work.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from testing.waiting import GUARD_S
from testing.work_log import DONE

GROUP = "compare"
PARTITIONS = 8
"""Queues, partitions or streams of every approach that has them."""

CONSUMERS = 4
PREFETCH = 250
"""Of what RabbitMQ's guide to consumer acknowledgements calls usually best, 100 to 300."""

ACK_EVERY = 50
ACK_AFTER_S = 0.02
"""One cumulative acknowledgement for so many messages, or after so long."""

TASK = struct.Struct(">IId")  # number of the message, key, how long its work takes in seconds


class MissingError(RuntimeError):
    """A program that an approach needs is not here; the message is how to get it."""


class Publisher(Protocol):
    async def send(self, messages: list[tuple[str, bytes]]) -> None:
        """Keys and bodies, in their order; waits while too much is unconfirmed."""

    async def flush(self) -> None:
        """Returns when all is confirmed."""


@dataclass(frozen=True)
class Broker:
    url: str
    pid: int


class Work:
    """Work of an application on a message: a wait, as for a database, and a visible effect."""

    def __init__(self, log: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def do(self, body: bytes) -> None:
        number, key, wait_s = TASK.unpack_from(body)
        if wait_s:
            await asyncio.sleep(wait_s)
        os.write(self._log, DONE.pack(time.monotonic_ns(), number, key))

    def do_blocking(self, body: bytes) -> None:
        number, key, wait_s = TASK.unpack_from(body)
        if wait_s:
            time.sleep(wait_s)
        os.write(self._log, DONE.pack(time.monotonic_ns(), number, key))


def leaving() -> asyncio.Event:
    """Set by SIGTERM."""
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, event.set)
    return event


def program(name: str, variable: str, how: str) -> str:
    """Path of a program, from an environment variable or PATH. Raises MissingError."""
    path = os.environ.get(variable) or shutil.which(name)
    if path is None:
        raise MissingError(f"no {name} in PATH or {variable}: {how}")
    return path


@contextmanager
def process(command: list[str], port: int, directory: Path) -> Iterator[int]:
    """Process id of a server that listens on the port of 127.0.0.1. Raises RuntimeError with its output if it ends."""
    output = directory / "output"
    with output.open("ab") as file:
        server = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + GUARD_S
        while not _listens(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not listen:\n{output.read_text()[-2000:]}")
            time.sleep(0.05)
        yield server.pid
    finally:
        server.kill()
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
