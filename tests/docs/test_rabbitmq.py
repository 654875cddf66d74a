"""docs/rabbitmq.md names the tests that show what it says: they are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEST = re.compile(r"((?:[a-z_]+/)+test_[a-z_]+\.py)::(test_[a-z0-9_]+)")


def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall((ROOT / "docs/rabbitmq.md").read_text())
    assert len(named) >= 18
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), (file, test)
