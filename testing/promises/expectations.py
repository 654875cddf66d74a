"""The table of what each cell must show, read from top to bottom: the first line that fits a cell counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from testing.promises.judge import OFFENCES
from testing.promises.matrix import Cell

HANDOFF_MS = 3000
"""The default handoff time. A call that takes longer may be running when it ends."""

KEYS = 16
"""Of a cell whose calls take longer than the handoff time: so many calls run at once in the whole group."""


MOVED_WITHIN_S = 120.0
"""For a move that has no time of its own: a restart of every member, say, with all that they had at work."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The most of each offence. All of a kind that is not here must be 0. `within_s`: how long the move may take, with
    the start of processes. `why`: what makes a line other than the last."""

    cut_off: int = 0
    doubled: int = 0
    within_s: float = MOVED_WITHIN_S
    why: str = ""

    @property
    def most(self) -> dict[str, int]:
        return {name: getattr(self, name, 0) for name in OFFENCES}

    def __str__(self) -> str:
        allowed = [f"{name.replace('_', ' ')} <= {most}" for name, most in self.most.items() if most]
        return ", ".join([f"moved in {self.within_s:g} s", "0 of all", *allowed])


NOTHING = Expected()

_AT_THE_LIMIT = "the embedded broker takes a partition away when the handoff time ends (docs/modes.md)"


@dataclass(frozen=True, slots=True)
class Line:
    """None fits everything. `time_ms` is the shortest that fits."""

    mode: str | None
    engine: str | None
    move: str | None
    time_ms: int
    expected: Expected

    def fits(self, cell: Cell) -> bool:
        return (
            self.mode in (None, cell.mode)
            and self.engine in (None, cell.engine)
            and self.move in (None, cell.move)
            and cell.time_ms >= self.time_ms
        )


def _limited(moves: int) -> Expected:
    """So many moves, each of which may cut off every call that runs."""
    return Expected(cut_off=moves * KEYS, doubled=moves * KEYS, why=_AT_THE_LIMIT)


_A_SHARE = "a member that joins gets keys at once, however many messages another one's window could hold"

TABLE: tuple[Line, ...] = (
    Line("Partitioned", "embedded", "join", HANDOFF_MS, _limited(1)),
    Line("Partitioned", "embedded", "scale", HANDOFF_MS, _limited(3)),
    Line("Partitioned", "embedded", "rolling", HANDOFF_MS, _limited(2)),
    Line("MessageGroups", None, "join", 0, Expected(within_s=20.0, why=_A_SHARE)),
    Line("MessageGroups", None, "scale", 0, Expected(within_s=40.0, why=_A_SHARE)),
    Line(None, None, None, 0, NOTHING),
)


def expected_of(cell: Cell) -> Expected:
    return next(line.expected for line in TABLE if line.fits(cell))


def differences(
    expected: Expected, counts: Mapping[str, int], *, moved_s: float = 0.0, problems: tuple[str, ...] = ()
) -> list[str]:
    """Lists what was seen and not expected, nothing if the cell is as it must be.

    `problems`: moves that did not complete and processes that ended as they should not.
    """
    found = [
        f"{counts.get(name, 0)} {name.replace('_', ' ')}, expected {most or 'none'}"
        for name, most in expected.most.items()
        if counts.get(name, 0) > most
    ]
    if moved_s > expected.within_s:
        found.append(f"the move took {moved_s:.1f} s, expected {expected.within_s:g} s at most")
    return [*problems, *found]


def table_lines() -> list[str]:
    """The table as docs/internals/promises.md has it (Markdown)."""
    rows = [
        "| mode | engine | move | handler time | at most cut off | complete within | why |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in TABLE:
        places = [place or "any" for place in (line.mode, line.engine, line.move)]
        time = f"{line.time_ms / 1000:g} s and more" if line.time_ms else "any"
        rows.append(
            f"| {' | '.join(places)} | {time} | {line.expected.cut_off} | "
            f"{line.expected.within_s:g} s | {line.expected.why} |"
        )
    return rows
