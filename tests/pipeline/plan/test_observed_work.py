"""Work of a group from its records, on few rows."""

from __future__ import annotations

from typing import Any

import pytest

from lbg_core.group import HASH_FUNCTIONS, hash_of
from lbg_pipeline.errors import PlanRefused


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global DataFrame, F, KEY, KEYS, MINUTE, SLICES, SparkSession, StringType, StructField, StructType, WORK
    global busiest_minutes, counted_delivered, delivered_rows, demands, hashes_of, hot_keys, kept, keys
    global loads, observe, published_rows, slices, table, work
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    from lbg_pipeline.plan.candidates import hot_keys
    from lbg_pipeline.plan.load import (
        KEYS,
        SLICES,
        WORK,
        busiest_minutes,
        counted_delivered,
        demands,
        hashes_of,
        keys,
        loads,
        observe,
        slices,
        work,
    )

    from .rows import MINUTE, delivered_rows, kept, published_rows, table

    KEY = StructType([StructField("key", StringType())])


WORDS = ["N14228", "", "a", "Zürich", "日本", "\U0001f600", "x" * 300, "0", "a\x00b"]


def as_sets(found: DataFrame) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in found.collect()}


def test_work_is_counted_in_the_minute_of_publishing(spark: SparkSession) -> None:
    rows = delivered_rows(
        ("a", 0, 100, {}),
        ("a", 59, 200, {}),
        ("a", 60, 400, {}),
        ("b", 1, 800, {}),
        (None, 2, 50, {}),
    )
    found = work(counted_delivered(kept(spark, got=rows)), untimed_us=0)
    assert [field.name for field in found.schema] == WORK.names
    first = MINUTE
    assert as_sets(found) == {
        ("a", first, 2, 300),
        ("a", first + 1, 1, 400),
        ("b", first, 1, 800),
        (None, first, 1, 50),
    }
    by_key = keys(found)
    assert [field.name for field in by_key.schema] == KEYS.names
    assert as_sets(by_key) == {("a", 3, 700, 2, 400), ("b", 1, 800, 1, 800), (None, 1, 50, 1, 50)}
    assert [tuple(row) for row in busiest_minutes(found, 5).collect()] == [
        (first, 4, 1150),
        (first + 1, 1, 400),
    ]
    assert as_sets(slices(by_key, found, [first + 1])) == {
        (0, "a", 3, 700),
        (0, "b", 1, 800),
        (0, None, 1, 50),
        (1, "a", 1, 400),
    }


@pytest.mark.parametrize("function", [name for name in HASH_FUNCTIONS if name != "modulo"])
def test_hashes_are_those_of_publishers(spark: SparkSession, function: str) -> None:
    """For crc32 this is what lets Spark's own function take the place of ours."""
    counts = [1, 7, 128, 65536]
    words = table(spark, KEY, *((word,) for word in WORDS))
    for row in words.select("key", hashes_of(F.col("key"), counts, function).alias("hashes")).collect():
        assert row["hashes"] == [hash_of(row["key"], count, function) for count in counts]


def test_modulo_takes_whole_numbers_of_any_length_and_nothing_else(spark: SparkSession) -> None:
    keyed = table(spark, KEY, *((key,) for key in ("17", "-1", "9" * 60, "x", None)))
    rows = keyed.select("key", hashes_of(F.col("key"), [10], "modulo")[0].alias("hash")).collect()
    assert {row["key"]: row["hash"] for row in rows} == {"17": 7, "-1": 9, "9" * 60: 9, "x": None, None: None}


def test_loads_are_by_hash_for_each_count_and_slice(spark: SparkSession) -> None:
    sliced = table(spark, SLICES, (0, "1", 1, 10), (0, "3", 2, 20), (1, "3", 1, 5), (0, None, 4, 40))
    assert as_sets(loads(sliced, [2, 4], "modulo")) == {
        (2, 0, 1, 0, 3, 30),
        (2, 1, 1, 0, 1, 5),
        (2, 0, None, 1, 4, 40),
        (4, 0, 1, 0, 1, 10),
        (4, 0, 3, 0, 2, 20),
        (4, 1, 3, 0, 1, 5),
        (4, 0, None, 1, 4, 40),
    }


def test_demand_is_calls_at_once_and_keyless_messages_are_everywhere(spark: SparkSession) -> None:
    """Two minutes: key 0 is busy for 30 s of the first, key 1 for 6 s of the second, and 12 s belong to no key."""
    rows = delivered_rows(
        ("0", 0, 30_000_000, {}),
        (None, 1, 12_000_000, {}),
        ("1", 120, 6_000_000, {}),
    )
    observed = observe(kept(spark, got=rows))
    assert (observed.messages, observed.keyless, observed.span_us) == (3, 1, 120_000_000)
    assert observed.service_time_us == 16_000_000
    (demand,) = demands(observed, [4], "modulo", growth=2.0)
    observed.release()
    assert demand.calls[0].tolist() == pytest.approx([0.55, 0.15, 0.05, 0.05])
    assert demand.calls[1].tolist() == pytest.approx([1.1, 0.1, 0.1, 0.1])
    assert demand.calls[2].tolist() == pytest.approx([0, 0.2, 0, 0])
    assert demand.messages[0].sum() == pytest.approx(3 / 120 * 2)
    assert demand.total_peak == pytest.approx(1.4)


