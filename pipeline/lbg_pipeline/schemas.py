"""Schemas of the tables that are read. Times are microseconds since the epoch, sizes are bytes (docs/journal.md)."""

from __future__ import annotations

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

_TEXT, _LONG, _INT, _FLAG = StringType(), LongType(), IntegerType(), BooleanType()


def _table(*fields: StructField) -> StructType:
    return StructType(list(fields))


_MESSAGE = (
    StructField("group", _TEXT, nullable=False),
    StructField("publisher", _TEXT, nullable=False),
    StructField("key", _TEXT),
    StructField("hash", _INT, nullable=False),
    StructField("queue", _INT, nullable=False),
    StructField("seq", _LONG, nullable=False),
    StructField("body_bytes", _LONG, nullable=False),
    StructField("published_at_us", _LONG, nullable=False),
)

PUBLISHED = _table(
    *_MESSAGE,
    StructField("confirmed_at_us", _LONG, nullable=False),
    StructField("resends", _INT, nullable=False),
)
"""A row for each message that the broker has confirmed."""

DELIVERED = _table(
    *_MESSAGE,
    StructField("member", _INT, nullable=False),
    StructField("member_name", _TEXT, nullable=False),
    StructField("incarnation", _TEXT, nullable=False),
    StructField("delivery", _LONG, nullable=False),
    StructField("redelivered", _FLAG, nullable=False),
    StructField("delivered_at_us", _LONG, nullable=False),
    StructField("started_at_us", _LONG),
    StructField("finished_at_us", _LONG),
    StructField("settled_at_us", _LONG),
    StructField("attempts", _INT, nullable=False),
    StructField("verdict", _TEXT, nullable=False),
    StructField("session", _TEXT),
    StructField("sequence", _LONG),
    StructField("mode", _TEXT, nullable=False),
)
"""A row for each delivery that a member was done with."""

BROKEN = _table(
    StructField("file", _TEXT, nullable=False),
    StructField("line", _LONG),
    StructField("text", _TEXT, nullable=False),
    StructField("reason", _TEXT, nullable=False),
)
"""A row for each line that is no record: its file, its number there from 1 (null in the middle of a file that Spark
splits), its text, and the error of `lbg_core.group.decode`. A file in UTF-16 has one row."""

_ARROW: dict[DataType, pa.DataType] = {
    _TEXT: pa.string(),
    _LONG: pa.int64(),
    _INT: pa.int32(),
    _FLAG: pa.bool_(),
    BinaryType(): pa.binary(),
}


def arrow_schema(table: StructType) -> pa.Schema:
    """The same table as workers exchange it with Spark."""
    return pa.schema([pa.field(field.name, _arrow_type(field.dataType), field.nullable) for field in table])


def _arrow_type(kind: DataType) -> pa.DataType:
    return pa.struct(list(arrow_schema(kind))) if isinstance(kind, StructType) else _ARROW[kind]
