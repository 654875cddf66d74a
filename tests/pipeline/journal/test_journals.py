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
    global BROKEN, DELIVERED, PUBLISHED, PythonException, SparkSession, read_journals, scan
    from pyspark.errors import PythonException
    from pyspark.sql import SparkSession

    from lbg_pipeline.journal import read_journals, scan
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


def test_of_subdirectories_the_journals_are_read_and_of_a_directory_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    for seq, name in enumerate(
        [
            "other.log",
            "m 1/a.jsonl",
            "m 1/%41/b.jsonl.1",
            "day=1/c.jsonl",
            "verdict/d.parquet",
            "m 1/.open.jsonl",
            ".e/f.jsonl",
        ]
    ):
        write_lines(tmp_path / name, [published(seq)])

    def numbers(path: str) -> list[int]:
        return sorted(row.seq for row in read_journals(spark, [path]).published.collect())

    assert numbers(str(tmp_path)) == [0, 1, 2, 3]
    assert numbers(f"file://{tmp_path}/m 1") == [1, 2]
    assert numbers(f"{tmp_path}/*/%41") == [2]
    assert numbers(f"{tmp_path}/verdict/d.parquet") == [4]


def test_an_object_store_is_read_by_its_urls(spark: SparkSession, tmp_path: Path) -> None:
    """A scheme that is not file, over a local directory: no worker opens its files."""
    write_lines(tmp_path / "m 1" / "a[1].jsonl", [published(0), "garbage\n"])
    write_lines(tmp_path / "verdict" / "b.parquet", [published(1)])
    settings = {
        "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.viewfs.overload.scheme.target.s3a.impl": "org.apache.hadoop.fs.LocalFileSystem",
        "fs.viewfs.mounttable.bucket.link./journals": tmp_path.as_uri(),
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    journals = read_journals(spark, ["s3a://bucket/journals"])
    assert [row.seq for row in journals.published.collect()] == [0]
    assert [row.file for row in journals.broken.collect()] == ["s3a://bucket/journals/m%201/a%5B1%5D.jsonl"]


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


def test_a_broken_line_has_its_number_in_the_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks and parts of a few lines each, and in a compressed file."""
    lines = [published(seq) if seq not in (0, 17, 99) else "no record\n" for seq in range(100)]
    write_lines(tmp_path / "plain.jsonl", lines)
    with gzip.open(tmp_path / "packed.jsonl.gz", "wt") as file:
        file.write("".join(line if isinstance(line, str) else encode(line) for line in lines))
    monkeypatch.setattr(scan, "LARGEST_BYTES", 1000)
    monkeypatch.setattr(scan, "SMALLEST_BYTES", 1000)
    broken = read_journals(spark, [str(tmp_path)]).broken.collect()
    assert sorted((Path(row.file).name, row.line) for row in broken) == [
        (name, line) for name in ("packed.jsonl.gz", "plain.jsonl") for line in (1, 18, 100)
    ]


def test_a_file_in_utf_16_is_reported_once(spark: SparkSession, tmp_path: Path) -> None:
    text = "".join(encode(published(seq)) for seq in range(50))
    for name, encoding in (("le", "utf-16-le"), ("be", "utf-16-be"), ("marked", "utf-16")):
        (tmp_path / f"{name}.jsonl").write_bytes(text.encode(encoding))
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(text.encode("utf-16")))
    write_lines(tmp_path / "plain.jsonl", [published(0)])
    journals = read_journals(spark, [str(tmp_path)])
    assert sorted((Path(row.file).name, row.reason) for row in journals.broken.collect()) == [
        (name, "this file is UTF-16: convert it to UTF-8")
        for name in ("be.jsonl", "le.jsonl", "marked.jsonl", "packed.jsonl.gz")
    ]
    assert journals.published.count() == 1


def test_the_size_of_journals_is_known_without_reading_them(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_text("x" * 1000)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "more.jsonl").write_text("x" * 24)
    assert scan.journals_bytes(spark, [str(tmp_path)]) == 1024
