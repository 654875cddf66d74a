"""Live memory of another Python process, which collects its garbage on a signal.

Resident memory includes what the allocators retain. After 60,000 malformed requests the free pieces of the broker's
heap are 14 MB, after 10,000 they were 5 MB, and there are as many live objects. So the process collects cycles,
returns free memory to the system (`malloc_trim`), and only then is measured. Linux with glibc.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testing import ROOT

GUARD_S = 120.0
"""For an answer, on a busy machine."""

_FILE = "LIVE_MEMORY_FILE"
_ANSWER = "live_memory"
_SIGNAL = signal.SIGUSR2


@dataclass(frozen=True, slots=True)
class LiveMemory:
    """`blocks` are Python's memory blocks in use, one or a few of each object; `rss_mb` is resident memory."""

    blocks: int
    rss_mb: float

    def growth_to(self, later: LiveMemory) -> float:
        """Growth of the measure that has grown more, as a fraction."""
        return max(later.blocks / self.blocks, later.rss_mb / self.rss_mb) - 1

    def __str__(self) -> str:
        return f"{self.blocks} blocks, {self.rss_mb:.1f} MB"


@contextmanager
def observable(directory: Path) -> Iterator[None]:
    """Python processes that are started in this block, with this environment, answer `live_memory`."""
    (directory / "sitecustomize.py").write_text("from testing.live_memory import install\n\ninstall()\n")
    paths = (str(directory), str(ROOT), os.environ.get("PYTHONPATH", ""))
    changed = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), _FILE: str(directory / _ANSWER)}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def live_memory(pid: int, directory: Path) -> LiveMemory:
    """Memory of a process that is `observable` by this directory."""
    answer = directory / _ANSWER
    answer.unlink(missing_ok=True)
    _question(answer).touch()
    ends_at = time.monotonic() + GUARD_S
    while not answer.exists():
        assert time.monotonic() < ends_at, f"process {pid} did not answer within {GUARD_S:g} s"
        os.kill(pid, _SIGNAL)  # again, because Python defers one that arrives just before a blocking call
        time.sleep(0.1)
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (one for one in status.splitlines() if one.startswith("VmRSS"))
    return LiveMemory(int(answer.read_text()), int(line.split()[1]) / 1024)


def install() -> None:
    """Have this process answer `live_memory`."""
    answer = Path(os.environ[_FILE])
    signal.signal(_SIGNAL, lambda _number, _frame: _write(answer))


def _question(answer: Path) -> Path:
    return answer.with_suffix(".question")


def _write(answer: Path) -> None:
    try:
        _question(answer).unlink()
    except FileNotFoundError:
        return  # answered, or being answered
    gc.collect()
    blocks = sys.getallocatedblocks()
    ctypes.CDLL(None).malloc_trim(0)
    whole = answer.with_suffix(".new")
    whole.write_text(str(blocks))
    whole.rename(answer)
