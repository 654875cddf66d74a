"""Cells of `make promises`, with every mode of the embedded broker and every channel, several at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from testing.needs import repeated
from testing.promises.matrix import SERIAL, Cell
from testing.promises.processes import Brokers
from testing.promises.results import Result
from testing.promises.scenario import Scenario

pytestmark = pytest.mark.process

CELLS = [
    [
        Cell("Exclusive", "embedded", "join", 50, "http"),
        Cell("Sessions", "embedded", "rolling", 50, "stream"),
    ],
    [
        Cell("Exclusive", "embedded", "join", 50, "callable"),
        Cell("Partitioned", "embedded", "join", 50, "command"),
        Cell("MessageGroups", "embedded", "leave", 50, "http"),
    ],
]


@pytest.mark.parametrize("cells", repeated(CELLS), ids=["two modes", "three channels"])
async def test_cells_show_what_they_must(cells: list[Cell], tmp_path: Path) -> None:
    brokers = Brokers()

    async def run(number: int, cell: Cell) -> Result:
        return Result.of(cell, await Scenario(cell, brokers, tmp_path / str(number)).play(), 0.0)

    results = await asyncio.gather(*(run(number, cell) for number, cell in enumerate(cells)))
    assert [line for result in results for line in result.lines() if not result.is_as_expected] == []
    assert all(result.messages >= 100 and len(result.by_process) >= 2 for result in results)


@pytest.mark.parametrize("channel", repeated(SERIAL))
async def test_an_application_that_takes_more_than_it_works_on_repeats_nothing_at_a_move(
    channel: str, tmp_path: Path
) -> None:
    """All that it has been given would take it longer than the handoff time."""
    cell = Cell("Partitioned", "embedded", "join", 500, channel)
    played = await Scenario(cell, Brokers(), tmp_path / "cell").play()
    assert played.problems == ()
    assert {name: count for name, count in played.findings.counts.items() if count} == {}
    assert len(Result.of(cell, played, 0.0).by_process) == 2
