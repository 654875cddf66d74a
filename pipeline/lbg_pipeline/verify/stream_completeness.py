"""Completeness of many streams: published, delivered and lost numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_pipeline.columns import (
    NONE,
    Flags,
    Intervals,
    Ints,
    Line,
    chunks,
    coded,
    holds,
    minus,
    of_points,
    piece_of,
    union,
)
from lbg_pipeline.verify.stream_columns import IN_SESSION, Columns
from lbg_pipeline.verify.stream_state import SESSION_HASH, SETS, STREAMS, Memory, shadow

_GRAIN_US = 1_000_000
"""What was confirmed in the same second is remembered with one time, that of the last of it."""


@dataclass(frozen=True, slots=True)
class Completeness:
    """All sets are of places on one line (`lines`), that is of a stream and a number. `open_since_us`: by interval of
    `open`, when it was confirmed; only `open` may hold intervals that touch."""

    published: Intervals = NONE
    distinct: Intervals = NONE
    """Delivered, in whatever way it ended."""
    final: Intervals = NONE
    settled: Intervals = NONE
    """Acknowledged, at a time that the watermark has passed."""
    unsettled: Intervals = NONE
    """Acknowledged by a member that never wrote it to the broker."""
    open: Intervals = NONE
    """Published, without an end, and not yet told as lost."""
    open_since_us: Ints = field(default_factory=lambda: NONE.firsts)
    lost: Intervals = NONE
    """Told as lost, and still without an end."""


def with_published(known: Completeness, places: Ints, confirmed_us: Ints) -> Completeness:
    order = np.lexsort((confirmed_us, places))
    places, confirmed_us = places[order], confirmed_us[order]
    # Sent again after a kill, a message has two records; the first of them counts.
    is_first = np.r_[True, places[1:] != places[:-1]] if len(places) else np.zeros(0, np.bool_)
    is_new = is_first & ~holds(known.published, places)
    points = places[is_new & ~holds(known.final, places)]
    since_us = confirmed_us[is_new & ~holds(known.final, places)]
    cuts = np.flatnonzero((np.diff(points) > 1) | (np.diff(since_us // _GRAIN_US) != 0))
    begins, ends = (np.r_[0, cuts + 1], np.r_[cuts, len(points) - 1]) if len(points) else (cuts, cuts)
    added = Intervals(points[begins], points[ends])
    added_us = np.maximum.reduceat(since_us, begins) if len(begins) else since_us
    firsts = np.concatenate([known.open.firsts, added.firsts])
    order = np.argsort(firsts)
    return replace(
        known,
        published=union(known.published, of_points(places)),
        open=Intervals(firsts[order], np.concatenate([known.open.lasts, added.lasts])[order]),
        open_since_us=np.concatenate([known.open_since_us, added_us])[order],
    )


def with_delivered(known: Completeness, places: Ints, is_final: Flags) -> tuple[Completeness, Intervals]:
    """Also what was told as lost and has come after all. `places` rise."""
    final = of_points(places[is_final])
    still_open = minus(known.open, final)
    still_lost = minus(known.lost, final)
    return replace(
        known,
        distinct=union(known.distinct, of_points(places)),
        final=union(known.final, final),
        open=still_open,
        open_since_us=known.open_since_us[piece_of(known.open, still_open)],
        lost=still_lost,
    ), minus(known.lost, still_lost)


def with_lost(known: Completeness, upto_us: int) -> tuple[Completeness, Intervals]:
    """Moves what was confirmed until `upto_us` and has not ended by now to the lost; returned too, to be reported
    once."""
    overdue = known.open_since_us <= upto_us
    told = union(Intervals(known.open.firsts[overdue], known.open.lasts[overdue]))
    rest = Intervals(known.open.firsts[~overdue], known.open.lasts[~overdue])
    return replace(
        known, open=rest, open_since_us=known.open_since_us[~overdue], lost=union(known.lost, told)
    ), told


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
