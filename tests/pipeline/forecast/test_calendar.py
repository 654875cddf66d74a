"""Days of the calendar: left out of ordinary days, and expected to be like earlier ones of their name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from lbg_pipeline.errors import HistoryRefused
from lbg_pipeline.forecast.backtest import Backtest, Expectation
from lbg_pipeline.forecast.calendar import MONDAY as DAY_0
from lbg_pipeline.forecast.calendar import Event, read_calendar
from lbg_pipeline.forecast.model import History
from testing.pipeline.demand_series import HOUR_US, MONDAY, before, hourly, office

WEEKS = 6
HOLIDAY = MONDAY + timedelta(weeks=WEEKS - 1, days=2)
"""A Wednesday in the last week of the history."""
NEXT = HOLIDAY + timedelta(weeks=1)


def event(first: datetime, name: str = "holiday", *, days: int = 1, like: str | float = "Sun") -> Event:
    day = (first.date() - DAY_0).days
    return Event(name, day, day + days - 1, like)


def history(holiday: Callable[[datetime], float], *, weeks: int = WEEKS, growth: float = 0.0) -> History:
    """Office hours, and HOLIDAY."""

    def demand(wall: datetime) -> float:
        usual = (10 + office(wall)) * (1 + growth) ** ((wall - MONDAY).days // 7)
        return holiday(wall) if wall.date() == HOLIDAY.date() else usual

    return hourly(demand, hours=weeks * 168)


def expected(known: History, *calendar: Event, hours: int = 168) -> Expectation:
    starts = known.starts_us[-1] + (1 + np.arange(hours, dtype=np.int64)) * HOUR_US
    found = Backtest(known, (0.1, 0.5, 0.9), hours * 3600, calendar).future(starts)
    return next(one for one in found if one.method == "seasonal")


def ordinary(day: datetime) -> list[float]:
    return [10 + office(day + timedelta(hours=hour)) for hour in range(24)]


WEDNESDAY = slice(48, 72)
SUNDAY = slice(144, 168)


def test_the_week_after_a_holiday_is_as_if_there_had_been_none() -> None:
    known = history(lambda _: 0.0)
    week = np.concatenate([ordinary(MONDAY + timedelta(days=day)) for day in range(7)])
    assert expected(known, event(HOLIDAY)).values == pytest.approx(week)
    assert expected(known).values[WEDNESDAY] != pytest.approx(week[WEDNESDAY]), "without a calendar it echoes"


@pytest.mark.parametrize(
    ("like", "words", "factor"),
    [("Sun", "like Sun", None), ("Fri", "like Fri", None), (2.5, "2.5 times the usual demand", 2.5)],
)
def test_a_first_event_is_like_its_weekday_or_a_multiple(
    like: str | float, words: str, factor: float | None
) -> None:
    found = expected(history(lambda wall: 10 + office(wall)), event(NEXT, "fair", like=like))
    day = SUNDAY if like == "Sun" else slice(96, 120)
    wanted = found.values[day] if factor is None else factor * np.array(ordinary(HOLIDAY))
    assert found.values[WEDNESDAY] == pytest.approx(wanted)
    assert set(found.events[WEDNESDAY]) == {f"fair: {words}"}
    assert set(found.events[:48]) == {None}


def test_an_event_is_like_the_last_of_its_name_at_the_present_level() -> None:
    """Four times the usual at noon alone, two weeks before, since when demand has grown by a fifth a week."""
    known = history(lambda wall: 4000.0 if wall.hour == 12 else 7.0, weeks=WEEKS + 1, growth=0.2)
    again = event(HOLIDAY + timedelta(weeks=2))
    found = expected(known, event(HOLIDAY), again, event(HOLIDAY - timedelta(weeks=3), "other"))
    grown = found.values[WEDNESDAY] / [4000.0 if hour == 12 else 7.0 for hour in range(24)]
    assert grown == pytest.approx(np.full(24, grown[0]))
    assert 1.3 < grown[0] < 1.5
    assert set(found.events[WEDNESDAY]) == {f"holiday: like {HOLIDAY:%Y-%m-%d}"}


def test_each_day_of_a_longer_event_is_like_the_same_day_of_the_last_one() -> None:
    known = hourly(
        lambda wall: (
            float(wall.toordinal() - HOLIDAY.toordinal()) * 100 + 100
            if HOLIDAY <= wall < HOLIDAY + timedelta(days=2)
            else 50.0
        ),
        hours=WEEKS * 168,
    )
    found = expected(known, event(HOLIDAY, days=2), event(NEXT - timedelta(days=1), days=2))
    assert found.values[24:48] == pytest.approx(np.full(24, 100.0))
    assert found.values[48:72] == pytest.approx(np.full(24, 200.0))


def test_an_origin_of_the_backtest_does_not_know_the_events_after_it() -> None:
    calendar = (event(HOLIDAY), event(NEXT))
    whole = history(lambda _: 777.0, weeks=WEEKS + 1)
    levels = (0.1, 0.5, 0.9)
    cut = before(whole, WEEKS * 168 - 168)
    origin = next(Backtest(whole, levels, 0, calendar).past(2))
    assert origin.values == pytest.approx(expected(cut, *calendar).values)
    assert set(origin.events[WEDNESDAY]) == {"holiday: like Sun"}


def test_hours_of_which_there_are_only_days_of_the_calendar_are_expected_like_these() -> None:
    known = history(lambda wall: 10 + office(wall), weeks=2)
    mondays = [event(MONDAY + timedelta(weeks=week), f"day {week}") for week in range(2)]
    assert expected(known, *mondays).values[:24] == pytest.approx(ordinary(MONDAY))


def test_days_of_the_calendar_do_not_widen_the_band_of_ordinary_days() -> None:
    holidays = [MONDAY + timedelta(weeks=week, days=week % 5) for week in range(4, 12)]
    days = {one.date() for one in holidays}
    known = hourly(lambda wall: 500.0 if wall.date() in days else 100.0 + wall.hour % 3, hours=12 * 168)
    named = expected(known, *(event(one, f"day {place}") for place, one in enumerate(holidays)))
    assert np.ptp(named.quantiles, axis=1).max() < 10
    assert np.ptp(expected(known).quantiles, axis=1).max() > 100


def test_a_calendar_is_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "calendar.csv"
    path.write_text(
        "date,until,name,like\n2026-12-24,2026-12-26,Christmas,\n2026-11-27,,sale,3.5\n2026-05-01,,,Sat\n"
    )
    days = [(date(2026, *day) - DAY_0).days for day in ((12, 24), (12, 26), (11, 27), (5, 1))]
    assert read_calendar(path) == (
        Event("Christmas", days[0], days[1]),
        Event("sale", days[2], days[2], 3.5),
        Event("event", days[3], days[3], "Sat"),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("day,name\n2026-12-25,Christmas\n", "give the columns date"),
        ("", "give the columns date"),
        ("date,colour\n2026-12-25,red\n", "give the columns date"),
        ("date\n25.12.2026\n", "line 2: '25.12.2026' is not a date: give it as 2026-12-25"),
        ("date,until\n2026-12-25,2026-12-24\n", "line 2: until is before date"),
        ("date,like\n2026-12-25,Sunday\n", "line 2: like is 'Sunday': give a weekday"),
        ("date,like\n2026-12-25,nan\n", "line 2: like is 'nan': give a weekday"),
    ],
)
def test_a_line_that_is_no_event_is_refused_with_its_number(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "calendar.csv"
    path.write_text(text)
    with pytest.raises(HistoryRefused, match=why):
        read_calendar(path)
