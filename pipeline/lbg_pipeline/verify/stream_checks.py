"""Checks of a stream: order, sessions, overlaps and moves among the rows of a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from lbg_pipeline.columns import Flags, Ints, chunks, coded, holds
from lbg_pipeline.verify.settings import Window
from lbg_pipeline.verify.stream_columns import (
    ACKNOWLEDGED_VIEW,
    DELIVERED_VIEW,
    IN_SESSION,
    LATE_ACKNOWLEDGED,
    LATE_DELIVERED,
    LATE_STARTED,
    Columns,
    within,
)
from lbg_pipeline.verify.stream_completeness import Completeness, Streams
from lbg_pipeline.verify.stream_findings import MOVES, FindingsBuilder
from lbg_pipeline.verify.stream_state import (
    CHAINS,
    LONGEST_PAUSE,
    NOTHING,
    SHARDS,
    Deliveries,
    Histories,
    Memory,
    Numbers,
    check_order,
    highest_after,
)


@dataclass(frozen=True, slots=True)
class Spans:
    """One item for a span from `started_us` up to `finished_us`, that one not in it. `holder`: who had it, a member in
    one incarnation. `is_judged`: what started before is there only to be compared with."""

    key: Ints
    holder: Ints
    started_us: Ints
    finished_us: Ints
    incarnation: Ints
    delivery: Ints
    is_judged: Flags


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Indices of the spans that started while another holder was inside, and of the one that finished last of those
    that each ran into."""

    later: Ints
    other: Ints
    uncertain: Flags


def overlaps(spans: Spans, skew_us: int) -> Overlaps:
    order = np.lexsort((spans.delivery, spans.incarnation, spans.started_us, spans.key))
    key = spans.key[order]
    found: list[tuple[int, int, bool]] = []
    if len(key):
        running = pd.Series(spans.finished_us[order]).groupby(key, sort=False).cummax().to_numpy()
        before = np.r_[0, running[:-1]]
        suspect = (key == np.r_[-1, key[:-1]]) & (spans.started_us[order] < before)
        for begin, end in _stretches(key, suspect):
            found += _in_key(spans, order[begin:end], skew_us)
    later, other, uncertain = zip(*found, strict=True) if found else ((), (), ())
    return Overlaps(np.array(later, np.int64), np.array(other, np.int64), np.array(uncertain, np.bool_))


def _stretches(key: Ints, suspect: Flags) -> list[tuple[int, int]]:
    """Where rows stand, sorted by start, that may run into one another: from one that begins with nothing open."""
    begins = np.flatnonzero(~suspect)
    ends = np.r_[begins[1:], len(key)]
    several = ends - begins > 1
    return list(zip(begins[several].tolist(), ends[several].tolist(), strict=True))


def _in_key(spans: Spans, rows: Ints, skew_us: int) -> list[tuple[int, int, bool]]:
    found = []
    still_open: list[int] = []
    for row in rows.tolist():
        started_us = spans.started_us[row]
        still_open = [each for each in still_open if spans.finished_us[each] > started_us]
        into = [each for each in still_open if spans.holder[each] != spans.holder[row]]
        if into and spans.is_judged[row]:
            other = max(
                into,
                key=lambda each: (spans.finished_us[each], spans.incarnation[each], spans.delivery[each]),
            )
            found.append((row, other, all(_is_explained(spans, each, row, skew_us) for each in into)))
        still_open.append(row)
    return found


def _is_explained(spans: Spans, first: int, second: int, skew_us: int) -> bool:
    """Two clocks that differ by so much may show what were two spans one after the other."""
    shift_us = min(
        spans.finished_us[first] - spans.started_us[second],
        spans.finished_us[second] - spans.started_us[first],
    )
    return bool(spans.incarnation[first] != spans.incarnation[second] and shift_us <= skew_us)


def moves(rows: Columns, old: Any, passed: Flags, telling: FindingsBuilder) -> Any:
    """Tells them; returns who has the shards then. `old`: who had them before."""
    here = np.flatnonzero(passed & rows.is_placed & rows.is_counted)
    table = rows.table.take(pa.array(here))
    (_, shard), firsts = coded([old["group"], old["hash"]], [table["group"], table["hash"]])
    every = {
        "shard": np.r_[np.arange(len(old)), shard],
        "at": np.r_[old["at_us"].to_numpy(), rows.delivered_us[here]],
        "incarnation": np.r_[np.full(len(old), -1), rows.incarnation[here]],
        "delivery": np.r_[np.full(len(old), -1), rows.delivery[here]],
        "member": np.r_[old["member"].to_numpy(), rows.ints("member")[here]],
    }
    order = np.lexsort((every["delivery"], every["incarnation"], every["at"], every["shard"]))
    shard, at, member = every["shard"][order], every["at"][order], every["member"][order]
    moved = np.flatnonzero((shard[1:] == shard[:-1]) & (member[1:] != member[:-1])) + 1
    groups = pa.chunked_array([*old["group"].chunks, *chunks(table["group"])], pa.string()).take(
        pa.array(firsts)
    )
    hashes = np.r_[old["hash"].to_numpy(), rows.hash[here]][firsts]
    told = pa.table(
        [
            groups.take(pa.array(shard[moved])),
            pa.array(hashes[shard[moved]]),
            pa.array(member[moved - 1]),
            pa.array(member[moved]),
            pa.array(at[moved]),
            pa.array(at[moved] - at[moved - 1]),
        ],
        schema=MOVES,
    )
    telling.table("moves", told)
    for row in told.group_by("group").aggregate([("pause_us", "max")]).to_pylist():
        telling.totals.add(row["group"], LONGEST_PAUSE, row["pause_us_max"])
    lasts = np.flatnonzero(np.r_[shard[1:] != shard[:-1], True]) if len(shard) else shard
    return pa.table([groups, pa.array(hashes), pa.array(member[lasts]), pa.array(at[lasts])], schema=SHARDS)


