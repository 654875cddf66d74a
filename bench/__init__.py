"""Measurements and long runs: everything docs/benchmarks.md and docs/chaos.md quote comes from here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))  # for testing: brokers to measure
