"""Backtest of one group: the method and the naive one at each origin of its past.

An origin is a time in the past from which the method forecasts with the history until then; its score is by the actual
demand of the horizon, as far as the history goes. Origins lie whole periods (weeks; of a short history: days) before
the end. The quantiles at an origin are from the misses of earlier ones alone, by what was chosen there, and of each
period ahead from the misses of that period: so their coverage is honest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lbg_pipeline.forecast import model
from lbg_pipeline.forecast.calendar import WEEKDAYS, Event, by_day, date_of, earlier_days
from lbg_pipeline.forecast.model import (
    DAY_S,
    SECOND_US,
    Floats,
    History,
    Ints,
    Season,
    classes_of,
    columns_of,
    misses_of,
    quantiles_of,
    rows_back,
    scale_of,
    season_of,
    wall_s,
)

CHOOSING_ORIGINS = 6
"""Past origins whose errors decide between the candidates."""
MISS_ORIGINS = 12
"""Past origins whose misses make the quantiles. Fewer vary by chance, more are of another season of the year."""
MORE_ORIGINS = 4
"""So many more for each further period ahead: periods that overlap miss together."""
LEVEL_S = 28 * DAY_S
"""The time before a day of the calendar that its demand is compared with."""
FEWEST_ORIGINS = 2
"""Origins that a period ahead must have to speak for itself; with fewer, the misses are those of a nearer one."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Of consecutive intervals from `starts_us`. `quantiles` has a row for each, or is None before there are misses;
    `actual` is None for the future, `candidate` for the naive method. `events`: of each, the
    event of the calendar and what it is expected to be like."""

    origin_us: int
    starts_us: Ints
    method: str
    values: Floats
    quantiles: Floats | None
    actual: Floats | None
    candidate: model.Candidate | None = None
    events: Sequence[str | None] = ()


@dataclass(frozen=True, slots=True)
class _Past:
    """A period after an origin: demand as it was expected by a method, and actual demand."""

    expected: Floats
    classes: Ints
    actual: Floats


class Backtest:
    """`levels` are the quantiles to forecast. Each period after an origin is computed once."""

    def __init__(
        self,
        history: History,
        levels: Sequence[float],
        horizon_s: int = 0,
        calendar: Sequence[Event] = (),
    ) -> None:
        self.season = season_of(history.length_s)
        self._ahead = max(1, horizon_s // self.season.period_s)
        self._history = history
        self._levels = levels
        self._walls_s = wall_s(history.starts_us, history.time_zone)
        self._period = self.season.period_s // history.interval_s
        self._tables: dict[tuple[int, int], Floats] = {}
        self._calendar = calendar
        self._events = by_day(calendar)
        self._days = self._walls_s // DAY_S
        self._is_ordinary = ~np.isin(self._days, list(self._events))

    def past(self, count: int) -> Iterator[Expectation]:
        """By both methods at each of the last `count` origins that have a whole period before them."""
        if self.season is Season.FLAT:
            return
        for origin in self._origins(len(self._history.values), count):
            stop = min(origin + self._ahead * self._period, len(self._history.values))
            yield from self._expected(
                origin, self._history.starts_us[origin:stop], self._walls_s[origin:stop]
            )

    def future(self, starts_us: Ints) -> Iterator[Expectation]:
        """By both methods, of intervals after the history."""
        if self.season is Season.FLAT:
            yield self._flat(starts_us)
            return
        yield from self._expected(
            len(self._history.values), starts_us, wall_s(starts_us, self._history.time_zone)
        )

    def _expected(self, origin: int, starts_us: Ints, walls_s: Ints) -> Iterator[Expectation]:
        best = self._best(origin)
        table = self._table(origin, walls_s)
        is_past = origin < len(self._history.values)
        actual = self._history.values[origin : origin + len(starts_us)] if is_past else None
        origin_us = int(self._history.starts_us[origin - 1]) + self._history.interval_s * SECOND_US
        ahead = (starts_us - origin_us) // (self.season.period_s * SECOND_US) + 1
        for method, chosen in (("seasonal", best), ("naive", len(model.CANDIDATES))):
            candidate = model.CANDIDATES[best] if method == "seasonal" else None
            quantiles = self._quantiles(origin, table[chosen], walls_s, ahead, method)
            events = self._described(origin, walls_s) if method == "seasonal" else ()
            yield Expectation(
                origin_us, starts_us, method, table[chosen], quantiles, actual, candidate, events
            )

    def _origins(self, end: int, count: int, ahead: int = 1) -> list[int]:
        """The last `count` before `end` whose period `ahead` is over by then, the earliest first."""
        behind = min(count + ahead, end // self._period) - 1
        return [end - back * self._period for back in range(behind, ahead - 1, -1)]

    def _best(self, origin: int) -> int:
        """The candidate with the least error at the origins before this one, the earlier one of equals."""
        errors = np.zeros(len(model.CANDIDATES))
        for one in self._origins(origin, CHOOSING_ORIGINS):
            actual = self._history.values[one : one + self._period]
            errors += np.abs(self._table_after(one, 1)[:-1] - actual).sum(axis=1)
        return int(np.argmin(errors))

    def _past(self, origin: int, ahead: int, method: str) -> _Past:
        """Of the period `ahead` (1: the next one), by the candidate that was chosen then."""
        first = origin + (ahead - 1) * self._period
        chosen = self._best(origin) if method == "seasonal" else -1
        expected = self._table_after(origin, ahead)[chosen]
        period = slice(first, first + self._period)
        classes = classes_of(expected, self._walls_s[period], self._events)
        return _Past(expected, classes, self._history.values[period])

    def _table_after(self, origin: int, ahead: int) -> Floats:
        if (origin, ahead) not in self._tables:
            first = origin + (ahead - 1) * self._period
            walls_s = self._walls_s[first : first + self._period]
            self._tables[origin, ahead] = self._table(origin, walls_s)
        return self._tables[origin, ahead]

    def _table(self, origin: int, walls_s: Ints) -> Floats:
        """Expected demand at the given wall times: a row for each candidate, and the naive forecast as the last row."""
        every = rows_back(self._history, self._walls_s, origin, self.season, model.ROWS)
        columns = columns_of(walls_s, self.season, self._history.interval_s)
        here_s = int(self._walls_s[origin - 1]) + self._history.interval_s
        ahead = np.maximum((walls_s - here_s) // self.season.period_s, 0) + 1
        rows, places = self._ordinary(origin, every), self._places(walls_s, columns)
        table = np.empty((len(model.CANDIDATES) + 1, len(walls_s)))
        for one in np.unique(ahead):
            chosen = ahead == one
            table[:-1, chosen] = model.expected(rows, self.season, int(one))[:, places[chosen]]
        table[-1] = model.latest_values(every)[columns]
        for day in self._of_calendar(walls_s):
            chosen = walls_s // DAY_S == day
            event = self._events[day]
            if (before := self._last_of(event, day, origin)) is not None:
                self._repeat(before, origin, table[:-1], walls_s, chosen)
            elif not isinstance(event.like, str):
                table[:-1, chosen] *= event.like
        return table

    def _ordinary(self, origin: int, every: Floats) -> Floats:
        """Rows without the days of the calendar, except for hours of which there is nothing else."""
        if self._is_ordinary[:origin].all():
            return every
        rows = rows_back(
            self._history, self._walls_s, origin, self.season, model.ROWS, is_ordinary=self._is_ordinary
        )
        is_missing = np.isnan(rows).all(axis=0)
        if is_missing.any():
            rows = np.concatenate([rows, np.full((len(every) - len(rows), rows.shape[1]), np.nan)])
            rows[:, is_missing] = every[:, is_missing]
        return rows

    def _places(self, walls_s: Ints, columns: Ints) -> Ints:
        """Columns, on a day of the calendar those of the weekday that it is expected to be like."""
        places = columns.copy()
        for day in self._of_calendar(walls_s) if self.season is Season.WEEK else ():
            like, width = self._events[day].like, DAY_S // self._history.interval_s
            if isinstance(like, str):
                chosen = walls_s // DAY_S == day
                places[chosen] = columns[chosen] % width + WEEKDAYS.index(like) * width
        return places

    def _of_calendar(self, walls_s: Ints) -> list[int]:
        return [day for day in np.unique(walls_s // DAY_S).tolist() if day in self._events]

    def _last_of(self, event: Event, day: int, origin: int) -> int | None:
        """The last whole day of this event before the origin."""
        whole = (self._days[0] + (self._walls_s[0] % DAY_S > 0), self._days[origin - 1])
        if (self._walls_s[origin - 1] + self._history.interval_s) % DAY_S:
            whole = (whole[0], whole[1] - 1)
        earlier = earlier_days(self._calendar, event, day)
        return next((one for one in earlier if whole[0] <= one <= whole[1]), None)

    def _repeat(
        self, before: int, origin: int, table: Floats, walls_s: Ints, chosen: NDArray[np.bool_]
    ) -> None:
        """Replaces what is expected by the demand of the day `before`, at the present level."""
        found = np.flatnonzero(self._days == before)
        by_time = dict(zip((self._walls_s[found] % DAY_S).tolist(), self._history.values[found], strict=True))
        then, now = self._level(int(found[0])), self._level(origin)
        factor = now / then if then and now else 1.0
        for place in np.flatnonzero(chosen):
            if (demand := by_time.get(int(walls_s[place] % DAY_S))) is not None:
                table[:, place] = demand * factor

    def _level(self, interval: int) -> float:
        """Mean demand on ordinary days in the four weeks before the interval; 0 where there are none."""
        span = slice(max(0, interval - LEVEL_S // self._history.interval_s), interval)
        values = self._history.values[span][self._is_ordinary[span]]
        return float(values.mean()) if len(values) else 0.0

    def _described(self, origin: int, walls_s: Ints) -> list[str | None]:
        described = {}
        for day in self._of_calendar(walls_s):
            event = self._events[day]
            before = self._last_of(event, day, origin)
            if before is not None:
                like = f"like {date_of(before)}"
            elif self.season is Season.WEEK or not isinstance(event.like, str):
                like = event.describe_default()
            else:
                like = "like every day"
            described[day] = f"{event.name}: {like}"
        return [described.get(day) for day in (walls_s // DAY_S).tolist()]

    def _quantiles(
        self, origin: int, values: Floats, walls_s: Ints, ahead: Ints, method: str
    ) -> Floats | None:
        classes = classes_of(values, walls_s, self._events)
        quantiles = np.empty((len(values), len(self._levels)))
        pasts = [self._past(one, 1, method) for one in self._origins(origin, MISS_ORIGINS)]
        if not pasts:
            return None
        for one in range(1, int(ahead.max()) + 1):
            further = self._origins(origin, MISS_ORIGINS + MORE_ORIGINS * (one - 1), one)
            if one > 1 and len(further) >= FEWEST_ORIGINS:
                pasts = [self._past(before, one, method) for before in further]
            chosen = ahead == one
            if not chosen.any():
                continue
            scale = scale_of(np.concatenate([past.expected for past in pasts]))
            quantiles[chosen] = quantiles_of(
                values[chosen],
                classes[chosen],
                misses=[misses_of(past.actual, past.expected, scale) for past in pasts],
                miss_classes=[past.classes for past in pasts],
                scale=scale,
                levels=self._levels,
            )
        return quantiles

    def _flat(self, starts_us: Ints) -> Expectation:
        """The mean of what there is, and its own quantiles."""
        values = self._history.values
        levels = np.quantile(values, self._levels, method="higher")
        return Expectation(
            origin_us=int(self._history.starts_us[-1]) + self._history.interval_s * SECOND_US,
            starts_us=starts_us,
            method="flat",
            values=np.full(len(starts_us), values.mean()),
            quantiles=np.tile(levels, (len(starts_us), 1)),
            actual=None,
        )
