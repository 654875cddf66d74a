"""Whole lines of a part of a file, some megabytes at a time, so that a worker's memory does not grow with its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK_BYTES = 4 << 20
"""Parsed at once: large enough that the cost of a call does not show, small enough to stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class Part:
    """The lines of the file at `path` that begin at byte `start` or later and before byte `end`."""

    path: str
    start: int
    end: int


def blocks_of(part: Part) -> Iterator[bytes]:
    """Blocks that end with a whole line; the last line of a file may lack its newline."""
    with open(part.path, "rb") as file:
        at = _first_line_start(file, part.start)
        while at < part.end:
            file.seek(at)
            block = file.read(min(BLOCK_BYTES, part.end - at))
            if not block:
                return
            if not block.endswith(b"\n"):
                block += file.readline()
            at += len(block)
            yield block


def _first_line_start(file: BinaryIO, start: int) -> int:
    """Where the first line begins that is ours: the one that `start` is inside belongs to the part before."""
    if start == 0:
        return 0
    file.seek(start - 1)
    return start - 1 + len(file.readline())
