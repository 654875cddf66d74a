"""Tables of a verification. Times and pauses are in microseconds."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from lbg_pipeline.schemas import BROKEN, arrow_schema
from lbg_pipeline.verify import stream_findings
from lbg_pipeline.verify.stream_columns import PIECES

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
"""What workers say: each row has one of these. `missing` is lost or pending, which the latest time of all decides."""


class Table(NamedTuple):
    arrow: Any
    table: StructType


def _stream_table(table: StructType) -> Table:
    return Table(arrow_schema(table), table)


PIECES_TABLE: StructType = from_arrow_schema(PIECES)

FOUND = {
    "offences": _stream_table(OFFENCES),
    "lost": _stream_table(LOST),
    "found": _stream_table(LOST),
    "moves": _stream_table(MOVES),
    "completeness": _stream_table(COMPLETENESS),
    "late": Table(stream_findings.LATE, from_arrow_schema(stream_findings.LATE)),
    "broken": _stream_table(BROKEN),
}
