"""Planned moves repeat nothing where much is processed behind a message that waits.

Before a close waited for acks (docs/adr/0064-a-close-waits-for-acks.md) each of these histories had a violation.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lbg_core.group import RABBITMQ
from lbg_core.group.topology import EMBEDDED
from testing.simulation.context import Setting
from testing.simulation.history import History
from testing.simulation.planted import STATIC_ON_RABBITMQ


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "seed"), [(EMBEDDED, 4), (RABBITMQ, 2)])
def test_a_release_without_a_successor_repeats_nothing(engine: str, seed: int) -> None:
    history = History(seed, replace(STATIC_ON_RABBITMQ, engine=engine))
    assert history.run() == [], history.timeline()
    assert history.judge.repeats == 0
    assert len(history.judge.processed) > 10_000


@pytest.mark.slow
def test_a_move_in_a_group_of_more_members_than_it_is_announced_to_repeats_nothing() -> None:
    setting = Setting(
        members=40,
        queues=40,
        keys=400,
        seconds=40.0,
        faults_per_hour=3000.0,
        rate_hz=600.0,
        kinds=STATIC_ON_RABBITMQ.kinds,
    )
    history = History(3, setting)
    assert history.run() == [], history.timeline()
    assert history.judge.repeats == 0
    assert len(history.judge.processed) > 20_000
