"""The numbers of many streams side by side on one line, so that the sets of all streams are one set of intervals.

A stream's numbers keep their order and their neighbours there, and no two streams touch.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .intervals import Intervals, Ints

_ROOM = 1 << 62


class Line:
    """Places for the numbers in `numbers`, of streams 0 to `streams` - 1."""

    def __init__(self, streams: int, numbers: Iterable[Ints]) -> None:
        present = [one for one in numbers if len(one)]
        self._low = min((int(one.min()) for one in present), default=0)
        self._width = max((int(one.max()) for one in present), default=0) - self._low + 3
        self._ranks: Ints | None = None
        if self._width * (streams + 1) > _ROOM:
            # Numbers too far apart for one line, as only a damaged journal has them: their ranks have its room. With
            # each number its follower is ranked, so that neighbours stay neighbours and others do not become such.
            every = np.concatenate(present)
            self._ranks = np.unique(
                np.concatenate([every, np.minimum(every, np.iinfo(np.int64).max - 1) + 1])
            )
            self._low, self._width = 0, len(self._ranks) + 3

    def place(self, stream: Ints, number: Ints) -> Ints:
        if self._ranks is not None:
            number = np.searchsorted(self._ranks, number)
        return stream.astype(np.int64) * self._width + (number - self._low)

    def number(self, place: Ints) -> Ints:
        number = place % self._width
        return self._ranks[number] if self._ranks is not None else number + self._low

    def stream(self, place: Ints) -> Ints:
        return place // self._width

    def intervals(self, stream: Ints, firsts: Ints, lasts: Ints) -> Intervals:
        return Intervals(self.place(stream, firsts), self.place(stream, lasts))
