"""All groups at once on Spark: both methods, their scores, the choice between them, and the forecast."""

from __future__ import annotations

from datetime import datetime

import pytest

from lbg_pipeline.forecast.model import ForecastSettings, History
from testing.pipeline.demand_series import HOUR_US, MONDAY, hourly, micros, noisy, office


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global DEMAND, DataFrame, MODELLED, SparkSession, backtest, chosen, forecast, modelled, scored
    from pyspark.sql import DataFrame, SparkSession

    from lbg_pipeline.forecast.groups import MODELLED, backtest, chosen, forecast, modelled, scored
    from lbg_pipeline.forecast.history import DEMAND


WEEKS = 12
NOW = ForecastSettings(now_us=micros(MONDAY) + WEEKS * 168 * HOUR_US, quantile=0.95, backtest_periods=4)


def rows(group: str, history: History) -> list[tuple[str, int, int, int, int]]:
    """Of DEMAND: nothing where there was nothing."""
    first, until = int(history.starts_us[0]), int(history.starts_us[-1]) + HOUR_US
    return [
        (group, int(at), int(value), first, until)
        for at, value in zip(history.starts_us, history.values, strict=True)
        if value
    ]


def past(*values: tuple[str, str, int, float, float, list[float] | None]) -> list[tuple]:
    """Of MODELLED's past: group, method, hour, expected, actual, quantiles."""
    return [
        (group, "hour of week", method, None, True, 0, hour * HOUR_US, 1, None, expected, quantiles, actual)
        for group, method, hour, expected, actual, quantiles in values
    ]


@pytest.fixture(scope="module")
def told(spark: SparkSession) -> DataFrame:
    def jumping(wall: datetime) -> float:
        """Every other week ten times as much: last week tells nothing, and neither does a mean."""
        return 10.0 if (wall - MONDAY).days // 7 % 2 else 100.0

    groups = [
        *rows("noisy", hourly(noisy(office), hours=WEEKS * 168)),
        *rows("short", hourly(office, hours=5 * 24, start=datetime(2026, 5, 20))),
        *rows("new", hourly(lambda wall: 6, hours=20, start=datetime(2026, 5, 24, 4))),
        *rows("jumping", hourly(jumping, hours=WEEKS * 168)),
    ]
    return modelled(spark.createDataFrame(groups, DEMAND), NOW).cache()


def test_each_group_is_forecast_by_what_its_history_allows(told: DataFrame) -> None:
    found = forecast(chosen(told, scored(told, NOW))).groupBy("group", "season").count().collect()
    assert {row["group"]: (row["season"], row["count"]) for row in found} == {
        "noisy": ("hour of week", 168),
        "short": ("hour of day", 168),
        "new": ("flat", 168),
        "jumping": ("hour of week", 168),
    }


def test_the_forecast_begins_now_and_its_quantiles_are_in_order(told: DataFrame) -> None:
    found = forecast(chosen(told, scored(told, NOW))).orderBy("group", "start_us").collect()
    assert min(row["start_us"] for row in found) == NOW.now_us
    for row in found:
        assert 0 <= row["q10"] <= row["q50"] <= row["q90"] <= row["planned"]
        assert row["start"].timestamp() * 1e6 == row["start_us"]


def test_a_group_of_hours_is_flat_in_all_its_intervals(told: DataFrame) -> None:
    found = forecast(chosen(told, scored(told, NOW))).where("group = 'new'").collect()
    assert {(row["method"], row["expected"], row["planned"]) for row in found} == {("flat", 6.0, 6.0)}


def test_the_backtest_has_both_methods_of_the_last_weeks_side_by_side(told: DataFrame) -> None:
    found = backtest(told).where("group = 'noisy'").groupBy("method").count().collect()
    assert {row["method"]: row["count"] for row in found} == {"seasonal": 4 * 168, "naive": 4 * 168}


def test_a_noisy_week_is_forecast_better_than_by_last_week(told: DataFrame) -> None:
    scores = {row["method"]: row for row in scored(told, NOW).where("group = 'noisy'").collect()}
    assert scores["seasonal"]["wmape"] < 0.9 * scores["naive"]["wmape"]
    assert scores["seasonal"]["pinball"] < scores["naive"]["pinball"]
    assert 0.9 < scores["seasonal"]["covered"] < 1
    assert (scores["seasonal"]["is_used"], scores["naive"]["is_used"]) == (True, False)


def test_errors_are_weighed_by_what_came(spark: SparkSession) -> None:
    table = spark.createDataFrame(
        past(
            ("g", "seasonal", 0, 90.0, 100.0, [80.0, 90.0, 95.0, 99.0]),
            ("g", "seasonal", 1, 4.0, 0.0, [0.0, 4.0, 5.0, 8.0]),
            ("g", "naive", 0, 50.0, 100.0, None),
            ("g", "naive", 1, 0.0, 0.0, None),
        ),
        MODELLED,
    )
    scores = {row["method"]: row for row in scored(table, NOW).collect()}
    assert scores["seasonal"]["wmape"] == pytest.approx(14 / 100)
    assert scores["naive"]["wmape"] == pytest.approx(50 / 100)
    assert scores["seasonal"]["pinball"] == pytest.approx((0.95 * 1 + 0.05 * 8) / 2)
    assert scores["seasonal"]["covered"] == 0.5
    assert scores["seasonal"]["in_band"] == 0.5, "100 is beyond 95"
    assert scores["naive"]["pinball"] is None


@pytest.mark.parametrize(("ours", "used"), [(95.0, "seasonal"), (80.0, "seasonal"), (79.0, "naive")])
def test_the_lower_error_is_used_and_ours_if_they_are_level(
    spark: SparkSession, ours: float, used: str
) -> None:
    table = spark.createDataFrame(
        past(("g", "seasonal", 0, ours, 100.0, None), ("g", "naive", 0, 80.0, 100.0, None)), MODELLED
    )
    assert [row["method"] for row in scored(table, NOW).where("is_used").collect()] == [used]
    assert [row["method"] for row in chosen(table, scored(table, NOW)).collect()] == [used]


def test_where_nothing_ever_came_in_the_backtest_no_error_is_made_up(spark: SparkSession) -> None:
    table = spark.createDataFrame(
        past(("g", "seasonal", 0, 1.0, 0.0, None), ("g", "naive", 0, 0.0, 0.0, None)), MODELLED
    )
    scores = scored(table, NOW).collect()
    assert [row["wmape"] for row in scores] == [None, None]
    assert [row["method"] for row in scores if row["is_used"]] == ["seasonal"]
