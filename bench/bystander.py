"""A bystander that syncs a file of its own to the disk that a broker uses, and notes how long that takes.

A broker that waits for its disk pauses every client. Beside a pause of one, the bystander shows whose it was.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Self

EVERY_S = 0.05


class Bystander:
    """Writes a byte and calls fdatasync every 50 ms, in a thread."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / "bystander", os.O_WRONLY | os.O_CREAT)
        self._syncs: list[tuple[int, int]] = []  # begin and end, ns of CLOCK_MONOTONIC
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._sync, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        os.close(self._file)

    def slowest_ms(self, since_ns: int, until_ns: int) -> float:
        """Of the syncs that ran at some time from then until then; 0 if none did."""
        some = [end - begin for begin, end in self._syncs if begin <= until_ns and end >= since_ns]
        return max(some, default=0) / 1e6

    def all_ms(self) -> list[float]:
        return [(end - begin) / 1e6 for begin, end in self._syncs]

    def _sync(self) -> None:
        while not self._ends.wait(EVERY_S):
            begin_ns = time.monotonic_ns()
            os.pwrite(self._file, b"x", 0)
            os.fdatasync(self._file)
            self._syncs.append((begin_ns, time.monotonic_ns()))
