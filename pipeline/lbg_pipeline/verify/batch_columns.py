"""Columns of all records of a lane, with names as numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lbg_core.group import SESSIONS
from lbg_core.group.journal_record import VERDICTS
from lbg_pipeline.columns import NEVER, IntArray, histories_of, ints_of
from lbg_pipeline.verify.shuffle import CHECKED_MODES

Flags = npt.NDArray[Any]
"""Of bool."""

ACK, DEAD, REPEAT, RELEASED = (VERDICTS.index(name) for name in ("ack", "dead", "repeat", "released"))


@dataclass(frozen=True, slots=True)
class Names:
    """A column of text: `codes` are places in `texts`; a null has the code len(texts)."""

    codes: IntArray
    texts: list[str]

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Names:
        encoded = column.unify_dictionaries().combine_chunks().dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        return cls(np.asarray(pc.fill_null(encoded.indices, len(texts)), np.int64), texts)


class RecordColumns:
    """A table of EVIDENCE that has published numbers and deliveries alone."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.count = table.num_rows
        self.role = _ints(table["role"])
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
        self.mark = _ints(table["mark"])
        self.published_at_us = _ints(table["published_at_us"])
        self.source = Names.of(table["source"])

    @cached_property
    def run(self) -> IntArray:
        """The place of each incarnation among all by name."""
        texts = self.incarnation.texts
        places = np.empty(len(texts) + 1, np.int64)
        places[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
        places[len(texts)] = len(texts)
        return places[self.incarnation.codes]

    @cached_property
    def _histories(self) -> tuple[list[str], IntArray]:
        """Of each publisher in `publisher.texts`."""
        return histories_of(self.publisher.texts)

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
    def began_us(self) -> IntArray:
        """Start of the epoch of each delivery's publisher."""
        return np.append(self._histories[1], 0)[self.publisher.codes]

    @cached_property
    def has_key(self) -> Flags:
        return self.key.codes < len(self.key.texts)

    @cached_property
    def is_in_sessions(self) -> Flags:
        flags: Flags = self.mode == CHECKED_MODES.index(SESSIONS)
        return flags

    @cached_property
    def is_acknowledged(self) -> Flags:
        flags: Flags = (self.verdict == ACK) | (self.verdict == DEAD)
        return flags

    @cached_property
    def is_placed(self) -> Flags:
        """Has a place in a session."""
        flags: Flags = (self.session.codes < len(self.session.texts)) & (self.sequence != NEVER)
        return flags


def _ints(column: pa.ChunkedArray) -> IntArray:
    if column.null_count:
        column = pc.fill_null(column.cast(pa.int64()), NEVER)
    return ints_of(column)
