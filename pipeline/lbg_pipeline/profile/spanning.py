"""From when to when the journal tells, and in what intervals the pictures show it."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from .columns import MINUTE_US

PICTURED = 120
"""Intervals on the axis of time of a picture, at most: as many as can be told apart on a page."""

_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_DAY_US = 86_400_000_000


def totals_published(published: DataFrame) -> DataFrame:
    """Of each group: messages, bytes, publishers, resends, first_us and last_us."""
    return published.groupBy("group").agg(
        F.count(F.lit(1)).alias("messages"),
        F.sum("body_bytes").alias("bytes"),
        F.countDistinct("publisher").alias("publishers"),
        F.sum("resends").alias("resends"),
        F.min("published_at_us").alias("first_us"),
        F.max("confirmed_at_us").alias("last_us"),
    )


def totals_delivered(delivered: DataFrame) -> DataFrame:
    """Of each group: deliveries, those of each verdict, redelivered, early (before they were published), mode, span."""
    verdicts = (
        F.count_if(F.col("verdict") == verdict).alias(verdict)
        for verdict in ("ack", "dead", "repeat", "released")
    )
    return delivered.groupBy("group").agg(
        F.count(F.lit(1)).alias("deliveries"),
        *verdicts,
        F.count_if("redelivered").alias("redelivered"),
        F.count_if(F.col("delivered_at_us") < F.col("published_at_us")).alias("early"),
        F.max("mode").alias("mode"),
        F.min("delivered_at_us").alias("first_us"),
        F.max(F.greatest("delivered_at_us", "finished_at_us", "settled_at_us")).alias("last_us"),
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
