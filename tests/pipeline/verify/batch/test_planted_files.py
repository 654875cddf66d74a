"""Faults of whole files and of both sides, planted in journals on disk: what a batch reports, and where."""

from __future__ import annotations

import gzip
import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lbg_core.group import DeliveredRecord, PublishedRecord, encode, incarnation_of_epoch
from lbg_pipeline.verify.settings import ValidationSettings
from testing.journal.rows import START_US, delivered, published, write_lines


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Progress, Report, SparkSession, report_lines, validate_journals
    from pyspark.sql import SparkSession

    from lbg_pipeline.spark.jobs import Progress
    from lbg_pipeline.verify.batch import validate_journals
    from lbg_pipeline.verify.report import Report, report_lines


Validated = Callable[..., tuple["Report", dict[str, Any]]]
Record = PublishedRecord | DeliveredRecord


@pytest.fixture
def validated(spark: SparkSession, tmp_path: Path) -> Validated:
    """The report of `tmp_path/journal`, and the verdict of its only group."""

    def validate(**settings: Any) -> tuple[Report, dict[str, Any]]:
        progress = Progress(io.StringIO(), started_s=0)
        journal, out = str(tmp_path / "journal"), str(tmp_path / "out")
        report = validate_journals(spark, [journal], out, ValidationSettings(**settings), progress=progress)
        [verdict] = report.verdicts
        return report, verdict

    return validate


def messages(count: int, **fields: Any) -> tuple[list[Record], list[Record]]:
    """Both sides of messages in order: `delivered` a millisecond after they were published."""
    sent: list[Record] = [published(seq, at_us=seq * 1000, **fields) for seq in range(count)]
    came: list[Record] = [
        delivered(seq, at_us=seq * 1000 + 500, published_at_us=START_US + seq * 1000, **fields)
        for seq in range(count)
    ]
    return sent, came


@pytest.mark.parametrize(("first", "second"), [(3, 67), (3, 4)])
def test_a_key_on_two_hashes_is_checked_by_key(
    validated: Validated, tmp_path: Path, first: int, second: int
) -> None:
    """Two members have the key at once, and it is delivered out of order, whatever the buckets of the hashes."""
    sent, came = messages(3, hash_=first)
    one, other = messages(2, hash_=second, publisher="foreign")
    other[0] = replace(other[0], member=1, incarnation="i1", started_at_us=START_US + 650)
    late = delivered(0, at_us=1900, hash_=second, published_at_us=START_US + 100)
    write_lines(tmp_path / "journal" / "a.jsonl", [*sent, *one, published(0, hash_=second, at_us=100)])
    write_lines(tmp_path / "journal" / "b.jsonl", [*came, *other, late])
    report, verdict = validated()
    assert (verdict["verdict"], verdict["overlaps"], verdict["rehashed"]) == ("broken", 1, 1)
    assert (verdict["inverted_delivered"], verdict["inverted_acknowledged"]) == (1, 1)
    kinds = {one["kind"]: one for one in report.first_offences}
    assert (kinds["inverted"]["hash"], kinds["inverted"]["seq"]) == (second, 0)
    assert (kinds["overlap"]["other_started_at_us"], kinds["overlap"]["other_finished_at_us"]) == (
        START_US + 600,
        START_US + 700,
    )


def test_a_key_on_two_queues_is_no_key_on_two_hashes(validated: Validated, tmp_path: Path) -> None:
    """As in a change of the number of queues: publishers and members use the old and the new number."""
    sent, came = messages(6, hash_=3)
    sent = [replace(one, queue=3 if one.seq < 3 else 1) for one in sent]
    came = [replace(one, queue=(3, 3, 9, 9, 1, 1)[one.seq]) for one in came]
    write_lines(tmp_path / "journal" / "a.jsonl", [*sent, *came])
    _, verdict = validated()
    assert (verdict["verdict"], verdict["rehashed"], verdict["rerouted"]) == ("sound", 0, 0)


@pytest.mark.parametrize("settle_s", [0, 0.001])
def test_records_in_two_files_count_once_and_the_files_are_named(
    validated: Validated, tmp_path: Path, settle_s: float
) -> None:
    """A copy, a compressed copy, and a file with both others one after the other; a resent message is no copy."""
    sent, came = messages(50)
    resent = replace(sent[7], confirmed_at_us=sent[7].confirmed_at_us + 9000, resends=1)
    journal = tmp_path / "journal"
    write_lines(journal / "a-sent.jsonl", sent)
    write_lines(journal / "b-came.jsonl", came)
    write_lines(journal / "c-sent-again.jsonl", [resent])
    alone = validated(settle_s=settle_s)[1]
    assert (alone["published"], alone["delivered"], alone["repeated"]) == (51, 50, 0)
    shutil.copy(journal / "b-came.jsonl", journal / "d-came.jsonl")
    (journal / "a-sent.jsonl.gz").write_bytes(gzip.compress((journal / "a-sent.jsonl").read_bytes()))
    report, verdict = validated(settle_s=settle_s, exactly_once=True)
    assert verdict == alone
    text = "\n".join(report_lines(report))
    assert (
        f"50 records are in two files, and counted once: {journal}/b-came.jsonl, {journal}/d-came.jsonl"
        in text
    )
    [of_sent] = [one for one in report.copies if one["kind"] == "published"]
    assert (of_sent["count"], {Path(of_sent[name]).name for name in ("file", "other")}) == (
        50,
        {"a-sent.jsonl", "a-sent.jsonl.gz"},
    )
    (journal / "a-sent.jsonl.gz").unlink()
    both = (journal / "a-sent.jsonl").read_bytes() + (journal / "b-came.jsonl").read_bytes()
    (journal / "d-came.jsonl").write_bytes(both)
    assert validated(settle_s=settle_s, exactly_once=True)[1] == alone


