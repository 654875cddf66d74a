"""Errors of the command line are reported before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from lbg_pipeline.errors import PlanRefused


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global plan
    from lbg_pipeline.commands.plan import plan


COMMAND = ("--journal", "nowhere", "--out", "out")


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (
            ("--queue-counts", "4,x"),
            "'x' is neither a number nor a range from 1 to 4096: give 4,8,16 or 4-16",
        ),
        (("--queue-counts", "8-4"), "'8-4' is neither a number nor a range"),
        (("--hash-counts", "70000"), "'70000' is neither a number nor a range from 1 to 65536"),
        (("--growth", "0"), "--growth"),
        (("--target-utilisation", "70"), "--target-utilisation"),
        (("--target-delay", "500ms"), "'500ms' is not a duration: give it as 300s"),
        (("--target-delay", "0s"), "'0s' is not a delay from 1s to 1d"),
        (("--function", "md5"), "--function"),
        (("--service-time", "-1"), "--service-time"),
    ],
)
def test_wrong_values_are_named(told: tuple[str, ...], line: str) -> None:
    said = CliRunner().invoke(plan, [*COMMAND, *told])
    assert said.exit_code == 2
    assert line in said.output


@pytest.mark.long
def test_a_manifest_that_is_not_there_is_told_before_spark_starts(tmp_path: Path) -> None:
    said = CliRunner().invoke(plan, [*COMMAND, "--manifest", str(tmp_path / "none.yaml")])
    assert isinstance(said.exception, PlanRefused)
    assert "none.yaml: No such file or directory" in str(said.exception)
