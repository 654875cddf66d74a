"""The forecast of one group: what it learns as usual, and what does not mislead it."""

from __future__ import annotations

import numpy as np
import pytest

from lbg_pipeline.forecast.model import CANDIDATES, Candidate, Season, expected, latest_values

WEEK = np.array([0.0, 0.0, 40.0, 100.0, 60.0, 10.0, 0.0])
NAMES = [one.description(Season.WEEK) for one in CANDIDATES]
LONG, LONG_WITH_TREND = CANDIDATES.index(Candidate(4, 0.0)), CANDIDATES.index(Candidate(4, 0.8))


def by(place: int, rows: np.ndarray, ahead: int = 1) -> np.ndarray:
    return expected(rows, Season.WEEK, ahead)[place]


@pytest.mark.parametrize("place", range(len(CANDIDATES)), ids=NAMES)
@pytest.mark.parametrize("weeks", [1, 2, 3, 8])
def test_what_repeats_exactly_is_expected_exactly(place: int, weeks: int) -> None:
    assert by(place, np.tile(WEEK, (weeks, 1))) == pytest.approx(WEEK)


@pytest.mark.parametrize("place", range(len(CANDIDATES)), ids=NAMES)
def test_all_zeros_are_expected_to_stay(place: int) -> None:
    assert by(place, np.zeros((8, 7))).tolist() == [0] * 7


@pytest.mark.parametrize("place", range(len(CANDIDATES)), ids=NAMES)
@pytest.mark.parametrize("week", range(4))
def test_a_single_spike_moves_only_its_own_hour_and_hardly_that(place: int, week: int) -> None:
    rows = np.tile(WEEK, (8, 1))
    rows[week, 3] = 100_000
    told = by(place, rows)
    assert told[3] <= WEEK[3] + 1.5 * np.sqrt(101)
    assert np.delete(told, 3) == pytest.approx(np.delete(WEEK, 3), rel=0.05)


def test_the_naive_forecast_takes_the_spike_whole() -> None:
    rows = np.tile(WEEK, (8, 1))
    rows[0, 3] = 100_000
    assert latest_values(rows)[3] == 100_000


def test_the_naive_forecast_of_an_hour_that_last_week_skipped_is_from_the_week_before() -> None:
    rows = np.array([[np.nan, 2.0], [5.0, 3.0]])
    assert latest_values(rows).tolist() == [5, 2]
    assert latest_values(np.array([[np.nan, 2.0]])).tolist() == [0, 2]


def test_an_hour_that_was_never_seen_is_not_made_up() -> None:
    rows = np.tile(WEEK, (2, 1))
    rows[:, 3] = np.nan
    assert not np.isnan(by(0, rows)).any()
    assert np.delete(by(0, rows), 3) == pytest.approx(np.delete(WEEK, 3))


def test_growth_goes_on_damped() -> None:
    rows = np.array([WEEK * (1 + 0.1 * week) for week in range(8)])[::-1]
    without, with_trend = by(LONG, rows), by(LONG_WITH_TREND, rows)
    real = WEEK * 1.8
    assert without.sum() < 0.9 * real.sum()
    assert with_trend.sum() == pytest.approx(real.sum(), rel=0.03)
    assert by(LONG_WITH_TREND, rows, ahead=3).sum() > with_trend.sum()


def test_a_steep_trend_moves_a_forecast_by_half_at_most() -> None:
    rows = np.array([WEEK * 3**week for week in range(8)])[::-1]
    assert by(LONG_WITH_TREND, rows).sum() <= 1.5 * by(LONG, rows).sum() * (1 + 1e-9)
    assert (by(LONG_WITH_TREND, rows[::-1]) >= 0).all()


def test_a_few_rows_have_no_trend() -> None:
    rows = np.array([WEEK * 2, WEEK * 1.5, WEEK])
    assert by(LONG_WITH_TREND, rows) == pytest.approx(by(LONG, rows))


def test_a_short_half_life_comes_to_the_last_week() -> None:
    rows = np.array([WEEK * 2] * 4 + [WEEK] * 4)
    short = CANDIDATES.index(Candidate(1 / 6, 0.0))
    assert by(short, rows) == pytest.approx(WEEK * 2, rel=0.02)
    assert by(LONG, rows).sum() < 1.8 * WEEK.sum()
