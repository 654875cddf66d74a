"""How far demand strayed from what was expected, and so what it may be.

A miss is told in parts of what was expected (with a little added, so that an expectation of none has misses too).
Misses are kept by class of hour: none expected, and quiet, middling and busy hours, on working days and weekends
apart: a busy hour of a timetable is more regular than its night.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .seasons import Floats, Ints
from .settings import DAY_S

FEWEST = 20
"""Misses that a class must have to speak for itself; with fewer, those of all classes count."""
BUSY_PARTS = 3


def classes_of(expected: Floats, walls_s: Ints) -> Ints:
    """By thirds of what is expected, where anything is, and by weekend."""
    some = expected > 0
    bounds = np.quantile(expected[some], [1 / 3, 2 / 3]) if some.any() else np.zeros(2)
    part = np.where(some, 1 + np.searchsorted(bounds, expected, side="left"), 0)
    weekend = walls_s // DAY_S % 7 >= 5
    return np.asarray(part + weekend * (BUSY_PARTS + 1), dtype=np.int64)


def misses_of(actual: Floats, expected: Floats, scale: float) -> Floats:
    return np.asarray((actual - expected) / (expected + scale), dtype=np.float64)


def scale_of(expected: Floats) -> float:
    """What is added to an expectation before a miss is compared with it: a twentieth of the mean, at least a
    message."""
    return max(1.0, 0.05 * float(expected.mean())) if len(expected) else 1.0


def quantiles_of(
    expected: Floats,
    classes: Ints,
    *,
    misses: Floats,
    miss_classes: Ints,
    scale: float,
    levels: Sequence[float],
) -> Floats:
    """One row for each of `expected`, one column for each level; never below 0. `misses` must not be empty."""
    found = np.empty((len(expected), len(levels)))
    for one in np.unique(classes):
        own = misses[miss_classes == one]
        found[classes == one] = _upper(own if len(own) >= FEWEST else misses, levels)
    return np.maximum(expected[:, None] + found * (expected + scale)[:, None], 0.0)


def _upper(misses: Floats, levels: Sequence[float]) -> Floats:
    """The least miss that at least `level` of one more would not exceed (Vovk et al. 2005: split conformal
    prediction): a little above the quantile of the sample, the more so the smaller it is."""
    ordered = np.sort(misses)
    ranks = np.ceil((len(ordered) + 1) * np.asarray(levels)).astype(int)
    return np.asarray(ordered[np.clip(ranks, 1, len(ordered)) - 1], dtype=np.float64)
