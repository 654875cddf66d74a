"""Tables of a verification. Times and pauses are in microseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from lbg_pipeline.columns import NEVER, Flags, Ints
from lbg_pipeline.schemas import BROKEN, arrow_schema

_TEXT, _LONG, _INT, _FLAG = StringType(), LongType(), IntegerType(), BooleanType()


def _table(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


_STREAM = (("group", _TEXT), ("publisher", _TEXT), ("hash", _INT))

OFFENCES = _table(
    ("group", _TEXT),
    ("kind", _TEXT),
    ("view", _TEXT),
    ("publisher", _TEXT),
    ("key", _TEXT),
    ("hash", _INT),
    ("seq", _LONG),
    ("expected", _LONG),
    ("member", _INT),
    ("member_name", _TEXT),
    ("incarnation", _TEXT),
    ("delivery", _LONG),
    ("at_us", _LONG),
    ("uncertain", _FLAG),
    ("other_member", _INT),
    ("other_incarnation", _TEXT),
    ("session", _TEXT),
    ("sequence", _LONG),
)
"""`kind` is inverted, overlap, misplaced (each breaks the verdict unless `uncertain`), rewound or repeated. `at_us`:
when it was delivered, settled (view acknowledged, repeated) or started (overlap). `expected`: the lowest number that
would have been in order, of the session in mode Sessions, else of the key."""

LOST = _table(*_STREAM, ("first", _LONG), ("last", _LONG), ("count", _LONG))
"""Numbers `first` to `last` were published and not finally delivered."""

MOVES = _table(
    ("group", _TEXT), ("hash", _INT), ("was", _INT), ("now", _INT), ("at_us", _LONG), ("pause_us", _LONG)
)
"""A hash went from member `was` to member `now`, whose first delivery was at `at_us`."""

COMPLETENESS = _table(
    *_STREAM, *((name, _LONG) for name in ("published", "distinct", "lost", "pending", "unpublished"))
)
"""Different messages of each publisher and hash; `distinct` were delivered, settled or not."""

COUNTS = (
    "published",
    "delivered",
    "acknowledged",
    "dead",
    "repeats_dropped",
    "released",
    "redelivered",
)
"""Of records; a message that was sent again may have two that are published."""

KINDS: dict[str, tuple[str, str | None]] = {
    "inverted_delivered": ("inverted", "delivered"),
    "inverted_acknowledged": ("inverted", "acknowledged"),
    "rewound_delivered": ("rewound", "delivered"),
    "rewound_acknowledged": ("rewound", "acknowledged"),
    "repeated": ("repeated", None),
    "overlaps": ("overlap", None),
    "misplaced": ("misplaced", None),
}
"""Columns that count offences of a kind and view; None is any view."""

VERDICTS = _table(
    ("group", _TEXT),
    ("verdict", _TEXT),
    *((name, _LONG) for name in COUNTS),
    *((name, _LONG) for name in ("distinct", "lost", "pending", "unpublished")),
    *((name, _LONG) for name in (*KINDS, "uncertain", "moves")),
    ("longest_pause_us", _LONG),
)
"""A row for each group. Offences that are uncertain are counted as such and not among their kind."""

FINDINGS = _table(
    ("offence", OFFENCES),
    ("missing", _table(*_STREAM, ("first", _LONG), ("last", _LONG), ("confirmed_at_us", _LONG))),
    ("move", MOVES),
    ("stream", _table(*_STREAM, *((name, _LONG) for name in ("published", "distinct", "unpublished")))),
    ("tally", _table(("group", _TEXT), *((name, _LONG) for name in COUNTS))),
    ("clock", _table(("latest_us", _LONG))),
    ("broken", BROKEN),
)
"""Results of workers: each row has one of these. `missing` is lost or pending, which the latest time of all decides."""


DELIVERED_VIEW, ACKNOWLEDGED_VIEW = "delivered", "acknowledged"
_VIOLATIONS = arrow_schema(OFFENCES)


def violations(
    rows: pa.Table,
    kind: str,
    view: str | None,
    chosen: Ints,
    at_us: Ints,
    *,
    expected: Ints | None = None,
    uncertain: Flags | None = None,
    other: Ints | None = None,
) -> pa.Table:
    """OFFENCES, one for each of the `chosen` deliveries among `rows`; the other columns have one item for each of them
    too. `other`: the delivery that each of them overlaps with."""
    count = len(chosen)
    of = rows.select([name for name in _VIOLATIONS.names if name in rows.column_names]).take(pa.array(chosen))
    columns: dict[str, Any] = {
        "kind": pa.array([kind] * count, pa.string()),
        "view": pa.array([view] * count, pa.string()),
        "at_us": pa.array(at_us, mask=at_us == NEVER),
        "uncertain": pa.array(np.zeros(count, np.bool_) if uncertain is None else uncertain),
    }
    if expected is not None:
        columns["expected"] = pa.array(expected)
    if other is not None:
        others = rows.select(["member", "incarnation"]).take(pa.array(other))
        columns["other_member"], columns["other_incarnation"] = others.columns
    for name in of.column_names:
        columns.setdefault(name, of[name])
    return pa.table(
        [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(count, field.type)
            for field in _VIOLATIONS
        ],
        schema=_VIOLATIONS,
    )
