"""What an epoch finds in a bucket, told and counted."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .columns import Columns
from .findings import RANGES, offences
from .intervals import Intervals, Ints
from .memory import Totals
from .streams import Streams

_COUNTED_AS = {"overlap": "overlaps", "repeated": "repeated", "misplaced": "misplaced"}
"""Others are counted by their view too."""


class Telling:
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
        table = offences(self.rows, kind, view, chosen, at_us, **told)
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
