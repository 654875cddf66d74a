"""Sets of integers as arrays of disjoint intervals, rising and not touching: first and last number, both in it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Intervals(NamedTuple):
    firsts: Ints
    lasts: Ints

    @property
    def total(self) -> int:
        """How many numbers are in it."""
        return int((self.lasts - self.firsts + 1).sum())


NONE = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def of_points(points: Ints) -> Intervals:
    """Of numbers that rise; one may be there more than once."""
    if not len(points):
        return NONE
    ends = np.flatnonzero(np.diff(points) > 1)
    return Intervals(points[np.r_[0, ends + 1]], points[np.r_[ends, len(points) - 1]])


def union(*sets: Intervals) -> Intervals:
    firsts = np.concatenate([one.firsts for one in sets])
    if not len(firsts):
        return NONE
    order = np.argsort(firsts, kind="stable")
    firsts = firsts[order]
    lasts = np.maximum.accumulate(np.concatenate([one.lasts for one in sets])[order])
    begins = np.flatnonzero(np.r_[True, firsts[1:] > lasts[:-1] + 1])
    return Intervals(firsts[begins], lasts[np.r_[begins[1:] - 1, len(lasts) - 1]])


def holds(intervals: Intervals, points: Ints) -> Flags:
    """Which of `points` are in the set."""
    if not len(intervals.firsts):
        return np.zeros(len(points), np.bool_)
    at = np.searchsorted(intervals.firsts, points, "right") - 1
    return (at >= 0) & (points <= intervals.lasts[at])


def minus(intervals: Intervals, taken: Intervals) -> Intervals:
    """What is in the first and not in the second. Two of the first that touch stay two, so that each piece is of one
    of them: `piece_of`."""
    if not len(intervals.firsts) or not len(taken.firsts):
        return intervals
    # Where either begins or ends, the answer may change; between two such places it is one thing throughout.
    cuts = np.unique(np.concatenate([intervals.firsts, intervals.lasts + 1, taken.firsts, taken.lasts + 1]))
    begins = cuts[:-1]
    left = holds(intervals, begins) & ~holds(taken, begins)
    return Intervals(begins[left], cuts[1:][left] - 1)


def common(one: Intervals, other: Intervals) -> int:
    """How many numbers are in both."""
    return one.total - minus(one, other).total


def piece_of(intervals: Intervals, pieces: Intervals) -> Ints:
    """For each of `pieces`, the index of the interval that it is a part of."""
    return np.searchsorted(intervals.firsts, pieces.firsts, "right") - 1
