"""Backtest of one group: the method and the naive one at each origin of its past.

An origin is a time in the past from which the method forecasts with the history until then; its score is by the actual
demand of the next week (of a short history: day). Origins lie whole periods before the end. The quantiles at an origin
are from the misses of earlier ones alone, so their coverage is honest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lbg_pipeline.forecast import model
from lbg_pipeline.forecast.model import (
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
MISS_ORIGINS = 8
"""Past origins whose misses make the quantiles."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Of consecutive intervals from `starts_us`. `quantiles` has a row for each, or is None before there are misses;
    `actual` is None for the future, `candidate` for the naive method."""

    origin_us: int
    starts_us: Ints
    method: str
    values: Floats
    quantiles: Floats | None
    actual: Floats | None
    candidate: model.Candidate | None = None


@dataclass(frozen=True, slots=True)
class _Past:
    """Expected demand after an origin, by each method in turn, and actual demand."""

    expected: Floats
    classes: Sequence[Ints]
    actual: Floats


class Backtest:
    """`levels` are the quantiles to forecast. Each origin is computed once."""

    def __init__(self, history: History, levels: Sequence[float]) -> None:
        self.season = season_of(history.length_s)
        self._history = history
        self._levels = levels
        self._walls_s = wall_s(history.starts_us, history.time_zone)
        self._period = self.season.period_s // history.interval_s
        self._pasts: dict[int, _Past] = {}

    def past(self, count: int) -> Iterator[Expectation]:
        """By both methods at each of the last `count` origins that have a whole period before them."""
        if self.season is Season.FLAT:
            return
        for origin in self._origins(len(self._history.values), count):
            stop = origin + self._period
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
        pasts = [self._past_at(one) for one in self._origins(origin, MISS_ORIGINS)]
        best = _best(pasts[-CHOOSING_ORIGINS:])
        table = self._table(origin, walls_s)
        is_past = origin < len(self._history.values)
        actual = self._history.values[origin : origin + len(starts_us)] if is_past else None
        origin_us = int(self._history.starts_us[origin - 1]) + self._history.interval_s * 1_000_000
        for method, chosen in (("seasonal", best), ("naive", len(model.CANDIDATES))):
            candidate = model.CANDIDATES[best] if method == "seasonal" else None
            quantiles = self._quantiles(table[chosen], walls_s, pasts, chosen)
            yield Expectation(origin_us, starts_us, method, table[chosen], quantiles, actual, candidate)

    def _origins(self, end: int, count: int) -> list[int]:
        """The last `count` before `end` whose period is over by then, the earliest first."""
        behind = min(count, end // self._period - 1)
        return [end - back * self._period for back in range(behind, 0, -1)]

    def _past_at(self, origin: int) -> _Past:
        if origin not in self._pasts:
            stop = origin + self._period
            walls_s = self._walls_s[origin:stop]
            table = self._table(origin, walls_s)
            classes = [classes_of(one, walls_s) for one in table]
            self._pasts[origin] = _Past(table, classes, self._history.values[origin:stop])
        return self._pasts[origin]

    def _table(self, origin: int, walls_s: Ints) -> Floats:
        """Expected demand at the given wall times: a row for each candidate, and the naive forecast as the last row."""
        rows = rows_back(self._history, self._walls_s, origin, self.season, model.ROWS)
        columns = columns_of(walls_s, self.season, self._history.interval_s)
        here_s = int(self._walls_s[origin - 1]) + self._history.interval_s
        ahead = np.maximum((walls_s - here_s) // self.season.period_s, 0) + 1
        table = np.empty((len(model.CANDIDATES) + 1, len(walls_s)))
        for one in np.unique(ahead):
            chosen = ahead == one
            table[:-1, chosen] = model.expected(rows, self.season, int(one))[:, columns[chosen]]
        table[-1] = model.latest_values(rows)[columns]
        return table

    def _quantiles(self, values: Floats, walls_s: Ints, pasts: list[_Past], method: int) -> Floats | None:
        if not pasts:
            return None
        scale = scale_of(np.concatenate([past.expected[method] for past in pasts]))
        return quantiles_of(
            values,
            classes_of(values, walls_s),
            misses=np.concatenate([misses_of(past.actual, past.expected[method], scale) for past in pasts]),
            miss_classes=np.concatenate([past.classes[method] for past in pasts]),
            scale=scale,
            levels=self._levels,
        )

    def _flat(self, starts_us: Ints) -> Expectation:
        """The mean of what there is, and its own quantiles."""
        values = self._history.values
        levels = np.quantile(values, self._levels, method="higher")
        return Expectation(
            origin_us=int(self._history.starts_us[-1]) + self._history.interval_s * 1_000_000,
            starts_us=starts_us,
            method="flat",
            values=np.full(len(starts_us), values.mean()),
            quantiles=np.tile(levels, (len(starts_us), 1)),
            actual=None,
        )


def _best(pasts: Sequence[_Past]) -> int:
    """The candidate with the least error over these, the earlier one of equals."""
    if not pasts:
        return 0
    errors = sum(np.abs(past.expected[:-1] - past.actual).sum(axis=1) for past in pasts)
    return int(np.argmin(errors))
