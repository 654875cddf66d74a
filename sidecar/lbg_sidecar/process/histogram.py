"""A histogram that costs one bisection for each observation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """`bounds` are the upper ends of its buckets, rising; above the last there is one more."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them: (upper end, observations up to it)."""
        ends = [*(str(bound) for bound in self.bounds), "+Inf"]
        return [(end, float(count)) for end, count in zip(ends, accumulate(self._counts), strict=True)]