_VIEWS = (DELIVERED_VIEW, ACKNOWLEDGED_VIEW)


@dataclass(frozen=True, slots=True)
class Order:
    """State of the order check between epochs. `forgotten_us`: by history, as `Histories.forgotten_us` gives it."""

    histories: Histories
    forgotten_us: Ints
    chains: Any


class BucketChecks:
    """`late`: by row, the views that have passed it."""

    def __init__(
        self, rows: Columns, streams: Streams, late: Ints, window: Window, telling: FindingsBuilder
    ) -> None:
        self._rows = rows
        self._streams = streams
        self._late = late
        self._window = window
        self._telling = telling

    def order(self, known: Completeness, histories: Histories, memory: Memory) -> Order:
        """Judges both views."""
        rows, streams, window = self._rows, self._streams, self._window
        old = memory.chains
        in_order = np.flatnonzero(rows.is_in_order)
        stream = streams.of_order[in_order]
        history, began_us = histories.of_stream[stream], histories.began_us[stream]
        forgotten_us = histories.forgotten_us(stream, rows.delivered_us[in_order], memory.forgotten)
        is_remembered = began_us > forgotten_us[history]
        keys = rows.table["key"].take(pa.array(in_order))
        in_session = rows.role[in_order] == IN_SESSION
        if in_session.any():
            keys = pd.Series(keys.to_pandas()).mask(in_session, None)
            keys = pa.array(keys, pa.string(), from_pandas=True)
        (_, chain), firsts = coded([old["history"].to_numpy(), old["key"]], [history, keys])
        numbers = Numbers(
            np.concatenate([*(old[f"{view}_began_us"].to_numpy() for view in _VIEWS), began_us]),
            np.concatenate([*(old[view].to_numpy() for view in _VIEWS), streams.number[in_order]]),
        )
        *highest_before, number_of = np.split(numbers.places, [len(old), 2 * len(old)])
        highest = {
            view: _extended(before, len(firsts), NOTHING)
            for view, before in zip(_VIEWS, highest_before, strict=True)
        }
        last_us = _extended(old["last_us"].to_numpy(), len(firsts), 0)
        np.maximum.at(last_us, chain, rows.delivered_us[in_order])
        views = (
            (DELIVERED_VIEW, rows.delivered_us, rows.is_in_order, LATE_DELIVERED, known.distinct),
            (ACKNOWLEDGED_VIEW, rows.settled_us, rows.is_settled, LATE_ACKNOWLEDGED, known.settled),
        )
        for view, at_us, takes_part, late, seen in views:
            on_time = takes_part[in_order] & (self._late[in_order] & late == 0)
            at = at_us[in_order]
            here = np.flatnonzero(on_time & within(at, window.after_us - window.skew_us, window.until_us))
            chosen = in_order[here]
            number = number_of[here]
            deliveries = Deliveries(
                chain=chain[here],
                number=number,
                at_us=at[here],
                incarnation=rows.incarnation[chosen],
                delivery=rows.delivery[chosen],
                is_judged=at[here] > window.after_us,
                is_seen=holds(seen, streams.order_places[chosen]),
                is_remembered=is_remembered[here],
            )
            judged = check_order(deliveries, highest[view], window.skew_us)
            told = (
                ("rewound", judged.rewound, judged.rewound_highest, np.zeros(len(judged.rewound), np.bool_)),
                ("inverted", judged.inverted, judged.inverted_highest, judged.uncertain),
            )
            for kind, which, before, uncertain in told:
                expected = numbers.number(before) + 1
                self._telling.offences(
                    kind, view, chosen[which], at[here][which], expected=expected, uncertain=uncertain
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

    def misplaced(self, known: Completeness, passed: Flags) -> None:
        """A message has one place, a session and a number there, and a place has one message; so where one of the two
        was seen before and the other was not, it is another one's."""
        rows, streams = self._rows, self._streams
        here = np.flatnonzero(passed & (rows.role == IN_SESSION))
        here = here[np.lexsort((rows.delivery[here], rows.incarnation[here], rows.delivered_us[here]))]
        again = [
            holds(known.distinct, places) | pd.Series(places).duplicated().to_numpy()
            for places in (streams.places[here], streams.order_places[here])
        ]
        chosen = here[~rows.is_in_order[here] | (again[0] != again[1])]
        self._telling.offences("misplaced", DELIVERED_VIEW, chosen, rows.delivered_us[chosen])

    def overlaps(self) -> None:
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
            is_judged=(rows.started_us[here] > window.after_us) & ~late,
        )
        found = overlaps(spans, window.skew_us)
        later = here[found.later]
        self._telling.offences(
            "overlap",
            None,
            later,
            rows.started_us[later],
            uncertain=found.uncertain,
            other=here[found.other],
        )


def _extended(values: Ints, count: int, default: int) -> Ints:
    return np.concatenate([values, np.full(count - len(values), default, np.int64)])
