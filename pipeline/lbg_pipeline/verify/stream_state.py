"""State of a bucket between two epochs: its memory, the order and the histories of its keys.

A stream's numbers keep their order and their neighbours there, and no two streams touch.

A *chain* is what has one order: a key of one history, that is of a publisher with all its epochs, and hash; or a
session. Numbers are those of `lbg_pipeline.columns.numbers_in_order`. All arrays have one item for a delivery; times
are microseconds.

A history is that of a publisher and hash, with all the epochs that `lbg_broker.group.epoch_of` joins; or a session,
which is a history of one epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lbg_pipeline.columns import Flags, Ints, Line, coded, histories_of, numbers_in_order

NOTHING = -1
"""The highest number of a chain of which nothing was seen."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """`is_judged`: what came before is there only to be compared with. `is_seen`: its number was seen before any of
    these. `is_remembered`: it is known whether it was seen; what is not is not taken for inverted."""

    chain: Ints
    number: Ints
    at_us: Ints
    incarnation: Ints
    delivery: Ints
    is_judged: Flags
    is_seen: Flags
    is_remembered: Flags


@dataclass(frozen=True, slots=True)
class OrderResult:
    """Indices of deliveries. `highest`: the highest number before each inverted and rewound one. `uncertain`: of each
    inverted one, whether the clocks' skew would explain it."""

    rewound: Ints
    rewound_highest: Ints
    inverted: Ints
    inverted_highest: Ints
    uncertain: Flags


def check_order(rows: Deliveries, highest: Ints, skew_us: int) -> OrderResult:
    """`highest`: by chain, of all that came before these, and more than the skew before those that are judged."""
    order = np.lexsort((rows.delivery, rows.incarnation, rows.at_us, rows.chain))
    chain, number = rows.chain[order], rows.number[order]
    before = _highest_before(chain, number, highest)
    again = rows.is_seen[order]
    if (number <= before).any():
        again |= pd.DataFrame({"chain": chain, "number": number}).duplicated().to_numpy()
    judged = rows.is_judged[order]
    rewound = np.flatnonzero(again & judged)
    inverted = np.flatnonzero(~again & judged & rows.is_remembered[order] & (number < before))
    uncertain = np.zeros(len(inverted), np.bool_)
    if len(inverted):
        uncertain = ~_certain(rows, order, inverted, highest, skew_us)
    return OrderResult(
        rewound=order[rewound],
        rewound_highest=np.maximum(before[rewound], number[rewound]),
        inverted=order[inverted],
        inverted_highest=before[inverted],
        uncertain=uncertain,
    )


def highest_after(chain: Ints, number: Ints, highest: Ints) -> Ints:
    """`highest` with these deliveries."""
    after = highest.copy()
    np.maximum.at(after, chain, number)
    return after


def _highest_before(chain: Ints, number: Ints, highest: Ints) -> Ints:
    """For each of rows sorted by chain, the highest number before it."""
    if not len(chain):
        return number
    running = pd.Series(number).groupby(chain, sort=False).cummax().to_numpy()
    before = np.r_[NOTHING, running[:-1]]
    before[np.r_[True, chain[1:] != chain[:-1]]] = NOTHING
    return np.maximum(before, highest[chain])


def _certain(rows: Deliveries, order: Ints, inverted: Ints, highest: Ints, skew_us: int) -> Flags:
    """A higher number came before on the same incarnation, or more than the skew earlier on another."""
    chain, number, at_us = rows.chain[order], rows.number[order], rows.at_us[order]
    line = Line(len(highest), (at_us, at_us - skew_us))
    when = line.place(chain, at_us)
    earlier = np.searchsorted(when, line.place(chain[inverted], at_us[inverted] - skew_us), "left") - 1
    running = np.maximum(pd.Series(number).groupby(chain, sort=False).cummax().to_numpy(), highest[chain])
    in_chain = (earlier >= 0) & (chain[np.maximum(earlier, 0)] == chain[inverted])
    long_ago = np.where(in_chain, running[np.maximum(earlier, 0)], highest[chain[inverted]])
    own = pd.DataFrame({"chain": chain, "incarnation": rows.incarnation[order], "number": number})
    own_highest = own.groupby(["chain", "incarnation"], sort=False)["number"].cummax().to_numpy()
    return np.asarray((long_ago > number[inverted]) | (own_highest[inverted] > number[inverted]))


