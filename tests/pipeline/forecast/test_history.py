"""Tables of other systems as history: what is read, and what is refused with one line that says why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lbg_pipeline.errors import HistoryRefused
from testing.pipeline.demand_series import HOUR_US


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global SparkSession, arrived_of_table, read_tables, read_table
    from pyspark.sql import SparkSession

    from lbg_pipeline.forecast.history import arrived_of_table, read_table, read_tables


FIVE = 5 * HOUR_US


def read(spark: SparkSession, path: Path, *, time: str = "when", messages: str | None = None) -> list[tuple]:
    table = read_table(spark, str(path))
    return [
        tuple(row)
        for row in arrived_of_table(table, where="t", group="g", time=time, messages=messages).collect()
    ]


def csv(directory: Path, lines: Sequence[str], name: str = "t.csv") -> Path:
    path = directory / name
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "text", ["1970-01-01T05:00:00Z", "1970-01-01T06:00:00+01:00", "1970-01-01 05:00:00", "1970-01-01 05:00"]
)
def test_times_are_text_and_utc_unless_they_say_otherwise(
    spark: SparkSession, tmp_path: Path, text: str
) -> None:
    assert read(spark, csv(tmp_path, ["when,what", f"{text},a", f"{text},b"])) == [("g", FIVE, 1)] * 2


def test_counted_rows_stand_for_many(spark: SparkSession, tmp_path: Path) -> None:
    path = csv(tmp_path, ["when,n", "1970-01-01T05:00:00Z,40", "1970-01-01T06:00:00Z,0"])
    assert read(spark, path, messages="n") == [("g", FIVE, 40), ("g", FIVE + HOUR_US, 0)]


def test_parquet_has_timestamps_and_columns_with_any_name(spark: SparkSession, tmp_path: Path) -> None:
    table = spark.createDataFrame(
        [(datetime(1970, 1, 1, 5, tzinfo=UTC), 3)], "`the.time` timestamp, `a b` int"
    )
    table.write.parquet(str(tmp_path / "t"))
    assert read(spark, tmp_path / "t", time="the.time", messages="a b") == [("g", FIVE, 3)]


@pytest.mark.parametrize(
    ("lines", "asked", "why"),
    [
        (["when", "1970-01-01"], {"time": "at"}, "t has no column at: it has when"),
        (["when,n", "1970-01-01,1"], {"messages": "m"}, "t has no column m: it has when, n"),
        (
            ["when,n", "1970-01-01,1", "yesterday,1", "1700000000,1", ",1"],
            {},
            "t: column when: 3 of 4 values are not a time, as 2026-11-27T16:55:00Z; the first is 'yesterday'",
        ),
        (
            ["when,n", "1970-01-01,-1", "1970-01-01,2", "1970-01-01,1.5"],
            {"messages": "n"},
            "t: column n: 2 of 3 values are not a whole number of at least 0; the first is '-1'",
        ),
    ],
)
def test_rows_that_say_no_time_or_no_count_are_counted_named_and_refused(
    spark: SparkSession, tmp_path: Path, lines: list[str], asked: dict[str, str], why: str
) -> None:
    with pytest.raises(HistoryRefused) as refused:
        read(spark, csv(tmp_path, lines), **asked)
    assert str(refused.value) == why


def test_a_column_of_numbers_is_no_time(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "t"))
    with pytest.raises(
        HistoryRefused, match="t: column id is bigint, not a time: name one with text or timestamps"
    ):
        read(spark, tmp_path / "t", time="id")


def test_a_table_that_is_not_there_or_none_is_refused_in_one_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    csv(tmp_path, ["no parquet"], "t.dat")
    for path, why in (
        (tmp_path / "none.csv", "none.csv cannot be read as a table: .*PATH_NOT_FOUND"),
        (tmp_path / "t.dat", "t.dat cannot be read: .*a CSV file's name ends with .csv"),
        (tmp_path / "t.zip", "unpack it first"),
    ):
        with pytest.raises(HistoryRefused, match=why) as refused:
            read_table(spark, str(path))
        assert "\n" not in str(refused.value)


def test_a_table_that_no_profile_kept_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "t"))
    with pytest.raises(HistoryRefused, match=r"t has no column group \(it has id\): name tables"):
        read_tables(spark, [str(tmp_path / "t")], ("group", "minute"), "tables `demand` with --demand")
