"""Paths as DataFrames, on real files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lbg_core.group import encode
from lbg_pipeline.errors import JournalNotFound, NewerSchema, error_of
from testing.journal.rows import delivered, published, write_journal, write_lines


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global BROKEN, DELIVERED, PUBLISHED, PythonException, SparkSession, read_journals
    from pyspark.errors import PythonException
    from pyspark.sql import SparkSession

    from lbg_pipeline.journal import read_journals
    from lbg_pipeline.schemas import BROKEN, DELIVERED, PUBLISHED


def test_directories_files_globs_and_compressed_files_are_read(spark: SparkSession, tmp_path: Path) -> None:
    write_journal(tmp_path / "a b", [published(0), delivered(0), delivered(1, group="d")])
    write_lines(tmp_path / "one.jsonl", [published(1), "garbage\n"])
    with gzip.open(tmp_path / "two.jsonl.gz", "wt") as file:
        file.write(encode(published(2)) + "more garbage\n")
    journals = read_journals(
        spark,
        [str(tmp_path / "a b"), str(tmp_path / "*.jsonl"), str(tmp_path / "two.jsonl.gz")],
    )
    assert sorted(row.seq for row in journals.published.collect()) == [0, 1, 2]
    assert sorted((row.seq, row.group) for row in journals.delivered.collect()) == [(0, "g"), (1, "d")]
    broken = {row.text: (Path(row.file).name, row.reason) for row in journals.broken.collect()}
    assert {text: name for text, (name, _) in broken.items()} == {
        "garbage": "one.jsonl",
        "more garbage": "two.jsonl.gz",
    }
    assert all(reason.startswith("a journal line is not JSON") for _, reason in broken.values())


def test_tables_have_the_schemas_that_are_documented(spark: SparkSession, tmp_path: Path) -> None:
    write_journal(tmp_path, [published(0)])
    journals = read_journals(spark, [str(tmp_path)])
    for table, schema in (
        (journals.published, PUBLISHED),
        (journals.delivered, DELIVERED),
        (journals.broken, BROKEN),
    ):
        assert [(field.name, field.dataType) for field in table.schema] == [
            (field.name, field.dataType) for field in schema
        ]


def test_a_file_that_is_still_written_is_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    write_journal(tmp_path, [published(0)])
    write_lines(tmp_path / ".w-20260101T000000000000Z-000000.jsonl.open", [published(1)])
    assert read_journals(spark, [str(tmp_path)]).published.count() == 1


def test_a_newer_version_ends_the_job_with_its_file(spark: SparkSession, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "new.jsonl", [encode(published(0)).replace('"v":1', '"v":9')])
    with pytest.raises(PythonException) as raised:
        read_journals(spark, [str(file)]).published.collect()
    told = error_of(raised.value)
    assert isinstance(told, NewerSchema)
    assert str(told).startswith(
        f"journal {file} has records of version 9, and this LBG reads version 1: upgrade it"
    )


def test_a_path_without_journals_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(JournalNotFound, match="no such file or directory"):
        read_journals(spark, [str(tmp_path / "absent")])
    with pytest.raises(JournalNotFound, match="no journal found"):
        read_journals(spark, [str(tmp_path)])
