"""Commands as spark-submit runs them: as a file, whose directory comes first in the path of modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lbg_pipeline import commands


@pytest.mark.process
@pytest.mark.parametrize("name", ["validate", "profile", "plan", "forecast"])
def test_a_command_runs_as_a_file(name: str) -> None:
    """`profile.py` beside it is not taken for the standard library's, which PySpark imports."""
    file = Path(commands.__file__).with_name(f"{name}.py")
    told = subprocess.run([sys.executable, file, "--help"], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "Usage:" in told.stdout
