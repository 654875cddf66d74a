"""Checks of a stream: their input from a bucket's deliveries and memory, and their findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_pipeline.columns import NEVER, Flags, Ints, chunked, chunks, coded, holds, in_order
from lbg_pipeline.schemas import arrow_schema
from lbg_pipeline.verify.checks.completeness import Completeness
from lbg_pipeline.verify.checks.order import NOTHING, Deliveries, Numbers, check_order, highest_after
from lbg_pipeline.verify.checks.overlap import Spans, check_overlaps
from lbg_pipeline.verify.checks.placement import Times, misplaced, moves
from lbg_pipeline.verify.settings import Window
from lbg_pipeline.verify.stream_columns import (
    IN_SESSION,
    LATE_ACKNOWLEDGED,
    LATE_DELIVERED,
    LATE_STARTED,
    Columns,
    within,
)
from lbg_pipeline.verify.stream_findings import FindingsBuilder
from lbg_pipeline.verify.stream_state import CHAINS, HASHES, LONGEST_PAUSE, SHARDS, Histories, Memory, Streams
from lbg_pipeline.verify.tables import ACKNOWLEDGED_VIEW, DELIVERED_VIEW, MOVES


def report_moves(rows: Columns, old: Any, passed: Flags, findings: FindingsBuilder) -> Any:
    """Reports the moves of hashes; returns the holder of each shard. `old`: the holders before."""
    here = np.flatnonzero(passed & rows.is_placed & rows.is_counted)
    table = rows.table.take(pa.array(here))
    (_, shard), firsts = coded([old["group"], old["hash"]], [table["group"], table["hash"]])
    shard = np.r_[np.arange(len(old)), shard]
    member = np.r_[old["member"].to_numpy(), rows.ints("member")[here]]
    before = np.full(len(old), -1)
    times = Times(
        np.r_[old["at_us"].to_numpy(), rows.delivered_us[here]],
        np.r_[before, rows.incarnation[here]],
        np.r_[before, rows.delivery[here]],
    )
    was, now = moves(shard, member, times)
    groups = pa.chunked_array([*old["group"].chunks, *chunks(table["group"])], pa.string())
    hashes = np.r_[old["hash"].to_numpy(), rows.hash[here]]
    moved = pa.table(
        [
            groups.take(pa.array(now)),
            pa.array(hashes[now]),
            pa.array(member[was]),
            pa.array(member[now]),
            pa.array(times.at_us[now]),
            pa.array(times.at_us[now] - times.at_us[was]),
        ],
        names=MOVES.names,
    ).cast(arrow_schema(MOVES))
    findings.table("moves", moved)
    for row in moved.group_by("group").aggregate([("pause_us", "max")]).to_pylist():
        findings.totals.add(row["group"], LONGEST_PAUSE, row["pause_us_max"])
    last = times.last(shard)
    return pa.table(
        [
            groups.take(pa.array(firsts)),
            pa.array(hashes[firsts]),
            pa.array(member[last]),
            pa.array(times.at_us[last]),
        ],
        schema=SHARDS,
    )


def report_rehashed(deliveries: Any, old: Any, findings: FindingsBuilder) -> Any:
    """Reports further hashes of keys, as they arrive; returns HASHES. `deliveries`: KEYS; `old`: HASHES before."""
    names = ("group", "key", "hash")
    [code], firsts = coded([chunked(old[name], deliveries[name]) for name in names])
    at_us = np.r_[old["last_us"].to_numpy(), deliveries["delivered_at_us"].to_numpy()]
    last_us = np.full(len(firsts), NEVER)
    np.maximum.at(last_us, code, at_us)
    # What is remembered comes first; then the first delivery of each hash that is new.
    is_new = code >= len(old)
    order = np.lexsort((at_us, is_new, code))
    first = order[np.diff(code[order], prepend=-1) != 0]
    [key], _ = coded([chunked(old[name], deliveries[name]).take(pa.array(first)) for name in names[:2]])
    order = np.lexsort((at_us[first], is_new[first], key))
    further = first[order[(np.diff(key[order], prepend=-1) == 0) & is_new[first[order]]]]
    if len(further):
        findings.offences_of(deliveries, "rehashed", None, further - len(old), at_us[further])
    columns = [chunked(old[name], deliveries[name]).take(pa.array(firsts)) for name in names]
    return pa.table([*columns, pa.array(last_us)], schema=HASHES)


_VIEWS = (DELIVERED_VIEW, ACKNOWLEDGED_VIEW)


@dataclass(frozen=True, slots=True)
class Order:
    """State of the order check between epochs. `forgotten_us`: by history, as `Histories.forgotten_us` computes it."""

    histories: Histories
    forgotten_us: Ints
    chains: Any


class BucketChecks:
    """`late`: by row, the views that have passed it."""

    def __init__(
        self, rows: Columns, streams: Streams, late: Ints, window: Window, findings: FindingsBuilder
    ) -> None:
        self._rows = rows
        self._streams = streams
        self._late = late
        self._window = window
        self._findings = findings

    def report_order(self, completeness: Completeness, histories: Histories, memory: Memory) -> Order:
        """Checks both views, and returns the state after them."""
        rows, streams, window = self._rows, self._streams, self._window
        old = memory.chains
        ordered = np.flatnonzero(rows.is_in_order)
        stream = streams.of_order[ordered]
        history, began_us = histories.of_stream[stream], histories.began_us[stream]
        forgotten_us = histories.forgotten_us(stream, rows.delivered_us[ordered], memory.forgotten)
        is_remembered = began_us > forgotten_us[history]
        keys = rows.table["key"].take(pa.array(ordered))
        in_session = rows.role[ordered] == IN_SESSION
        if in_session.any():
            keys = pc.if_else(pa.array(in_session), pa.scalar(None, pa.string()), keys)
        (_, chain), firsts = coded([old["history"].to_numpy(), old["key"]], [history, keys])
        numbers = Numbers(
            np.concatenate([*(old[f"{view}_began_us"].to_numpy() for view in _VIEWS), began_us]),
            np.concatenate([*(old[view].to_numpy() for view in _VIEWS), streams.number[ordered]]),
        )
        *highest_before, number_of = np.split(numbers.places, [len(old), 2 * len(old)])
        highest = {
            view: _extended(before, len(firsts), NOTHING)
            for view, before in zip(_VIEWS, highest_before, strict=True)
        }
        last_us = _extended(old["last_us"].to_numpy(), len(firsts), 0)
        np.maximum.at(last_us, chain, rows.delivered_us[ordered])
        # As acknowledged most are in the order in which they were delivered.
        by_chain = in_order(
            chain, rows.delivered_us[ordered], rows.incarnation[ordered], rows.delivery[ordered]
        )
        views = (
            (DELIVERED_VIEW, rows.delivered_us, rows.is_in_order, LATE_DELIVERED, completeness.distinct),
            (ACKNOWLEDGED_VIEW, rows.settled_us, rows.is_settled, LATE_ACKNOWLEDGED, completeness.settled),
        )
        for view, at_us, has_view, late, seen in views:
            on_time = has_view[ordered] & (self._late[ordered] & late == 0)
            at = at_us[ordered]
            is_due = within(at, window.after_us - window.skew_us, window.until_us)
            here = by_chain[(on_time & is_due)[by_chain]]
            chosen = ordered[here]
            number = number_of[here]
            deliveries = Deliveries(
                sub_stream=chain[here],
                number=number,
                at_us=at[here],
                incarnation=rows.incarnation[chosen],
                delivery=rows.delivery[chosen],
                is_checked=at[here] > window.after_us,
                is_seen=holds(seen, streams.order_places[chosen]),
                is_remembered=is_remembered[here],
            )
            result = check_order(deliveries, highest[view], window.skew_us)
            for kind, indices, before, uncertain in result.by_kind():
                expected = numbers.number(before) + 1
                self._findings.offences(
                    kind, view, chosen[indices], at[here][indices], expected=expected, uncertain=uncertain
                )
            past = at[here] <= window.until_us - window.skew_us
            highest[view] = highest_after(chain[here][past], number[past], highest[view])
        every_key = pa.chunked_array([*old["key"].chunks, *chunks(keys)], pa.string())
        chains = {
            "history": pa.array(np.concatenate([old["history"].to_numpy(), history])[firsts]),
            "key": every_key.take(pa.array(firsts)),
            "last_us": pa.array(last_us),
        }
        for view in _VIEWS:
            chains[f"{view}_began_us"] = pa.array(numbers.began_us(highest[view]))
            chains[view] = pa.array(numbers.number(highest[view]))
        return Order(
            histories, forgotten_us, pa.table([chains[name] for name in CHAINS.names], schema=CHAINS)
        )

    def report_misplaced(self, completeness: Completeness, passed: Flags) -> None:
        rows, streams = self._rows, self._streams
        in_session = passed & (rows.role == IN_SESSION)
        here = np.flatnonzero(in_session & rows.is_in_order)
        message, place = streams.places[here], streams.order_places[here]
        times = Times(rows.delivered_us[here], rows.incarnation[here], rows.delivery[here])
        is_misplaced = misplaced(
            message, place, times, holds(completeness.distinct, message), holds(completeness.distinct, place)
        )
        nowhere = np.flatnonzero(in_session & ~rows.is_in_order)
        chosen = np.concatenate([here[is_misplaced], nowhere])
        self._findings.offences("misplaced", DELIVERED_VIEW, chosen, rows.delivered_us[chosen])

    def report_overlaps(self) -> None:
        rows, window = self._rows, self._window
        here = np.flatnonzero(
            rows.has_span
            & rows.is_counted
            & (rows.started_us <= window.until_us)
            & ((rows.started_us > window.after_us) | (rows.finished_us > window.after_us))
        )
        if not len(here):
            return
        table = rows.table.take(pa.array(here))
        [key], _ = coded([table["group"], table["key"]])
        [holder], _ = coded([table["member"], table["incarnation"]])
        late = self._late[here] & LATE_STARTED != 0
        spans = Spans(
            key=key,
            holder=holder,
            started_us=rows.started_us[here],
            finished_us=rows.finished_us[here],
            incarnation=rows.incarnation[here],
            delivery=rows.delivery[here],
            is_checked=(rows.started_us[here] > window.after_us) & ~late,
        )
        result = check_overlaps(spans, window.skew_us)
        later = here[result.later]
        self._findings.offences(
            "overlap",
            None,
            later,
            rows.started_us[later],
            uncertain=result.uncertain,
            other=here[result.other],
        )


def _extended(values: Ints, count: int, default: int) -> Ints:
    return np.concatenate([values, np.full(count - len(values), default, np.int64)])
