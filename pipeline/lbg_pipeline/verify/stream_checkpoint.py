"""Checkpoint of a bucket: its layout, and the state that it drops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_pipeline.columns import Flags, Intervals, union
from lbg_pipeline.errors import CheckpointRefused
from lbg_pipeline.schemas import arrow_schema
from lbg_pipeline.verify.checks.completeness import Completeness, Gaps, gaps
from lbg_pipeline.verify.settings import Window
from lbg_pipeline.verify.stream_checks import Order
from lbg_pipeline.verify.stream_state import (
    SCHEMAS,
    STREAMS,
    Memory,
    Streams,
    Totals,
)
from lbg_pipeline.verify.tables import COMPLETENESS, GAPS, STREAM_COUNTS


def memory_of(tables: Mapping[str, Sequence[Any]]) -> Memory:
    """Contents of the state's tables, by name; empty ones are not stored. Raises CheckpointRefused for another
    layout."""
    contents = {
        name: pa.concat_tables([several[0].schema.empty_table(), *several])
        for name, several in tables.items()
    }
    if any(SCHEMAS.get(name) != table.schema for name, table in contents.items()):
        raise CheckpointRefused(
            "the checkpoint was written by another version of LBG, which has another layout: continue with that "
            "version, or give new directories with --checkpoint and --out to validate the journals again"
        )
    return Memory(**contents)


MOST_RUNS = 1_000
"""Most holes that are remembered of one set of a stream, the highest."""


def forgotten(
    old: Memory,
    streams: Streams,
    completeness: Completeness,
    order: Order,
    shards: Any,
    hashes: Any,
    files: Any,
    totals: Totals,
    window: Window,
) -> tuple[Memory, list[tuple[str, Any]]]:
    """The memory that follows `old`, and the counts of the streams that are forgotten, or of all at the last
    window."""
    open_in = np.zeros(streams.count, np.bool_)
    open_in[streams.line.stream(completeness.open.firsts)] = True
    is_forgotten = (streams.last_us <= window.forget_upto_us) & ~open_in
    if window.is_last:
        is_forgotten[:] = True
    renumbered = np.where(is_forgotten, -1, np.cumsum(~is_forgotten) - 1)
    remaining = pa.array(np.flatnonzero(~is_forgotten))
    remaining_chains = (order.chains["last_us"].to_numpy() > window.forget_upto_us) & (not window.is_last)
    histories, chains = order.histories.without(
        is_forgotten, order.forgotten_us, order.chains.filter(pa.array(remaining_chains))
    )
    holes = gaps(completeness, streams.line)
    counts = _completeness(streams, completeness, holes, is_forgotten)
    for row in counts.to_pylist():
        for name in (*STREAM_COUNTS[1:], "pending"):
            totals.add(row["group"], name, row[name])
    memory = Memory(
        streams=pa.table([*streams.table.columns, pa.array(streams.last_us)], schema=STREAMS).take(remaining),
        sets=streams.sets(_bounded(streams, completeness), renumbered),
        histories=histories.combine_chunks(),
        chains=chains.combine_chunks(),
        forgotten=order.histories.forgotten_with(old.forgotten, streams.table["group"], is_forgotten),
        shards=shards.filter(pc.greater(shards["at_us"], window.forget_upto_us)),
        hashes=hashes.filter(pc.greater(hashes["last_us"], window.forget_upto_us)),
        files=files,
        totals=totals.table(),
    )
    return memory, [("completeness", counts), ("gaps", _gaps(streams, holes, is_forgotten))]


def _gaps(streams: Streams, holes: Gaps, is_forgotten: Flags) -> Any:
    chosen = is_forgotten[holes.stream] & (streams.table["hash"].to_numpy()[holes.stream] >= 0)
    first, last = holes.first[chosen], holes.last[chosen]
    columns = (first, last, last - first + 1, holes.is_early[chosen])
    names = streams.table.take(pa.array(holes.stream[chosen]))
    return pa.table([*names.columns, *map(pa.array, columns)], names=GAPS.names).cast(arrow_schema(GAPS))


def _completeness(streams: Streams, completeness: Completeness, holes: Gaps, is_forgotten: Any) -> Any:
    counted = pa.array(is_forgotten & (streams.table["hash"].to_numpy() >= 0))
    table = streams.table.filter(counted)
    for name, places in (
        ("published", completeness.published),
        ("distinct", completeness.distinct),
        ("lost", completeness.lost),
        ("pending", completeness.open),
        ("unpublished", completeness.unpublished),
    ):
        table = table.append_column(name, pa.array(streams.line.count_by_stream(places)).filter(counted))
    for name, is_early in (("unrecorded", False), ("early", True)):
        count = holes.count(streams.count, is_early=is_early)
        table = table.append_column(name, pa.array(count).filter(counted))
    return table.cast(arrow_schema(COMPLETENESS))


def _bounded(streams: Streams, completeness: Completeness) -> Completeness:
    """The lowest holes of a stream with too many count as filled: a number in one of them that comes later is
    reported as a rewind or a repeat where it was none. Open ranges are separate from holes, so no loss is hidden."""
    surplus = _surplus(streams, completeness.lost)
    lost = Intervals(completeness.lost.firsts[~surplus], completeness.lost.lasts[~surplus])
    return replace(
        completeness,
        published=_closed(streams, completeness.published),
        distinct=_closed(streams, completeness.distinct),
        final=_closed(streams, completeness.final),
        settled=_closed(streams, completeness.settled),
        unsettled=_closed(streams, completeness.unsettled),
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