_TEXT, _LONG = pa.string(), pa.int64()

STREAMS = pa.schema([("group", _TEXT), ("publisher", _TEXT), ("hash", _LONG), ("last_us", _LONG)])
"""What has numbers of its own: a publisher's messages of one hash. Also a session (`SESSION_HASH`, its name where the
publisher's is) and, where a bucket orders sessions, the messages in them (`shadow`)."""
SETS = pa.schema(
    [("set", pa.int8()), ("stream", _LONG), ("first", _LONG), ("last", _LONG), ("since_us", _LONG)]
)
"""`set`: index of the field of `stream_completeness.Completeness`."""
HISTORIES = pa.schema([("group", _TEXT), ("history", _TEXT), ("hash", _LONG), ("forgotten_us", _LONG)])
"""What has an order of its own for each key: a publisher's messages of one hash, in all its epochs; or a session.
`forgotten_us`: the beginning of the latest epoch of which something may have been forgotten, -1 for none."""
CHAINS = pa.schema(
    [
        ("history", _LONG),
        ("key", _TEXT),
        ("delivered_began_us", _LONG),
        ("delivered", _LONG),
        ("acknowledged_began_us", _LONG),
        ("acknowledged", _LONG),
        ("last_us", _LONG),
    ]
)
"""Of each key the beginning of the latest epoch and the highest number in it, as delivered and as acknowledged."""
FORGOTTEN = pa.schema([("group", _TEXT), ("began_us", _LONG)])
"""Of each group the beginning of the latest epoch of which a stream was forgotten."""
SHARDS = pa.schema([("group", _TEXT), ("hash", _LONG), ("member", _LONG), ("at_us", _LONG)])
"""Member with the last delivery of a hash."""
TOTALS = pa.schema([("group", _TEXT), ("what", _TEXT), ("count", _LONG)])

SCHEMAS: Mapping[str, Any] = {
    "streams": STREAMS,
    "sets": SETS,
    "histories": HISTORIES,
    "chains": CHAINS,
    "forgotten": FORGOTTEN,
    "shards": SHARDS,
    "totals": TOTALS,
}

LONGEST_PAUSE = "longest_pause_us"
"""Among counts the one that does not add up: the greatest counts."""

SESSION_HASH = -(1 << 40)


def shadow(hash_: Any) -> Any:
    """Stand-in for a hash in a bucket that orders sessions: the hash's own bucket counts its messages."""
    return -1 - hash_


@dataclass(slots=True)
class Memory:
    streams: Any = field(default_factory=STREAMS.empty_table)
    sets: Any = field(default_factory=SETS.empty_table)
    histories: Any = field(default_factory=HISTORIES.empty_table)
    chains: Any = field(default_factory=CHAINS.empty_table)
    forgotten: Any = field(default_factory=FORGOTTEN.empty_table)
    shards: Any = field(default_factory=SHARDS.empty_table)
    totals: Any = field(default_factory=TOTALS.empty_table)

    def tables(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SCHEMAS}


class Totals:
    """Counts by group and by what is counted."""

    def __init__(self, table: Any = None) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        if table is not None:
            for row in table.to_pylist():
                self.add(row["group"], row["what"], row["count"])

    def add(self, group: str, what: str, count: int) -> None:
        before = self._counts.get((group, what), 0)
        self._counts[group, what] = max(before, count) if what == LONGEST_PAUSE else before + count

    def add_rows(self, what: str, groups: Any, counted: Any = None) -> None:
        """One for each row, or for each that is `counted`."""
        chosen = groups if counted is None else groups.filter(pa.array(np.asarray(counted, np.bool_)))
        for each in chosen.value_counts().to_pylist():
            self.add(each["values"], what, each["counts"])

    def by_group(self) -> dict[str, dict[str, int]]:
        told: dict[str, dict[str, int]] = {}
        for (group, what), count in sorted(self._counts.items()):
            told.setdefault(group, {})[what] = count
        return told

    def table(self) -> Any:
        rows = [
            {"group": group, "what": what, "count": count} for (group, what), count in self._counts.items()
        ]
        return pa.Table.from_pylist(rows, schema=TOTALS)


