"""TCP ports on loopback for servers of tests, which may run in several processes and several runs at once."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

FIRST, COUNT = 10_000, 22_000
"""Below the ports that the kernel gives to clients (Linux: from 32768): none is taken before its use."""


class Ports:
    """Gives each port to one process at a time.

    A process has the lock on one byte of `file` for each port that it was given, so that a server which was killed
    finds its port free when it is started again. The kernel gives the locks back when the process ends.
    """

    def __init__(self, file: Path, *, start: int) -> None:
        self._locks = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._next = start
        self._given: set[int] = set()

    def free(self) -> int:
        """A port that nobody listens on; until this process ends nobody else is given it."""
        assert len(self._given) < COUNT
        while True:
            port = FIRST + self._next % COUNT
            self._next += 1
            if port not in self._given and self._is_locked(port) and _is_unused(port):
                self._given.add(port)
                return port

    def _is_locked(self, port: int) -> bool:
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        return True


def _is_unused(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


free_port = Ports(
    Path(tempfile.gettempdir(), f"lbg-test-ports-{os.getuid()}"),
    start=os.getpid() * 97,  # far from the process that was started just before: few locks to try
).free