def test_numbers_in_no_journal_are_counted(validated: Validated, spark: SparkSession, tmp_path: Path) -> None:
    sent, came = messages(100)
    present = [one for one in [*sent, *came] if not 40 <= one.seq < 60]
    write_lines(tmp_path / "journal" / "a.jsonl", present)
    report, verdict = validated()
    assert (verdict["verdict"], verdict["unrecorded"], verdict["early"]) == ("sound", 20, 0)
    assert "20 numbers are in no journal" in "\n".join(report_lines(report))
    gaps = spark.read.parquet(str(tmp_path / "out" / "gaps")).collect()
    assert [(row.first, row.last, row["count"], row.is_early) for row in gaps] == [(40, 59, 20, False)]


def test_journals_without_their_older_files_have_no_gap(validated: Validated, tmp_path: Path) -> None:
    """Nor have those of a publisher that went on from its state: each epoch counts from 0."""
    sent, came = messages(100)
    later = messages(5, publisher=f"p-{incarnation_of_epoch('0a1b2c3d' + 24 * '7', 1 << 50, bytes(16))}")
    records = [*(one for one in [*sent, *came] if one.seq >= 30), *later[0]]
    records += [replace(one, delivered_at_us=one.delivered_at_us + 200_000) for one in later[1]]
    write_lines(tmp_path / "journal" / "a.jsonl", records)
    report, verdict = validated()
    assert (verdict["unrecorded"], verdict["early"]) == (0, 30)
    text = "\n".join(report_lines(report))
    assert "30 numbers are older than the journals" in text
    assert "in no journal" not in text


def test_a_delivery_that_differs_from_what_was_published_is_reported(
    validated: Validated, spark: SparkSession, tmp_path: Path
) -> None:
    sent, came = messages(40)
    came[5] = replace(came[5], key="other")
    came[6] = replace(came[6], body_bytes=101)
    came[7] = replace(came[7], queue=3)
    came[8] = replace(came[8], hash_=67)
    write_lines(tmp_path / "journal" / "a.jsonl", [*sent, *came])
    report, verdict = validated()
    assert verdict["verdict"] == "broken"
    assert [
        verdict[name] for name in ("rekeyed", "resized", "rerouted", "rehashed", "lost", "unpublished")
    ] == 6 * [1]
    told = {(one["kind"], one["seq"], one["key"]) for one in report.first_offences}
    assert {("rekeyed", 5, "other"), ("resized", 6, "k"), ("rehashed", 8, "k")} <= told
    [lost] = spark.read.parquet(str(tmp_path / "out" / "lost_messages")).collect()
    assert (lost.hash, lost.seq, lost.key) == (0, 8, "k")


@pytest.mark.parametrize("settle_s", [0, 0.001])
def test_each_lost_message_has_its_key_and_times(
    validated: Validated,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settle_s: float,
) -> None:
    """The first 12 of them, from plain and compressed files, and none that are pending."""
    from lbg_pipeline.verify import publishers

    monkeypatch.setattr(publishers, "MOST_MESSAGES", 12)
    sent, came = messages(30)
    keyed = [replace(one, key=f"k{one.seq}") for one in sent]
    came = [replace(one, key=f"k{one.seq}") for one in came if not (10 <= one.seq < 20 or one.seq >= 24)]
    journal = tmp_path / "journal"
    write_lines(journal / "a.jsonl", [*keyed[:15], *came])
    (journal / "b.jsonl.gz").write_bytes(
        gzip.compress("".join(encode(one) for one in [*keyed[15:], replace(keyed[16], resends=1)]).encode())
    )
    _, verdict = validated(settle_s=settle_s)
    assert verdict["lost"] == (16 if settle_s == 0 else 15)
    rows = spark.read.parquet(str(tmp_path / "out" / "lost_messages")).collect()
    assert sorted((row.seq, row.key, row.published_at_us, row.confirmed_at_us) for row in rows) == [
        (seq, f"k{seq}", START_US + seq * 1000, START_US + seq * 1000 + 1000)
        for seq in (*range(10, 20), 24, 25)
    ]
