"""Schedules as the operator reads them: dated ones in UTC, and recurring ones by the clocks of a time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lbg_operator.crds.scaling import Schedule
from lbg_pipeline.forecast.schedule import (
    Need,
    WeeklyNeed,
    dated_entry,
    patch,
    patch_yaml,
    schedule,
    weekly,
    weekly_entry,
)

HOUR_S = 3600
BERLIN, NEW_YORK, KOLKATA = "Europe/Berlin", "America/New_York", "Asia/Kolkata"


def week(counts: dict[int, int], *, start: datetime, zone: str, hours: int = 168) -> list[Need]:
    """Needs by the hour of the week on the wall, 1 elsewhere."""
    first = int(start.replace(tzinfo=ZoneInfo(zone)).timestamp())
    found = []
    for at_s in range(first - first % HOUR_S, first + hours * HOUR_S, HOUR_S):
        wall = datetime.fromtimestamp(at_s, ZoneInfo(zone))
        found.append(Need(at_s, at_s + HOUR_S, counts.get(wall.weekday() * 24 + wall.hour, 1)))
    return found


def floor_of_operator(entries: list[dict], at_s: int) -> int:
    told = Schedule.parse(entries, field="spec.scaling.schedule")
    assert told.problems == ()
    at = datetime.fromtimestamp(at_s, UTC)
    return max(
        (
            entry.min_replicas
            for entry in told.entries
            for begins, ends in entry.spans(at, at)
            if begins <= at < ends
        ),
        default=1,
    )


def test_days_with_the_same_hours_are_one_entry() -> None:
    counts = {day * 24 + hour: 6 for day in range(5) for hour in range(8, 18)}
    told = weekly(week(counts, start=datetime(2026, 3, 2), zone=BERLIN), lead_s=900, time_zone=BERLIN)
    assert told == [WeeklyNeed(6, ("Mon", "Tue", "Wed", "Thu", "Fri"), 7 * HOUR_S + 2700, 18 * HOUR_S)]
    assert weekly_entry(told[0], time_zone=BERLIN) == {
        "minReplicas": 6,
        "weekly": {
            "days": ["Mon", "Tue", "Wed", "Thu", "Fri"],
            "from": "07:45",
            "until": "18:00",
            "timeZone": BERLIN,
        },
    }


def test_a_need_over_midnight_is_cut_there_and_one_over_sunday_night_goes_on_on_monday() -> None:
    counts = dict.fromkeys((6 * 24 + 22, 6 * 24 + 23, 0, 1), 3)
    told = weekly(week(counts, start=datetime(2026, 3, 4), zone=BERLIN), lead_s=0, time_zone=BERLIN)
    assert told == [WeeklyNeed(3, ("Mon",), 0, 2 * HOUR_S), WeeklyNeed(3, ("Sun",), 22 * HOUR_S, 24 * HOUR_S)]
    assert weekly_entry(told[1], time_zone=BERLIN)["weekly"]["until"] == "00:00"


def test_the_lead_of_monday_midnight_is_on_sunday() -> None:
    told = weekly(week({0: 4}, start=datetime(2026, 3, 2), zone="UTC"), lead_s=301, time_zone="UTC")
    assert [(one.days, one.from_s, one.until_s) for one in told] == [
        (("Mon",), 0, HOUR_S),
        (("Sun",), 24 * HOUR_S - 360, 24 * HOUR_S),
    ], "a lead of 301 s is six minutes of the clock"


def test_a_whole_day_is_from_midnight_to_midnight() -> None:
    counts = {48 + hour: 2 for hour in range(24)}
    told = weekly(week(counts, start=datetime(2026, 3, 2), zone="UTC"), lead_s=0, time_zone="UTC")
    entry = weekly_entry(told[0], time_zone="UTC")["weekly"]
    assert (len(told), entry["days"], entry["from"], entry["until"]) == (1, ["Wed"], "00:00", "00:00")


@given(
    st.dictionaries(st.integers(0, 167), st.integers(1, 6)),
    st.sampled_from(
        [
            (datetime(2026, 6, 1), BERLIN),
            (
                datetime(2026, 3, 27),
                BERLIN,
            ),  # the clocks are put forward in this week, and back in the next two
            (datetime(2026, 10, 23), BERLIN),
            (datetime(2026, 10, 28), NEW_YORK),
            (datetime(2026, 6, 3), KOLKATA),
        ]
    ),
    st.integers(0, 5400),
)
def test_the_operators_floor_is_never_below_what_the_weekly_schedule_is_made_of(
    counts: dict[int, int], place: tuple[datetime, str], lead_s: int
) -> None:
    start, zone = place
    needs = week(counts, start=start, zone=zone)
    entries = [weekly_entry(one, time_zone=zone) for one in weekly(needs, lead_s=lead_s, time_zone=zone)]
    assert len(entries) <= 512
    for need in needs[::5]:
        assert floor_of_operator(entries, need.from_s) >= need.replicas
        assert floor_of_operator(entries, need.until_s - 1) >= need.replicas
        assert floor_of_operator(entries, need.from_s) <= max(counts.values(), default=1)


def test_a_dated_schedule_is_the_operators_floor_with_its_lead() -> None:
    needs = week({30: 5, 31: 3}, start=datetime(2026, 3, 2), zone="UTC")
    entries = [dated_entry(one) for one in schedule(needs, lead_s=300)]
    assert entries == [
        {"minReplicas": 5, "from": "2026-03-03T05:55:00Z", "until": "2026-03-03T07:00:00Z"},
        {"minReplicas": 3, "from": "2026-03-03T07:00:00Z", "until": "2026-03-03T08:00:00Z"},
    ]
    begins = int(datetime(2026, 3, 3, 6, tzinfo=UTC).timestamp())
    asked = [begins - 301, begins - 300, begins, begins + HOUR_S, begins + 2 * HOUR_S]
    assert [floor_of_operator(entries, at_s) for at_s in asked] == [1, 5, 5, 3, 1]


@pytest.mark.parametrize("group", ["orders", "odd: # 'name'\nkind: x", "ключ"])
def test_the_patch_file_is_yaml_of_the_schedule_whatever_the_group_is_called(group: str) -> None:
    entries = [
        dated_entry(Need(0, 60, 2)),
        weekly_entry(WeeklyNeed(3, ("Mon",), 0, 86400), time_zone=BERLIN),
    ]
    text = patch_yaml(group, entries, remarks=["capacity 5 messages/s"])
    assert yaml.safe_load(text) == patch(entries)
    assert text.isascii()
    assert len(text.splitlines()) == 2 + 3 + 2


def test_an_empty_schedule_takes_an_older_one_away() -> None:
    assert yaml.safe_load(patch_yaml("g", [], remarks=[])) == {"spec": {"scaling": {"schedule": []}}}


def test_times_are_utc_and_in_whole_seconds() -> None:
    entry = dated_entry(Need(1_772_000_000, 1_772_000_000 + int(timedelta(hours=1).total_seconds()), 2))
    assert entry["from"] == "2026-02-25T06:13:20Z"
