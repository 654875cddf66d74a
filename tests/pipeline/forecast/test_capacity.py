"""Capacity of a member, from spans that add up by hand."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Capacity, Measured, Row, SparkSession, collected, measured_of_delivered, measured_of_rates
    from pyspark.sql import Row, SparkSession

    from lbg_pipeline.forecast.history import Measured, measured_of_delivered, measured_of_rates
    from lbg_pipeline.forecast.job import Capacity, collected


SECOND_US = 1_000_000


def span(
    started_s: float, finished_s: float, *, member: int = 0, verdict: str = "ack", group: str = "g"
) -> Row:
    return Row(
        group=group,
        member=member,
        incarnation=f"i{member}",
        verdict=verdict,
        started_at_us=int(started_s * SECOND_US),
        finished_at_us=int(finished_s * SECOND_US),
    )


def measured(spark: SparkSession, *spans: Row) -> dict[str, Measured]:
    return collected(measured_of_delivered(spark.createDataFrame(list(spans))))


def test_one_call_after_the_other_is_one_at_a_time(spark: SparkSession) -> None:
    found = measured(spark, *(span(second, second + 1) for second in range(60)))
    assert found == {"g": Measured(1e6, 1, 60)}


def test_a_backlog_worked_off_one_by_one_is_not_taken_for_many_at_once(spark: SparkSession) -> None:
    """Calls of 50 s, of which most of the second is in the next minute."""
    assert measured(spark, span(0, 50), span(50, 100), span(100, 150))["g"].concurrency == 1


def test_calls_side_by_side_are_counted_by_member_and_minute(spark: SparkSession) -> None:
    spans = [span(0, 30, member=member) for member in (0, 0, 0, 0, 0, 1, 1)]
    assert measured(spark, *spans)["g"].concurrency == 3, "five times half a minute are two and a half"


def test_only_what_the_application_did_counts(spark: SparkSession) -> None:
    found = measured(spark, span(0, 1), span(2, 9, verdict="released"), span(3, 9, verdict="repeat"))
    assert found == {"g": Measured(1e6, 1, 1)}


def test_rates_of_profiles_tell_the_service_time_and_no_concurrency(spark: SparkSession) -> None:
    rates = spark.createDataFrame(
        [Row(group="g", messages=10, busy_us=40_000), Row(group="g", messages=30, busy_us=40_000)]
    )
    assert collected(measured_of_rates(rates)) == {"g": Measured(2000.0, 1, 40)}


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "concurrency", "capacity"),
    [(None, None, 280.0), (None, 1, 70.0), (3.5, None, 3.5), (3.5, 9, 3.5)],
)
def test_capacity_is_what_is_given_or_else_measured_times_the_target(
    given: float | None, concurrency: int | None, capacity: float
) -> None:
    asked = Capacity(given, 0.7, concurrency, 1, None)
    sizing, _ = asked.sizing(Measured(10_000.0, 4, 100), 8)
    assert sizing is not None
    assert sizing.capacity == pytest.approx(capacity)
    assert sizing.most == 8


@pytest.mark.long
def test_long_calls_are_planned_with_the_share_at_which_a_message_waits_the_target() -> None:
    """4.6 s * 0.625 / 0.375 are 7.7 s: a message waits as long at 62.5 % of a member with one call at a time."""
    sizing, origin = Capacity(None, 0.7, 1, 1, None, 4.6 * 0.625 / 0.375).sizing(Measured(1e6, 4, 100), 8)
    assert sizing is not None
    assert sizing.capacity == pytest.approx(0.625, rel=1e-4)
    assert origin == (
        "62.5 % of the 1/s that it can process with calls of 1 s, 1 at a time; the slowest message in a hundred waits "
        "7.67 s"
    )


@pytest.mark.long
def test_without_anything_measured_there_is_no_capacity() -> None:
    assert Capacity(None, 0.7, None, 1, None).sizing(None, 8) == (None, "unknown")
