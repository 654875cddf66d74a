"""docs/member.md has a word for everything that a program gets from `lbgroup` and `lbg_sidecar`."""

from __future__ import annotations

import re

import pytest

import lbg_sidecar
import lbgroup
from testing import ROOT


@pytest.mark.parametrize("names", [lbgroup.__all__, lbg_sidecar.__all__], ids=["lbgroup", "lbg_sidecar"])
def test_every_exported_name_is_documented(names: list[str]) -> None:
    words = set(re.findall(r"`(\w+)", (ROOT / "docs/member.md").read_text()))
    assert set(names) <= words
