"""Order as delivered and as acknowledged, places in sessions and overlaps, among the rows of a bucket that are due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from .coding import chunks, coded
from .columns import (
    ACKNOWLEDGED_VIEW,
    DELIVERED_VIEW,
    LATE_ACKNOWLEDGED,
    LATE_DELIVERED,
    LATE_STARTED,
    Columns,
    within,
)
from .completing import Completeness
from .histories import Histories, Numbers
from .intervals import Flags, Ints, holds
from .memory import CHAINS, Memory
from .order import NOTHING, Deliveries, highest_after, judge_order
from .rows import IN_SESSION
from .settings import Window
from .spans import Spans
from .spans import overlaps as find_overlaps
from .streams import Streams
from .telling import Telling

_VIEWS = (DELIVERED_VIEW, ACKNOWLEDGED_VIEW)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be remembered of the order. `forgotten_us`: by history, as `Histories.forgotten_us` gives it."""

    histories: Histories
    forgotten_us: Ints
    chains: Any


class Views:
    """`late`: by row, the views that have passed it."""

    def __init__(self, rows: Columns, streams: Streams, late: Ints, window: Window, telling: Telling) -> None:
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
            judged = judge_order(deliveries, highest[view], window.skew_us)
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
        found = find_overlaps(spans, window.skew_us)
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
