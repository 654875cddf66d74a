"""Columns of all records of a lane, with names as numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lbg_broker.group import SESSIONS
from lbg_broker.group.journal_record import VERDICTS
from lbg_pipeline.columns import IntArray, histories_of, ints_of, joined, numbers_in_order
from lbg_pipeline.verify.shuffle import JUDGED_MODES

Flags = npt.NDArray[Any]
"""Of bool."""

ACK, DEAD, REPEAT, RELEASED = (VERDICTS.index(name) for name in ("ack", "dead", "repeat", "released"))
NEVER = np.iinfo(np.int64).min
"""A time that there is not."""


@dataclass(frozen=True, slots=True)
class Names:
    """A column of text: `codes` are places in `told`; a null has the code len(told)."""

    codes: IntArray
    told: list[str]

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Names:
        encoded = column.combine_chunks().dictionary_encode()
        told = encoded.dictionary.to_pylist()
        return cls(np.asarray(pc.fill_null(encoded.indices, len(told)), np.int64), told)

    def __getitem__(self, row: int) -> str | None:
        code = self.codes[row]
        return self.told[code] if code < len(self.told) else None


def ordered(major: IntArray, at: IntArray, *ties: IntArray) -> IntArray:
    """The order by `major`, `at` and `ties`; as fast as one sort of numbers where there are few ties."""
    packed = joined(major, at)
    order = np.argsort(packed)
    in_order = packed[order]
    same = np.concatenate((in_order[1:] == in_order[:-1], [False])) if len(order) else np.zeros(0, bool)
    tied = np.flatnonzero(same | np.concatenate(([False], same[:-1])))
    if len(tied):
        rows = order[tied]
        order[tied] = rows[np.lexsort((*(tie[rows] for tie in reversed(ties)), packed[rows]))]
    return order


class RecordColumns:
    """The deliveries of a table of EVIDENCE that has rows of role DELIVERED or SESSION alone."""

    def __init__(self, table: pa.Table) -> None:
        self.count = table.num_rows
        self.group = Names.of(table["group"])
        self.publisher = Names.of(table["publisher"])
        self.key = Names.of(table["key"])
        self.member_name = Names.of(table["member_name"])
        self.incarnation = Names.of(table["incarnation"])
        self.session = Names.of(table["session"])
        self.hash = _ints(table["hash"])
        self.seq = _ints(table["seq"])
        self.sequence = _ints(table["sequence"])
        self.member = _ints(table["member"])
        self.delivery = _ints(table["delivery"])
        self.redelivered = _ints(table["redelivered"])
        self.delivered_at_us = _ints(table["delivered_at_us"])
        self.started_at_us = _ints(table["started_at_us"])
        self.finished_at_us = _ints(table["finished_at_us"])
        self.settled_at_us = _ints(table["settled_at_us"])
        self.verdict = _ints(table["verdict"])
        self.mode = _ints(table["mode"])

    @cached_property
    def run(self) -> IntArray:
        """The place of each incarnation among all by name."""
        told = self.incarnation.told
        places = np.empty(len(told) + 1, np.int64)
        places[sorted(range(len(told)), key=told.__getitem__)] = np.arange(len(told))
        places[len(told)] = len(told)
        return places[self.incarnation.codes]

    @cached_property
    def _histories(self) -> tuple[list[str], IntArray]:
        """Of each publisher in `publisher.told`."""
        return histories_of(self.publisher.told)

    @cached_property
    def has_epochs(self) -> bool:
        """True if a publisher was started again and went on from its state."""
        return bool(self._histories[1].any())

    @cached_property
    def history(self) -> IntArray:
        """A number for each publisher, the same for all of its epochs."""
        places: dict[str, int] = {}
        numbers = [places.setdefault(history, len(places)) for history in self._histories[0]]
        return np.array([*numbers, len(places)], np.int64)[self.publisher.codes]

    @cached_property
    def number_in_order(self) -> IntArray:
        """Rises within a key of a history, over its epochs."""
        return numbers_in_order(np.append(self._histories[1], 0)[self.publisher.codes], self.seq)

    @cached_property
    def has_key(self) -> Flags:
        return self.key.codes < len(self.key.told)

    @cached_property
    def is_in_sessions(self) -> Flags:
        found: Flags = self.mode == JUDGED_MODES.index(SESSIONS)
        return found

    @cached_property
    def is_acknowledged(self) -> Flags:
        found: Flags = (self.verdict == ACK) | (self.verdict == DEAD)
        return found

    def before_us(self, rows: IntArray, at_us: IntArray, major: IntArray) -> IntArray:
        """`rows` in order of `major` and then of time; what is at one time by incarnation and delivery."""
        return rows[ordered(major[rows], at_us[rows], self.run[rows], self.delivery[rows])]

    def told(self, row: int) -> dict[str, Any]:
        """The columns of an offence that say which delivery it is."""
        return {
            "group": self.group[row],
            "publisher": self.publisher[row],
            "key": self.key[row],
            "hash": int(self.hash[row]),
            "seq": int(self.seq[row]),
            "member": int(self.member[row]),
            "member_name": self.member_name[row],
            "incarnation": self.incarnation[row],
            "delivery": int(self.delivery[row]),
            "session": self.session[row],
            "sequence": time_told(self.sequence[row]),
        }


def time_told(at_us: np.int64) -> int | None:
    return None if at_us == NEVER else int(at_us)


def _ints(column: pa.ChunkedArray) -> IntArray:
    if column.null_count:
        column = pc.fill_null(column.cast(pa.int64()), NEVER)
    return ints_of(column)
