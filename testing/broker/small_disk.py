"""A disk of a few kilobytes: a tmpfs in a mount namespace of its own. It needs no root, only user namespaces.

`on_small_disk` is for one process, and ends with it. A `SmallDisk` stays while processes on it come and go:

    with SmallDisk(tmp_path / "disk", 16_000) as disk, EmbeddedBroker(disk.folder / "data", under=disk.under):
        with disk.filled():      # another process takes every byte that is free, or becomes so
            ...
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

_MOUNT = 'mount -t tmpfs -o size="$0" lbg-small-disk "$1" && shift && exec "$@"'

_FILL = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
told = False
while True:
    size = 1 << 20
    while size:
        try:
            os.write(file, bytes(size))
        except OSError:
            size //= 2
    if not told:
        print("full", flush=True)
        told = True
    time.sleep(0.0005)
"""

_QUOTA = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <unistd.h>
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define SAID(type, call) type done = call; if (done < 0 && errno == ENOSPC) errno = EDQUOT; return done
#define OPENED(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        SAID(int, REAL(name)(path, flags, mode)); }
OPENED(open)
OPENED(open64)
ssize_t write(int file, const void *data, size_t size) { SAID(ssize_t, REAL(write)(file, data, size)); }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    SAID(ssize_t, REAL(pwrite)(file, data, size, at)); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    SAID(ssize_t, REAL(pwrite64)(file, data, size, at)); }
int ftruncate(int file, off_t size) { SAID(int, REAL(ftruncate)(file, size)); }
int ftruncate64(int file, off64_t size) { SAID(int, REAL(ftruncate64)(file, size)); }
int fsync(int file) { SAID(int, REAL(fsync)(file)); }
int fdatasync(int file) { SAID(int, REAL(fdatasync)(file)); }
int posix_fallocate(int file, off_t at, off_t size) {
    int error = REAL(posix_fallocate)(file, at, size); return error == ENOSPC ? EDQUOT : error; }
int posix_fallocate64(int file, off64_t at, off64_t size) {
    int error = REAL(posix_fallocate64)(file, at, size); return error == ENOSPC ? EDQUOT : error; }
"""


def as_quota(folder: Path, under: Sequence[str]) -> Sequence[str]:
    """`under`, of a disk, for a command that is told EDQUOT (its quota is used up) where the disk has no room.

    It stands for a disk with quotas, which takes a kernel with them. It needs a C compiler, and leaves a library in
    `folder`.
    """
    library = folder / "quota.so"
    compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(compiler, input=_QUOTA, text=True, check=True)
    return ("env", f"LD_PRELOAD={library}", *(under or ("sh", "-c", 'cd "$0" && exec "$@"')))


def on_small_disk(folder: Path, size_kb: int) -> Sequence[str]:
    """Prefix of a command, which then has an empty disk at `folder`, and its own process id."""
    return (
        *("unshare", "--user", "--map-root-user", "--mount"),
        *("sh", "-c", _MOUNT, f"{size_kb}k", str(folder)),
    )


def seen_by(pid: int, path: Path) -> Path:
    """The same file as the process sees it."""
    return Path(f"/proc/{pid}/root{path}")


class SmallDisk:
    """An empty disk at `folder`, for those who run under it."""

    def __init__(self, folder: Path, size_kb: int) -> None:
        self.folder = folder
        self._size_kb = size_kb

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._holder = subprocess.Popen(
            [*on_small_disk(self.folder, self._size_kb), "sh", "-c", "echo mounted; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "mounted\n", "no mount namespaces here"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._holder.communicate()

    @property
    def under(self) -> Sequence[str]:
        """Prefix of a command, which begins in the current directory."""
        target = ("--target", str(self._holder.pid))
        return (
            *("nsenter", *target, "--user", "--preserve-credentials", "--mount"),
            *("sh", "-c", 'cd "$0" && exec "$@"'),
        )

    def seen(self, path: Path) -> Path:
        """A path on it as this process sees it."""
        return seen_by(self._holder.pid, path)

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Another process holds the free space at 0 meanwhile: it takes what anybody gives back at once."""
        with _filled(self.seen(self.folder / "filler")):
            yield


class LoopDisk:
    """The same as ext4, in a file beside `folder` that is mounted there. It needs root."""

    def __init__(self, folder: Path, size_kb: int) -> None:
        self.folder = folder
        self._size_kb = size_kb
        self.under: Sequence[str] = ()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        image = self.folder.with_suffix(".ext4")
        with image.open("wb") as file:
            file.truncate(self._size_kb * 1024)
        # Without blocks that only root may take: the broker of a test may be root.
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(self.folder)], check=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)

    def seen(self, path: Path) -> Path:
        """A path on it as this process sees it."""
        return path

    @contextmanager
    def filled(self) -> Iterator[None]:
        """As of a `SmallDisk`."""
        with _filled(self.folder / "filler"):
            yield


@contextmanager
def _filled(filler: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", _FILL, str(filler)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "full\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        filler.unlink(missing_ok=True)
