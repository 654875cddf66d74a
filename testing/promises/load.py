"""Published load: rows with a number and a key, a backlog first and then so many a second."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lbg_core.group import SESSIONS
from testing.promises.expectations import KEYS
from testing.promises.matrix import HASHES, QUEUES, SERIAL, Cell

FILLER = "." * 100

HOT_KEYS = frozenset({0, 3, 5, 6})
"""Places of keys, and so of queues, that have most of the backlog: they fill a member's window, and take longer than a
handoff may. Some of them are in either half and some at even and odd places, so that every move has some."""


@dataclass(frozen=True, slots=True)
class Load:
    """`hot` and `cold`: the backlog of a key that is hot, and of each other. `rate`: messages a second from then on, of
    all keys in turn, and fewer than the group can do: a key's messages come one after another."""

    hot: int
    cold: int
    rate: float


BY_KEYS = {
    0: Load(500, 100, 500.0),
    10: Load(1500, 100, 400.0),
    50: Load(400, 20, 100.0),
    500: Load(40, 5, 16.0),
    3500: Load(6, 2, 3.6),
}

BY_SESSION = {
    0: Load(100, 100, 300.0),
    10: Load(20, 20, 60.0),
    50: Load(4, 4, 12.0),
    500: Load(1, 1, 1.2),
    3500: Load(1, 0, 0.4),
}
"""A session has one message in work at a time, whatever its key."""

SERIALLY = {
    0: Load(100, 100, 300.0),
    10: Load(100, 40, 40.0),
    50: Load(20, 10, 8.0),
    500: Load(5, 2, 1.0),
    3500: Load(2, 1, 0.2),
}
"""Of an application that works on one message at a time, whatever the mode."""


BY_MEMBERS = {50: Load(100, 20, 38.0), 500: Load(10, 2, 3.6)}
"""The half of it is nearly as much as a slow member can do. With four members it is twice as much."""


def load_of(cell: Cell) -> Load:
    if cell.is_by_load:
        load = BY_MEMBERS[cell.time_ms]
        return replace(load, rate=2 * load.rate) if cell.move == "scale" else load
    if cell.channel in SERIAL:
        return SERIALLY[cell.time_ms]
    return (BY_SESSION if cell.mode == SESSIONS else BY_KEYS)[cell.time_ms]


def spread_keys(count: int, *, queues: int = QUEUES, hashes: int = HASHES) -> list[str]:
    """So many keys, as many of them in one queue as in any other (crc32 mod hashes mod queues)."""
    by_queue: list[list[str]] = [[] for _ in range(queues)]
    number = 0
    while sum(map(len, by_queue)) < count:
        key = f"key-{number}"
        number += 1
        line = by_queue[zlib.crc32(key.encode()) % hashes % queues]
        if len(line) < -(-count // queues):
            line.append(key)
    return [key for round_ in zip(*by_queue, strict=True) for key in round_]


class Generator:
    """Rows in order of their numbers, and what was made of them: `sent`, number -> key."""

    def __init__(self, load: Load) -> None:
        self._keys = spread_keys(KEYS)
        self._load = load
        self.sent: dict[int, str] = {}

    def backlog(self) -> bytes:
        """Each key's share spread evenly over the whole."""
        shares = [self._load.hot if place in HOT_KEYS else self._load.cold for place in range(KEYS)]
        places = sorted(
            ((turn + 0.5) / share, place) for place, share in enumerate(shares) for turn in range(share)
        )
        return self._rows([self._keys[place] for _, place in places])

    def rows(self, count: int) -> bytes:
        """So many more, of each key in turn."""
        first = len(self.sent)
        return self._rows([self._keys[number % KEYS] for number in range(first, first + count)])

    def _rows(self, keys: Sequence[str]) -> bytes:
        lines = []
        for number, key in enumerate(keys, len(self.sent)):
            self.sent[number] = key
            lines.append(json.dumps({"n": number, "key": key, "filler": FILLER}))
        return "".join(f"{line}\n" for line in lines).encode()
