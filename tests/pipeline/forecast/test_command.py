"""The command line: what is refused before Spark starts."""

from __future__ import annotations

import pytest
from click.testing import CliRunner


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global forecast
    from lbg_pipeline.commands.forecast import forecast


TABLE = ["--history", "t.csv", "--time", "at", "--group", "g"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "one of --journal, --demand and --history"),
        (["--journal", "j", "--demand", "d"], "one of --journal, --demand and --history"),
        (["--history", "t.csv", "--group", "g"], "--history needs --time COLUMN"),
        (["--history", "t.csv", "--time", "at"], "--history needs one --group NAME"),
        (["--journal", "j", "--time", "at"], "--time and --messages are for --history"),
        (["--journal", "j", "--rates", "r"], "--rates is for --demand and --history"),
        ([*TABLE, "--interval", "7m"], "--interval is 420 s: give 1m to 1h, a whole part of an hour"),
        ([*TABLE, "--interval", "2h"], "--interval is 7200 s"),
        ([*TABLE, "--interval", "30s"], "--interval is 30 s"),
        ([*TABLE, "--interval", "soon"], "'soon' is not a duration: give it as 300s, 5m, 1h or 7d"),
        ([*TABLE, "--horizon", "30m"], "--horizon is 1800 s"),
        ([*TABLE, "--weekly", "--horizon", "6d"], "--weekly needs a --horizon of at least 7d"),
        ([*TABLE, "--time-zone", "Mars/Olympus"], "'Mars/Olympus' is not a known time zone"),
        ([*TABLE, "--time-zone", "../etc"], "'../etc' is not a known time zone"),
        ([*TABLE, "--now", "yesterday"], "'yesterday' is not a time: give it as 2026-11-27T16:55:00Z"),
        ([*TABLE, "--quantile", "1"], "--quantile"),
        ([*TABLE, "--capacity", "0"], "--capacity"),
        ([*TABLE, "--min-replicas", "5", "--max-replicas", "4"], "--max-replicas is 4 and must be at least"),
        ([*TABLE, "--namespace", "shop"], "--namespace is for --apply"),
        ([*TABLE, "--calendar", "."], "File '.' is a directory"),
    ],
)
def test_a_wrong_command_line_is_told_what_to_say_instead(arguments: list[str], why: str) -> None:
    result = CliRunner().invoke(forecast, [*arguments, "--out", "out"])
    assert result.exit_code == 2
    assert why in result.output


def test_help_has_an_example() -> None:
    result = CliRunner().invoke(forecast, ["--help"])
    assert result.exit_code == 0
    assert "Example: lbg pipeline forecast --journal" in result.output
