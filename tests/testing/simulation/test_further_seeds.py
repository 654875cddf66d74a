"""Further fixed seeds, in another file for another process of the test run."""

from __future__ import annotations

import pytest

from lbg_core.group import EXCLUSIVE, STATIC
from testing.simulation.context import Setting
from testing.simulation.history import History
from testing.simulation.runs import MODES

pytestmark = pytest.mark.slow

SEEDS = range(7, 14)
"""Behind those of test_histories.py."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_has_no_violation(mode: str, seed: int) -> None:
    history = History(seed, Setting(mode=mode, seconds=120.0, faults_per_hour=1500.0))
    assert history.run() == [], history.timeline()
    assert len(history.judge.processed) > 1000


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_a_static_assignment_has_no_violation(seed: int) -> None:
    setting = Setting(mode=EXCLUSIVE, assignment=STATIC, seconds=60.0, faults_per_hour=1500.0)
    history = History(seed, setting)
    assert history.run() == [], history.timeline()
    assert len(history.judge.processed) > 500
