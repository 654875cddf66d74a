"""What an epoch has found, as tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from .columns import Columns
from .intervals import Flags, Ints
from .rows import DELIVERED, NEVER

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


def offences(
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
