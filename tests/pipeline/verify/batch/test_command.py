"""`lbg pipeline validate` as a person meets it: exit status, what it prints and the lines for what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lbg_core.group import encode
from testing.journal.rows import delivered, published, write_lines


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

    def call(*options: str) -> Result:
        where = (
            "--journal",
            str(tmp_path / "journal"),
            "--out",
            str(tmp_path / "out"),
            "--master",
            "local[2]",
        )
        return CliRunner().invoke(validate, [*where, *options], standalone_mode=False)

    return call


@pytest.mark.slow
def test_a_sound_journal_with_a_line_that_is_no_record(command: Command, tmp_path: Path) -> None:
    write_lines(tmp_path / "journal" / "a.jsonl", [published(0), delivered(0), "Killed\n"])
    said = command()
    assert said.return_value == 0
    assert said.stdout.splitlines()[:2] == [
        "group  verdict  published  delivered  lost  inverted  overlaps  rewound  repeated  moves",
        "g      sound            1          1     0         0         0        0         0      0",
    ]
    assert "1 LINES ARE NOT RECORDS" in said.stdout
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
    assert "lost: group g, publisher p, hash 0, 1 to 1" in said.stdout


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
