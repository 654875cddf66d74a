"""Which worker reads what: parts of files, put together so that every task has about as much to read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from urllib.parse import unquote, urlsplit

from .blocks import Part

SMALLEST_BYTES = 4 << 20
LARGEST_BYTES = 192 << 20
"""A task costs some forty milliseconds however little it reads. What it holds at once is a block, not its share."""

TASKS_PER_CORE = 4
"""So that a core which is slower, or began later, leaves its share to the others."""

COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate", ".xz")
"""What Hadoop decompresses by a file's name."""


def local_path(url: str) -> str | None:
    """Where a worker can open the file itself; None for what only Spark reads: object stores, compressed files."""
    parsed = urlsplit(url)
    if parsed.scheme not in ("", "file") or parsed.netloc or url.endswith(COMPRESSED):
        return None
    return unquote(parsed.path)


def splits_of(paths: Sequence[str], *, cores: int) -> list[list[Part]]:
    """Everything in `paths`, as the lists of parts that one task each reads."""
    files = [(path, os.stat(path).st_size) for path in paths]
    total = sum(size for _, size in files)
    target = max(SMALLEST_BYTES, min(LARGEST_BYTES, total // (cores * TASKS_PER_CORE) + 1))
    return list(_packed(_parts(files, target), target))


def _parts(files: Iterable[tuple[str, int]], target: int) -> Iterable[Part]:
    for path, size in files:
        for start in range(0, size, target):
            yield Part(path, start, min(start + target, size))


def _packed(parts: Iterable[Part], target: int) -> Iterable[list[Part]]:
    pack: list[Part] = []
    packed = 0
    for part in parts:
        size = part.end - part.start
        if pack and packed + size > target:
            yield pack
            pack, packed = [], 0
        pack.append(part)
        packed += size
    if pack:
        yield pack
