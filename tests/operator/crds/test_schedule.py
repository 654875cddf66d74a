"""Minimum of a schedule at a time, with clocks put forward and back."""

from __future__ import annotations

from datetime import datetime

import pytest

from lbg_operator.crds import GroupManifest, Scaling, floor_at
from testing.kubernetes.manifests import group_manifest
from testing.kubernetes.schedules import at, dated, scaling, weekly

MOST = 20


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


def test_a_weekly_day_that_ends_where_the_clock_is_put_back_to_ends_before_the_hour_that_comes_twice() -> (
    None
):
    """New York, 2026-11-01: at 02:00 (06:00 UTC) the clock is put back to 01:00, so no minute after 05:00 UTC is
    before 01:00."""
    told = scaling(weekly(4, "01:00", "01:00", "Sat", zone="America/New_York"))
    assert floor(told, "2026-11-01T04:00:00Z") == (4, at("2026-11-01T05:00:00Z"))
    assert floor(told, "2026-11-01T05:00:00Z") == (2, at("2026-11-07T06:00:00Z"))


def test_an_hour_before_the_one_that_comes_twice_lasts_an_hour_and_the_one_after_it_too() -> None:
    told = scaling(weekly(4, "00:00", "01:00", "Sun", zone="America/New_York"))
    assert floor(told, "2026-11-01T04:00:00Z") == (4, at("2026-11-01T05:00:00Z"))
    told = scaling(weekly(4, "02:00", "03:00", "Sun", zone="America/New_York"))
    assert floor(told, "2026-11-01T06:59:00Z") == (2, at("2026-11-01T07:00:00Z"))
    assert floor(told, "2026-11-01T07:00:00Z") == (4, at("2026-11-01T08:00:00Z"))


def test_a_change_on_a_day_that_the_clock_shows_and_leaves_again_is_seen_a_week_ahead() -> None:
    """St. John's, 2010-11-07: at 00:01 of the Sunday (02:31 UTC) the clock is put back to 23:01 of the Saturday."""
    told = scaling(weekly(4, "00:00", "00:01", "Sun", zone="America/St_Johns"))
    assert floor(told, "2010-10-31T02:45:00Z") == (2, at("2010-11-07T02:30:00Z"))
    assert floor(told, "2010-11-07T02:30:00Z") == (4, at("2010-11-07T03:31:00Z"))


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
        f"spec.scaling.schedule[0].weekly.timeZone: {zone!r} is not a known time zone, and the entry is "
        "ignored: set it as Europe/Berlin",
    )


def test_a_group_without_a_schedule_is_what_it_was() -> None:
    group = GroupManifest.parse(group_manifest({"scaling": {"maxReplicas": 4, "targetLag": 9}}))
    assert group.at(at("2026-11-27T09:00:00Z")) == (group, None)
