"""From when to when the journal tells, and in what intervals the pictures show it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from ..keeping import Kept, tallied
from ..schemas import arrow_schema
from .columns import MINUTE_US, VERDICTS, summed, with_verdicts

PICTURED = 120
"""Intervals on the axis of time of a picture, at most: as many as can be told apart on a page."""

_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_DAY_US = 86_400_000_000


def _counts(*names: str) -> list[StructField]:
    return [StructField(name, LongType()) for name in names]


_PUBLISHED = StructType(
    [
        StructField("group", StringType()),
        StructField("publisher", StringType()),
        *_counts("messages", "bytes", "resends", "first_us", "last_us"),
    ]
)
_DELIVERED = StructType(
    [
        StructField("group", StringType()),
        StructField("mode", StringType()),
        *_counts("deliveries", *VERDICTS, "redelivered", "early", "first_us", "last_us"),
    ]
)


def totals_published(kept: Kept) -> DataFrame:
    """Of each group: messages, bytes, publishers, resends, first_us and last_us."""
    schema = arrow_schema(_PUBLISHED)
    told = {
        "messages": ("published_at_us", "count"),
        "bytes": ("body_bytes", "sum"),
        "resends": ("resends", "sum"),
        "first_us": ("published_at_us", "min"),
        "last_us": ("confirmed_at_us", "max"),
    }
    parts = kept.published(lambda rows: [tallied(rows, ("group", "publisher"), told, schema)], _PUBLISHED)
    return parts.groupBy("group").agg(
        *summed("messages", "bytes"),
        F.countDistinct("publisher").alias("publishers"),
        *summed("resends"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
    )


def totals_delivered(kept: Kept) -> DataFrame:
    """Of each group: deliveries, those of each verdict, redelivered, early (before they were published), mode, span."""
    schema = arrow_schema(_DELIVERED)
    counts = {name: (name, "sum") for name in (*VERDICTS, "redelivered", "early")}
    told = {
        "deliveries": ("delivered_at_us", "count"),
        **counts,
        "first_us": ("delivered_at_us", "min"),
        "last_us": ("last_us", "max"),
    }

    def count(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        early = pc.less(rows["delivered_at_us"], rows["published_at_us"])
        rows = with_verdicts(rows).append_column("early", early)
        yield tallied(rows, ("group", "mode"), told, schema)

    return (
        kept.delivered(count, _DELIVERED)
        .groupBy("group")
        .agg(
            *summed("deliveries", *counts),
            F.max("mode").alias("mode"),
            F.min("first_us").alias("first_us"),
            F.max("last_us").alias("last_us"),
        )
    )


def interval_us(first_us: int, last_us: int) -> int:
    """The shortest interval that people count in, of which at most PICTURED cover the span."""
    least_us = (last_us - first_us) / (PICTURED - 1)
    for seconds in _SECONDS:
        if seconds * 1_000_000 >= least_us:
            return seconds * 1_000_000
    return -(-int(least_us) // _DAY_US) * _DAY_US


def grain_us(pictured_us: int) -> int:
    """What both the pictures and the tables, which are by the minute, can be added up from."""
    return min(pictured_us, MINUTE_US)
