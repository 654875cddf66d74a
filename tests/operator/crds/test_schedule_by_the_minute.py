"""Minimum of a schedule, compared with the clock in every minute around its changes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from functools import cache
from itertools import accumulate, product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_operator.crds import floor_at
from lbg_operator.crds.scaling import AHEAD, DAYS
from testing.kubernetes.schedules import at, scaling, weekly
from testing.needs import repeated

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
TRANSITIONS = {
    "Europe/Berlin": ("2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"),
    "America/New_York": ("2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z"),
    "Australia/Lord_Howe": ("2026-04-04T15:00:00Z", "2026-10-03T15:30:00Z"),  # half an hour
    "America/Nuuk": ("2026-03-29T01:00:00Z",),  # in the evening of the day before
    "America/St_Johns": ("2010-03-14T03:31:00Z", "2010-11-07T02:31:00Z"),  # a minute after midnight
    "Africa/Casablanca": ("2026-02-15T02:00:00Z", "2026-03-22T02:00:00Z"),  # winter in the month of Ramadan
    "Pacific/Apia": ("2011-12-30T10:00:00Z",),  # a whole day was left out
    "Antarctica/Troll": ("2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"),  # two hours
    "Pacific/Kwajalein": (
        "1969-09-30T13:00:00Z",
        "1993-08-21T12:00:00Z",
    ),  # a day comes twice, and one is left out
    "UTC": ("2026-01-01T00:00:00Z",),
}
BEFORE, AFTER = 6 * DAY, 11 * DAY


@cache
def walls(zone: str, change: str) -> tuple[datetime, list[datetime], list[datetime]]:
    """For each minute around a change, from the first: the latest that the clock has shown by then, and the earliest
    that it will show from then on."""
    first = at(change) - BEFORE
    minutes = range((BEFORE + AFTER) // MINUTE)
    shown = [(first + n * MINUTE).astimezone(ZoneInfo(zone)).replace(tzinfo=None) for n in minutes]
    return first, list(accumulate(shown, max)), list(accumulate(reversed(shown), min))[::-1]


def clocks_around(zone: str, change: str) -> list[str]:
    """Times that a manifest can name at a change of the clock: just before and after, the
    middle between, and a minute more and less of each."""
    moment, there = at(change), ZoneInfo(zone)
    before = (moment - MINUTE).astimezone(there).replace(tzinfo=None) + MINUTE
    after = moment.astimezone(there).replace(tzinfo=None)
    edges = (before, after, before + (after - before) / 2)
    return sorted({f"{edge + step:%H:%M}" for edge in edges for step in (-MINUTE, timedelta(0), MINUTE)})


def brute_force(told: Sequence[Mapping[str, Any]], change: str, least: int) -> list[int]:
    """The fewest consumers in each minute."""
    found = [least] * ((BEFORE + AFTER) // MINUTE)
    for one in told:
        said = one["weekly"]
        first, latest, earliest = walls(said["timeZone"], change)
        begins, ends = (time.fromisoformat(said[name]) for name in ("from", "until"))
        days = (first.date() + n * DAY for n in range(-2, (BEFORE + AFTER).days + 2))
        for day in days:
            if DAYS[day.weekday()] in said["days"]:
                since, until = minutes_of(day, begins, ends, latest, earliest)
                for minute in range(since, until):
                    found[minute] = max(found[minute], one["minReplicas"])
    return found


def minutes_of(
    day: date, begins: time, ends: time, latest: list[datetime], earliest: list[datetime]
) -> tuple[int, int]:
    """From the first minute at which the clock has reached `begins`, to the last at which it is still before `ends`."""
    last = day if begins < ends else day + DAY
    since = bisect_left(latest, datetime.combine(day, begins))
    return since, bisect_right(earliest, datetime.combine(last, ends) - timedelta(microseconds=1))


clock = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.sampled_from([0, 0, 15, 29, 30, 31, 59]))


@st.composite
def weeks(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]], list[int]]:
    zone = draw(st.sampled_from(sorted(TRANSITIONS)))
    change = draw(st.sampled_from(TRANSITIONS[zone]))
    days = st.sets(st.sampled_from(DAYS), min_size=1)
    entries = draw(
        st.lists(
            st.builds(
                lambda asked, begins, ends, on, where: weekly(asked, begins, ends, *sorted(on), zone=where),
                *(st.integers(1, 6), clock, clock, days, st.sampled_from([zone, zone, "UTC"])),
            ),
            min_size=1,
            max_size=4,
        )
    )
    near = st.integers((BEFORE - 2 * DAY) // MINUTE, (BEFORE + 2 * DAY) // MINUTE)
    return change, entries, draw(st.lists(near, min_size=1, max_size=20))


@pytest.mark.long
@given(weeks())
def test_it_is_what_looking_at_the_clock_every_minute_comes_to(
    week: tuple[str, list[dict[str, Any]], list[int]],
) -> None:
    change, entries, minutes = week
    first, least, most = at(change) - BEFORE, 2, 5
    wanted = [min(one, most) for one in brute_force(entries, change, least)]
    told = scaling(*entries, least=least)
    for minute in minutes:
        found = floor_at(told, first + minute * MINUTE, most=most)
        ahead = range(minute + 1, minute + 1 + AHEAD // MINUTE)
        changes = next((n for n in ahead if wanted[n] != wanted[minute]), None)
        assert found.min_replicas == wanted[minute], minute
        assert found.until == (None if changes is None else first + changes * MINUTE), minute


@pytest.mark.long
@pytest.mark.parametrize(
    ("zone", "change"),
    repeated((zone, one) for zone, all_ in TRANSITIONS.items() for one in all_),
)
def test_an_entry_may_begin_and_end_anywhere_around_a_change_of_the_clock(zone: str, change: str) -> None:
    first = at(change) - BEFORE
    start, end = (BEFORE - 2 * DAY) // MINUTE, (BEFORE + 3 * DAY) // MINUTE
    days = sorted({f"{at(change).astimezone(ZoneInfo(zone)) + n * DAY:%a}" for n in (-2, -1, 0, 1)})
    for begins, ends, day in product(clocks_around(zone, change), clocks_around(zone, change), days):
        entry = weekly(4, begins, ends, day, zone=zone)
        wanted = brute_force([entry], change, least=2)
        told, minute = scaling(entry, least=2), start
        while minute < end:
            found = floor_at(told, first + minute * MINUTE, most=5)
            changes = next((n for n in range(minute, len(wanted)) if wanted[n] != wanted[minute]), None)
            assert found.min_replicas == wanted[minute], (begins, ends, day, minute)
            if changes is None or changes > end:
                break
            assert found.until == first + changes * MINUTE, (begins, ends, day, minute)
            minute = changes
