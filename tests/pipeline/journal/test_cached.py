"""Journals that are read once and asked several times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from testing.journal.rows import delivered, published, write_journal, write_lines


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global \
        COUNT, \
        DataFrame, \
        CachedJournals, \
        LongType, \
        SparkSession, \
        Step, \
        StructField, \
        StructType, \
        cache_journals, \
        rows
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import LongType, StructField, StructType

    from lbg_pipeline.journal.cached import CachedJournals, Step, cache_journals
    from testing.journal.tables import rows

    COUNT = StructType([StructField("count", LongType())])


def counting() -> Step:
    """A function inside of one: workers do not have the modules of tests."""

    def count(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"count": [batch.num_rows]})

    return count


def counted(table: DataFrame) -> int:
    return sum(count for (count,) in rows(table))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    write_journal(tmp_path / "journal", [published(seq) for seq in range(3)], writer="p")
    write_journal(tmp_path / "journal", [*(delivered(seq) for seq in range(2)), delivered(9, group="h")])
    write_lines(tmp_path / "journal" / "cut.jsonl", ['{"v":1,"kind":"publ\n'])
    return tmp_path / "journal"


def kept(spark: SparkSession, journal: Path, *groups: str) -> CachedJournals:
    columns = {"published": ("group", "seq"), "delivered": ("group", "seq", "verdict")}
    return cache_journals(spark, [str(journal)], **columns, groups=groups)


def test_every_record_is_there_once_and_broken_lines_beside(spark: SparkSession, journal: Path) -> None:
    found = kept(spark, journal)
    assert counted(found.published(counting(), COUNT)) == 3
    assert counted(found.delivered(counting(), COUNT)) == 3
    [(file, line, text, reason)] = rows(found.broken)
    assert file.endswith("cut.jsonl")
    assert (line, text, bool(reason)) == (1, '{"v":1,"kind":"publ', True)
    found.release()


def test_only_the_groups_that_were_asked_for_are_kept(spark: SparkSession, journal: Path) -> None:
    found = kept(spark, journal, "h")
    assert counted(found.published(counting(), COUNT)) == 0
    assert counted(found.delivered(counting(), COUNT)) == 1
    assert len(rows(found.broken)) == 1
    found.release()


def test_what_is_kept_is_not_read_again(spark: SparkSession, journal: Path) -> None:
    found = kept(spark, journal)
    assert found.pieces.count() > 0
    for file in journal.iterdir():
        file.unlink()
    assert counted(found.published(counting(), COUNT)) == 3
    found.release()
