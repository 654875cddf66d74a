"""`python -m testing.promises`: every promise of planned moves, cell by cell (docs/internals/promises.md).

Exit status 1 if a cell showed something else than it must.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from testing.promises import matrix
from testing.promises.matrix import Cell
from testing.promises.processes import Brokers
from testing.promises.results import Result, Results, left_out_lines, overview
from testing.promises.scenario import Scenario

WEIGHTS = {0: 3, 10: 3, 50: 2, 500: 1, 3500: 1}
"""The share of the machine that a cell takes, by handler time: one whose handlers sleep leaves it to others."""

ROOM = 10
"""Of all cells that run at once, for two cores."""

FULL_RESULTS = Path("promises-results.jsonl")


def main() -> int:
    arguments = _parse()
    cells = _cells(arguments)
    file = arguments.results or (FULL_RESULTS if arguments.full else None)
    results = Results(file)
    missing = [cell for cell in cells if str(cell) not in results.of_cell]
    print("\n".join(left_out_lines()))
    print(f"{len(cells)} cells, {len(cells) - len(missing)} of them finished before", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="lbgp-")) if arguments.keep is None else arguments.keep
    directory.mkdir(parents=True, exist_ok=True)
    brokers = Brokers()
    began_at = time.monotonic()
    try:
        brokers.prepare({cell.engine for cell in missing})
        asyncio.run(_run(missing, results, brokers, directory, room=arguments.room))
    finally:
        brokers.close()
        if arguments.keep is None:
            shutil.rmtree(directory)
    shown = [results.of_cell[str(cell)] for cell in cells]
    different = [result for result in shown if not result.is_as_expected]
    print("\n".join(("", *overview(shown))))
    print(f"\n{len(shown)} cells, {len(different)} not as expected, {time.monotonic() - began_at:.0f} s")
    print("passed: every cell shows what it must" if not different else "FAILED", flush=True)
    return 1 if different else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testing.promises", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the whole product, going on from --results")
    parser.add_argument(
        "--cell",
        action="append",
        type=_cell,
        metavar="MODE/ENGINE/MOVE/TIME/CHANNEL",
        help="only this one",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="WORD",
        help="only cells that have this word, as in --only Partitioned",
    )
    parser.add_argument(
        "--results",
        type=Path,
        help=f"append results to this file, and pass over the cells in it; with --full {FULL_RESULTS}",
    )
    parser.add_argument("--keep", type=Path, help="keep the lines and logs of every cell in this directory")
    parser.add_argument(
        "--room", type=int, default=ROOM, help="how much may run at once; default %(default)s"
    )
    return parser.parse_args()


def _cell(text: str) -> Cell:
    try:
        return Cell.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _cells(arguments: argparse.Namespace) -> list[Cell]:
    if arguments.cell:
        return list(arguments.cell)
    cells = matrix.full() if arguments.full else matrix.default()
    words = set(arguments.only or ())
    chosen = [cell for cell in cells if words <= set(str(cell).split("/"))]
    if not chosen:
        raise SystemExit(f"no cell has {', '.join(sorted(words))}: the words are those of {cells[0]}")
    return chosen


async def _run(
    cells: Sequence[Cell], results: Results, brokers: Brokers, directory: Path, *, room: int
) -> None:
    """Long cells first, so that none is left alone at the end; as many at once as there is room for."""
    free = room
    changed = asyncio.Condition()

    async def one(number: int, cell: Cell) -> None:
        nonlocal free
        weight = min(WEIGHTS[cell.time_ms], room)
        async with changed:
            await changed.wait_for(lambda: free >= weight)
            free -= weight
        began_at = time.monotonic()
        place = directory / str(number)
        try:
            played = await Scenario(cell, brokers, place).play()
            result = Result.of(cell, played, time.monotonic() - began_at)
        except (RuntimeError, OSError, ValueError) as error:
            result = Result.failed(cell, error, time.monotonic() - began_at)
        finally:
            async with changed:
                free += weight
                changed.notify_all()
        results.add(result)
        print("\n".join(result.lines()), flush=True)

    async with asyncio.TaskGroup() as group:
        for number, cell in enumerate(cells):
            group.create_task(one(number, cell))


if __name__ == "__main__":
    sys.exit(main())
