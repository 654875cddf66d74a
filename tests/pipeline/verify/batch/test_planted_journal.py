"""The whole job on files: planted faults are found exactly, and told in every place where they are told."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from lbg_pipeline.errors import error_of
from lbg_pipeline.verify.settings import ValidationSettings
from testing.journal.planted import SKEW_S, Planted, plant, plant_newer
from testing.journal.rows import delivered, published, write_journal
from testing.output_documents import checked
from testing.pipeline.findings import LostRange, Move


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global DataFrame, Progress, PythonException, Report, SparkSession, report_lines, validate_journals
    from pyspark.errors import PythonException
    from pyspark.sql import DataFrame, SparkSession

    from lbg_pipeline.spark.jobs import Progress
    from lbg_pipeline.verify.batch import validate_journals
    from lbg_pipeline.verify.report import Report, report_lines


@dataclass(frozen=True)
class Judged:
    planted: Planted
    out: Path
    report: Report
    spark: SparkSession

    def table(self, name: str) -> DataFrame:
        return self.spark.read.parquet(str(self.out / name))


def validated(spark: SparkSession, journal: Path, out: Path, settings: ValidationSettings) -> Report:
    progress = Progress(io.StringIO(), started_s=0)
    return validate_journals(spark, [str(journal)], str(out), settings, progress=progress)


@pytest.fixture(scope="module")
def judged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    directory = tmp_path_factory.mktemp("planted")
    planted = plant(directory / "journal")
    settings = ValidationSettings(clock_skew_s=SKEW_S)
    return Judged(
        planted,
        directory / "out",
        validated(spark, directory / "journal", directory / "out", settings),
        spark,
    )


def test_verdicts(judged: Judged) -> None:
    assert {row.group: row.verdict for row in judged.table("verdicts").collect()} == judged.planted.verdicts
    assert judged.report.verdict == "broken"


def test_offences_are_the_planted_ones(judged: Judged) -> None:
    found = Counter(
        (row.group, row.kind, row.view, row.key, row.seq) for row in judged.table("offences").collect()
    )
    assert found == Counter(
        (group, *told) for group, offences in judged.planted.offences.items() for told in offences
    )


def test_what_the_clocks_explain_is_uncertain(judged: Judged) -> None:
    uncertain = judged.table("offences").where("uncertain").collect()
    assert sorted((row.group, row.kind, row.view, row.key, row.seq) for row in uncertain) == sorted(
        (group, *told) for group, offences in judged.planted.uncertain.items() for told in offences
    )


def test_lost_ranges_are_the_planted_ones(judged: Judged) -> None:
    found = {
        (row.group, LostRange(row.publisher, row.hash, row.first, row.last))
        for row in judged.table("lost").collect()
    }
    assert found == {(group, lost) for group, ranges in judged.planted.lost.items() for lost in ranges}


def test_moves_are_the_planted_ones(judged: Judged) -> None:
    found = [
        (row.group, Move(row.hash, row.was, row.now, row.at_us, row.pause_us))
        for row in judged.table("moves").collect()
    ]
    assert Counter(found) == Counter(
        (group, move) for group, moves in judged.planted.moves.items() for move in moves
    )


def test_broken_lines_are_aside_with_file_and_reason(judged: Judged) -> None:
    found = Counter((Path(row.file).name, row.reason) for row in judged.table("broken").collect())
    assert sum(found.values()) == judged.report.broken_lines == len(judged.planted.broken)
    assert found == Counter((one.file, one.reason) for one in judged.planted.broken)


def test_the_report_says_what_the_tables_do(judged: Judged) -> None:
    told = checked("pipeline validate", (judged.out / "report.json").read_text())
    assert told == json.loads(json.dumps(judged.report.as_json()))
    [faulty] = [row for row in told["verdicts"] if row["group"] == "faulty"]
    assert faulty["lost"] == sum(one.count for one in judged.planted.lost["faulty"])
    assert faulty["unpublished"] == judged.planted.unpublished["faulty"]
    text = "\n".join(report_lines(judged.report))
    assert f"{len(judged.planted.broken)} LINES ARE NOT RECORDS" in text
    assert "lost: group faulty, publisher faulty-1, hash 1, numbers 10 to 12" in text


def test_a_newer_version_is_refused_before_a_table_is_written(spark: SparkSession, tmp_path: Path) -> None:
    plant(tmp_path / "journal", broken=False)
    file = plant_newer(tmp_path / "journal")
    with pytest.raises(PythonException) as raised:
        validated(spark, tmp_path / "journal", tmp_path / "out", ValidationSettings())
    assert str(error_of(raised.value)).startswith(
        f"journal {file} has records of version 2, and this LBG reads version 1: upgrade it"
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_lbg-pipeline"]


@pytest.mark.slow
def test_only_the_groups_that_are_asked_for_are_judged(
    spark: SparkSession, judged: Judged, tmp_path: Path
) -> None:
    settings = ValidationSettings(groups=frozenset({"moving"}), settle_s=0.05)
    report = validated(spark, judged.planted.directory, tmp_path / "out", settings)
    assert [(row["group"], row["verdict"]) for row in report.verdicts] == [("moving", "sound")]


@pytest.mark.slow
def test_with_settle_the_lost_are_ranges_whatever_the_times_of_their_confirms(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two messages in a row are confirmed at one time, and the last two too late to be lost."""
    sent = [published(seq, at_us=seq // 2 * 1000) for seq in range(10)]
    came = [delivered(seq, at_us=10_000 + seq) for seq in (4, 7)]
    journal = write_journal(tmp_path / "journal", [*sent, *came])
    report = validated(spark, journal, tmp_path / "out", ValidationSettings(settle_s=0.0055))
    lost = spark.read.parquet(str(tmp_path / "out" / "lost")).select("first", "last", "count")
    assert sorted(map(tuple, lost.collect())) == [(0, 3, 4), (5, 6, 2)]
    [verdict] = report.verdicts
    assert (verdict["lost"], verdict["pending"]) == (6, 2)
