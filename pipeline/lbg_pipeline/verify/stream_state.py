"""State of a bucket between two epochs: its memory, its streams with their sets of numbers, and its histories.

A *chain* of the state is a sub-stream of `lbg_pipeline.verify.checks.order`.

A history is that of a publisher and hash, with all the epochs that `lbg_core.group.epoch_of` joins; or a session,
which is a history of one epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_pipeline.columns import Flags, Intervals, Ints, Line, chunks, coded, histories_of
from lbg_pipeline.verify.checks.completeness import Completeness
from lbg_pipeline.verify.checks.order import NOTHING
from lbg_pipeline.verify.stream_columns import IN_SESSION, Columns

_TEXT, _LONG = pa.string(), pa.int64()

STREAMS = pa.schema([("group", _TEXT), ("publisher", _TEXT), ("hash", _LONG), ("last_us", _LONG)])
"""Sequences of numbers: of a publisher's messages of one hash. Also of a session (`SESSION_HASH`, its name where the
publisher's is) and, where a bucket orders sessions, the messages in them (`shadow`)."""
SETS = pa.schema(
    [("set", pa.int8()), ("stream", _LONG), ("first", _LONG), ("last", _LONG), ("since_us", _LONG)]
)
"""`set`: index of the field of `checks.completeness.Completeness`."""
HISTORIES = pa.schema([("group", _TEXT), ("history", _TEXT), ("hash", _LONG), ("forgotten_us", _LONG)])
"""Sequences with an order for each key: a publisher's messages of one hash, in all its epochs; or a session.
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
HASHES = pa.schema([("group", _TEXT), ("key", _TEXT), ("hash", _LONG), ("last_us", _LONG)])
"""Hashes of each key, in a bucket by key."""
FILES = pa.schema([("head", _TEXT), ("file", _TEXT)])
"""First line of each file that was read, in bucket 0."""
TOTALS = pa.schema([("group", _TEXT), ("what", _TEXT), ("count", _LONG)])

SCHEMAS: Mapping[str, Any] = {
    "streams": STREAMS,
    "sets": SETS,
    "histories": HISTORIES,
    "chains": CHAINS,
    "forgotten": FORGOTTEN,
    "shards": SHARDS,
    "hashes": HASHES,
    "files": FILES,
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
    hashes: Any = field(default_factory=HASHES.empty_table)
    files: Any = field(default_factory=FILES.empty_table)
    totals: Any = field(default_factory=TOTALS.empty_table)

    def tables(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SCHEMAS}


class Totals:
    """Counts by group and name."""

    def __init__(self, table: Any = None) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        if table is not None:
            for row in table.to_pylist():
                self.add(row["group"], row["what"], row["count"])

    def add(self, group: str, name: str, count: int) -> None:
        before = self._counts.get((group, name), 0)
        self._counts[group, name] = max(before, count) if name == LONGEST_PAUSE else before + count

    def add_rows(self, name: str, groups: Any, counted: Any = None) -> None:
        """One for each row, or for each that is `counted`."""
        chosen = groups if counted is None else groups.filter(pa.array(np.asarray(counted, np.bool_)))
        for each in chosen.value_counts().to_pylist():
            self.add(each["values"], name, each["counts"])

    def by_group(self) -> dict[str, dict[str, int]]:
        by_group: dict[str, dict[str, int]] = {}
        for (group, name), count in sorted(self._counts.items()):
            by_group.setdefault(group, {})[name] = count
        return by_group

    def table(self) -> Any:
        rows = [
            {"group": group, "what": name, "count": count} for (group, name), count in self._counts.items()
        ]
        return pa.Table.from_pylist(rows, schema=TOTALS)


class Histories:
    """Of each of `streams`, a table of group, publisher and hash: `of_stream`, its index in `table`, and `began_us`,
    when its epoch began. The first of `table` are those of `old`, in its order."""

    def __init__(self, old: Any, streams: Any) -> None:
        hash_ = streams["hash"].to_numpy()
        names = _dictionary(streams["publisher"])
        publishers = names.dictionary.to_pylist()
        histories, began_us = histories_of(publishers)
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

    def without(self, is_forgotten: Flags, forgotten_us: Ints, chains: Any) -> tuple[Any, Any]:
        """The histories that `chains` have, and `chains` with their new indices, without forgotten streams."""
        until_us = forgotten_us.copy()
        np.maximum.at(until_us, self.of_stream[is_forgotten], self.began_us[is_forgotten])
        used = np.zeros(len(self.table), np.bool_)
        used[chains["history"].to_numpy()] = True
        renumbered = np.cumsum(used) - 1
        table = self.table.set_column(3, HISTORIES.field(3), pa.array(until_us))
        chains = chains.set_column(
            0, chains.schema.field(0), pa.array(renumbered[chains["history"].to_numpy()])
        )
        return table.filter(pa.array(used)), chains

    def forgotten_with(self, forgotten: Any, groups: Any, is_forgotten: Flags) -> Any:
        """`forgotten` with the streams that are forgotten now. `groups`: those of all streams."""
        both = pa.concat_tables(
            [
                forgotten,
                pa.table(
                    [
                        groups.filter(pa.array(is_forgotten)),
                        pa.array(self.began_us[is_forgotten], pa.int64()),
                    ],
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
                _joined_columns([each[0] for each in tables], firsts),
                _joined_columns([each[1] for each in tables], firsts),
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

    def completeness(self, memory: Memory) -> Completeness:
        set_index = memory.sets["set"].to_numpy()
        stream = memory.sets["stream"].to_numpy()
        line = self.line.intervals(stream, memory.sets["first"].to_numpy(), memory.sets["last"].to_numpy())
        since_us = memory.sets["since_us"].to_numpy()
        sets: dict[str, Any] = {}
        for index, name in enumerate(SET_NAMES):
            order = np.flatnonzero(set_index == index)
            order = order[np.argsort(line.firsts[order])]
            sets[name] = Intervals(line.firsts[order], line.lasts[order])
            if name == "open":
                sets["open_since_us"] = since_us[order]
        return Completeness(**sets)

    def sets(self, completeness: Completeness, renumbered: Ints) -> Any:
        """As a table; `renumbered` is the new index of each stream, -1 for those that are forgotten."""
        tables = []
        for index, name in enumerate(SET_NAMES):
            of: Intervals = getattr(completeness, name)
            stream, first, last = self.line.ranges(of)
            since_us = completeness.open_since_us if name == "open" else np.zeros(len(stream), np.int64)
            is_remaining = renumbered[stream] >= 0
            columns: list[Any] = [
                np.full(len(stream), index, np.int8),
                renumbered[stream],
                first,
                last,
                since_us,
            ]
            tables.append(pa.table([pa.array(each[is_remaining]) for each in columns], schema=SETS))
        return pa.concat_tables(tables)


def _joined_columns(columns: list[Any], firsts: Ints) -> Any:
    return pc.take(
        pa.chunked_array([chunk for column in columns for chunk in chunks(column)]), pa.array(firsts)
    )
