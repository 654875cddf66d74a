"""The tables of a stream: what it finds, and the pieces that it keeps."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lbg_pipeline.schemas import BROKEN, arrow_schema
from lbg_pipeline.validate.tables import COMPLETENESS, LOST, MOVES, OFFENCES

from . import findings
from .rows import PIECES


class Table(NamedTuple):
    arrow: Any
    table: StructType


def _table(table: StructType) -> Table:
    return Table(arrow_schema(table), table)


PIECES_TABLE: StructType = from_arrow_schema(PIECES)

FOUND = {
    "offences": _table(OFFENCES),
    "lost": _table(LOST),
    "found": _table(LOST),
    "moves": _table(MOVES),
    "completeness": _table(COMPLETENESS),
    "late": Table(findings.LATE, from_arrow_schema(findings.LATE)),
    "broken": _table(BROKEN),
}
