"""Private files: what a process stores is its user's alone, whatever its umask is.

Files are created with mode 0600 and directories with mode 0700. What exists retains its mode, so that an administrator
can give access to others: `report_wide` logs it once for each directory or file, with the remedy.

In Kubernetes a volume with `fsGroup` belongs to root and the group, with mode 2770 or 2775. Its user cannot change
that, and has access by the group alone: this is logged at level info. docs/security.md.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final

log = logging.getLogger("lbg.files")

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

NOT_ALLOCATED: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""Error of a C library that does not write where the file system cannot allocate."""

FILES_MAX: Final = 1000
"""Files of a directory whose modes are read: a directory of journals may have many, on a slow volume."""


def open_private(path: Path, flags: int) -> int:
    """A descriptor of the file, which is created for this user alone if `flags` have O_CREAT. Raises OSError."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def is_same_file(descriptor: int, path: Path) -> bool:
    """True if `path` still names the open file: between opening and locking it, another may have renamed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def allocate(descriptor: int, start: int, length: int) -> None:
    """Give this part of a file its blocks, so that a full disk is met here. Raises OSError.

    Where the file system or the system (macOS) cannot do that, the file is written with zeros to this length.
    """
    try:
        os.posix_fallocate(descriptor, start, length)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in NOT_ALLOCATED:
            raise
        at = os.fstat(descriptor).st_size
        while at < start + length:
            at += os.pwrite(descriptor, bytes(min(start + length - at, 1 << 20)), at)


def make_private_directory(directory: Path) -> None:
    """Create the directory and those above it that are missing, for this user alone. Raises OSError."""
    try:
        directory.mkdir(DIRECTORY_MODE)
    except FileNotFoundError:
        if directory.parent == directory:
            raise
        make_private_directory(directory.parent)
        make_private_directory(directory)
    except OSError:
        if not directory.is_dir():
            raise


@lru_cache(maxsize=256)
def report_wide(path: Path) -> None:
    """Log one line if other users have access to a directory with its files, or to a file; once in a process."""
    try:
        status = path.stat()
        is_directory = stat.S_ISDIR(status.st_mode)
        found = _of_directory(path, status) if is_directory else _of_file(path, status)
    except OSError as error:
        log.warning("%s: its mode cannot be read: %s", path, error.strerror)
        return
    if found is not None:
        level, text = found
        log.log(level, "%s %s", path, text)


def _of_file(path: Path, status: os.stat_result) -> tuple[int, str] | None:
    if not status.st_mode & 0o077:
        return None
    return (
        logging.WARNING,
        f"has mode {_mode(status)}, which gives access to {_others(status)}: chmod go= {path}",
    )


def _of_directory(path: Path, status: os.stat_result) -> tuple[int, str] | None:
    mode = status.st_mode
    if not mode & 0o077:
        return None  # it encloses files of any mode
    is_owner = os.geteuid() in (0, status.st_uid)
    is_of_group = bool(mode & stat.S_ISGID) and not mode & 0o007
    if is_owner and not is_of_group:
        what = "it and its files" if _open_files(path, 0o077) else "it, but to none of its files"
        text = (
            f"has mode {_mode(status)}, which gives {_others(status)} access to {what}: chmod -R go= {path}"
        )
        return logging.WARNING, text
    if mode & 0o002 and not mode & stat.S_ISVTX:
        return logging.WARNING, (
            f"has mode {_mode(status)} and belongs to UID {status.st_uid}, so every user who can reach it can "
            "replace its files: name a directory inside it, which is created for this user alone"
        )
    if mode & 0o001 and (files := _open_files(path, 0o007)):
        return logging.WARNING, (
            f"has files that every user who can reach it has access to, such as {files[0]}: chmod o= {path}/*"
        )
    listed = "list" if mode & 0o004 else "enter"
    others = f"other users can {listed} it, and " if mode & 0o007 else ""
    return logging.INFO, (
        f"is shared with GID {status.st_gid} (mode {_mode(status)}, UID {status.st_uid}), as volumes are in "
        f"Kubernetes: {others}processes of this group have access to it"
    )


def _open_files(directory: Path, bits: int) -> list[str]:
    """Names of files in the directory that have one of the mode's `bits`."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in _files(islice(entries, FILES_MAX)) if entry.stat().st_mode & bits]


def _files(entries: Iterable[os.DirEntry[str]]) -> Iterable[os.DirEntry[str]]:
    return (entry for entry in entries if entry.is_file(follow_symlinks=False))


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"


def _others(status: os.stat_result) -> str:
    return "every user who can reach it" if status.st_mode & 0o007 else f"GID {status.st_gid}"