class Numbers:
    """Numbers of messages with the epochs that they are of, as integers in their order: `places`."""

    def __init__(self, began_us: Ints, number: Ints) -> None:
        self.places = numbers_in_order(began_us, number)
        self._has_epochs = bool(began_us.any())
        if self._has_epochs:
            self._sorted, at = np.unique(self.places, return_index=True)
            self._began_us, self._number = began_us[at], number[at]

    def number(self, places: Ints) -> Ints:
        """The message's own; NOTHING for NOTHING."""
        if not self._has_epochs:
            return places
        return np.where(places == NOTHING, NOTHING, self._number[np.searchsorted(self._sorted, places)])

    def began_us(self, places: Ints) -> Ints:
        """Start of the message's epoch; 0 for NOTHING."""
        if not self._has_epochs:
            return np.zeros(len(places), np.int64)
        return np.where(places == NOTHING, 0, self._began_us[np.searchsorted(self._sorted, places)])


class Histories:
    """Of each of `streams`, a table of group, publisher and hash: `of_stream`, its index in `table`, and `began_us`,
    when its epoch began. The first of `table` are those of `old`, in its order."""

    def __init__(self, old: Any, streams: Any) -> None:
        hash_ = streams["hash"].to_numpy()
        names = _dictionary(streams["publisher"])
        told = names.dictionary.to_pylist()
        histories, began_us = histories_of(told)
        code = names.indices.to_numpy()
        is_session = hash_ == SESSION_HASH
        of_publisher = pa.array(histories, pa.string()).take(pa.array(code))
        history = pc.if_else(pa.array(is_session), names.cast(pa.string()), of_publisher)
        self.began_us: Ints = np.where(is_session, 0, began_us[code])
        (_, self.of_stream), firsts = coded(
            [old["group"], old["history"], old["hash"].to_numpy()], [streams["group"], history, hash_]
        )
        new = pa.array(firsts[len(old) :] - len(old))
        self.table = pa.concat_tables(
            [
                old,
                pa.table(
                    [
                        streams["group"].take(new),
                        history.take(new),
                        streams["hash"].take(new),
                        pa.array(np.full(len(new), NOTHING)),
                    ],
                    schema=HISTORIES,
                ),
            ]
        )
        self._old = len(old)

    def forgotten_us(self, stream: Ints, at_us: Ints, forgotten: Any) -> Ints:
        """By history, the beginning of the latest epoch of which something may have been forgotten. Of one that is
        new, the epochs before that of its first delivery may have been, as far as their group has `forgotten` any.
        `stream` and `at_us` are those of the deliveries."""
        until_us: Ints = self.table["forgotten_us"].to_numpy().copy()
        history = self.of_stream[stream]
        order = np.lexsort((at_us, history))
        is_first = np.diff(history[order], prepend=-1) != 0
        first = order[is_first & (history[order] >= self._old)]
        of_group = dict(zip(forgotten["group"].to_pylist(), forgotten["began_us"].to_pylist(), strict=True))
        groups = self.table["group"].take(pa.array(history[first])).to_pylist()
        latest_us = np.array([of_group.get(group, NOTHING) for group in groups], np.int64)
        until_us[history[first]] = np.minimum(self.began_us[stream[first]] - 1, latest_us)
        return until_us

    def without(self, gone: Flags, forgotten_us: Ints, chains: Any) -> tuple[Any, Any]:
        """The histories that `chains` have, and `chains` with their new indices, once `gone` streams are forgotten."""
        until_us = forgotten_us.copy()
        np.maximum.at(until_us, self.of_stream[gone], self.began_us[gone])
        used = np.zeros(len(self.table), np.bool_)
        used[chains["history"].to_numpy()] = True
        renumbered = np.cumsum(used) - 1
        table = self.table.set_column(3, HISTORIES.field(3), pa.array(until_us))
        chains = chains.set_column(
            0, chains.schema.field(0), pa.array(renumbered[chains["history"].to_numpy()])
        )
        return table.filter(pa.array(used)), chains

    def forgotten_with(self, forgotten: Any, groups: Any, gone: Flags) -> Any:
        """`forgotten` with the `gone` streams, whose `groups` are those of all streams."""
        both = pa.concat_tables(
            [
                forgotten,
                pa.table(
                    [groups.filter(pa.array(gone)), pa.array(self.began_us[gone], pa.int64())],
                    schema=FORGOTTEN,
                ),
            ]
        )
        latest = both.group_by("group").aggregate([("began_us", "max")])
        return pa.table([latest["group"], latest["began_us_max"]], schema=FORGOTTEN)


def _dictionary(column: Any) -> Any:
    encoded = column.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    return encoded
