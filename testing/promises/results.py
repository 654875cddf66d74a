"""Results of cells, stored in a file of JSON lines, and as tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from testing.promises.expectations import differences, expected_of
from testing.promises.judge import OFFENCES
from testing.promises.matrix import MOVES, TIMES_MS, Cell, left_out
from testing.promises.scenario import Played

SHOWN_OFFENCES = 3
"""Of each kind, for a cell that is not as it must be."""


@dataclass(frozen=True)
class Result:
    """A cell that was run. `differences` is empty where it showed what it must."""

    cell: str
    counts: dict[str, int]
    messages: int
    calls: int
    moved_s: float
    took_s: float
    by_process: dict[str, int]
    differences: list[str]
    offences: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, cell: Cell, played: Played, took_s: float) -> Result:
        found = played.findings
        return cls(
            str(cell),
            found.counts,
            found.messages,
            found.calls,
            round(played.moved_s, 1),
            round(took_s, 1),
            found.by_process,
            differences(expected_of(cell), found.counts, moved_s=played.moved_s, problems=played.problems),
            {name: getattr(found, name)[:SHOWN_OFFENCES] for name in OFFENCES if getattr(found, name)},
            list(played.notes),
        )

    @classmethod
    def failed(cls, cell: Cell, error: Exception, took_s: float) -> Result:
        """Of a cell that could not be played."""
        return cls(str(cell), {}, 0, 0, 0.0, round(took_s, 1), {}, [f"not played: {error!r}"])

    @property
    def is_as_expected(self) -> bool:
        return not self.differences

    def lines(self) -> Iterator[str]:
        """The row of the table, and what is behind a difference."""
        cell = Cell.parse(self.cell)
        seen = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.counts.items() if count)
        verdict = "ok  " if self.is_as_expected else "DIFF"
        yield (
            f"{verdict} {self.cell:<45} expected: {expected_of(cell)}; seen: {seen or '0 of all'}; "
            f"{self.messages} messages, {self.calls} calls, moved in {self.moved_s} s, {self.took_s} s"
        )
        if self.is_as_expected:
            return
        for difference in self.differences:
            yield f"       {difference}"
        for name, texts in self.offences.items():
            for text in texts:
                yield f"         {name}: {text}"
        yield f"         calls by process: {self.by_process}"
        for note in self.notes:
            yield "         lbg group show:"
            for line in note.splitlines():
                yield f"           {line}"


class Results:
    """`file` None keeps nothing. One that is there is read: the cells in it are finished."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.of_cell: dict[str, Result] = {}
        if file is not None and file.exists():
            for line in file.read_text().splitlines():
                result = self._parsed(line)
                if result is not None:
                    self.of_cell[result.cell] = result

    @staticmethod
    def _parsed(line: str) -> Result | None:
        """None for a line that a kill cut short: its cell is run again."""
        try:
            fields: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            return None
        return Result(**fields)

    def add(self, result: Result) -> None:
        self.of_cell[result.cell] = result
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")


def overview(results: Iterable[Result]) -> Iterator[str]:
    """A row for each mode, engine and channel and move, a column for each handler time: `ok`, or what was different."""
    rows: dict[tuple[str, str, str, str], dict[int, str]] = {}
    for result in results:
        cell = Cell.parse(result.cell)
        row = rows.setdefault((cell.mode, cell.engine, cell.channel, cell.move), {})
        row[cell.time_ms] = "ok" if result.is_as_expected else _short(result)
    yield f"{'mode/engine/channel/move':<46}" + "".join(f"{time_ms:>7} ms " for time_ms in TIMES_MS)
    for row_name in sorted(rows, key=lambda name: (*name[:3], MOVES.index(name[3]))):
        shown = rows[row_name]
        yield f"{'/'.join(row_name):<46}" + "".join(f"{shown.get(time_ms, '-'):>10}" for time_ms in TIMES_MS)


def _short(result: Result) -> str:
    """The first letter of each offence with its count; M: a move that did not complete."""
    letters = [f"{name[0].upper()}{count}" for name, count in result.counts.items() if count]
    return "".join(letters) or "M"


def left_out_lines() -> Iterator[str]:
    """Combinations without cells, with the reasons."""
    by_reason: dict[str, list[str]] = {}
    for (mode, engine, move), reason in left_out().items():
        by_reason.setdefault(reason, []).append(f"{mode}/{engine}/{move}")
    for reason, places in by_reason.items():
        yield f"left out: {', '.join(places)}: {reason}"
