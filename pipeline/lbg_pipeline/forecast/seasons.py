"""A group's history by the clocks of its time zone: one row for each week (or day) back, one column for each interval
of it.

A cell without a value is unknown: before the history began, or the hour that daylight saving skips. The hour that it
repeats is the mean of both. So the same column is the same hour of the week for the people who make the demand, on
either side of a change.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from .settings import DAY_S, SECOND_US, WEEK_S

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Season(Enum):
    """What repeats, by how much history there is. The value is what people are told."""

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
    """A week that was seen once tells nothing of weeks, and a day that was seen once nothing of days."""
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
    """What the clocks of the zone show, in seconds since they showed Monday the 5th of January 1970, 0:00."""
    import pandas as pd  # takes longer to load than all else here, for the one use

    shown = (
        pd.DatetimeIndex(pd.to_datetime(starts_us, unit="us", utc=True))
        .tz_convert(time_zone)
        .tz_localize(None)
    )
    return np.asarray(shown.as_unit("us").asi8 // SECOND_US - 4 * DAY_S, dtype=np.int64)


def columns_of(walls_s: Ints, season: Season, interval_s: int) -> Ints:
    """Which interval of the week, or of the day, each is."""
    return np.asarray(walls_s % season.period_s // interval_s, dtype=np.int64)


def rows_back(history: History, walls_s: Ints, origin: int, season: Season, count: int) -> Floats:
    """The last `count` weeks or days before interval `origin`, the latest first; NaN is unknown."""
    period_s = season.period_s
    first = max(0, origin - (count + 1) * period_s // history.interval_s)
    walls = walls_s[first:origin]
    here_s = walls_s[origin - 1] + history.interval_s
    # Where clocks were put back around the origin, an earlier interval may show a later time: it is of the last row.
    back = np.maximum((here_s - 1 - walls) // period_s, 0)
    columns = columns_of(walls, season, history.interval_s)
    width = period_s // history.interval_s
    cells = back * width + columns
    wanted = back < count
    size = count * width
    sums = np.bincount(cells[wanted], weights=history.values[first:origin][wanted], minlength=size)
    seen = np.bincount(cells[wanted], minlength=size)
    rows = np.full(size, np.nan)
    np.divide(sums, seen, out=rows, where=seen > 0)
    table = rows.reshape(count, width)
    known = (seen.reshape(count, width) > 0).any(axis=1)
    return table[: int(np.flatnonzero(known)[-1]) + 1]
