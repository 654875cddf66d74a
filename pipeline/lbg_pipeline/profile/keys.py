"""The load of each key, with its busiest minute."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from .columns import busy_us, done, messages, minute_of


def keys(delivered: DataFrame) -> DataFrame:
    """Table `keys`. The messages without a key of one hash are one row, whose key is null."""
    minute = minute_of("delivered_at_us").alias("minute")
    by_minute = done(delivered).groupBy("group", "key", "hash", minute).agg(messages(), busy_us())
    return by_minute.groupBy("group", "key", "hash").agg(
        F.sum("messages").alias("messages"),
        F.sum("busy_us").alias("busy_us"),
        F.max("messages").alias("peak_minute_messages"),
        F.max("busy_us").alias("peak_minute_busy_us"),
    )


def shards(delivered: DataFrame) -> DataFrame:
    """The load of each hash on each queue that it was on: group, queue, hash, messages, busy_us."""
    return done(delivered).groupBy("group", "queue", "hash").agg(messages(), busy_us())
