"""Findings of an epoch, as tables and counts."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lbg_pipeline.columns import Intervals, Ints
from lbg_pipeline.schemas import BROKEN, arrow_schema
from lbg_pipeline.verify.stream_columns import DELIVERED, Columns
from lbg_pipeline.verify.stream_state import Streams, Totals
from lbg_pipeline.verify.tables import COMPLETENESS, COPIES, GAPS, KINDS, LOST, MOVES, OFFENCES, violations

LATE = pa.schema([*list(DELIVERED)[:-2], ("views", pa.string())])


class Table(NamedTuple):
    arrow: Any
    spark: StructType


def _table(table: StructType) -> Table:
    return Table(arrow_schema(table), table)


FINDING_TABLES = {
    "offences": _table(OFFENCES),
    "lost": _table(LOST),
    "found": _table(LOST),
    "gaps": _table(GAPS),
    "copies": _table(COPIES),
    "moves": _table(MOVES),
    "completeness": _table(COMPLETENESS),
    "late": Table(LATE, from_arrow_schema(LATE)),
    "broken": _table(BROKEN),
}

_COUNTED_AS = {kind: name for name, (kind, view) in KINDS.items() if view is None}
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

    def offences(self, kind: str, view: str | None, chosen: Ints, at_us: Ints, **details: Any) -> None:
        if len(chosen):
            self.offences_of(self.rows.table, kind, view, chosen, at_us, **details)

    def offences_of(
        self, rows: Any, kind: str, view: str | None, chosen: Ints, at_us: Ints, **details: Any
    ) -> None:
        table = violations(rows, kind, view, chosen, at_us, **details)
        self.tables.append(("offences", table))
        name = _COUNTED_AS.get(kind) or f"{kind}_{view}"
        uncertain = table["uncertain"].to_numpy()
        self.totals.add_rows(name, table["group"], ~uncertain)
        self.totals.add_rows("uncertain", table["group"], uncertain)

    def ranges(self, name: str, places: Intervals) -> None:
        stream, first, last = self.streams.line.ranges(places)
        table = self.streams.table.take(pa.array(stream))
        for column, numbers in (("first", first), ("last", last), ("count", last - first + 1)):
            table = table.append_column(column, pa.array(numbers))
        table = table.cast(FINDING_TABLES[name].arrow)
        for row in table.select(["group", "count"]).to_pylist():
            self.totals.add(row["group"], name, row["count"])
        self.tables.append((name, table))
