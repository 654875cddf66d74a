"""The streams of a bucket on one line: those that are remembered and those of the rows that have come."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .coding import chunks, coded
from .columns import Columns
from .completing import Completeness
from .intervals import Intervals, Ints
from .lines import Line
from .memory import SESSION_HASH, SETS, STREAMS, Memory, shadow
from .rows import IN_SESSION

SET_NAMES = tuple(field.name for field in fields(Completeness) if field.name != "open_since_us")


class Streams:
    """`published`, `of_message` and `of_order` are the streams of the rows: of order is another one in a session."""

    def __init__(self, memory: Memory, published: Any, rows: Columns) -> None:
        in_session = rows.role == IN_SESSION
        hash_ = np.where(in_session, shadow(rows.hash), rows.hash)
        sessions = rows.table.filter(pa.array(in_session & rows.is_in_order))
        tables: list[list[Any]] = [
            [memory.streams["group"], memory.streams["publisher"], memory.streams["hash"].to_numpy()],
            [published["group"], published["publisher"], published["hash"].to_numpy()],
            [rows.table["group"], rows.table["publisher"], hash_],
            [sessions["group"], sessions["session"], np.full(len(sessions), SESSION_HASH)],
        ]
        (_, self.published, self.of_message, of_session), firsts = coded(*tables)
        self.of_order = self.of_message.copy()
        self.of_order[in_session & rows.is_in_order] = of_session
        self.number = np.where(in_session & rows.is_in_order, rows.ints("sequence"), rows.seq)
        self.table = pa.table(
            [
                _joined([each[0] for each in tables], firsts),
                _joined([each[1] for each in tables], firsts),
                pa.array(np.concatenate([each[2] for each in tables])[firsts]),
            ],
            names=STREAMS.names[:3],
        )
        self.count = len(firsts)
        sets = memory.sets
        firsts_of, lasts_of = sets["first"].to_numpy(), sets["last"].to_numpy()
        self.line = Line(
            self.count, (published["seq"].to_numpy(), rows.seq, self.number, firsts_of, lasts_of)
        )
        self.last_us = np.concatenate(
            [memory.streams["last_us"].to_numpy(), np.zeros(self.count - len(memory.streams), np.int64)]
        )
        np.maximum.at(self.last_us, self.published, published["confirmed_at_us"].to_numpy())
        np.maximum.at(self.last_us, self.of_message, rows.delivered_us)
        np.maximum.at(self.last_us, self.of_order, rows.delivered_us)
        self.places = self.line.place(self.of_message, rows.seq)
        self.order_places = self.line.place(self.of_order, self.number)

    def known(self, memory: Memory) -> Completeness:
        which = memory.sets["set"].to_numpy()
        stream = memory.sets["stream"].to_numpy()
        line = self.line.intervals(stream, memory.sets["first"].to_numpy(), memory.sets["last"].to_numpy())
        since_us = memory.sets["since_us"].to_numpy()
        told: dict[str, Any] = {}
        for index, name in enumerate(SET_NAMES):
            order = np.flatnonzero(which == index)
            order = order[np.argsort(line.firsts[order])]
            told[name] = Intervals(line.firsts[order], line.lasts[order])
            if name == "open":
                told["open_since_us"] = since_us[order]
        return Completeness(**told)

    def ranges(self, places: Intervals) -> tuple[Ints, Ints, Ints]:
        """Stream, first and last number of each."""
        return (
            self.line.stream(places.firsts),
            self.line.number(places.firsts),
            self.line.number(places.lasts),
        )

    def sets(self, known: Completeness, renumbered: Ints) -> Any:
        """As a table; `renumbered` is the new index of each stream, -1 for those that are forgotten."""
        tables = []
        for index, name in enumerate(SET_NAMES):
            of: Intervals = getattr(known, name)
            stream, first, last = self.ranges(of)
            since_us = known.open_since_us if name == "open" else np.zeros(len(stream), np.int64)
            kept = renumbered[stream] >= 0
            columns: list[Any] = [
                np.full(len(stream), index, np.int8),
                renumbered[stream],
                first,
                last,
                since_us,
            ]
            tables.append(pa.table([pa.array(each[kept]) for each in columns], schema=SETS))
        return pa.concat_tables(tables)

    def count_by_stream(self, places: Intervals) -> Ints:
        stream = self.line.stream(places.firsts)
        return np.bincount(stream, places.lasts - places.firsts + 1, self.count).astype(np.int64)


def _joined(columns: list[Any], firsts: Ints) -> Any:
    return pc.take(
        pa.chunked_array([chunk for column in columns for chunk in chunks(column)]), pa.array(firsts)
    )
