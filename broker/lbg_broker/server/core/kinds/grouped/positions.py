"""Positions that are only remembered."""

from array import array
from itertools import islice
from typing import Final

__all__ = ["Positions"]

CHUNK: Final = 4096
OFFSET_MAX: Final = (1 << 32) - 1


class Positions:
    """Ascending positions: added behind, removed in front, 4 bytes each.

    They are kept as distances from the first of their chunk; chunks are small, so that removing is cheap.
    """

    __slots__ = ("_bases", "_chunks", "_removed")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._chunks: list[array[int]] = []
        self._removed = 0  # of the first chunk

    def __len__(self) -> int:
        if not self._chunks:
            return 0
        return sum([len(chunk) for chunk in self._chunks]) - self._removed

    def __bool__(self) -> bool:
        return bool(self._chunks)

    @property
    def first(self) -> int:
        """The lowest one."""
        return self._bases[0] + self._chunks[0][self._removed]

    def add(self, position: int) -> None:
        """Remember a position above all that are remembered."""
        if self._chunks:
            chunk, offset = self._chunks[-1], position - self._bases[-1]
            if len(chunk) < CHUNK and offset <= OFFSET_MAX:
                chunk.append(offset)
                return
        self._bases.append(position)
        self._chunks.append(array("I", (0,)))

    def remove_first(self) -> None:
        """Forget the lowest one."""
        self._removed += 1
        if self._removed == len(self._chunks[0]):
            del self._chunks[0], self._bases[0]
            self._removed = 0

    def lowest(self, count: int) -> list[int]:
        """The `count` lowest ones, or all there are."""
        found: list[int] = []
        start = self._removed
        for base, chunk in zip(self._bases, self._chunks, strict=True):
            found += [base + offset for offset in islice(chunk, start, start + count - len(found))]
            if len(found) == count:
                break
            start = 0
        return found
