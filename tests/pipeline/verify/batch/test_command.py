"""`lbg pipeline validate` as a person meets it: exit status, what it prints and the lines for what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from lbg_core.group import encode
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
