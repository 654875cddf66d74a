"""`lbg pipeline validate` as a person meets it: exit status, what it prints and the lines for what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from lbg_core.group import DeliveredRecord, PublishedRecord, encode
from testing.journal.rows import delivered, published, write_lines
from testing.output_documents import checked


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global SparkSession, validate
    from pyspark.sql import SparkSession

    from lbg_pipeline.commands.validate import validate


Command = Callable[..., Result]


@pytest.fixture
def command(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """In the session of all tests, which must outlive it."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)

    def call(*options: str, out: bool = True) -> Result:
        where = ["--journal", str(tmp_path / "journal"), "--master", "local[2]"]
        where += ["--out", str(tmp_path / "out")] if out else []
        return CliRunner().invoke(validate, [*where, *options], standalone_mode=False)

    return call


@pytest.mark.slow
def test_a_sound_journal_with_a_line_that_is_no_record(command: Command, tmp_path: Path) -> None:
    write_lines(tmp_path / "journal" / "a.jsonl", [published(0), delivered(0), "Killed\n"])
    said = command()
    assert said.return_value == 0
    assert said.stdout.splitlines()[:3] == [
        "Sound: 1 message of 1 group, none lost, none out of order",
        "group  verdict  published  delivered  lost  inverted  overlaps  rewound  repeated  moves",
        "g      sound            1          1     0         0         0        0         0      0",
    ]
    assert "1 LINE IS NOT A RECORD" in said.stdout
    assert "reading and checking" in said.stderr
    strict = command("--strict", "--json")
    assert strict.return_value == 1
    assert json.loads(strict.stdout)["ok"] is True


def test_a_message_that_is_lost_or_repeated(command: Command, tmp_path: Path) -> None:
    twice = [delivered(0), delivered(0, at_us=1000)]
    write_lines(tmp_path / "journal" / "a.jsonl", [published(0), *twice])
    assert command().return_value == 0
    assert command("--exactly-once").return_value == 1
    write_lines(tmp_path / "journal" / "b.jsonl", [published(1)])
    said = command()
    assert said.return_value == 1
    assert "lost: group g, publisher p, hash 0, number 1, key 'k' published" in said.stdout


def test_the_history_of_a_key_is_printed_and_nothing_is_written(command: Command, tmp_path: Path) -> None:
    lines = [
        *(published(seq) for seq in range(2)),
        delivered(0),
        published(0, group="other", key="elsewhere"),
    ]
    write_lines(tmp_path / "journal" / "a.jsonl", lines)
    said = command("--key", "k", out=False)
    assert said.return_value == 0
    first, *_, last = said.stdout.splitlines()
    assert first == "key k of group g: hash 0, queue 0; until 2023-11-14, times in UTC"
    assert last == "history: 2 published and 1 delivery in the journals; what waits now: lbg group key"
    assert "NOT DELIVERED in these journals" in said.stdout
    [history] = checked("pipeline validate", command("--key", "k", "--json", out=False).stdout)["histories"]
    assert [one["word"] for one in history["steps"]] == ["finished", "undelivered"]
    assert not (tmp_path / "out").exists()
    absent = command("--key", "elsewhere", "--group", "g", out=False)
    assert str(absent.exception) == f"{tmp_path / 'journal'}: no record of group g has the key 'elsewhere'"
    assert isinstance(command("--key", "k").exception, click.UsageError)
    assert "Missing option '--out'" in str(command(out=False).exception)


@pytest.mark.parametrize(
    ("lines", "groups", "reasons"),
    [
        pytest.param([], [], {None: "no record in 1 file of JOURNAL"}, id="an empty file"),
        pytest.param(
            ["Killed\n", "Killed\n"],
            [],
            {None: "no record in 1 file of JOURNAL: 2 lines are broken"},
            id="no record",
        ),
        pytest.param(
            [published(0), delivered(0), published(0, group="h")],
            ["nosuch"],
            {"nosuch": "no record of group nosuch in 1 file of JOURNAL, but of g, h"},
            id="an absent group",
        ),
        pytest.param(
            [published(0), delivered(0)],
            ["g", "nosuch"],
            {"nosuch": "no record of group nosuch in 1 file of JOURNAL, but of g"},
            id="one of two groups",
        ),
        pytest.param(
            [published(0), delivered(0), delivered(0, group="h")],
            [],
            {"h": "no record of a publisher: loss was not checked; order and overlap of 1 delivery were"},
            id="no publisher",
        ),
        pytest.param(
            [published(0), published(1)],
            [],
            {"g": "no record of a member: if all their journals were read, 2 messages are lost"},
            id="no member",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_checked_is_not_sound(
    command: Command,
    tmp_path: Path,
    stream: bool,
    lines: list[PublishedRecord | DeliveredRecord | str],
    groups: list[str],
    reasons: dict[str | None, str],
) -> None:
    write_lines(tmp_path / "journal" / "a.jsonl", lines)
    options = [option for group in groups for option in ("--group", group)]
    if stream:
        options += ["--stream", "--available-now", "--checkpoint", str(tmp_path / "state")]
    said = command(*options, "--json")
    assert said.return_value == 4, said.output
    report = json.loads(said.stdout)
    assert (report["ok"], report["verdict"]) == (False, "unchecked")
    journal = str(tmp_path / "journal")
    expected = [
        {"group": group, "reason": reason.replace("JOURNAL", journal)} for group, reason in reasons.items()
    ]
    assert report["unchecked"] == expected
    of_rows = {row["group"]: row["verdict"] for row in report["verdicts"]}
    assert all(
        verdict == ("unchecked" if group in reasons else "sound") for group, verdict in of_rows.items()
    )


def test_a_broken_group_beside_one_that_is_absent_is_broken(command: Command, tmp_path: Path) -> None:
    inverted = [published(0), published(1), delivered(1), delivered(0, at_us=9000)]
    write_lines(tmp_path / "journal" / "a.jsonl", inverted)
    said = command("--group", "g", "--group", "nosuch")
    assert said.return_value == 1
    verdict, unchecked, *_ = said.stdout.splitlines()
    assert verdict == "Broken: group g: 1 message out of order"
    assert unchecked.startswith("group nosuch not checked, because no record of group nosuch in 1 file of ")


def test_what_goes_wrong_is_one_line(command: Command, tmp_path: Path) -> None:
    absent = command()
    assert str(absent.exception) == f"{tmp_path / 'journal'}: no such file or directory"
    newer = encode(published(0)).replace('"v":1', '"v":7')
    file = write_lines(tmp_path / "journal" / "a.jsonl", [published(0), newer])
    refused = command()
    assert str(refused.exception).startswith(
        f"journal {file} has records of version 7, and this LBG reads version 1: upgrade it"
    )
    assert "\n" not in str(refused.exception)
