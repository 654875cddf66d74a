"""Findings of an epoch, as tables and counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from lbg_pipeline.columns import Flags, Intervals, Ints
from lbg_pipeline.verify.stream_columns import DELIVERED, NEVER, Columns
from lbg_pipeline.verify.stream_completeness import Streams
from lbg_pipeline.verify.stream_state import Totals

_TEXT, _LONG = pa.string(), pa.int64()

OFFENCES = pa.schema(
    [
        ("group", _TEXT),
        ("kind", _TEXT),
        ("view", _TEXT),
        ("publisher", _TEXT),
        ("key", _TEXT),
        ("hash", _LONG),
        ("seq", _LONG),
        ("expected", _LONG),
        ("member", _LONG),
        ("member_name", _TEXT),
        ("incarnation", _TEXT),
        ("delivery", _LONG),
        ("at_us", _LONG),
        ("uncertain", pa.bool_()),
        ("other_member", _LONG),
        ("other_incarnation", _TEXT),
        ("session", _TEXT),
        ("sequence", _LONG),
    ]
)
RANGES = pa.schema(
    [
        ("group", _TEXT),
        ("publisher", _TEXT),
        ("hash", _LONG),
        ("first", _LONG),
        ("last", _LONG),
        ("count", _LONG),
    ]
)
MOVES = pa.schema(
    [("group", _TEXT), ("hash", _LONG), ("was", _LONG), ("now", _LONG), ("at_us", _LONG), ("pause_us", _LONG)]
)
COMPLETENESS = pa.schema(
    [
        ("group", _TEXT),
        ("publisher", _TEXT),
        ("hash", _LONG),
        ("published", _LONG),
        ("distinct", _LONG),
        ("lost", _LONG),
        ("pending", _LONG),
        ("unpublished", _LONG),
    ]
)
LATE = pa.schema([*list(DELIVERED)[:-2], ("views", _TEXT)])


def violations(
    rows: Columns,
    kind: str,
    view: str | None,
    chosen: Ints,
    at_us: Ints,
    *,
    expected: Ints | None = None,
    uncertain: Flags | None = None,
    other: Ints | None = None,
) -> Any:
    """One for each of the `chosen` rows; the other columns have one item for each of them too."""
    count = len(chosen)
    of = rows.table.take(pa.array(chosen))
    others = rows.table.take(pa.array(other)) if other is not None else None
    told: dict[str, Any] = {
        "kind": pa.array([kind] * count, _TEXT),
        "view": pa.array([view] * count, _TEXT),
        "at_us": pa.array(at_us, _LONG, mask=at_us == NEVER),
        "expected": pa.nulls(count, _LONG) if expected is None else pa.array(expected),
        "uncertain": pa.array(np.zeros(count, np.bool_) if uncertain is None else uncertain),
        "other_member": pa.nulls(count, _LONG) if others is None else others["member"],
        "other_incarnation": pa.nulls(count, _TEXT) if others is None else others["incarnation"],
    }
    return pa.table([told[name] if name in told else of[name] for name in OFFENCES.names], schema=OFFENCES)


_COUNTED_AS = {"overlap": "overlaps", "repeated": "repeated", "misplaced": "misplaced"}
"""Others are counted by their view too."""


class FindingsBuilder:
    """`tables` by name, one name more than once."""

    def __init__(self, rows: Columns, streams: Streams, totals: Totals) -> None:
        self.rows = rows
        self.streams = streams
        self.totals = totals
        self.tables: list[tuple[str, Any]] = []

    def table(self, name: str, table: Any) -> None:
        """A row of a group counts as one `name`."""
        self.totals.add_rows(name, table["group"])
        self.tables.append((name, table))

    def offences(self, kind: str, view: str | None, chosen: Ints, at_us: Ints, **told: Any) -> None:
        if not len(chosen):
            return
        table = violations(self.rows, kind, view, chosen, at_us, **told)
        self.tables.append(("offences", table))
        name = _COUNTED_AS.get(kind) or f"{kind}_{view}"
        uncertain = table["uncertain"].to_numpy()
        self.totals.add_rows(name, table["group"], ~uncertain)
        self.totals.add_rows("uncertain", table["group"], uncertain)

    def ranges(self, name: str, places: Intervals) -> None:
        stream, first, last = self.streams.ranges(places)
        of = self.streams.table.take(pa.array(stream))
        count = pa.array(last - first + 1)
        told = pa.table(
            [of["group"], of["publisher"], of["hash"], pa.array(first), pa.array(last), count], schema=RANGES
        )
        for row in told.select(["group", "count"]).to_pylist():
            self.totals.add(row["group"], name, row["count"])
        self.tables.append((name, told))
