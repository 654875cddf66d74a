"""A small run of each engine, as `make chaos` runs large ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.chaos.evidence import history_of
from testing.chaos.run import run
from testing.chaos.schedule import Sizes

pytestmark = pytest.mark.process

SMALL = Sizes(messages=8_000, faults=4, fault_every_s=1.5, heartbeat_s=1)


@pytest.mark.parametrize("engine", ["embedded", "rabbitmq"])
async def test_every_promise_is_kept_in_a_small_run(engine: str, tmp_path: Path) -> None:
    verdict, problems = await run(engine, 3, SMALL, tmp_path)
    shown = [(each, list(history_of(tmp_path, each.name))) for each in verdict.violations]
    assert not shown
    assert not problems
    assert verdict.calls >= verdict.messages == SMALL.messages
