"""Demand by the interval, on a few rows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lbg_pipeline.forecast.model import ForecastSettings
from testing.pipeline.demand_series import HOUR_US


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global ARRIVED, DataFrame, Row, SparkSession, arrived_of_delivered, arrived_of_minutes
    global arrived_of_published, counted, demand, history_of
    from pyspark.sql import DataFrame, Row, SparkSession

    from lbg_pipeline.forecast.groups import history_of
    from lbg_pipeline.forecast.history import (
        ARRIVED,
        arrived_of_delivered,
        arrived_of_minutes,
        arrived_of_published,
        counted,
        demand,
    )


NOW = ForecastSettings(now_us=100 * HOUR_US)
MINUTE_US = HOUR_US // 60


def arrived(spark: SparkSession, *rows: tuple[str, float, int]) -> DataFrame:
    """Group, hours since the epoch, messages."""
    return spark.createDataFrame([(group, int(at * HOUR_US), count) for group, at, count in rows], ARRIVED)


def told(found: DataFrame) -> list[tuple[str, float, int, float, float]]:
    """Group, hour, messages, and from and until which hour it is known."""
    return sorted(
        (
            row["group"],
            row["start_us"] / HOUR_US,
            row["messages"],
            row["known_from_us"] / HOUR_US,
            row["known_until_us"] / HOUR_US,
        )
        for row in found.collect()
    )


def test_the_first_and_the_last_interval_of_events_were_recorded_in_part(spark: SparkSession) -> None:
    events = arrived(spark, ("g", 10.5, 1), ("g", 11.0, 1), ("g", 11.9, 2), ("g", 13.2, 1), ("g", 14.1, 1))
    assert told(demand(counted(events, NOW), NOW)) == [("g", 11, 3, 11, 14), ("g", 13, 1, 11, 14)]


def test_counted_rows_are_whole(spark: SparkSession) -> None:
    rows = arrived(spark, ("g", 10, 7), ("g", 12, 5))
    assert told(demand(counted(rows, NOW), NOW)) == [("g", 10, 7, 10, 13), ("g", 12, 5, 10, 13)]


def test_a_new_group_begins_with_its_first_row_and_a_silent_one_lasts_as_long_as_the_history(
    spark: SparkSession,
) -> None:
    rows = arrived(
        spark, ("old", 10, 1), ("old", 20, 1), ("new", 18, 1), ("silent", 10, 1), ("silent", 11, 1)
    )
    known = {row[0]: row[3:] for row in told(demand(counted(rows, NOW), NOW))}
    assert known == {"old": (10, 21), "new": (18, 21), "silent": (10, 21)}


def test_what_came_from_now_on_is_left_out_with_the_interval_that_now_is_in(spark: SparkSession) -> None:
    rows = arrived(spark, ("g", 98, 1), ("g", 99, 2), ("g", 100, 4), ("g", 101, 8))
    assert told(demand(counted(rows, NOW), NOW)) == [("g", 98, 1, 98, 100), ("g", 99, 2, 98, 100)]
    half_past = ForecastSettings(now_us=99 * HOUR_US + HOUR_US // 2)
    assert told(demand(counted(rows, half_past), half_past)) == [("g", 98, 1, 98, 99)]


def test_a_shorter_interval_counts_by_itself(spark: SparkSession) -> None:
    quarters = ForecastSettings(now_us=100 * HOUR_US, interval_s=900)
    events = arrived(spark, ("g", 10.0, 1), ("g", 10.3, 1), ("g", 10.4, 1), ("g", 10.6, 1))
    assert told(demand(counted(events, quarters), quarters)) == [("g", 10.25, 2, 10.25, 10.5)]


def test_gaps_inside_the_history_are_zero(spark: SparkSession) -> None:
    rows = arrived(spark, ("g", 10, 7), ("g", 12, 5), ("other", 14, 1))
    frame = demand(counted(rows, NOW), NOW).where("group = 'g'").toPandas()
    assert history_of(frame, NOW).values.tolist() == [7, 0, 5, 0, 0]


def test_the_sources_of_history_agree_on_their_columns(spark: SparkSession) -> None:
    published = spark.createDataFrame([Row(group="g", published_at_us=5 * HOUR_US)])
    delivered = spark.createDataFrame(
        [
            Row(group="g", published_at_us=5 * HOUR_US, verdict=verdict)
            for verdict in ("ack", "dead", "repeat", "released")
        ]
    )
    minutes = spark.createDataFrame(
        [Row(group="g", minute=datetime(1970, 1, 1, 5, tzinfo=UTC), messages=9, bytes=None)],
        "group string, minute timestamp, messages long, bytes long",
    )
    assert arrived_of_published(published).collect() == [("g", 5 * HOUR_US, 1)]
    assert arrived_of_delivered(delivered).collect() == [("g", 5 * HOUR_US, 1)] * 2
    assert arrived_of_minutes(minutes).collect() == [("g", 5 * HOUR_US + 30_000_000, 9)]


@pytest.mark.parametrize("name", ["group", "at_us", "messages"])
def test_arrived_has_no_nulls(name: str) -> None:
    assert not ARRIVED[name].nullable
