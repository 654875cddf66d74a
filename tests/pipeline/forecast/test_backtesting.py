"""One group from its history to what is expected: patterns are found, and the past is judged without the future."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import numpy as np
import pytest

from lbg_pipeline.forecast.backtest import Backtest, Expectation
from lbg_pipeline.forecast.model import History, Season
from testing.pipeline.demand_series import HOUR_US, MONDAY, before, hourly, noisy, office

LEVELS = (0.1, 0.5, 0.9, 0.95)
BERLIN = "Europe/Berlin"


def following(history: History, hours: int = 168) -> np.ndarray:
    return history.starts_us[-1] + (1 + np.arange(hours, dtype=np.int64)) * HOUR_US


def future(history: History, hours: int = 168) -> dict[str, Expectation]:
    told = Backtest(history, LEVELS).future(following(history, hours))
    return {one.method: one for one in told}


def error(told: list[Expectation]) -> float:
    missed = sum(np.abs(one.actual - one.values).sum() for one in told)
    return float(missed / sum(one.actual.sum() for one in told))


def judged(history: History, count: int = 8) -> dict[str, list[Expectation]]:
    found: dict[str, list[Expectation]] = {}
    for one in Backtest(history, LEVELS).past(count):
        found.setdefault(one.method, []).append(one)
    return found


@pytest.mark.parametrize("growth", [0.0, 0.05])
def test_a_weekly_pattern_under_noise_is_found_better_than_by_last_week(growth: float) -> None:
    told = judged(hourly(noisy(office, growth_a_week=growth), hours=24 * 168))
    assert error(told["seasonal"]) < 0.85 * error(told["naive"])


def test_quantiles_of_a_noisy_week_hold_as_often_as_they_say() -> None:
    told = judged(hourly(noisy(lambda wall: 20 + office(wall)), hours=30 * 168))["seasonal"]
    held = np.concatenate([one.actual[:, None] <= one.quantiles for one in told])
    assert held.mean(axis=0) == pytest.approx(LEVELS, abs=0.06)


def drifting(weeks: int) -> History:
    """A level that wanders by a tenth a week: the further ahead, the less is known of it."""
    chance = np.random.default_rng(5)
    levels = np.repeat(np.exp(np.cumsum(chance.normal(0, 0.1, weeks))), 168)
    flat = hourly(lambda wall: 200 + office(wall), hours=weeks * 168)
    return History(flat.starts_us, chance.poisson(flat.values * levels).astype(float), 3600, "UTC")


def test_the_band_holds_as_often_in_the_fourth_week_as_in_the_first() -> None:
    found = list(Backtest(drifting(150), LEVELS, 4 * 7 * 86_400).past(130))
    whole = [one for one in found if one.method == "seasonal" and len(one.values) == 4 * 168]
    for week, margin in ((slice(0, 168), 0.03), (slice(3 * 168, 4 * 168), 0.1)):
        held = [
            (one.quantiles[week, 0] <= one.actual[week]) & (one.actual[week] <= one.quantiles[week, 2])
            for one in whole
        ]
        assert np.mean(held) == pytest.approx(0.8, abs=margin), (
            "by the misses of the first week 0.5 in the fourth"
        )


def test_a_pattern_without_noise_is_expected_exactly() -> None:
    history = hourly(office, hours=6 * 168)
    for one in future(history).values():
        assert one.values == pytest.approx([office(MONDAY + timedelta(hours=hour)) for hour in range(168)])


@pytest.mark.parametrize("start", [datetime(2026, 2, 23), datetime(2026, 9, 21)])
def test_office_hours_are_expected_by_the_wall_after_a_change_of_the_clocks(start: datetime) -> None:
    """The history ends hours before the change; the forecast is of the week after it."""

    def demand(wall: datetime) -> float:
        return 10 + office(wall)

    whole = hourly(demand, hours=7 * 168, start=start, zone=BERLIN)
    known = before(whole, 5 * 168 - 3)
    for one in Backtest(known, LEVELS).future(whole.starts_us[5 * 168 - 3 : 6 * 168]):
        skipped = one.values == 0  # an hour of the week that no week before had
        assert skipped.sum() <= 1
        assert one.values[~skipped] == pytest.approx(whole.values[5 * 168 - 3 : 6 * 168][~skipped])


@pytest.mark.parametrize("demand", [lambda wall: 0.0, office], ids=["nothing", "office"])
def test_a_history_of_days_is_forecast_by_the_hour_of_day(demand: Callable[[datetime], float]) -> None:
    history = hourly(demand, hours=4 * 24)
    assert Backtest(history, LEVELS).season is Season.DAY
    told = future(history)["seasonal"]
    assert told.values[:24] == pytest.approx(history.values[:24])
    assert told.quantiles is not None


def test_a_history_of_hours_is_flat_and_has_its_own_quantiles() -> None:
    history = hourly(lambda wall: wall.hour % 10, hours=20)
    told = future(history)
    assert list(told) == ["flat"]
    assert set(told["flat"].values) == {4.5}
    assert told["flat"].quantiles[0].tolist() == [1, 5, 9, 9]
    assert judged(history) == {}


def test_two_weeks_are_judged_by_the_second_alone() -> None:
    told = judged(hourly(office, hours=2 * 168))
    assert [len(one) for one in told.values()] == [1, 1]
    assert told["seasonal"][0].quantiles is None, "there are no misses before the first origin"


def test_an_origin_knows_nothing_of_what_came_after_it() -> None:
    history = hourly(noisy(office), hours=12 * 168)
    cut = before(history, 9 * 168)
    later = judged(history, count=3)["seasonal"][0]
    then = future(cut)["seasonal"]
    assert later.origin_us == then.origin_us
    assert later.values == pytest.approx(then.values)
    assert later.quantiles == pytest.approx(then.quantiles)


def test_origins_end_with_the_history_and_lie_a_week_apart() -> None:
    history = hourly(office, hours=5 * 168 + 30)
    told = judged(history)["naive"]
    ends = [int(one.starts_us[-1]) for one in told]
    assert ends[-1] == history.starts_us[-1]
    assert np.diff(ends).tolist() == [168 * HOUR_US] * 3


def test_a_forecast_beyond_a_gap_after_the_history_is_of_the_right_hours() -> None:
    history = hourly(office, hours=4 * 168)
    later = history.starts_us[-1] + (1 + 10 * 24 + np.arange(24, dtype=np.int64)) * HOUR_US
    thursday = [office(MONDAY + timedelta(days=10, hours=hour)) for hour in range(24)]
    for one in Backtest(history, LEVELS).future(later):
        assert one.values == pytest.approx(thursday)


def test_silence_after_demand_is_expected_to_last() -> None:
    history = hourly(lambda wall: office(wall) if wall < MONDAY + timedelta(weeks=4) else 0, hours=10 * 168)
    told = future(history)["seasonal"]
    assert told.values.max() < 1
    assert np.isfinite(told.quantiles).all()
