"""Processes of LBG without the time that their imports take.

Most of what a test's process costs is the import of what it needs: 0.3 s for a broker, 0.7 s for a member. `install`
makes every `subprocess.Popen` of this process (and so each of asyncio's) start `python -m lbgroup` and `python -m
testing.…` as a fork of one process that has imported the modules. It is a process of its own and a child of this one,
with the descriptors, umask, working directory and environment that it would have. Two servers take turns: texts hash
otherwise in each, as in any two processes. Other programs, other options of Python, and an environment that differs
where Python or a library reads it at its start, make an ordinary process.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import itertools
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from testing import ROOT

IMPORTED = (
    "lbg_broker",
    "lbg_core.admin",
    "lbg_sidecar.inbox",
    "lbgroup.broker",
    "lbgroup.consume",
    "lbgroup.dead_letters",
    "lbgroup.group",
    "lbgroup.publish",
    "lbgroup.runner",
    "lbgroup.unrouted",
    "lbgroup.validate",
    "sqlite3",
)
FREE_NAMES = ("LBG_", "OTEL_", "PYTEST_CURRENT_TEST", "TMPDIR", "TERM", "COLUMNS", "LINES")
"""Beginnings of the variables that nothing reads before a program's own code."""
WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
DIRECTLY = ("env",)
"""Put before a command, for a test of what the system shows of a process: it becomes the command, and nothing forks."""

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
_LONGEST = 1 << 20
"""Longest request, in bytes."""


@dataclass(frozen=True)
class Start:
    """Process to become: `argv` begins with the module. `with_parent`: ends when the process `parent` does."""

    argv: list[str]
    cwd: str
    environment: dict[str, str]
    parent: int
    umask: int
    own_session: bool
    with_parent: bool


class ForkServer:
    """The process with the modules, from the first `start` on."""

    _lock: ClassVar = threading.Lock()  # of all: while one starts a process, orphans are this process's

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def start(self, told: Start, descriptors: list[int]) -> int:
        """The process ID of a child of this process; `descriptors`: its standard input and outputs."""
        with self._lock:
            if self._socket is None:
                self._socket = self._serve()
            # The new process is the child of a child that ends: for as long as that takes, orphans are this process's.
            _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._socket, [pickle.dumps(told)], descriptors)
                return int(self._socket.recv(_LONGEST))
            finally:
                _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def _serve(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST)
        command = [sys.executable, "-m", "testing.fork_server", str(theirs.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])
        theirs.close()

        def end() -> None:
            ours.close()
            process.wait()

        atexit.register(end)
        return ours


def install() -> None:
    """Once, before the first process starts."""
    servers, fork_exec = itertools.cycle((ForkServer(), ForkServer())), subprocess._fork_exec
    owner, at_start = os.getpid(), dict(os.environ)

    def start(
        args: list[Any],
        executables: tuple[bytes, ...],
        close_fds: bool,
        kept: tuple[int, ...],
        cwd: Any,
        environment: list[bytes] | None,
        *more: Any,
    ) -> int:
        read, _, _, write, _, write_errors, _, failed, _, own_session, *rest = more
        argv = [os.fsdecode(one) for one in args]
        told = _start(argv, cwd, environment, own_session)
        is_plain = close_fds and kept == (failed,) and rest[:6] == [-1, None, None, None, -1, None]
        if os.getpid() != owner or told is None or not is_plain or not _is_free(told.environment, at_start):
            pid: int = fork_exec(args, executables, close_fds, kept, cwd, environment, *more)
            return pid
        standard = (read, write, write_errors)
        return next(servers).start(told, [n if given < 0 else given for n, given in enumerate(standard)])

    subprocess._fork_exec = start


def _start(argv: list[str], cwd: Any, environment: list[bytes] | None, own_session: bool) -> Start | None:
    """None for a command that an ordinary process has to be."""
    with_parent = tuple(argv[:3]) == WITH_PARENT
    python, *words = argv[3:] if with_parent else argv
    if python != sys.executable or words[:1] != ["-m"] or words[1:2] in ([], ["testing.fork_server"]):
        return None
    place = os.path.abspath(os.fsdecode(cwd or "."))
    package = words[1].partition(".")[0]
    is_found = package == "lbgroup" or (package == "testing" and place == str(ROOT))
    if not is_found or not os.path.isdir(place):
        return None
    pairs = (os.fsdecode(one).partition("=") for one in environment or ())
    return Start(
        words[1:],
        place,
        dict(os.environ) if environment is None else {name: value for name, _, value in pairs},
        os.getpid(),
        _umask(),
        own_session,
        with_parent,
    )


def _umask() -> int:
    """Of this process, without changing it (proc(5))."""
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("Umask:"))
    return int(line.split()[1], 8)


def _is_free(environment: dict[str, str], at_start: dict[str, str]) -> bool:
    differing = {name for name, _ in environment.items() ^ at_start.items()}
    return all(name.startswith(FREE_NAMES) for name in differing)


def _become(told: Start, descriptors: list[int], between: int, to_starter: int) -> Callable[[], object]:
    """In the new process; returns its program. SIGINT is blocked until the program begins, and comes then. Who started
    it is told once it can be signalled: by `killpg` too, where it has a session of its own."""
    while os.getppid() == between:
        time.sleep(0.0005)
    if told.with_parent:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != told.parent:  # who started it is gone
        os._exit(1)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if told.own_session:
        os.setsid()
    os.write(to_starter, str(os.getpid()).encode())
    os.close(to_starter)
    os.umask(told.umask)
    os.chdir(told.cwd)
    os.environ.clear()
    os.environ.update(told.environment)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=os.isatty(1))
    sys.path[0] = told.cwd
    sys.argv = told.argv
    return partial(_run, told.argv[0])


def _run(module: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _serve(requests: socket.socket) -> Callable[[], object]:
    """Forks until nobody asks any more; returns in each new process, and in this one at the end."""
    while True:
        request, descriptors, *_ = socket.recv_fds(requests, _LONGEST, 3)
        if not request:
            return lambda: None
        to_read, to_write = os.pipe()
        between = os.fork()
        if not between:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            os.close(to_read)
            requests.close()
            return _become(pickle.loads(request), descriptors, between, to_write)
        os.close(to_write)
        os.waitpid(between, 0)
        with suppress(BrokenPipeError):
            requests.send(os.read(to_read, 100))
        for descriptor in (*descriptors, to_read):
            os.close(descriptor)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))()


if __name__ == "__main__":
    # The class that requests are made of has its name in the process that asks.
    from testing import fork_server

    fork_server.main()
