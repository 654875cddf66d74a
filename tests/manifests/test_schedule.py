"""What a schedule comes to at a moment, in a world where clocks are put forward and back."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from functools import cache
from itertools import accumulate
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_operator.manifests import GroupManifest, Scaling, floor_at
from lbg_operator.manifests.scaling import AHEAD
from lbg_operator.manifests.schedule import DAYS
from support.manifests import group_manifest

MOST = 20
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def scaling(*schedule: Mapping[str, Any], least: int = 2) -> Scaling:
    manifest = group_manifest({"scaling": {"minReplicas": least, "maxReplicas": 8, "schedule": [*schedule]}})
    found = GroupManifest.parse(manifest).scaling
    assert found is not None
    return found


def dated(replicas: int, begins: str, ends: str) -> dict[str, Any]:
    return {"minReplicas": replicas, "from": begins, "until": ends}


def weekly(
    replicas: int, begins: str, ends: str, *days: str, zone: str | None = "Europe/Berlin"
) -> dict[str, Any]:
    told = {"days": list(days or DAYS), "from": begins, "until": ends}
    return {"minReplicas": replicas, "weekly": told if zone is None else {**told, "timeZone": zone}}


def at(moment: str) -> datetime:
    return datetime.fromisoformat(moment)


def floor(told: Scaling, moment: str, *, most: int = MOST) -> tuple[int, datetime | None]:
    found = floor_at(told, at(moment), most=most)
    return found.min_replicas, found.until


def test_a_dated_entry_holds_from_its_beginning_to_just_before_its_end() -> None:
    told = scaling(dated(6, "2026-11-27T16:55:00Z", "2026-11-27T20:00:00+01:00"))
    assert floor(told, "2026-11-27T16:54:59Z") == (2, at("2026-11-27T16:55:00Z"))
    assert floor(told, "2026-11-27T16:55:00Z") == (6, at("2026-11-27T19:00:00Z"))
    assert floor(told, "2026-11-27T18:59:59Z") == (6, at("2026-11-27T19:00:00Z"))
    assert floor(told, "2026-11-27T19:00:00Z") == (2, None)


def test_of_all_that_are_in_force_the_highest_counts() -> None:
    told = scaling(
        dated(4, "2026-11-27T08:00:00Z", "2026-11-27T18:00:00Z"),
        dated(6, "2026-11-27T10:00:00Z", "2026-11-27T12:00:00Z"),
        dated(1, "2026-11-27T00:00:00Z", "2026-11-28T00:00:00Z"),
    )
    assert floor(told, "2026-11-27T07:00:00Z") == (2, at("2026-11-27T08:00:00Z"))
    assert floor(told, "2026-11-27T08:00:00Z") == (4, at("2026-11-27T10:00:00Z"))
    assert floor(told, "2026-11-27T10:00:00Z") == (6, at("2026-11-27T12:00:00Z"))
    assert floor(told, "2026-11-27T12:00:00Z") == (4, at("2026-11-27T18:00:00Z"))
    assert floor(told, "2026-11-27T18:00:00Z") == (2, None)


def test_entries_that_follow_each_other_with_the_same_number_are_one_stretch() -> None:
    told = scaling(
        dated(4, "2026-11-27T08:00:00Z", "2026-11-27T09:00:00Z"),
        dated(4, "2026-11-27T09:00:00Z", "2026-11-27T10:00:00Z"),
    )
    assert floor(told, "2026-11-27T08:30:00Z") == (4, at("2026-11-27T10:00:00Z"))
    found = floor_at(told, at("2026-11-27T08:30:00Z"), most=MOST)
    assert (found.entry, found.holds_until) == (0, at("2026-11-27T09:00:00Z"))
    assert floor_at(told, found.holds_until, most=MOST).entry == 1


def test_it_never_asks_for_more_than_there_may_be_and_says_so() -> None:
    told = scaling(dated(12, "2026-11-27T08:00:00Z", "2026-11-27T18:00:00Z"))
    found = floor_at(told, at("2026-11-27T09:00:00Z"), most=8)
    assert (found.min_replicas, found.entry, found.is_cut) == (8, 0, True)
    assert not floor_at(told, at("2026-11-27T09:00:00Z"), most=12).is_cut


def test_an_entry_that_asks_for_no_more_than_the_least_is_not_named() -> None:
    found = floor_at(
        scaling(dated(2, "2026-11-27T08:00:00Z", "2026-11-27T18:00:00Z")),
        at("2026-11-27T09:00:00Z"),
        most=MOST,
    )
    assert (found.min_replicas, found.entry) == (2, None)


def test_a_weekly_entry_follows_the_clock_on_the_wall() -> None:
    told = scaling(weekly(4, "07:45", "18:00", "Mon", "Tue"))
    assert floor(told, "2026-07-06T05:44:00Z") == (2, at("2026-07-06T05:45:00Z"))  # a Monday, in summer
    assert floor(told, "2026-07-06T05:45:00Z") == (4, at("2026-07-06T16:00:00Z"))
    assert floor(told, "2026-01-06T06:44:00Z") == (2, at("2026-01-06T06:45:00Z"))  # a Tuesday, in winter
    assert floor(told, "2026-01-06T17:00:00Z") == (2, at("2026-01-12T06:45:00Z"))


def test_an_end_that_is_not_after_the_beginning_is_on_the_next_day() -> None:
    told = scaling(weekly(4, "22:00", "02:00", "Sun", zone=None))
    assert floor(told, "2026-11-22T21:59:00Z") == (2, at("2026-11-22T22:00:00Z"))
    assert floor(told, "2026-11-23T01:59:00Z") == (4, at("2026-11-23T02:00:00Z"))
    whole = scaling(weekly(4, "00:00", "00:00", zone=None))
    assert floor(whole, "2026-11-23T01:59:00Z") == (4, None), "all days, without an end"


def test_an_hour_that_comes_twice_is_in_force_both_times_and_without_a_gap() -> None:
    """Berlin, 2026-10-25: at 03:00 the clock is put back to 02:00."""
    told = scaling(weekly(4, "02:15", "02:45", "Sun"))
    assert floor(told, "2026-10-25T00:14:00Z") == (2, at("2026-10-25T00:15:00Z"))
    assert floor(told, "2026-10-25T00:15:00Z") == (4, at("2026-10-25T01:45:00Z"))
    assert floor(told, "2026-10-25T01:00:00Z") == (4, at("2026-10-25T01:45:00Z"))


@pytest.mark.parametrize(
    ("begins", "ends", "span"),
    [
        ("02:30", "05:00", ("01:00", "03:00")),
        ("01:30", "02:30", ("00:30", "01:00")),
        ("02:10", "02:50", None),
        ("03:00", "04:00", ("01:00", "02:00")),
    ],
)
def test_a_time_that_is_left_out_comes_when_the_clock_jumps(
    begins: str, ends: str, span: tuple[str, str] | None
) -> None:
    """Berlin, 2026-03-29: at 02:00 the clock is put forward to 03:00, which is 01:00 UTC."""
    told = scaling(weekly(4, begins, ends, "Sun"))
    first, last = (None, None) if span is None else (at(f"2026-03-29T{one}:00Z") for one in span)
    assert floor(told, "2026-03-29T00:00:00Z") == (2, first)
    if first is not None:
        assert floor(told, first.isoformat()) == (4, last)


def test_a_change_that_is_further_ahead_than_a_week_is_not_told() -> None:
    told = scaling(dated(4, "2026-11-27T00:00:00Z", "2026-12-27T00:00:00Z"))
    assert floor(told, "2026-11-19T23:59:00Z") == (2, None)
    assert floor(told, "2026-11-20T00:00:00Z") == (2, at("2026-11-27T00:00:00Z"))
    assert floor(told, "2026-12-01T00:00:00Z") == (4, None)


@pytest.mark.parametrize("zone", ["Europe/Berln", "Europe", "posixrules/x", "Etc/../UTC"])
def test_an_entry_in_no_known_time_zone_does_not_count_and_says_so(zone: str) -> None:
    told = scaling(
        weekly(9, "00:00", "00:00", zone=zone), dated(4, "2026-11-27T08:00:00Z", "2026-11-27T18:00:00Z")
    )
    assert floor(told, "2026-11-27T09:00:00Z") == (4, at("2026-11-27T18:00:00Z"))
    assert floor_at(told, at("2026-11-27T09:00:00Z"), most=MOST).entry == 1, "as the manifest counts"
    assert told.schedule is not None
    assert told.schedule.problems == (
        f"spec.scaling.schedule[0].weekly.timeZone: {zone!r} is no time zone that is known here, and the entry does "
        "not count: say it as Europe/Berlin",
    )


def test_a_group_without_a_schedule_is_what_it_was() -> None:
    group = GroupManifest.parse(group_manifest({"scaling": {"maxReplicas": 4, "targetLag": 9}}))
    assert group.at(at("2026-11-27T09:00:00Z")) == (group, None)


TRANSITIONS = {
    "Europe/Berlin": ("2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"),
    "America/New_York": ("2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z"),
    "Australia/Lord_Howe": ("2026-04-04T15:00:00Z", "2026-10-03T15:30:00Z"),  # half an hour
    "America/Nuuk": ("2026-03-29T01:00:00Z",),  # in the evening of the day before
    "Pacific/Apia": ("2011-12-30T10:00:00Z",),  # a whole day was left out
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
