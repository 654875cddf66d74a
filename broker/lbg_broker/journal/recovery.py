"""Closing what a crashed writer left open.

A writer holds a lock (flock) on its open file for as long as it lives; the kernel drops it with the process.
So an open file without a lock is a leftover: it is cut after its last whole line and renamed, or removed if
it is empty.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from .naming import closed_path, is_open_name

_BLOCK_BYTES = 64 * 1024


def recover(directory: Path) -> list[Path]:
    """Close every leftover in `directory`, whoever left it; returns the files that are now closed. Raises
    OSError.
    """
    recovered = []
    for name in sorted(os.listdir(directory)):
        if is_open_name(name):
            closed = _close_leftover(directory / name)
            if closed is not None:
                recovered.append(closed)
    return recovered


def lock(descriptor: int) -> bool:
    """Whether the lock of this open file is now ours."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether `path` still names the open file: between opening and locking it, another may have renamed
    it.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _close_leftover(path: Path) -> Path | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):  # another user's is for writers of that user to close
        return None
    try:
        if not lock(descriptor) or not is_same_file(descriptor, path):
            return None
        whole_bytes = _whole_lines_bytes(descriptor)
        if whole_bytes == 0:
            os.unlink(path)
            return None
        os.ftruncate(descriptor, whole_bytes)
        closed = closed_path(path)
        os.rename(path, closed)
        return closed
    finally:
        os.close(descriptor)


def _whole_lines_bytes(descriptor: int) -> int:
    """The size up to and with the last newline."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        begin = max(0, end - _BLOCK_BYTES)
        at = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0
