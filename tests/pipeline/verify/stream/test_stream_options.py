"""A wrong command line of `validate --stream` is refused before Spark is started."""

from __future__ import annotations

import pytest
from click.testing import CliRunner


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global validate
    from lbg_pipeline.commands.validate import validate


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--stream"], "--stream needs --checkpoint"),
        (["--stream", "--checkpoint", "c", "--settle", "5"], "--settle is for runs without --stream"),
        (
            ["--stream", "--checkpoint", "c", "--available-now", "--trigger", "5"],
            "either --available-now, which ends, or --trigger",
        ),
        (["--checkpoint", "c"], "are for --stream"),
    ],
)
def test_what_does_not_go_together_is_said(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(validate, ["--journal", "j", "--out", "o", *arguments])
    assert result.exit_code == 2
    assert told in result.output
