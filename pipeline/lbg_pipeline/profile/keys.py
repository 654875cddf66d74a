"""The load of each key, with its busiest minute."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from ..keeping import Kept, tallied
from ..schemas import arrow_schema
from .columns import MINUTE_US, done, started, summed

_LOADS = {"messages": ("delivered_at_us", "count"), "busy_us": ("service_us", "sum")}
_LOAD = [StructField("messages", LongType()), StructField("busy_us", LongType())]
_KEYS = StructType(
    [
        StructField("group", StringType()),
        StructField("key", StringType()),
        StructField("hash", IntegerType()),
        StructField("minute", LongType()),
        *_LOAD,
    ]
)
_SHARDS = StructType(
    [
        StructField("group", StringType()),
        StructField("queue", IntegerType()),
        StructField("hash", IntegerType()),
        *_LOAD,
    ]
)


def keys(kept: Kept) -> DataFrame:
    """Table `keys`. The messages without a key of one hash are one row, whose key is null."""
    schema = arrow_schema(_KEYS)
    key = ("group", "key", "hash")

    def count(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        work = done(rows)
        work = work.append_column("minute", started(work["delivered_at_us"], MINUTE_US))
        yield tallied(work, (*key, "minute"), _LOADS, schema)

    by_minute = kept.delivered(count, _KEYS).groupBy(*key, "minute").agg(*summed("messages", "busy_us"))
    return by_minute.groupBy(*key).agg(
        *summed("messages", "busy_us"),
        F.max("messages").alias("peak_minute_messages"),
        F.max("busy_us").alias("peak_minute_busy_us"),
    )


def shards(kept: Kept) -> DataFrame:
    """The load of each hash on each queue that it was on: group, queue, hash, messages, busy_us."""
    schema = arrow_schema(_SHARDS)
    shard = ("group", "queue", "hash")
    parts = kept.delivered(lambda rows: [tallied(done(rows), shard, _LOADS, schema)], _SHARDS)
    return parts.groupBy(*shard).agg(*summed("messages", "busy_us"))
