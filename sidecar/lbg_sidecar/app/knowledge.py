"""What an application says it has processed, in JSON: ``[["orders-1a2b", 17, [[0, 41], [43, 43]]], …]``.

One entry for each publisher and hash, with runs of sequence numbers, both ends included. An application that commits
positions with its own writes says so when it connects; every channel takes the same form. In mode Sessions there is one
number: ``{"committed": 345}``, or ``{"committed": [345, "C0WvEMT0RmXWoLuPB5mK8A"]}`` with the epoch of that message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

from ..consuming.positions import StreamRuns


class Committed(NamedTuple):
    """How far a session is committed. `epoch`: of the message with that number, None where none is kept."""

    sequence: int
    epoch: str | None = None


def parse_told(value: object) -> tuple[tuple[StreamRuns, ...], Committed | None]:
    """What was processed, and how far the session is committed: from a list, or from an object that holds one or both.
    Raises ValueError."""
    if not isinstance(value, dict):
        return parse_processed(value), None
    if not value.keys() & {"processed", "committed"}:
        raise ValueError('neither "processed" nor "committed" is in what the application knows')
    committed = value.get("committed")
    return parse_processed(value.get("processed", [])), None if committed is None else parse_committed(
        committed
    )


def parse_committed(value: object) -> Committed:
    """A number, or a pair of it and its epoch. Raises ValueError."""
    match value:
        case [number, str() | None as epoch]:
            pass
        case number:
            epoch = None
    if not _is_number(number):
        raise ValueError(
            f"what is committed of a session is {value!r:.80}, not a number from 0, or it and its epoch"
        )
    return Committed(number, epoch)


def parse_processed(value: object) -> tuple[StreamRuns, ...]:
    """Raises ValueError, which says what is wrong with which entry."""
    if not isinstance(value, list):
        raise ValueError("what was processed is not a list")
    return tuple(_streams(value))


def _streams(entries: list[object]) -> Iterator[StreamRuns]:
    for number, entry in enumerate(entries):
        if not isinstance(entry, list) or len(entry) != 3:
            raise ValueError(f"entry {number} of what was processed is not [publisher, hash, runs]")
        publisher, hash_, runs = entry
        if not isinstance(publisher, str) or not _is_number(hash_) or not isinstance(runs, list):
            raise ValueError(f"entry {number} of what was processed is not [publisher, hash, runs]")
        yield publisher, hash_, tuple(_run(number, run) for run in runs)


def _run(number: int, run: object) -> tuple[int, int]:
    if not isinstance(run, list) or len(run) != 2 or not all(map(_is_number, run)) or run[0] > run[1]:
        raise ValueError(f"entry {number} of what was processed has a run that is not [first, last]: {run!r}")
    return run[0], run[1]


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
