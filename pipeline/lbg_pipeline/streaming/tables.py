"""The tables of a stream: what it finds, and the pieces that it keeps."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lbg_pipeline.schemas import BROKEN, arrow_schema

from . import findings
from .rows import PIECES


class Table(NamedTuple):
    arrow: Any
    table: StructType


def _table(schema: Any) -> Table:
    return Table(schema, from_arrow_schema(schema))


PIECES_TABLE: StructType = from_arrow_schema(PIECES)

FOUND = {
    "offences": _table(findings.OFFENCES),
    "lost": _table(findings.RANGES),
    "found": _table(findings.RANGES),
    "moves": _table(findings.MOVES),
    "completeness": _table(findings.COMPLETENESS),
    "late": _table(findings.LATE),
    "broken": _table(arrow_schema(BROKEN)),
}
