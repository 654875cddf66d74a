"""Which recorded sequence numbers a floor can take over."""

from __future__ import annotations

from collections.abc import Iterable

from lbg_broker.group import SequenceSet

Stream = tuple[str, int]
JsonStreams = list[list[object]]


def raised_floor(floor: int, numbers: Iterable[int]) -> int:
    """The floor after the rising `numbers` that follow it without a hole."""
    for number in numbers:
        if number > floor + 1:
            break
        floor = max(floor, number)
    return floor


def as_json(floors: Iterable[tuple[str, int, int]], rows: Iterable[tuple[str, int, int]]) -> JsonStreams:
    """``[[publisher, hash, [[first, last], …]], …]``, as `lbg_sidecar.app.knowledge` reads it."""
    streams: dict[Stream, SequenceSet] = {}
    for publisher, hash_, floor in floors:
        streams[publisher, hash_] = SequenceSet([(0, floor)] if floor >= 0 else [])
    for publisher, hash_, seq in rows:
        streams.setdefault((publisher, hash_), SequenceSet()).add(seq)
    return [
        [publisher, hash_, [list(run) for run in numbers.runs()]]
        for (publisher, hash_), numbers in streams.items()
    ]
