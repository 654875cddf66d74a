"""Tables of a verification. Times and pauses are in microseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
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
    ("finished_at_us", _LONG),
    ("other_member", _INT),
    ("other_incarnation", _TEXT),
    ("other_started_at_us", _LONG),
    ("other_finished_at_us", _LONG),
    ("session", _TEXT),
    ("sequence", _LONG),
)
"""`kind` is inverted, overlap, misplaced, rehashed, rekeyed, resized (each breaks the verdict unless `uncertain`),
rewound, repeated or rerouted. `at_us`: when it was delivered, settled (view acknowledged, repeated if it ever was) or
started (overlap). `expected`: the lowest number that would have been in order, of the session in mode Sessions, else of
the key; null if messages of other hashes came too early."""

LOST = _table(*_STREAM, ("first", _LONG), ("last", _LONG), ("count", _LONG))
"""Numbers `first` to `last` were published and not finally delivered."""

LOST_MESSAGES = _table(
    *_STREAM, ("seq", _LONG), ("key", _TEXT), ("published_at_us", _LONG), ("confirmed_at_us", _LONG)
)

GAPS = _table(*_STREAM, ("first", _LONG), ("last", _LONG), ("count", _LONG), ("is_early", _FLAG))
"""Numbers `first` to `last` are in no journal, as `checks.completeness.Gaps`."""

COPIES = _table(("group", _TEXT), ("kind", _TEXT), ("file", _TEXT), ("other", _TEXT), ("count", _LONG))
"""Records that are in two files, and count once. `kind` is published or delivered."""

MOVES = _table(
    ("group", _TEXT), ("hash", _INT), ("was", _INT), ("now", _INT), ("at_us", _LONG), ("pause_us", _LONG)
)
"""A hash went from member `was` to member `now`, whose first delivery was at `at_us`."""

RUNS = _table(
    *(("group", _TEXT), ("member", _INT), ("member_name", _TEXT), ("incarnation", _TEXT)),
    *(("first_us", _LONG), ("last_us", _LONG)),
)
"""Runs of members: from the first delivery to the last time of any."""

MESSAGE_COUNTS = ("published", "distinct", "lost", "pending", "unpublished", "unrecorded", "early")
COMPLETENESS = _table(*_STREAM, *((name, _LONG) for name in MESSAGE_COUNTS))
"""Different messages of each publisher and hash; `distinct` were delivered, settled or not; `unrecorded` and `early`
are numbers in GAPS."""

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
    "rehashed": ("rehashed", None),
    "rekeyed": ("rekeyed", None),
    "resized": ("resized", None),
    "rerouted": ("rerouted", None),
}
"""Columns that count offences of a kind and view; None is any view."""

BREAKING = (
    "lost",
    "inverted_delivered",
    "inverted_acknowledged",
    "overlaps",
    "misplaced",
    "rehashed",
    "rekeyed",
    "resized",
)
"""Columns of VERDICTS that break a verdict, if any is not 0."""

VERDICTS = _table(
    ("group", _TEXT),
    ("verdict", _TEXT),
    *((name, _LONG) for name in COUNTS),
    *((name, _LONG) for name in MESSAGE_COUNTS[1:]),
    *((name, _LONG) for name in (*KINDS, "uncertain", "moves")),
    ("longest_pause_us", _LONG),
)
"""A row for each group. Offences that are uncertain are counted as such and not among their kind."""

STREAM_COUNTS = ("published", "distinct", "unpublished", "unrecorded", "early")
"""Counts of COMPLETENESS that do not depend on the latest time of all."""

FINDINGS = _table(
    ("offence", OFFENCES),
    ("missing", _table(*_STREAM, ("first", _LONG), ("last", _LONG), ("confirmed_at_us", _LONG))),
    ("missing_in", _table(*_STREAM, ("first", _LONG), ("last", _LONG), ("source", _TEXT))),
    ("gap", GAPS),
    ("copy", COPIES),
    ("published_in", _table(("file", _TEXT), ("other", _TEXT))),
    ("keys", _table(("bucket", _INT), ("rows", BinaryType()))),
    ("move", MOVES),
    ("run", RUNS),
    ("stream", _table(*_STREAM, *((name, _LONG) for name in STREAM_COUNTS))),
    ("tally", _table(("group", _TEXT), *((name, _LONG) for name in COUNTS))),
    ("clock", _table(("latest_us", _LONG))),
    ("broken", StructType([StructField(field.name, field.dataType) for field in BROKEN])),
)
"""Results of workers: each row has one of these. `missing` is lost or pending, which the latest time of all decides;
`missing_in`: published numbers of which some are missing, and where. `published_in`: files that have numbers in common.
`keys`: keys with their hashes, as `lbg_pipeline.verify.batch_findings.packed_keys` packs them."""


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
        columns["expected"] = pa.array(expected, mask=expected == NEVER)
    if other is not None:
        names = ("member", "incarnation", "started_at_us", "finished_at_us")
        others = rows.select(names).take(pa.array(other))
        columns |= {f"other_{name}": others[name] for name in names}
    for name in of.column_names:
        columns.setdefault(name, of[name])
    return pa.table(
        [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(count, field.type)
            for field in _VIOLATIONS
        ],
        schema=_VIOLATIONS,
    )
