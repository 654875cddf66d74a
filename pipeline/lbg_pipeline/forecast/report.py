"""Forecast as text for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

from lbg_core.command_output import text_table
from lbg_core.counted_nouns import counted
from lbg_pipeline.forecast.model import SECOND_US, ForecastSettings
from lbg_pipeline.forecast.result import Interval, Planned, Score, shown
from lbg_pipeline.forecast.schedule import rfc3339
from lbg_pipeline.html import numbers

BUSIEST = 10
DETAILED_GROUPS = 3
SHOWN_DAYS = 8
_NAMES = {"seasonal": "seasonal", "naive": "naive, as last {period}"}


def lines(groups: Sequence[Planned], settings: ForecastSettings, *, broken: int = 0) -> Iterator[str]:
    """Of one to three groups every detail; of more a line each, as the tables have the rest. `broken`: lines of
    the journals that are no records."""
    if broken:
        yield (
            f"{counted(broken, 'line is not a record and is', 'lines are not records and are')} ignored: table broken "
            "has them with the reason"
        )
    if len(groups) > DETAILED_GROUPS:
        yield from _overview(groups, settings)
        return
    for place, group in enumerate(groups):
        if place:
            yield ""
        yield from _of_group(group, settings)


def _of_group(group: Planned, settings: ForecastSettings) -> Iterator[str]:
    history = group.history
    begin, end = (shown(at, settings.time_zone) for at in (history.from_us, history.until_us))
    yield (
        f"group {group.group}: {counted(history.messages, 'message')} from {begin:%Y-%m-%d %H:%M} to "
        f"{end:%Y-%m-%d %H:%M} "
        f"({settings.time_zone}), by {group.season.value}" + (f", {group.variant}" if group.variant else "")
    )
    yield from (f"- {note}" for note in group.notes)
    if group.scores:
        yield ""
        yield from _backtest(group, settings)
    yield ""
    yield from _busiest(group, settings)
    if group.sizing is not None:
        yield ""
        yield f"a member is planned with {numbers.count(group.sizing.capacity)} messages/s ({group.capacity_from})"
        yield "replicas by hour:"
        yield from _by_hour(group, settings)
        yield f"schedule: {counted(len(group.schedule), 'entry', 'entries')}, in the patch"


def _backtest(group: Planned, settings: ForecastSettings) -> Iterator[str]:
    period = "week" if group.season.period_s > 86_400 else "day"
    level = f"{settings.quantile:.3g}"
    header = (
        f"backtest, {group.scores[0].origins} {period}s",
        "weighted MAPE",
        f"pinball {level}",
        f"below {level}",
        "in band",
        "",
    )
    rows = [
        (
            _NAMES[one.method].format(period=period),
            numbers.share(one.wmape),
            "–" if one.pinball is None else f"{one.pinball:.3g}",
            numbers.share(one.covered),
            numbers.share(one.in_band),
            "used" if one.is_used else "",
        )
        for one in group.scores
    ]
    yield from text_table(header, rows, names=1)


def _busiest(group: Planned, settings: ForecastSettings) -> Iterator[str]:
    header = ("busiest", "expected", f"quantile {settings.quantile:.3g}", "messages/s", "replicas")
    rows = [
        (
            f"{shown(one.start_us, settings.time_zone):%a %Y-%m-%d %H:%M}",
            f"{one.expected:,.1f}",
            f"{one.planned:,.1f}",
            numbers.count(one.planned / settings.interval_s),
            numbers.whole(one.replicas),
        )
        for one in group.busiest(BUSIEST)
    ]
    yield from text_table(header, rows, names=1)


def _by_hour(group: Planned, settings: ForecastSettings) -> Iterator[str]:
    """The most of each hour of the first days: a line an hour of the day, a column a date."""
    most: dict[tuple[int, date], int] = {}
    for one in group.intervals:
        wall = shown(one.start_us, settings.time_zone)
        place = (wall.hour, wall.date())
        most[place] = max(most.get(place, 0), one.replicas or 0)
    days = sorted({day for _, day in most})
    shown_days = days[:SHOWN_DAYS]
    header = ("", *(f"{day:%a %d %b}" for day in shown_days))
    rows = [(f"{hour:02}:00", *(str(most.get((hour, day), "")) for day in shown_days)) for hour in range(24)]
    yield from text_table(header, rows, names=1)
    if days != shown_days:
        yield f"and so on until {days[-1]:%a %d %b}: table forecast"


def _overview(groups: Sequence[Planned], settings: ForecastSettings) -> Iterator[str]:
    header = ("group", "method", "weighted MAPE", "naive", "busiest", "messages/s", "replicas", "entries")
    yield from text_table(header, [_overview_row(group, settings) for group in groups], names=1)
    noted = [(group.group, note) for group in groups for note in group.notes]
    yield from (f"- {name}: {note}" for name, note in noted[:20])
    if len(noted) > 20:
        yield f"- and {len(noted) - 20} more notes in forecast.json"


def _overview_row(group: Planned, settings: ForecastSettings) -> tuple[str, ...]:
    busiest = group.busiest(1)[0]
    errors = {one.method: one.wmape for one in group.scores}
    return (
        group.group,
        f"{group.method}, {group.season.value}" if group.method != "flat" else "flat",
        numbers.share(errors.get("seasonal")),
        numbers.share(errors.get("naive")),
        f"{shown(busiest.start_us, settings.time_zone):%a %m-%d %H:%M}",
        numbers.count(busiest.planned / settings.interval_s),
        numbers.whole(busiest.replicas),
        str(len(group.schedule)),
    )


def as_json(groups: Sequence[Planned], settings: ForecastSettings, *, broken: int = 0) -> dict[str, Any]:
    """Everything but the intervals, which are in the tables; times are RFC 3339."""
    return {
        "now": rfc3339(settings.now_us // SECOND_US),
        "interval_seconds": settings.interval_s,
        "horizon_seconds": settings.horizon_s,
        "time_zone": settings.time_zone,
        "quantile": settings.quantile,
        "broken_lines": broken,
        "groups": [_group_json(group) for group in groups],
    }


def _group_json(group: Planned) -> dict[str, Any]:
    history, sizing = group.history, group.sizing
    return {
        "group": group.group,
        "season": group.season.value,
        "method": group.method,
        "variant": group.variant,
        "history": {
            "messages": history.messages,
            "from": rfc3339(history.from_us // SECOND_US),
            "until": rfc3339(history.until_us // SECOND_US),
        },
        "backtest": {one.method: _score_json(one) for one in group.scores},
        "capacity_messages_per_second": None if sizing is None else sizing.capacity,
        "capacity_from": group.capacity_from,
        "busiest": [_interval_json(one) for one in group.busiest(BUSIEST)],
        "schedule": list(group.schedule),
        "notes": list(group.notes),
    }


def _score_json(one: Score) -> dict[str, Any]:
    return {
        "origins": one.origins,
        "weighted_mape": one.wmape,
        "pinball": one.pinball,
        "covered": one.covered,
        "in_band": one.in_band,
        "used": one.is_used,
    }


def _interval_json(one: Interval) -> dict[str, Any]:
    return {
        "start": rfc3339(one.start_us // SECOND_US),
        "expected": one.expected,
        "planned": one.planned,
        "replicas": one.replicas,
    }


def remarks(group: Planned, settings: ForecastSettings) -> Iterator[str]:
    """For the head of a patch."""
    yield f"made at {rfc3339(settings.now_us // SECOND_US)}, planned for the {settings.quantile:.3g} quantile of demand"
    if group.sizing is not None:
        yield f"a member is planned with {numbers.count(group.sizing.capacity)} messages/s ({group.capacity_from})"
    yield from group.notes
