"""docs/member.md has a word for everything that a program gets from `lbg_sidecar`."""

from __future__ import annotations

import re
from pathlib import Path

import lbg_sidecar

ROOT = Path(__file__).parents[2]


def test_every_exported_name_is_documented() -> None:
    words = set(re.findall(r"`(\w+)", (ROOT / "docs/member.md").read_text()))
    assert set(lbg_sidecar.__all__) <= words
