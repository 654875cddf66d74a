"""A history by the clocks on the wall: gaps, short histories, and weeks with an hour too many or too few."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import pytest

from lbg_pipeline.forecast.model import DAY_S, History, Season, columns_of, rows_back, season_of, wall_s
from testing.pipeline.demand_series import HOUR_US, MONDAY, hourly, micros, office

BERLIN, NEW_YORK, KOLKATA = "Europe/Berlin", "America/New_York", "Asia/Kolkata"


def rows(history: History, season: Season = Season.WEEK, count: int = 8) -> np.ndarray:
    walls = wall_s(history.starts_us, history.time_zone)
    return rows_back(history, walls, len(history.values), season, count)


@pytest.mark.parametrize(
    ("days", "season"),
    [(0.5, Season.FLAT), (1.9, Season.FLAT), (2, Season.DAY), (13.9, Season.DAY), (14, Season.WEEK)],
)
def test_what_repeats_depends_on_how_much_history_there_is(days: float, season: Season) -> None:
    assert season_of(days * DAY_S) is season


def test_the_first_column_is_monday_midnight_on_the_wall() -> None:
    starts = np.array([micros(MONDAY, NEW_YORK), micros(MONDAY + timedelta(days=6, hours=23), NEW_YORK)])
    assert columns_of(wall_s(starts, NEW_YORK), Season.WEEK, 3600).tolist() == [0, 167]


def test_a_zone_half_an_hour_off_counts_by_the_hour_that_its_clocks_show() -> None:
    starts = np.array([micros(datetime(2026, 3, 2, 9, 30), KOLKATA)])
    assert starts[0] % HOUR_US == 0
    assert columns_of(wall_s(starts, KOLKATA), Season.WEEK, 3600).tolist() == [9]


def test_the_latest_week_is_the_first_row() -> None:
    history = hourly(lambda wall: (wall - MONDAY).days // 7, hours=3 * 168)
    assert rows(history)[:, 0].tolist() == [2, 1, 0]


def test_what_was_before_the_history_is_unknown_and_not_zero() -> None:
    table = rows(hourly(lambda wall: 5, hours=168 + 24))
    assert table.shape == (2, 168)
    assert not np.isnan(table[0]).any()
    assert np.flatnonzero(~np.isnan(table[1])).tolist() == list(range(24)), "from Monday, by the wall"


@pytest.mark.parametrize(
    ("start", "zone"),
    [
        (datetime(2026, 3, 16), BERLIN),  # 2:00 is skipped on the 29th
        (datetime(2026, 10, 12), BERLIN),  # 2:00 comes twice on the 25th
        (datetime(2026, 2, 23), NEW_YORK),
        (datetime(2026, 10, 19), NEW_YORK),
    ],
)
def test_office_hours_stay_in_their_columns_when_the_clocks_change(start: datetime, zone: str) -> None:
    table = rows(hourly(office, hours=4 * 168, start=start, zone=zone))
    for column in range(168):
        known = table[~np.isnan(table[:, column]), column]
        assert set(known) == {office(start + timedelta(hours=column))}


def test_the_hour_that_is_skipped_is_unknown() -> None:
    table = rows(hourly(lambda wall: 1, hours=167 + 168, start=datetime(2026, 3, 23), zone=BERLIN))
    assert np.argwhere(np.isnan(table)).tolist() == [[1, 6 * 24 + 2]]


def test_the_hour_that_comes_twice_is_the_mean_of_both() -> None:
    history = hourly(lambda wall: 1, hours=169 + 168, start=datetime(2026, 10, 19), zone=BERLIN)
    history.values[6 * 24 + 2] = 7
    assert rows(history)[1, 6 * 24 + 2] == 4


def test_an_origin_inside_the_repeated_hour_knows_no_future() -> None:
    """The first of the two shows a later time than the origin, which is the second."""
    start = datetime(2026, 10, 19)
    history = hourly(lambda wall: 1, hours=6 * 24 + 4, start=start, zone=BERLIN)
    table = rows(history, Season.DAY, 7)
    assert table.shape == (7, 24)
    assert np.nansum(table) == 6 * 24 + 3, "the two hours of one name are their mean"
