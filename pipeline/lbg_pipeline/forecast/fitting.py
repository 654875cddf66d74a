"""The method: what the next week (or day) is expected to be, from the rows of the last ones.

1. The usual value of each column is its median over the last four rows; how a row compares with what is usual is the
   weighted median of its ratios. Neither is moved by a single spike or hole.
2. A value further from what was usual for its column and its row than 1.5 times their noise is moved to that bound
   (Huber 1964, whose bound has 95 % of the mean's efficiency where nothing is odd at 1.345). The noise is the group's
   own, at least that of independent arrivals (Poisson: the square root).
3. Each column's mean over the rows is weighted by recency: half-lives of a sixth of a row, a half, one and a half and
   four. A short one follows timetables that change by steps, and comes to last week's value; a long one averages
   noise away.
4. Each of these goes without a trend, or with the median slope of the rows' totals (Theil-Sen), damped by a factor
   for each row ahead (Gardner and McKenzie 1985).

Which of the eight serves a group is decided by its own past errors (`backtesting`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .seasons import Floats, Season

ROWS = 8
"""As far back as the method looks: two months of weeks. A season of the year is not learnt, but followed."""
USUAL_ROWS = 4
NOISES = 1.5
NORMAL = 1.4826
"""A median absolute deviation as a standard deviation, for a normal distribution."""
TREND_FROM_ROWS = 4
MOST_TREND = 0.5
"""However steep, a trend moves a forecast by half at most."""


@dataclass(frozen=True, slots=True)
class Candidate:
    half_life: float
    damping: float

    def told(self, season: Season) -> str:
        period = "weeks" if season is Season.WEEK else "days"
        trend = "damped trend" if self.damping else "no trend"
        return f"half-life {self.half_life:.2g} {period}, {trend}"


CANDIDATES = tuple(
    Candidate(half_life, damping) for half_life in (1.5, 0.5, 1 / 6, 4) for damping in (0.0, 0.8)
)
"""The first serves where there are no past errors yet."""


def last_known(rows: Floats) -> Floats:
    """The naive forecast: what was last seen in each column; 0 where nothing ever was."""
    known = ~np.isnan(rows)
    latest = np.argmax(known, axis=0)
    return np.where(known.any(axis=0), rows[latest, np.arange(rows.shape[1])], 0.0)


def expected(rows: Floats, season: Season, ahead: int) -> Floats:
    """Of the row `ahead` (1: the next one), by each of the candidates."""
    usual = _medians(rows[:USUAL_ROWS])
    calm = _calmed(rows, usual)
    known = ~np.isnan(calm)
    filled = np.where(known, calm, 0.0)
    age = np.arange(len(rows), dtype=np.float64)
    found = np.empty((len(CANDIDATES), rows.shape[1]))
    for place, candidate in enumerate(CANDIDATES):
        weights = np.power(0.5, age / candidate.half_life)
        seen = weights @ known
        means = np.divide(weights @ filled, seen, out=np.zeros(rows.shape[1]), where=seen > 0)
        factor = 1.0
        if candidate.damping and season is Season.WEEK:
            factor = _trend(filled, known, means, weights, candidate.damping, ahead)
        found[place] = means * factor
    return found


def _calmed(rows: Floats, usual: Floats) -> Floats:
    """Without what a single interval had beyond its noise."""
    base = _levels(rows, usual)[:, None] * usual[None, :]
    relative = np.abs(np.divide(rows, base, out=np.full(rows.shape, np.nan), where=base > 0) - 1)
    noise = NORMAL * float(np.nanmedian(relative)) if not np.isnan(relative).all() else 0.0
    bound = NOISES * np.maximum(noise * base, np.sqrt(base + 1))
    return np.clip(rows, np.maximum(base - bound, 0.0), base + bound)


def _levels(rows: Floats, usual: Floats) -> Floats:
    """How each row compares with what is usual: the median of the ratios of its columns, weighted by what is usual
    there."""
    levels = np.ones(len(rows))
    for place, row in enumerate(rows):
        chosen = (usual > 0) & ~np.isnan(row)
        if chosen.any():
            ratios = row[chosen] / usual[chosen]
            order = np.argsort(ratios)
            weights = np.cumsum(usual[chosen][order])
            levels[place] = ratios[order][np.searchsorted(weights, weights[-1] / 2)]
    return levels


def _trend(
    filled: Floats, known: Floats, means: Floats, weights: Floats, damping: float, ahead: int
) -> float:
    """By which factor the row `ahead` differs from the weighted mean, were the slope of the totals to go on damped."""
    whole = known.mean(axis=1) > 0.9
    if whole.sum() < TREND_FROM_ROWS:
        return 1.0
    likely = known[whole] @ means
    totals = np.divide(filled[whole].sum(axis=1), likely, out=np.ones(int(whole.sum())), where=likely > 0)
    times = -np.arange(len(filled), dtype=np.float64)[whole]
    one, other = np.triu_indices(len(totals), 1)
    slope = float(np.median((totals[one] - totals[other]) / (times[one] - times[other])))
    centre = float(times @ weights[whole] / weights[whole].sum())
    steps = -centre + sum(damping**step for step in range(1, ahead + 1))
    return float(np.clip(1 + slope * steps, 1 - MOST_TREND, 1 + MOST_TREND))


def _medians(rows: Floats) -> Floats:
    """By column; 0 where nothing is known."""
    known = ~np.isnan(rows)
    ordered = np.sort(rows, axis=0)  # NaN comes last
    count = known.sum(axis=0)
    columns = np.arange(rows.shape[1])
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, len(rows) - 1)
    middle = (ordered[low, columns] + ordered[high, columns]) / 2
    return np.where(count > 0, middle, 0.0)
