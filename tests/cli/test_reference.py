"""docs/reference/cli.md says what the commands say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from testing import ROOT

pytestmark = pytest.mark.process

DOCS = ROOT / "docs"


def test_the_reference_is_what_help_says() -> None:
    made = subprocess.run(
        [sys.executable, DOCS / "cli_reference.py"], capture_output=True, text=True, check=True
    )
    assert (DOCS / "reference/cli.md").read_text() == made.stdout, "run: make docs"