def test_a_key_that_is_too_hot_counts_as_one_call(spark: SparkSession) -> None:
    """Key 1 is asked for 90 s of work in 60 s, and 120 s in all of 240 s."""
    rows = delivered_rows(("1", 0, 90_000_000, {}), ("1", 240, 30_000_000, {}), (None, 1, 90_000_000, {}))
    observed = observe(kept(spark, got=rows))
    (one,) = demands(observed, [2], "modulo", growth=1.0)
    assert one.calls[:2].tolist() == [pytest.approx([0.1875, 0.6875]), pytest.approx([0.75, 1.75])]
    (freely,) = demands(observed, [2], "modulo", growth=1.0, has_order=False)
    assert freely.calls[1].tolist() == pytest.approx([0.75, 2.25])
    (grown,) = demands(observed, [2], "modulo", growth=4.0)
    assert grown.calls[:2].tolist() == [pytest.approx([0.75, 1.75]), pytest.approx([3, 4])]
    observed.release()


def test_what_was_released_or_repeated_is_no_work(spark: SparkSession) -> None:
    rows = delivered_rows(
        ("a", 0, 100, {"verdict": "ack"}),
        ("a", 1, 200, {"verdict": "dead"}),
        ("a", 2, 400, {"verdict": "released"}),
        ("a", 3, 0, {"verdict": "repeat", "started_at_us": None, "finished_at_us": None}),
    )
    observed = observe(kept(spark, got=rows))
    assert (observed.messages, observed.service_time_us) == (2, 150)
    observed.release()


def test_an_unknown_service_time_is_the_mean_of_the_others(spark: SparkSession) -> None:
    rows = delivered_rows(("a", 0, 100, {}), ("a", 1, 300, {}), ("b", 1, 0, {"started_at_us": None}))
    observed = observe(kept(spark, got=rows))
    assert as_sets(observed.keys) == {("a", 2, 400, 2, 400), ("b", 1, 200, 1, 200)}
    observed.release()


def test_published_records_need_a_service_time(spark: SparkSession) -> None:
    journal = kept(spark, sent=published_rows(("a", 0), ("a", 10)))
    with pytest.raises(PlanRefused, match=r"no service times: .*--service-time"):
        observe(journal)
    observed = observe(journal, service_time_us=2_000_000)
    assert as_sets(observed.keys) == {("a", 2, 4_000_000, 2, 4_000_000)}
    observed.release()


def test_a_service_time_of_ones_own_wins(spark: SparkSession) -> None:
    observed = observe(kept(spark, got=delivered_rows(("a", 0, 100, {}))), service_time_us=7)
    assert as_sets(observed.keys) == {("a", 1, 7, 1, 7)}
    observed.release()


def test_empty_journals_are_refused(spark: SparkSession) -> None:
    with pytest.raises(PlanRefused, match="no messages to plan with"):
        observe(kept(spark), service_time_us=1)


def test_one_group_is_planned_for(spark: SparkSession) -> None:
    journal = kept(spark, got=delivered_rows(("a", 0, 100, {}), ("b", 0, 300, {"group": "h"})))
    with pytest.raises(PlanRefused, match="have the groups g, h: name one of them with --group"):
        observe(journal)
    with pytest.raises(PlanRefused, match="no messages of group i, but of g, h: correct --group"):
        observe(journal, group="i")
    observed = observe(journal, group="h")
    assert (observed.group, observed.messages, observed.service_time_us) == ("h", 1, 300)
    observed.release()


def test_keys_that_a_function_cannot_take_are_refused(spark: SparkSession) -> None:
    observed = observe(kept(spark, got=delivered_rows(("x", 0, 100, {}))))
    with pytest.raises(PlanRefused, match="--function modulo is for whole numbers"):
        demands(observed, [4], "modulo", growth=1)
    observed.release()


def test_hot_keys_are_those_that_no_split_helps(spark: SparkSession) -> None:
    """In 100 s, by `modulo` in 2 queues: 0 is busier than one call can be, 2 busy, 1 and 3 are what queue 1 has."""
    minute = 60_000_000
    known = table(
        spark,
        KEYS,
        ("0", 10, 70_000_000, 9, minute + 1),
        ("2", 10, 40_000_000, 9, int(minute * 0.8)),
        ("4", 1, 100, 1, 100),
        ("1", 10, 9_000_000, 5, minute // 10),
        ("3", 10, 1_000_000, 5, 1_000_000),
        (None, 5, minute, 5, minute * 9),
    )
    told = {
        "hash_count": 8,
        "function": "modulo",
        "span_us": 100_000_000,
        "peak_span_us": minute,
        "target": 0.7,
    }
    rows = hot_keys(known, queue_count=2, growth=1.0, **told).collect()
    found = [(row["key"], row["queue"], row["is_too_hot"], row["is_hot"], row["is_dominant"]) for row in rows]
    assert found == [("0", 0, True, True, True), ("2", 0, False, True, False)]
    assert rows[0]["mean_load"] == pytest.approx(0.7)
    assert rows[1]["peak_load"] == pytest.approx(0.8)
    assert rows[0]["share_of_queue"] == pytest.approx(70_000_000 / 110_000_100)
    assert rows[0]["share_of_group"] == pytest.approx(70_000_000 / 120_000_100)
    doubled = hot_keys(known, queue_count=2, growth=2.0, **told).collect()
    assert [row["key"] for row in doubled if row["is_too_hot"]] == ["0", "2"]
    assert hot_keys(known, queue_count=1, growth=1.0, has_order=False, **told).collect() == []
