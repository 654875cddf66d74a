"""Records of the consumers' work, read while written; their order, repeats, losses and gaps."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DONE = struct.Struct("<QII")  # when the work was done (CLOCK_MONOTONIC, ns), number, key


@dataclass
class Judgement:
    """Of a range of messages. `keys`: those with a message whose work was first done after that of a later message."""

    keys: set[int] = field(default_factory=set)
    inverted: int = 0
    repeated: int = 0
    lost: int = 0


class GrowingFiles:
    """Files of records that others append: what was written since the last look."""

    def __init__(self, record: struct.Struct, files: Iterable[Path] = ()) -> None:
        self._record = record
        self._read_bytes = dict.fromkeys(files, 0)

    def __len__(self) -> int:
        return len(self._read_bytes)

    def add(self, file: Path) -> None:
        """A file that may come."""
        self._read_bytes[file] = 0

    def news(self) -> Iterator[tuple[Any, ...]]:
        """Whole records, file by file."""
        for file, at in self._read_bytes.items():
            if not file.exists():
                continue
            with file.open("rb") as opened:
                opened.seek(at)
                data = opened.read()
            whole = len(data) - len(data) % self._record.size
            self._read_bytes[file] = at + whole
            yield from self._record.iter_unpack(data[:whole])


class Log:
    """The files of all consumers of one trial."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = GrowingFiles(DONE)
        self._done: list[tuple[int, int, int]] = []
        self._numbers: set[int] = set()
        self.last_ns = 0
        self.newest = -1
        """Highest number done, as of the last `distinct`."""

    def new_file(self, name: str) -> Path:
        file = self._directory / f"{name}-{len(self._files)}.done"
        self._files.add(file)
        return file

    @property
    def records(self) -> int:
        """Pieces of work done, as of the last `distinct`."""
        return len(self._done)

    def distinct(self) -> int:
        """Number of messages that were done at least once by now."""
        for at_ns, number, key in self._files.news():
            self._done.append((at_ns, number, key))
            self._numbers.add(number)
            self.last_ns = max(self.last_ns, at_ns)
            self.newest = max(self.newest, number)
        return len(self._numbers)

    def in_order_of_time(self) -> list[tuple[int, int, int]]:
        """(when in ns, number, key) of each piece of work."""
        return sorted(self._done)


def longest_gaps_ms(log: Log, first: int, end: int, starts_ns: Sequence[int]) -> list[float]:
    """For each window, which starts at one of `starts_ns` and ends at the next, the longest time between two messages
    of a key that ended in it, each message when it was first done; of the messages from `first` to before `end`."""
    longest = [0.0] * len(starts_ns)
    last_ns: dict[int, int] = {}
    seen: set[int] = set()
    for at_ns, number, key in log.in_order_of_time():
        if not first <= number < end or number in seen:
            continue
        seen.add(number)
        window = bisect_right(starts_ns, at_ns) - 1
        if window >= 0 and key in last_ns:
            longest[window] = max(longest[window], (at_ns - last_ns[key]) / 1e6)
        last_ns[key] = at_ns
    return longest


def judged(log: Log, first: int, end: int) -> Judgement:
    """Of the messages numbered from `first` to before `end`, against all that was done before them; by the check of
    order that journals have."""
    return judge_records(log.in_order_of_time(), first, end)


def judge_records(records: Sequence[tuple[int, int, int]], first: int, end: int) -> Judgement:
    """The same of (when in ns, number, key) of each piece of work, in any order."""
    import numpy as np  # 100 MB with what the check needs, which are none of a consumer's that writes records

    from lbg_pipeline.verify.checks.order import NOTHING, Deliveries, check_order

    done = np.array(sorted(records), np.int64).reshape(-1, 3)
    at_ns, number, key = done[np.argsort(done[:, 2], kind="stable")].T
    place = np.arange(len(number))
    deliveries = Deliveries.at_once(key, number, at_ns, np.zeros_like(place), place)
    found = check_order(deliveries, np.full(key.max(initial=-1) + 1, NOTHING), 0)
    is_judged = (number >= first) & (number < end)
    inverted = found.inverted[is_judged[found.inverted]]
    return Judgement(
        keys=set(key[inverted].tolist()),
        inverted=len(inverted),
        repeated=int(is_judged[found.rewound].sum()),
        lost=end - first - len(np.unique(number[is_judged])),
    )
