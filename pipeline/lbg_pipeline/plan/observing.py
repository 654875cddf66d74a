"""From records to the work of the keys of a group. Nothing is computed here: DataFrames, of what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from ..keeping import Kept, tallied
from ..schemas import arrow_schema

MINUTE_US = 60_000_000

WHOLE = 0
"""The slice that is all that was observed; 1, 2 … are its busiest minutes."""

COUNTED = StructType(
    [
        StructField("group", StringType(), nullable=False),
        StructField("key", StringType()),
        StructField("minute", LongType(), nullable=False),
        StructField("messages", LongType(), nullable=False),
        StructField("timed", LongType(), nullable=False),  # those of them whose service time is known
        StructField("busy_us", LongType(), nullable=False),  # of these
        StructField("first_us", LongType(), nullable=False),  # when they were published
        StructField("last_us", LongType(), nullable=False),
        StructField("hash", IntegerType(), nullable=False),  # that the key has got
        StructField("queue", IntegerType(), nullable=False),  # the highest of those that it was in
        StructField("mode", StringType()),  # that members told; null of what was published
    ]
)

WORK = StructType(
    [
        StructField("key", StringType()),  # null: messages without one, which go anywhere
        StructField("minute", LongType(), nullable=False),  # in which they were published, since the epoch
        StructField("messages", LongType(), nullable=False),
        StructField("busy_us", LongType(), nullable=False),  # their service times
    ]
)

KEYS = StructType(
    [
        StructField("key", StringType()),
        StructField("messages", LongType(), nullable=False),
        StructField("busy_us", LongType(), nullable=False),
        StructField("peak_minute_messages", LongType(), nullable=False),
        StructField("peak_minute_busy_us", LongType(), nullable=False),  # of the key's own busiest minute
    ]
)

SLICES = StructType(
    [
        StructField("slice", LongType(), nullable=False),
        StructField("key", StringType()),
        StructField("messages", LongType(), nullable=False),
        StructField("busy_us", LongType(), nullable=False),
    ]
)


def counted_delivered(kept: Kept, *, is_timed: bool = True) -> DataFrame:
    """COUNTED, of the deliveries that an application has worked off. What a crash made it do twice was work twice.

    A service time that the journal does not have is not known, and with `is_timed` false none is. Clocks that are set
    back make it 0, not less.
    """

    def count(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        done = rows.filter(pc.is_in(rows["verdict"], pa.array(["ack", "dead"])))
        taken = pc.subtract(done["finished_at_us"], done["started_at_us"])
        known = (
            pc.max_element_wise(taken, 0, skip_nulls=False) if is_timed else pa.nulls(len(taken), pa.int64())
        )
        yield _counted(done.append_column("service_us", known))

    return _together(kept.delivered(count, COUNTED))


def counted_published(kept: Kept) -> DataFrame:
    """COUNTED, of what was published: nothing is known of what it costs."""

    def count(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = rows.append_column("service_us", pa.nulls(rows.num_rows, pa.int64()))
        yield _counted(rows.append_column("mode", pa.nulls(rows.num_rows, pa.string())))

    return _together(kept.published(count, COUNTED))


def _counted(rows: pa.RecordBatch) -> pa.RecordBatch:
    """By the minute in which a message was published: what is demanded, also while members are too few and late."""
    minute = rows["published_at_us"].to_numpy() // MINUTE_US
    rows = rows.append_column("minute", pa.array(minute))
    rows = rows.append_column("known_us", pc.fill_null(rows["service_us"], 0))
    told = {
        "messages": ("published_at_us", "count"),
        "timed": ("service_us", "count"),
        "busy_us": ("known_us", "sum"),
        "first_us": ("published_at_us", "min"),
        "last_us": ("published_at_us", "max"),
        "hash": ("hash", "max"),
        "queue": ("queue", "max"),
    }
    return tallied(rows, ("group", "key", "minute", "mode"), told, arrow_schema(COUNTED))


def _together(parts: DataFrame) -> DataFrame:
    highest = (F.max(name).alias(name) for name in ("hash", "queue", "mode"))
    return parts.groupBy("group", "key", "minute").agg(
        *(F.sum(name).alias(name) for name in ("messages", "timed", "busy_us")),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
        *highest,
    )


def totals(counted: DataFrame) -> DataFrame:
    """For each group its messages, those without a key, those timed and their busy_us, first_us and last_us."""
    keyless = F.when(F.col("key").isNull(), F.col("messages")).otherwise(0)
    return counted.groupBy("group").agg(
        F.sum("messages").alias("messages"),
        F.sum(keyless).alias("keyless"),
        F.sum("timed").alias("timed"),
        F.sum("busy_us").alias("busy_us"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
    )


def work(counted: DataFrame, untimed_us: float) -> DataFrame:
    """WORK of COUNTED of one group: a message whose service time is not known took `untimed_us`."""
    untimed = (F.col("messages") - F.col("timed")) * F.lit(untimed_us)
    busy_us = F.col("busy_us") + F.round(untimed).cast("long")
    return counted.select("key", "minute", "messages", busy_us.alias("busy_us"))


def keys(work: DataFrame) -> DataFrame:
    """KEYS."""
    return work.groupBy("key").agg(
        F.sum("messages").alias("messages"),
        F.sum("busy_us").alias("busy_us"),
        F.max("messages").alias("peak_minute_messages"),
        F.max("busy_us").alias("peak_minute_busy_us"),
    )


def busiest_minutes(work: DataFrame, count: int) -> DataFrame:
    """minute, messages, busy_us of the group's `count` busiest minutes, the busiest first."""
    sums = work.groupBy("minute").agg(F.sum("messages").alias("messages"), F.sum("busy_us").alias("busy_us"))
    return sums.orderBy(F.desc("busy_us"), F.desc("messages"), "minute").limit(count)


def slices(keys: DataFrame, work: DataFrame, minutes: list[int]) -> DataFrame:
    """SLICES: each key over all that was observed, and in each of these minutes in which it had messages."""
    numbered = [F.when(F.col("minute") == minute, F.lit(number)) for number, minute in enumerate(minutes, 1)]
    of_minutes = (
        work.where(F.col("minute").isin(minutes)).select(
            F.coalesce(*numbered).cast("long").alias("slice"), "key", "messages", "busy_us"
        )
        if numbered
        else None
    )
    whole = keys.select(F.lit(WHOLE).cast("long").alias("slice"), "key", "messages", "busy_us")
    return reduce(DataFrame.unionByName, [one for one in (whole, of_minutes) if one is not None])


def servable(slices: DataFrame, *, whole_us: float, minute_us: float) -> DataFrame:
    """SLICES without the work that no member can do in time: a key has one call at a time. `whole_us` and `minute_us`
    are how long the slices are."""
    length_us = F.when(F.col("slice") == WHOLE, whole_us).otherwise(minute_us).cast("long")
    busy_us = F.when(F.col("key").isNull(), F.col("busy_us")).otherwise(F.least(F.col("busy_us"), length_us))
    return slices.withColumn("busy_us", busy_us)
