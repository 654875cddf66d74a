"""What is remembered of a bucket between two epochs: no rows but those that are held back, only what they add up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

_TEXT, _LONG = pa.string(), pa.int64()

STREAMS = pa.schema([("group", _TEXT), ("publisher", _TEXT), ("hash", _LONG), ("last_us", _LONG)])
"""What has numbers of its own: a publisher's messages of one hash. Also a session (`SESSION_HASH`, its name where the
publisher's is) and, where a bucket orders sessions, the messages in them (`shadow`)."""
SETS = pa.schema(
    [("set", pa.int8()), ("stream", _LONG), ("first", _LONG), ("last", _LONG), ("since_us", _LONG)]
)
"""`set`: index of the field of `completing.Completeness`."""
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
"""Who had the last delivery of a hash."""
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
    """Where a bucket that orders sessions remembers the messages of a hash: the hash's own bucket counts them."""
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
