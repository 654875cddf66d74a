"""Model of demand: settings, seasons by the clocks of a time zone, fit, and quantiles.

A cell without a value is unknown: before the history began, or the hour that daylight saving skips. The hour that it
repeats is the mean of both. So the same column is the same hour of the week for the users who make the demand, on
either side of a change.

A miss is a fraction of the expected demand (with a little added, so that an expectation of none has misses too).
Misses are stored by class of hour: none expected, and quiet, middling and busy hours, on working days and weekends
apart, and days of the calendar: a busy hour of a timetable is more regular than its night.

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

Which of the eight serves a group is decided by its own past errors (`backtest`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from lbg_pipeline.forecast.calendar import Event

HOUR_S = 3600
DAY_S = 24 * HOUR_S
WEEK_S = 7 * DAY_S
SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class ForecastSettings:
    """`interval_s` divides an hour, so that an interval never straddles a change of daylight saving. `time_zone` is of
    the users who make the demand: hours of the week are of its clocks. `quantile`: the demand that replicas are planned
    for is exceeded in one interval of 1 / (1 - quantile). `backtest_periods`: how many weeks (of a short history: days)
    the method is scored by. `calendar`: days that are not ordinary."""

    now_us: int
    interval_s: int = HOUR_S
    horizon_s: int = WEEK_S
    time_zone: str = "UTC"
    quantile: float = 0.9
    backtest_periods: int = 8
    calendar: tuple[Event, ...] = ()

    @property
    def interval_us(self) -> int:
        return self.interval_s * SECOND_US

    @property
    def quantiles(self) -> tuple[float, ...]:
        """Those of the band, and last the one that replicas are planned for."""
        return (*BAND, self.quantile)

    def starts_us(self) -> range:
        """Of the intervals that are forecast: from the one that `now_us` is in."""
        first = self.now_us - self.now_us % self.interval_us
        return range(first, self.now_us + self.horizon_s * SECOND_US, self.interval_us)


BAND = (0.1, 0.5, 0.9)
"""The quantiles of every report: its band, and the middle."""


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Season(Enum):
    """Season by which demand repeats, by the length of the history. The value is the displayed name."""

    WEEK = "hour of week"
    DAY = "hour of day"
    FLAT = "flat"

    @property
    def period_s(self) -> int:
        """Of a flat season: a day, by which nothing repeats."""
        return WEEK_S if self is Season.WEEK else DAY_S


WEEKLY_FROM_S = 2 * WEEK_S
DAILY_FROM_S = 2 * DAY_S


def season_of(length_s: float) -> Season:
    """Two weeks make a weekly season, two days a daily one."""
    if length_s >= WEEKLY_FROM_S:
        return Season.WEEK
    return Season.DAY if length_s >= DAILY_FROM_S else Season.FLAT


@dataclass(frozen=True, slots=True)
class History:
    """`values[i]` is the demand of the interval from `starts_us[i]`; there are no gaps between them."""

    starts_us: Ints
    values: Floats
    interval_s: int
    time_zone: str

    @property
    def length_s(self) -> int:
        return len(self.values) * self.interval_s


def wall_s(starts_us: Ints, time_zone: str) -> Ints:
    """Wall-clock time of the zone, in seconds since they showed Monday the 5th of January 1970, 0:00."""
    import pandas as pd  # takes longer to load than all else here, for the one use

    shown = (
        pd.DatetimeIndex(pd.to_datetime(starts_us, unit="us", utc=True))
        .tz_convert(time_zone)
        .tz_localize(None)
    )
    return np.asarray(shown.as_unit("us").asi8 // SECOND_US - 4 * DAY_S, dtype=np.int64)


def columns_of(walls_s: Ints, season: Season, interval_s: int) -> Ints:
    """Interval of the week, or of the day, of each time."""
    return np.asarray(walls_s % season.period_s // interval_s, dtype=np.int64)


def rows_back(
    history: History,
    walls_s: Ints,
    origin: int,
    season: Season,
    count: int,
    is_ordinary: NDArray[np.bool_] | None = None,
) -> Floats:
    """The last `count` weeks or days before interval `origin`, the latest first; NaN is unknown. Without `is_ordinary`
    every interval is."""
    period_s = season.period_s
    first = max(0, origin - (count + 1) * period_s // history.interval_s)
    walls = walls_s[first:origin]
    here_s = walls_s[origin - 1] + history.interval_s
    # Where clocks were put back around the origin, an earlier interval may show a later time: it is of the last row.
    back = np.maximum((here_s - 1 - walls) // period_s, 0)
    columns = columns_of(walls, season, history.interval_s)
    width = period_s // history.interval_s
    cells = back * width + columns
    is_within = back < count
    if is_ordinary is not None:
        is_within &= is_ordinary[first:origin]
    size = count * width
    sums = np.bincount(cells[is_within], weights=history.values[first:origin][is_within], minlength=size)
    seen = np.bincount(cells[is_within], minlength=size)
    rows = np.full(size, np.nan)
    np.divide(sums, seen, out=rows, where=seen > 0)
    table = rows.reshape(count, width)
    known = np.flatnonzero((seen.reshape(count, width) > 0).any(axis=1))
    return table[: int(known[-1]) + 1 if len(known) else 1]


FEWEST = 20
"""Misses that a class must have to speak for itself; with fewer, those of all classes count."""
BUSY_PARTS = 3
OF_CALENDAR = 2 * (BUSY_PARTS + 1)


def classes_of(expected: Floats, walls_s: Ints, calendar: Iterable[int] = ()) -> Ints:
    """By thirds of what is expected, where anything is, and by weekend; the days of the calendar are a class."""
    some = expected > 0
    bounds = np.quantile(expected[some], [1 / 3, 2 / 3]) if some.any() else np.zeros(2)
    part = np.where(some, 1 + np.searchsorted(bounds, expected, side="left"), 0)
    days = walls_s // DAY_S
    classes = part + (days % 7 >= 5) * (BUSY_PARTS + 1)
    return np.where(np.isin(days, list(calendar)), OF_CALENDAR, classes).astype(np.int64)


def misses_of(actual: Floats, expected: Floats, scale: float) -> Floats:
    return np.asarray((actual - expected) / (expected + scale), dtype=np.float64)


def scale_of(expected: Floats) -> float:
    """Amount added to an expectation before a miss is compared with it: a twentieth of the mean, at least a
    message."""
    return max(1.0, 0.05 * float(expected.mean())) if len(expected) else 1.0


def quantiles_of(
    expected: Floats,
    classes: Ints,
    *,
    misses: Sequence[Floats],
    miss_classes: Sequence[Ints],
    scale: float,
    levels: Sequence[float],
) -> Floats:
    """One row for each of `expected`, one column for each level; never below 0. `misses` are those of each past origin,
    at least of one."""
    every, their_classes = np.concatenate(misses), np.concatenate(miss_classes)
    origins = np.repeat(np.arange(len(misses)), [len(one) for one in misses])
    widened = _widened(every, their_classes, origins, levels)
    bounds = np.empty((len(expected), len(levels)))
    for one in np.unique(classes):
        own = every[their_classes == one]
        bounds[classes == one] = _ranked(own if len(own) >= FEWEST else every, widened)
    return np.maximum(expected[:, None] + bounds * (expected + scale)[:, None], 0.0)


def _widened(misses: Floats, classes: Ints, origins: Ints, levels: Sequence[float]) -> list[float]:
    """Levels at which the misses of each origin stay within the quantiles of all other origins as often as `levels`
    say, never nearer to the middle.

    The misses of one week go together, so the next week is not one more draw from their sample: it is a new group of
    draws (Lee, Barber and Willett 2023: conformal prediction with hierarchical data).
    """
    below, up_to = [], []
    for one in np.unique(classes):
        ordered = np.sort(misses[classes == one])
        for origin in np.unique(origins[classes == one]) if len(ordered) >= FEWEST else ():
            own = np.sort(misses[(classes == one) & (origins == origin)])
            if others := len(ordered) - len(own):
                below.append((np.searchsorted(ordered, own) - np.searchsorted(own, own)) / others)
                up_to.append(
                    (np.searchsorted(ordered, own, "right") - np.searchsorted(own, own, "right")) / others
                )
    if not below:
        return list(levels)
    low, high = (_ranked(np.concatenate(shares), levels) for shares in (up_to, below))
    return [
        min(level, float(low[place]))
        if level < 0.5
        else max(level, float(high[place]))
        if level > 0.5
        else 0.5
        for place, level in enumerate(levels)
    ]


def _ranked(sample: Floats, levels: Sequence[float]) -> Floats:
    """The least value that at least `level` of one more would not exceed (Vovk et al. 2005: split conformal
    prediction), below the middle the greatest that they would not fall below: a little outside of the quantile of the
    sample, the more so the smaller it is."""
    ordered, wanted = np.sort(sample), (len(sample) + 1) * np.asarray(levels)
    ranks = np.where(np.asarray(levels) < 0.5, np.floor(wanted), np.ceil(wanted)).astype(int)
    return np.asarray(ordered[np.clip(ranks, 1, len(ordered)) - 1], dtype=np.float64)


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

    def description(self, season: Season) -> str:
        period = "weeks" if season is Season.WEEK else "days"
        trend = "damped trend" if self.damping else "no trend"
        return f"half-life {self.half_life:.2g} {period}, {trend}"


CANDIDATES = tuple(
    Candidate(half_life, damping) for half_life in (1.5, 0.5, 1 / 6, 4) for damping in (0.0, 0.8)
)
"""The first serves where there are no past errors yet."""


def latest_values(rows: Floats) -> Floats:
    """The naive forecast: the latest value of each column; 0 for a column without values."""
    has_value = ~np.isnan(rows)
    latest = np.argmax(has_value, axis=0)
    return np.where(has_value.any(axis=0), rows[latest, np.arange(rows.shape[1])], 0.0)


def expected(rows: Floats, season: Season, ahead: int) -> Floats:
    """Of the row `ahead` (1: the next one), by each of the candidates."""
    usual = _medians(rows[:USUAL_ROWS])
    calm = _calmed(rows, usual)
    has_value = ~np.isnan(calm)
    filled = np.where(has_value, calm, 0.0)
    age = np.arange(len(rows), dtype=np.float64)
    forecasts = np.empty((len(CANDIDATES), rows.shape[1]))
    for place, candidate in enumerate(CANDIDATES):
        weights = np.power(0.5, age / candidate.half_life)
        seen = weights @ has_value
        means = np.divide(weights @ filled, seen, out=np.zeros(rows.shape[1]), where=seen > 0)
        factor = 1.0
        if candidate.damping and season is Season.WEEK:
            factor = _trend(filled, has_value, means, weights, candidate.damping, ahead)
        forecasts[place] = means * factor
    return forecasts


def _calmed(rows: Floats, usual: Floats) -> Floats:
    """Values with outliers moved to the bound of their noise."""
    base = _levels(rows, usual)[:, None] * usual[None, :]
    relative = np.abs(np.divide(rows, base, out=np.full(rows.shape, np.nan), where=base > 0) - 1)
    noise = NORMAL * float(np.nanmedian(relative)) if not np.isnan(relative).all() else 0.0
    bound = NOISES * np.maximum(noise * base, np.sqrt(base + 1))
    return np.clip(rows, np.maximum(base - bound, 0.0), base + bound)


def _levels(rows: Floats, usual: Floats) -> Floats:
    """Ratio of each row to the usual one: the median over its columns, weighted by the usual value of the column."""
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
    filled: Floats, has_value: Floats, means: Floats, weights: Floats, damping: float, ahead: int
) -> float:
    """By which factor the row `ahead` differs from the weighted mean, were the slope of the totals to go on damped."""
    whole = has_value.mean(axis=1) > 0.9
    if whole.sum() < TREND_FROM_ROWS:
        return 1.0
    likely = has_value[whole] @ means
    totals = np.divide(filled[whole].sum(axis=1), likely, out=np.ones(int(whole.sum())), where=likely > 0)
    times = -np.arange(len(filled), dtype=np.float64)[whole]
    one, other = np.triu_indices(len(totals), 1)
    slope = float(np.median((totals[one] - totals[other]) / (times[one] - times[other])))
    centre = float(times @ weights[whole] / weights[whole].sum())
    steps = -centre + sum(damping**step for step in range(1, ahead + 1))
    return float(np.clip(1 + slope * steps, 1 - MOST_TREND, 1 + MOST_TREND))


def _medians(rows: Floats) -> Floats:
    """Median of each column; 0 for a column without values."""
    has_value = ~np.isnan(rows)
    ordered = np.sort(rows, axis=0)  # NaN comes last
    count = has_value.sum(axis=0)
    columns = np.arange(rows.shape[1])
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, len(rows) - 1)
    middle = (ordered[low, columns] + ordered[high, columns]) / 2
    return np.where(count > 0, middle, 0.0)
