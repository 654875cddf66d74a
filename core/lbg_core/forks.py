"""Forked children: they have no locked file, no connection and no running event loop of their parent.

A child that is forked without an exec (`os.fork`, multiprocessing's method `fork`) shares every descriptor with its
parent. A lock (flock) and a connection end when the last process that has them ends: after a kill -9 of the parent a
worker of its process pool would keep the parent's lock, its connection to the broker, and with that its place in the
group. And a child that goes on with the parent's event loop would be a second member on one connection.

So what this process `own`s is replaced by /dev/null in each child, before `os.fork` returns there. A descriptor stays
valid, so that nobody's file gets its number, and closing it does nothing to the parent: no shutdown of a socket, no
removal from a shared epoll. The lock is flock and not lockf: that one is not inherited, but it ends when any descriptor
of the file is closed in the process, for instance by a reader, and it does not exclude two of one process.

A child that is forked by other code than Python's does not call the hook.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import mmap
import os
import signal
import sys
import traceback
from contextlib import suppress
from types import TracebackType
from weakref import WeakSet

log = logging.getLogger("lbg.forks")

_descriptors: dict[int, tuple[int, int]] = {}
"""Device and inode of each: a number that is another file's by now is left alone."""
_maps: WeakSet[mmap.mmap] = WeakSet()
_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_kept: list[object] = []
"""Callbacks that were due when a child was forked."""


def own(descriptor: int) -> None:
    """No child that is forked from now on has this open file or socket."""
    status = os.fstat(descriptor)
    _descriptors[descriptor] = status.st_dev, status.st_ino


def own_map(mapped: mmap.mmap) -> None:
    """No child has this map, which holds the lock of its file as a descriptor does."""
    _maps.add(mapped)


def own_loop(loop: asyncio.AbstractEventLoop) -> None:
    """A child that goes on with this event loop ends at its next look for events, as at the end of a `ForkGuard`."""
    _loops.add(loop)


def lock(descriptor: int) -> bool:
    """Lock an open file for this process, until it is closed or the process ends. False: another has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    own(descriptor)
    return True


class ForkGuard:
    """A `with` block around a call of the application: a child that the call forked ends at the end of the block.

    Its exit status is that of `sys.exit`; 1 if it returned or raised.
    """

    def __init__(self) -> None:
        self._process = os.getpid()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._process:
            _end_child(error)


def _end_child(error: BaseException | None) -> None:
    """Without the cleanup of the interpreter, which would be that of the parent's tasks and threads."""
    status = 1
    try:
        if isinstance(error, SystemExit):
            if error.code is None or isinstance(error.code, int):
                status = error.code or 0
            else:
                sys.stderr.write(f"{error.code}\n")
            sys.stdout.flush()
        else:
            if error is not None:
                traceback.print_exception(error)
            log.error(
                "a child process that a handler forked has left the handler, or awaits: it is ended with status 1; "
                "end it by os._exit, or use subprocess or multiprocessing"
            )
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)


def _in_child() -> None:
    for mapped in list(_maps):
        with suppress(BufferError):
            mapped.close()
    running = [loop for loop in _loops if loop.is_running()]
    if running:
        with suppress(ValueError):  # not in the main thread
            # A signal of the child would be one of the parent. Since Python 3.12 asyncio does it.
            signal.set_wakeup_fd(-1)
    for descriptor, file in _descriptors.items():
        with suppress(OSError):
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) == file:
                _replace(descriptor)
    for loop in running:
        _end_loop(loop)
    for owned in (_descriptors, _maps, _loops):
        owned.clear()


def _end_loop(loop: asyncio.AbstractEventLoop) -> None:
    """No other task takes a step in this child. By the insides of asyncio's loops; others end by their lost sockets.

    An error in place of events would not do: the interpreter closes the coroutines of all tasks at its end, which runs
    their `finally` and `async with`.
    """
    selector = getattr(loop, "_selector", None)  # on Linux an epoll, which is shared with the parent
    if (fileno := getattr(selector, "fileno", None)) is not None:
        _replace(fileno())
    for handle in tuple(getattr(loop, "_ready", ())):
        # A task that nothing else refers to would end here: it would run its `finally`, and take its socket out of what
        # the parent polls.
        _kept.append((getattr(handle, "_callback", None), getattr(handle, "_args", None)))
        handle.cancel()
    if selector is not None:
        # A `sys.exit` in a task of the application leaves the loop, which `asyncio.run` then runs to cancel all tasks.
        selector.select = lambda timeout=None: _end_child(sys.exc_info()[1])


def _replace(descriptor: int) -> None:
    """By /dev/null, which gets its number as soon as that is free: a process at its limit has no other."""
    os.close(descriptor)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    if null != descriptor:
        os.dup2(null, descriptor, inheritable=False)
        os.close(null)


os.register_at_fork(after_in_child=_in_child)
