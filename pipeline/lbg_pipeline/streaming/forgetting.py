"""What is dropped from a bucket's memory: keys, streams and holes that nothing has touched for long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .completing import Completeness
from .findings import COMPLETENESS
from .intervals import Flags, Intervals, Ints, minus, union
from .memory import STREAMS, Memory, Totals
from .settings import Window
from .streams import Streams
from .views import Order

MOST_RUNS = 1_000
"""Of one set of a stream: how many holes between its numbers are remembered, the highest."""


def forgotten(
    old: Memory,
    streams: Streams,
    known: Completeness,
    order: Order,
    shards: Any,
    totals: Totals,
    window: Window,
) -> tuple[Memory, list[tuple[str, Any]]]:
    """The memory to go on with after `old`, and what is told of the streams that are forgotten, or of all at the last
    window."""
    open_in = np.zeros(streams.count, np.bool_)
    open_in[streams.line.stream(known.open.firsts)] = True
    gone = (streams.last_us <= window.forget_upto_us) & ~open_in
    if window.is_last:
        gone[:] = True
    renumbered = np.where(gone, -1, np.cumsum(~gone) - 1)
    kept = pa.array(np.flatnonzero(~gone))
    kept_chains = (order.chains["last_us"].to_numpy() > window.forget_upto_us) & (not window.is_last)
    histories, chains = order.histories.without(
        gone, order.forgotten_us, order.chains.filter(pa.array(kept_chains))
    )
    told = _completeness(streams, known, gone)
    for row in told.to_pylist():
        for name in ("distinct", "pending", "unpublished"):
            totals.add(row["group"], name, row[name])
    memory = Memory(
        streams=pa.table([*streams.table.columns, pa.array(streams.last_us)], schema=STREAMS).take(kept),
        sets=streams.sets(_bounded(streams, known), renumbered),
        histories=histories.combine_chunks(),
        chains=chains.combine_chunks(),
        forgotten=order.histories.forgotten_with(old.forgotten, streams.table["group"], gone),
        shards=shards.filter(pc.greater(shards["at_us"], window.forget_upto_us)),
        totals=totals.table(),
    )
    return memory, [("completeness", told)] if len(told) else []


def _completeness(streams: Streams, known: Completeness, gone: Any) -> Any:
    def by_stream(places: Intervals) -> Ints:
        return streams.count_by_stream(places)

    columns = (
        by_stream(known.published),
        by_stream(known.distinct),
        by_stream(known.lost),
        by_stream(known.open),
        by_stream(minus(known.distinct, known.published)),
    )
    counted = gone & (streams.table["hash"].to_numpy() >= 0)
    whole = pa.table([*streams.table.columns, *[pa.array(each) for each in columns]], schema=COMPLETENESS)
    return whole.filter(pa.array(counted))


def _bounded(streams: Streams, known: Completeness) -> Completeness:
    """The lowest holes of a stream with too many are taken as filled: a number in one of them that comes after all is
    told as a rewind or a repeat where it was none. What is open is kept apart from holes, so no loss is hidden."""
    surplus = _surplus(streams, known.lost)
    lost = Intervals(known.lost.firsts[~surplus], known.lost.lasts[~surplus])
    return replace(
        known,
        published=_closed(streams, known.published),
        distinct=_closed(streams, known.distinct),
        final=_closed(streams, known.final),
        settled=_closed(streams, known.settled),
        unsettled=_closed(streams, known.unsettled),
        lost=lost,
    )


def _closed(streams: Streams, places: Intervals) -> Intervals:
    surplus = _surplus(streams, places)
    if not surplus.any():
        return places
    begins = np.flatnonzero(surplus & ~np.r_[False, surplus[:-1]])
    ends = np.flatnonzero(surplus & ~np.r_[surplus[1:], False])
    filled = Intervals(places.firsts[begins], places.firsts[ends + 1] - 1)
    return union(places, filled)


def _surplus(streams: Streams, places: Intervals) -> Flags:
    """All but the last MOST_RUNS of each stream."""
    stream = streams.line.stream(places.firsts)
    after = np.searchsorted(stream, stream, "right")
    return after - np.arange(len(stream)) > MOST_RUNS
