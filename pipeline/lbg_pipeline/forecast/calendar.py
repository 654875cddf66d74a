"""Calendar: holidays and other known events, days whose demand differs from that of their weekday.

Such days are left out of the means of ordinary days. They are expected to be like the last day of the same event, for
the hour of the day and at the present level of demand; without such a day, like `Event.like`.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from lbg_pipeline.errors import HistoryRefused

MONDAY = date(1970, 1, 5)
"""Day 0, as in `model.wall_s`."""
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_COLUMNS = {"date", "until", "name", "like"}


@dataclass(frozen=True, slots=True)
class Event:
    """Days `first` to `last`. `like`: a weekday of WEEKDAYS, or a multiple of the usual demand."""

    name: str
    first: int
    last: int
    like: str | float = "Sun"

    def describe_default(self) -> str:
        return f"like {self.like}" if isinstance(self.like, str) else f"{self.like:g} times the usual demand"


def date_of(day: int) -> date:
    return MONDAY + timedelta(days=day)


def by_day(calendar: Sequence[Event]) -> dict[int, Event]:
    """The first of several events on a day counts."""
    return {day: event for event in reversed(calendar) for day in range(event.first, event.last + 1)}


def earlier_days(calendar: Sequence[Event], event: Event, day: int) -> list[int]:
    """The same day of earlier events of this name, the latest first."""
    offset = day - event.first
    same = (one for one in calendar if one.name == event.name and one.first < event.first)
    return sorted((one.first + offset for one in same if one.first + offset <= one.last), reverse=True)


def read_calendar(path: Path, *, until: date | None = None) -> tuple[Event, ...]:
    """A CSV file with a header, of which only events that end before `until` count. Raises HistoryRefused with the line
    that is no event."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise HistoryRefused(f"calendar {path} cannot be read: {error}") from None
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    unknown = set(rows.fieldnames or ()) - _COLUMNS
    if "date" not in (rows.fieldnames or ()) or unknown:
        raise HistoryRefused(
            f"calendar {path} begins with {text.partition(chr(10))[0]!r:.60}: give the columns date, and if needed "
            "until, name and like, in its first line"
        )
    events = tuple(_event(row, f"calendar {path}, line {rows.line_num}") for row in rows)
    return tuple(one for one in events if until is None or date_of(one.last) < until)


def _event(row: dict[str, str | None], place: str) -> Event:
    first = _day(row["date"] or "", place)
    last = _day(row.get("until") or row["date"] or "", place)
    if last < first:
        raise HistoryRefused(f"{place}: until is before date: give the last day of the event")
    return Event(row.get("name") or "event", first, last, _like((row.get("like") or "Sun").strip(), place))


def _day(text: str, place: str) -> int:
    try:
        return (date.fromisoformat(text.strip()) - MONDAY).days
    except ValueError:
        raise HistoryRefused(f"{place}: {text!r:.40} is not a date: give it as 2026-12-25") from None


def _like(text: str, place: str) -> str | float:
    if text in WEEKDAYS:
        return text
    try:
        factor = float(text)
    except ValueError:
        factor = -1.0
    if not 0 <= factor <= 1000:
        raise HistoryRefused(
            f"{place}: like is {text!r:.40}: give a weekday (Mon to Sun), or a multiple of the usual demand, up to "
            "1000"
        )
    return factor
