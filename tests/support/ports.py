"""TCP ports on loopback for servers of tests, which may run in several processes at once."""

from __future__ import annotations

import itertools
import os
import re
import socket

FIRST, EACH = 10_000, 4_000
"""Below the ports that the kernel gives to clients (Linux: from 32768), and each process has its own of them, so that
nobody gets a port between its choice and its use."""

_WORKER = re.search(r"\d+", os.environ.get("PYTEST_XDIST_WORKER", ""))
_START = FIRST + EACH * (int(_WORKER[0]) % 5 if _WORKER is not None else 0)
_NEXT = itertools.count(os.getpid())


def free_port() -> int:
    """A port nobody listens on now; this process gives it to nobody else for a long time."""
    while True:
        port = _START + next(_NEXT) % EACH
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
