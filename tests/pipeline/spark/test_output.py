"""The directory of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbg_pipeline.errors import OutputRefused


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Output, SparkSession
    from pyspark.sql import SparkSession

    from lbg_pipeline.spark.output import Output


def test_tables_and_texts_appear_whole_under_their_names(spark: SparkSession, tmp_path: Path) -> None:
    out = Output(spark, str(tmp_path / "new" / "out"))
    out.table("numbers", spark.range(3).coalesce(1))
    out.text("report.html", "Zürich\n")
    root = tmp_path / "new" / "out"
    assert (root / "report.html").read_text() == "Zürich\n"
    assert spark.read.parquet(str(root / "numbers")).count() == 3
    assert sorted(path.name for path in root.iterdir()) == ["_lbg-pipeline", "numbers", "report.html"]
    again = Output(spark, str(root))
    again.table("numbers", spark.range(5).coalesce(1))
    again.without("report.html")
    assert spark.read.parquet(str(root / "numbers")).count() == 5
    assert not (root / "report.html").exists()


def test_a_directory_of_others_is_refused_and_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(
        OutputRefused, match="contains files that are not of a run: name a new directory with --out"
    ):
        Output(spark, str(tmp_path))
    with pytest.raises(OutputRefused, match="contains files that are not of a run"):
        Output(spark, str(tmp_path / "thesis.tex"))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_directory_will_do(spark: SparkSession, tmp_path: Path) -> None:
    Output(spark, str(tmp_path)).text("a.txt", "a")
    assert (tmp_path / "a.txt").read_text() == "a"


def test_what_cannot_be_written_is_one_clear_line(spark: SparkSession) -> None:
    with pytest.raises(OutputRefused, match=r"^/proc/none cannot be written: .*: name another with --out$"):
        Output(spark, "/proc/none")
    with pytest.raises(OutputRefused, match=r"cannot be written: .*nosuch"):
        Output(spark, "nosuch://somewhere/out")
