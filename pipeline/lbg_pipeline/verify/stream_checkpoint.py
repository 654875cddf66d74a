"""Checkpoint of a bucket: its layouts, and the state that it drops.

Before, chains were of streams: each of a publisher's epochs was checked separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_pipeline.columns import Flags, Intervals, coded, union
from lbg_pipeline.errors import CheckpointRefused
from lbg_pipeline.schemas import arrow_schema
from lbg_pipeline.verify.checks.completeness import Completeness
from lbg_pipeline.verify.checks.order import NOTHING, Numbers, highest_after
from lbg_pipeline.verify.settings import Window
from lbg_pipeline.verify.stream_checks import Order
from lbg_pipeline.verify.stream_state import (
    CHAINS,
    FORGOTTEN,
    HISTORIES,
    SCHEMAS,
    STREAMS,
    Histories,
    Memory,
    Streams,
    Totals,
)
from lbg_pipeline.verify.tables import COMPLETENESS

_LONG = pa.int64()
CHAINS_BEFORE = pa.schema(
    [
        ("stream", _LONG),
        ("key", pa.string()),
        ("delivered", _LONG),
        ("acknowledged", _LONG),
        ("last_us", _LONG),
    ]
)
_BEFORE: Mapping[str, Any] = {
    "chains": CHAINS_BEFORE,
    **{name: SCHEMAS[name] for name in ("streams", "sets", "shards", "totals")},
}


def memory_of(tables: Mapping[str, Sequence[Any]]) -> Memory:
    """Contents of the state's tables, by name; a new bucket has none. Raises CheckpointRefused for a layout
    that is neither."""
    if not tables:
        return Memory()
    contents = {
        name: pa.concat_tables([several[0].schema.empty_table(), *several])
        for name, several in tables.items()
    }
    layout = {name: table.schema for name, table in contents.items()}
    if layout == SCHEMAS:
        return Memory(**contents)
    if layout != _BEFORE:
        raise CheckpointRefused(
            "the checkpoint was written by another version of LBG, which has another layout: continue with that "
            "version, or give new directories with --checkpoint and --out to validate the journals again"
        )
    histories, chains = _joined(contents["streams"], contents["chains"])
    return Memory(
        **{**contents, "histories": histories, "chains": chains, "forgotten": _forgotten(contents["streams"])}
    )


def _joined(streams: Any, before: Any) -> tuple[Any, Any]:
    """Histories and chains over the epochs of `before`. Epochs earlier than those that are remembered are
    unknown: they count as forgotten."""
    histories = Histories(HISTORIES.empty_table(), streams)
    earliest_us = np.full(len(histories.table), np.iinfo(np.int64).max)
    np.minimum.at(earliest_us, histories.of_stream, histories.began_us)
    stream = before["stream"].to_numpy()
    [chain], firsts = coded([histories.of_stream[stream], before["key"]])
    first = pa.array(firsts)
    chains = {
        "history": pa.array(histories.of_stream[stream][firsts]),
        "key": before["key"].take(first),
        "last_us": pa.array(
            highest_after(chain, before["last_us"].to_numpy(), np.zeros(len(firsts), np.int64))
        ),
    }
    for view in ("delivered", "acknowledged"):
        number = before[view].to_numpy()
        numbers = Numbers(np.where(number == NOTHING, 0, histories.began_us[stream]), number)
        highest = highest_after(chain, numbers.places, np.full(len(firsts), NOTHING))
        chains[f"{view}_began_us"] = pa.array(numbers.began_us(highest))
        chains[view] = pa.array(numbers.number(highest))
    table = histories.table.set_column(3, HISTORIES.field(3), pa.array(earliest_us - 1))
    return table, pa.table([chains[name] for name in CHAINS.names], schema=CHAINS)


def _forgotten(streams: Any) -> Any:
    """Epochs that may be forgotten: any that began before the newest record of its group."""
    latest = streams.group_by("group").aggregate([("last_us", "max")])
    return pa.table([latest["group"], latest["last_us_max"]], schema=FORGOTTEN)


MOST_RUNS = 1_000
"""Most holes that are remembered of one set of a stream, the highest."""


def forgotten(
    old: Memory,
    streams: Streams,
    completeness: Completeness,
    order: Order,
    shards: Any,
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
    counts = _completeness(streams, completeness, is_forgotten)
    for row in counts.to_pylist():
        for name in ("distinct", "pending", "unpublished"):
            totals.add(row["group"], name, row[name])
    memory = Memory(
        streams=pa.table([*streams.table.columns, pa.array(streams.last_us)], schema=STREAMS).take(remaining),
        sets=streams.sets(_bounded(streams, completeness), renumbered),
        histories=histories.combine_chunks(),
        chains=chains.combine_chunks(),
        forgotten=order.histories.forgotten_with(old.forgotten, streams.table["group"], is_forgotten),
        shards=shards.filter(pc.greater(shards["at_us"], window.forget_upto_us)),
        totals=totals.table(),
    )
    return memory, [("completeness", counts)] if len(counts) else []


def _completeness(streams: Streams, completeness: Completeness, is_forgotten: Any) -> Any:
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
