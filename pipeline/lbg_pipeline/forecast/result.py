"""Forecast result of one group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from zoneinfo import ZoneInfo

from lbg_core.counted_nouns import counted
from lbg_pipeline.forecast.model import DAY_S, SECOND_US, ForecastSettings, Season
from lbg_pipeline.forecast.schedule import (
    MOST_ENTRIES,
    Entry,
    Need,
    Sizing,
    dated_entry,
    entries_of,
    floors,
    schedule,
    weekly,
    weekly_entry,
)


@dataclass(frozen=True, slots=True)
class History:
    """`messages` arrived in whole intervals from `from_us` until `until_us`."""

    messages: int
    from_us: int
    until_us: int

    @property
    def days(self) -> float:
        return (self.until_us - self.from_us) / SECOND_US / DAY_S


@dataclass(frozen=True, slots=True)
class Score:
    """Of a method over the backtest (`groups.scored`). None without demand, or before there were quantiles."""

    method: str
    origins: int
    wmape: float | None
    pinball: float | None
    covered: float | None
    in_band: float | None
    is_used: bool


@dataclass(frozen=True, slots=True)
class Interval:
    """One that is forecast, in messages. `event`: of the calendar, and what it is expected to be like. `replicas` is
    None without a capacity, `unbounded` what they were without limits."""

    start_us: int
    expected: float
    low: float
    high: float
    planned: float
    event: str | None = None
    replicas: int | None = None
    unbounded: int | None = None


@dataclass(frozen=True, slots=True)
class Scheduling:
    """`lead_s`: how much earlier replicas start. `is_weekly`: the same every week."""

    lead_s: int
    is_weekly: bool


@dataclass(frozen=True, slots=True)
class Planned:
    """`method` and `variant` are those that serve. `sizing` is None without a capacity."""

    group: str
    season: Season
    method: str
    variant: str | None
    history: History
    scores: Sequence[Score]
    intervals: Sequence[Interval]
    sizing: Sizing | None
    capacity_from: str
    schedule: Sequence[Entry]
    floor: Sequence[Need]
    notes: Sequence[str]

    def busiest(self, count: int) -> list[Interval]:
        """By what replicas are planned for, the earlier of equals first."""
        return sorted(self.intervals, key=lambda one: (-one.planned, one.start_us))[:count]


def planned(
    *,
    group: str,
    season: Season,
    method: str,
    variant: str | None,
    history: History,
    scores: Sequence[Score],
    intervals: Sequence[Interval],
    sizing: Sizing | None,
    capacity_from: str,
    settings: ForecastSettings,
    scheduling: Scheduling,
) -> Planned:
    """Forecast of a group with its schedule, and notes about its origin."""
    notes = [
        *_of_method(season, method, history, scores),
        *_of_age(history, settings),
        *_of_calendar(method, intervals, settings),
    ]
    entries: list[Entry] = []
    floor: list[Need] = []
    if sizing is None:
        notes.append("no schedule, as the capacity of a member is unknown: give --capacity")
    else:
        intervals = [_sized(one, sizing, settings) for one in intervals]
        notes += _of_limits(intervals, sizing)
        needs = _needs(intervals, settings)
        floor = floors(needs, lead_s=scheduling.lead_s)
        if scheduling.is_weekly:
            every_week = weekly(needs, lead_s=scheduling.lead_s, time_zone=settings.time_zone)
            entries = [weekly_entry(one, time_zone=settings.time_zone) for one in every_week]
        else:
            entries = [dated_entry(one) for one in schedule(needs, lead_s=scheduling.lead_s)]
        if (changes := len(entries_of(floor))) > MOST_ENTRIES:
            notes.append(
                f"{counted(changes, 'change of the minimum was', 'changes of the minimum were')} merged into "
                f"{len(entries)}: use a longer --interval"
            )
    return Planned(
        group,
        season,
        method,
        variant,
        history,
        scores,
        intervals,
        sizing,
        capacity_from,
        entries,
        floor,
        notes,
    )


def shown(at_us: int, time_zone: str) -> datetime:
    """As the clocks of the zone show it."""
    return datetime.fromtimestamp(at_us // SECOND_US, ZoneInfo(time_zone))


def _sized(one: Interval, sizing: Sizing, settings: ForecastSettings) -> Interval:
    return replace(
        one,
        replicas=sizing.replicas(one.planned, settings.interval_s),
        unbounded=sizing.unbounded(one.planned, settings.interval_s),
    )


def _needs(intervals: Sequence[Interval], settings: ForecastSettings) -> list[Need]:
    return [
        Need(one.start_us // SECOND_US, one.start_us // SECOND_US + settings.interval_s, one.replicas)
        for one in intervals
        if one.replicas is not None
    ]


def _of_method(season: Season, method: str, history: History, scores: Sequence[Score]) -> list[str]:
    notes = []
    if season is Season.DAY:
        notes.append(
            f"{history.days:.1f} days of history are less than two weeks: all days are forecast alike"
        )
    if season is Season.FLAT:
        notes.append(
            f"{history.days * 24:.0f} h of history are less than two days: all hours are forecast alike, and no "
            "backtest"
        )
    if method == "naive":
        used = {one.method: one.wmape for one in scores}
        errors = f"{_percent(used['naive'])}, not {_percent(used['seasonal'])}"
        notes.append(f"the naive forecast is used, as its error over the backtest is lower: {errors}")
    return notes


def _of_age(history: History, settings: ForecastSettings) -> list[str]:
    age_s = (settings.now_us - history.until_us) / SECOND_US
    if age_s < DAY_S:
        return []
    return [f"the history ends {age_s / DAY_S:.1f} days before now: the forecast has no newer records"]


def _of_calendar(method: str, intervals: Sequence[Interval], settings: ForecastSettings) -> list[str]:
    if settings.calendar and method != "seasonal":
        return [f"the {method} forecast does not use the calendar"]
    days = {shown(one.start_us, settings.time_zone).date(): one.event for one in intervals if one.event}
    return [f"{day:%a %Y-%m-%d} is {event}" for day, event in days.items()]


def _of_limits(intervals: Sequence[Interval], sizing: Sizing) -> list[str]:
    wanting = [
        one.unbounded for one in intervals if one.unbounded is not None and one.unbounded > sizing.most
    ]
    if not wanting:
        return []
    return [
        f"{counted(len(wanting), 'interval needs', 'intervals need')} more than the "
        f"{counted(sizing.most, 'replica that is', 'replicas that are')} allowed, up to {max(wanting)}"
    ]


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}".replace("%", " %")
