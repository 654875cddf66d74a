"""Findings lead to their messages: keys, times, and the move or the end of a run near them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from lbg_core.group import DeliveredRecord, PublishedRecord
from lbg_pipeline.verify.settings import StreamSettings, ValidationSettings
from testing.journal.rows import START_US, delivered, published, write_lines
from testing.pipeline.html_page import Read

S = 1_000_000
HOSTILE = "<script>k1</script>"


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Progress, Report, SparkSession, ended, report_lines, stream_journals, validate_journals
    from pyspark.sql import SparkSession

    from lbg_pipeline.spark.jobs import Progress
    from lbg_pipeline.verify.batch import validate_journals
    from lbg_pipeline.verify.incidents import ended
    from lbg_pipeline.verify.report import Report, report_lines
    from lbg_pipeline.verify.stream import stream_journals


Validated = Callable[[], "Report"]


@pytest.fixture
def validated(spark: SparkSession, tmp_path: Path) -> Validated:
    def validate() -> Report:
        progress = Progress(io.StringIO(), started_s=0)
        journal, out = str(tmp_path / "journal"), str(tmp_path / "out")
        return validate_journals(spark, [journal], out, ValidationSettings(), progress=progress)

    return validate


def crash() -> list[PublishedRecord | DeliveredRecord]:
    """A message of each of two keys, of hashes 0 and 1, a second. Member 1 serves hash 1, its run ends before second 20
    and another begins in second 25; meanwhile member 0 serves it."""
    records: list[PublishedRecord | DeliveredRecord] = []
    for second in range(60):
        for hash_ in (0, 1):
            member = hash_ if not 20 <= second < 25 else 0
            fields: dict[str, Any] = {"key": ("k0", HOSTILE)[hash_], "hash_": hash_, "queue": hash_}
            at_us = second * S + hash_
            records.append(published(second, at_us=at_us, **fields))
            run = "after" if second >= 25 and member else "before"
            came = delivered(
                second, at_us=at_us + 1000, member=member, incarnation=f"i{member}-{run}", **fields
            )
            came.published_at_us = START_US + at_us
            records.append(came)
    return records


ENDS_US = START_US + 21 * S + S // 2


def faults() -> list[PublishedRecord | DeliveredRecord]:
    """Number 20 of hash 1 is lost, and member 1 has number 19 until ENDS_US, when member 0 has number 21."""
    records = [one for one in crash() if isinstance(one, PublishedRecord) or (one.hash_, one.seq) != (1, 20)]
    for one in records:
        if isinstance(one, DeliveredRecord) and (one.hash_, one.seq) == (1, 19):
            one.finished_at_us = ENDS_US
    return records


def test_a_lost_message_and_an_overlap_have_their_keys_times_moves_and_runs(
    validated: Validated, tmp_path: Path
) -> None:
    write_lines(tmp_path / "journal" / "a.jsonl", faults())
    report = validated()
    assert (report.verdicts[0]["lost"], report.verdicts[0]["overlaps"]) == (1, 1)
    [affected] = report.affected
    assert (affected["keys"], affected["findings"], affected["members"]) == (1, 2, [0, 1])
    assert (affected["first_us"], affected["last_us"]) == (START_US + 20 * S + 1, START_US + 21 * S + 1101)
    [of_lost], [overlap] = report.first_lost, report.first_offences
    assert of_lost["first_message"] == {"seq": 20, "key": HOSTILE, "published_at_us": START_US + 20 * S + 1}
    assert (of_lost["move"]["was"], of_lost["move"]["now"]) == (1, 0)
    assert of_lost["move"] == overlap["move"]
    assert (overlap["other_member"], overlap["other_finished_at_us"]) == (1, ENDS_US)
    text = list(report_lines(report))
    assert text[0] == "Broken: group g: 1 message lost, 1 overlap of two members"
    assert text[1] == (
        "group g: 1 key, 2023-11-14T22:13:40.000001Z to 2023-11-14T22:13:41.001101Z, members 0, 1"
    )
    near = "its hash moved from member 1 to 0 at 2023-11-14T22:13:41.001001Z"
    lost_line = f"number 20, key {HOSTILE!r} published 2023-11-14T22:13:40.000001Z; 1.00 s before {near}"
    assert any(line.endswith(lost_line) for line in text)  # the run went on after the move
    assert any(line.strip().startswith("2023-11-14T22:13:41.001101Z overlap: group g, key") for line in text)

    page = (tmp_path / "out" / "report.html").read_text()
    read = Read(page)
    assert "script" not in read.tags()
    assert page.index("<h1>Broken: group g: 1 message lost, 1 overlap of two members</h1>") < page.index(
        "<h2>"
    )
    for told in (HOSTILE, "2023-11-14T22:13:40.000001Z", near, "What was checked, and what was not"):
        assert told in read.text


def test_a_move_names_the_run_that_ended_before_it(validated: Validated, tmp_path: Path) -> None:
    records = [one for one in crash() if isinstance(one, PublishedRecord) or (one.hash_, one.seq) != (1, 20)]
    write_lines(tmp_path / "journal" / "a.jsonl", records)
    report = validated()
    assert report.first_lost[0]["ended"] == {
        "member": 1,
        "member_name": "m1",
        "incarnation": "i1-before",
        "at_us": START_US + 19 * S + 1301,
        "next_incarnation": "i1-after",
        "next_at_us": START_US + 25 * S + 1001,
    }
    [line] = [one for one in report_lines(report) if one.startswith("  lost: ")]
    assert line.endswith(
        "run i1-before of member 1 m1 ended at 2023-11-14T22:13:39.001301Z; "
        "its run i1-after began at 2023-11-14T22:13:45.001001Z"
    )


def test_a_sound_verdict_has_no_list_of_what_is_no_fault(validated: Validated, tmp_path: Path) -> None:
    records = crash()
    released = [one for one in records if isinstance(one, DeliveredRecord) and one.seq < 15]
    for one in released:
        records.append(
            delivered(
                one.seq,
                at_us=one.delivered_at_us - START_US - 500,
                key=one.key,
                hash_=one.hash_,
                queue=one.queue,
                member=one.member,
                verdict="released",
                started_at_us=None,
                finished_at_us=None,
                settled_at_us=None,
                delivery=one.delivery - 1,
            )
        )
    write_lines(tmp_path / "journal" / "a.jsonl", records)
    report = validated()
    assert report.verdict == "sound"
    assert [*report.first_offences, *report.first_lost, *report.first_keys] == []
    text = list(report_lines(report))
    assert text[0] == "Sound: 120 messages of 1 group, none lost, none out of order"
    assert not any(line.startswith(" ") or "rewound:" in line for line in text)
    assert "group g: 30 deliveries came again after a handover or a crash: table offences" in text
    assert f"<h1>{text[0]}</h1>" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_a_stream_has_the_same_findings_without_runs_and_keys_of_lost_messages(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_lines(tmp_path / "journal" / "a.jsonl", faults())
    result = stream_journals(
        spark,
        [str(tmp_path / "journal")],
        str(tmp_path / "out"),
        checkpoint=str(tmp_path / "checkpoint"),
        settings=StreamSettings(watermark_s=2.0, lost_after_s=0.5),
        trigger_s=None,
        stopped=Event(),
        on_epoch=lambda *_: None,
    )
    text = list(result.lines())
    assert text[0] == "Broken: group g: 1 message lost, 1 overlap of two members"
    assert "  lost: group g, publisher p, hash 1, number 20" in text
    [overlap] = result.report.first_offences
    assert (overlap["key"], overlap["move"]["was"], overlap["move"]["now"]) == (HOSTILE, 1, 0)
    assert f"<h1>{text[0]}</h1>" in (tmp_path / "out" / "report.html").read_text()


def run(member: int, incarnation: str, first_us: int, last_us: int) -> dict[str, Any]:
    return {
        "member": member,
        "member_name": f"m{member}",
        "incarnation": incarnation,
        "first_us": first_us,
        "last_us": last_us,
    }


def test_a_run_that_may_go_on_has_not_ended() -> None:
    """Its last record is the last of the group, or less than ten seconds before."""
    row = {"at_us": 100, "move": {"was": 1, "at_us": 90}}
    runs = [run(0, "a", 0, 80 + 10 * S), run(1, "b", 0, 80)]
    assert ended(row, [run(0, "a", 0, 79 + 10 * S), runs[1]]) is None
    found = ended(row, runs)
    assert found is not None
    assert (found["incarnation"], found["at_us"], found["next_at_us"]) == ("b", 80, None)


def test_without_a_move_the_run_before_is_named() -> None:
    """A member that begins again in the place of its former run moves no hash."""
    runs = [run(1, "b", 0, 80), run(1, "c", 90, 500)]
    of_run = {"member": 1, "at_us": 95, "move": None}
    found = ended({**of_run, "incarnation": "c"}, runs)
    assert found is not None
    assert (found["incarnation"], found["next_incarnation"]) == ("b", "c")
    assert ended({**of_run, "incarnation": "b"}, runs) is None
