"""From journals to a directory: what is written, and what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lbg_core.group import DeliveredRecord, PublishedRecord
from lbg_pipeline.errors import NoRecords
from testing.journal.rows import delivered, published, write_journal, write_lines
from testing.output_documents import checked
from testing.pipeline.html_page import Read


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Request, SparkSession, run
    from pyspark.sql import SparkSession

    from lbg_pipeline.profile.job import Request, run


@pytest.mark.slow  # `test_jobs` runs the job
def test_a_journal_becomes_tables_and_pages_and_its_broken_line_is_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    name = "<script>key</script>"
    sent = [published(seq, at_us=seq, key=name) for seq in range(4)]
    write_journal(
        journal, [*sent, *(delivered(seq, at_us=1000 + seq, key=name, member=seq // 2) for seq in range(4))]
    )
    write_journal(journal, [published(0, group="other")], writer="others")
    write_lines(journal / "cut.jsonl", ['{"v":1,"kind":"publ\n'])
    out = tmp_path / "out"

    outcome = run(spark, Request(journals=(str(journal),), groups=("g",)), str(out))

    tables = {"rates", "demand", "keys", "latencies", "skew", "handoffs", "utilisation", "broken"}
    assert {file.name for file in out.iterdir() if not file.name.startswith(("_", "."))} == {
        *tables,
        "report.html",
        "report.json",
    }
    assert spark.read.parquet(f"{out}/rates").groupBy("group").sum("messages").collect() == [("g", 4)]
    told = checked("pipeline profile", (out / "report.json").read_text())
    assert told == json.loads(json.dumps(outcome.document))
    assert told["groups"]["g"]["delivered"]["ack"] == 4
    assert told["groups"]["g"]["handoffs"]["queue"]["count"] == 1
    assert (told["broken"], list(told["groups"])) == (1, ["g"])
    read = Read((out / "report.html").read_text())
    assert name in read.text
    assert "script" not in read.tags()
    assert "1 line is not a record" in read.text
    assert any("broken lines: 1, " in line for line in outcome.lines)


@pytest.mark.parametrize(
    ("lines", "groups", "refused"),
    [
        ([], (), "no record in 1 file of .*: give other journals"),
        (
            [published(0)],
            ("g", "nosuch"),
            "no record of group nosuch in 1 file of .*, but of g: correct --group",
        ),
    ],
)
def test_journals_without_records_or_without_a_named_group_are_refused(
    spark: SparkSession,
    tmp_path: Path,
    lines: list[PublishedRecord | DeliveredRecord | str],
    groups: tuple[str, ...],
    refused: str,
) -> None:
    write_lines(tmp_path / "journal" / "a.jsonl", lines)
    with pytest.raises(NoRecords, match=refused):
        run(spark, Request(journals=(str(tmp_path / "journal"),), groups=groups), str(tmp_path / "out"))
    assert not (tmp_path / "out" / "report.html").exists()
