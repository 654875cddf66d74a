"""The cells of the matrix: mode x engine x planned move x handler time x application channel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Self

from lbg_core.admin.plan import why_unsupported
from lbg_core.group import BY_LOAD, EMBEDDED, EXCLUSIVE, MODES, PARTITIONED, RABBITMQ, Engine, GroupSpec

MOVES = ("join", "leave", "scale", "rolling", "repartition")
"""`scale`: from one member to four and back. `rolling`: every member is restarted, one after the other."""

TIMES_MS = (0, 10, 50, 500, 3500)
"""Processing time of a message. The last is longer than the default handoff time of 3 s."""

CALLABLE = "callable"
CHANNELS = (CALLABLE, "command", "http", "stream")

SERIAL = ("serial-command", "serial-stream", "serial-batch")
"""Applications that take all they are given and work on one message at a time. Their cells are named, or in a test: no
run of all cells has them."""

ENGINES = ("embedded", "rabbitmq")
KINDS = (*MODES, BY_LOAD)
"""Modes, and the assignment `ByLoad` in mode Exclusive. There `SLOW` is slower than other members, so that queues leave
it before a move begins, or with it."""

SLOW, SLOWER = "m0", 4
BY_LOAD_TIMES_MS = (50, 500)
COUNTED_MODES = (EXCLUSIVE, PARTITIONED, BY_LOAD)
"""Modes with queues or partitions to repartition (docs/modes.md, "Changes")."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One place of the matrix. Its text is `mode/engine/move/time/channel`. `mode` is one of `KINDS`."""

    mode: str
    engine: str
    move: str
    time_ms: int
    channel: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError with what is wrong and what is possible."""
        words = text.split("/")
        if len(words) != len(fields(cls)):
            raise ValueError(f"{text!r} is not mode/engine/move/time/channel, as in {_EXAMPLE}")
        mode, engine, move, time_text, channel = words
        for what, word, possible in (
            ("mode", mode, KINDS),
            ("engine", engine, ENGINES),
            ("move", move, MOVES),
            ("time", time_text, tuple(map(str, times_of(mode)))),
            ("channel", channel, CHANNELS + SERIAL),
        ):
            if word not in possible:
                raise ValueError(f"{what} {word!r} of {text!r} is none of {', '.join(possible)}")
        cell = cls(mode, engine, move, int(time_text), channel)
        if reason := why_left_out(cell.mode, cell.engine, cell.move):
            raise ValueError(f"{text!r} is no cell: {reason}")
        return cell

    def __str__(self) -> str:
        return f"{self.mode}/{self.engine}/{self.move}/{self.time_ms}/{self.channel}"

    @property
    def is_by_load(self) -> bool:
        return self.mode == BY_LOAD

    def time_of(self, member: str) -> int:
        """Milliseconds that a member of this name needs for a message."""
        return self.time_ms * (SLOWER if self.is_by_load and member == SLOW else 1)


def times_of(mode: str) -> tuple[int, ...]:
    return BY_LOAD_TIMES_MS if mode == BY_LOAD else TIMES_MS


GROUP, HASHES, QUEUES = "promises", 100, 8

_EXAMPLE = "Exclusive/embedded/join/50/callable"


def why_left_out(mode: str, engine: str, move: str) -> str | None:
    """The reason for which there is no such cell, None where there is one. What an engine cannot do is said by the
    table with which it refuses to create a group."""
    counted = {"queue_count": QUEUES} if mode in COUNTED_MODES else {}
    kind = {"mode": EXCLUSIVE, "assignment": mode} if mode == BY_LOAD else {"mode": mode}
    spec = GroupSpec(GROUP, hash_count=HASHES, queue_size_mb=100, **kind, **counted)
    if reason := why_unsupported(spec, _engine(engine)):
        return reason
    if move == "repartition" and mode not in COUNTED_MODES:
        return f"mode {mode} has no number of queues or partitions to change"
    return None


def _engine(engine: str) -> Engine:
    return Engine(EMBEDDED, (1, 0, 0)) if engine == "embedded" else Engine(RABBITMQ, (4, 0, 0))


def left_out() -> dict[tuple[str, str, str], str]:
    """(mode, engine, move) that have no cells, each with the reason."""
    reasons = {place: why_left_out(*place) for place in itertools.product(KINDS, ENGINES, MOVES)}
    return {place: reason for place, reason in reasons.items() if reason is not None}


def full() -> list[Cell]:
    """Every cell there is, those of the callable first."""
    without = left_out()
    return [
        Cell(mode, engine, move, time_ms, channel)
        for channel, time_ms, mode, engine, move in itertools.product(
            CHANNELS, reversed(TIMES_MS), KINDS, ENGINES, MOVES
        )
        if (mode, engine, move) not in without and time_ms in times_of(mode)
    ]


def default() -> list[Cell]:
    """Everything with the callable, and of the other channels a set of cells with every pair of values."""
    every = full()
    others = [cell for cell in every if cell.channel != CALLABLE]
    return [cell for cell in every if cell.channel == CALLABLE] + all_pairs(others)


def all_pairs(cells: Sequence[Cell]) -> list[Cell]:
    """A small set of `cells` that has every pair of values that occurs in `cells`: always the next cell with the most
    pairs that are still missing, the first of those that are as good."""
    missing = {pair for cell in cells for pair in pairs_of(cell)}
    taken: list[Cell] = []
    while missing:
        best = max(cells, key=lambda cell: sum(pair in missing for pair in pairs_of(cell)))
        missing.difference_update(pairs_of(best))
        taken.append(best)
    return taken


def pairs_of(cell: Cell) -> Iterator[tuple[object, object]]:
    """Two values at a time; mode and engine count as one, as not every engine has every mode."""
    values = (
        ("mode", cell.mode, cell.engine),
        ("move", cell.move),
        ("time", cell.time_ms),
        ("channel", cell.channel),
    )
    return itertools.combinations(values, 2)
