"""Tables of a profile: work, rates, demand, keys and handoffs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from lbg_core.group import EXCLUSIVE, PARTITIONED
from lbg_pipeline.journal.cached import CachedJournals, tallied
from lbg_pipeline.schemas import DELIVERED, arrow_schema

MINUTE_US = 60_000_000
DONE = ("ack", "dead")
"""Verdicts of a delivery that the application has done its work for."""


VERDICTS = ("ack", "dead", "repeat", "released")


def done(delivered: pa.RecordBatch) -> pa.RecordBatch:
    """The deliveries that were work, with `service_us`: 0 where the application never had the message, or where its
    clock was set back meanwhile."""
    work = delivered.filter(pc.is_in(delivered["verdict"], pa.array(DONE)))
    service_us = pc.max_element_wise(pc.subtract(work["finished_at_us"], work["started_at_us"]), 0)
    return work.append_column("service_us", service_us)


def with_verdicts(delivered: pa.RecordBatch) -> pa.RecordBatch:
    """A flag column for each verdict, and `last_us`, the time of the delivery's last event."""
    last = pc.max_element_wise(*(delivered[f"{name}_at_us"] for name in ("delivered", "finished", "settled")))
    delivered = delivered.append_column("last_us", last)
    for verdict in VERDICTS:
        delivered = delivered.append_column(verdict, pc.equal(delivered["verdict"], verdict))
    return delivered


def started(time_us: pa.Array, every_us: int) -> pa.Array:
    """Start of the interval of `every_us` that each time is in, in µs since the epoch."""
    times = np.asarray(time_us.to_numpy(zero_copy_only=False), np.int64)
    return pa.array(times - times % every_us)


def start_of(time_us: str, every_us: int) -> Column:
    """The same in Spark."""
    return F.col(time_us) - F.pmod(F.col(time_us), F.lit(every_us))


def minute_of(time_us: str) -> Column:
    """The minute of the time, as a timestamp."""
    return F.timestamp_micros(start_of(time_us, MINUTE_US))


def summed(*names: str) -> list[Column]:
    return [F.sum(name).alias(name) for name in names]


PLACE = ("group", "queue", "member")
_BYTES = [
    StructField("messages", LongType()),
    StructField("bytes", LongType()),
]
_COUNTED = {
    "messages": ("at_us", "count"),
    "bytes": ("body_bytes", "sum"),
}
_SENT = StructType([StructField("group", StringType()), StructField("at_us", LongType()), *_BYTES])
_WORK = StructType(
    [
        StructField("group", StringType()),
        StructField("queue", IntegerType()),
        StructField("member", IntegerType()),
        StructField("at_us", LongType()),
        *_BYTES,
        StructField("busy_us", LongType()),
    ]
)


def work(journals: CachedJournals, every_us: int) -> DataFrame:
    """Work done in each interval of `every_us` by delivery: group, queue, member, at_us, messages, bytes, busy_us."""
    schema = arrow_schema(_WORK)

    def count(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        worked = done(rows)
        worked = worked.append_column("at_us", started(worked["delivered_at_us"], every_us))
        yield tallied(worked, (*PLACE, "at_us"), {**_COUNTED, "busy_us": ("service_us", "sum")}, schema)

    parts = journals.delivered(count, _WORK)
    return parts.groupBy(*PLACE, "at_us").agg(*summed("messages", "bytes", "busy_us"))


def rates(work_done: DataFrame) -> DataFrame:
    """Table `rates`: the counts of `work`, by the minute."""
    return work_done.groupBy(*PLACE, minute_of("at_us").alias("minute")).agg(
        *summed("messages", "bytes", "busy_us")
    )


def demand(journals: CachedJournals) -> DataFrame:
    """Table `demand`: published messages, by the minute in which they were first sent."""
    schema = arrow_schema(_SENT)

    def count(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        sent = rows.append_column("at_us", started(rows["published_at_us"], MINUTE_US))
        yield tallied(sent, ("group", "at_us"), _COUNTED, schema)

    minute = minute_of("at_us").alias("minute")
    return journals.published(count, _SENT).groupBy("group", minute).agg(*summed("messages", "bytes"))


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


def keys(journals: CachedJournals) -> DataFrame:
    """Table `keys`. The messages without a key of one hash are one row, whose key is null."""
    schema = arrow_schema(_KEYS)
    key = ("group", "key", "hash")

    def count(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        work = done(rows)
        work = work.append_column("minute", started(work["delivered_at_us"], MINUTE_US))
        yield tallied(work, (*key, "minute"), _LOADS, schema)

    by_minute = journals.delivered(count, _KEYS).groupBy(*key, "minute").agg(*summed("messages", "busy_us"))
    return by_minute.groupBy(*key).agg(
        *summed("messages", "busy_us"),
        F.max("messages").alias("peak_minute_messages"),
        F.max("busy_us").alias("peak_minute_busy_us"),
    )


def shards(journals: CachedJournals) -> DataFrame:
    """The load of each hash on each queue that it was on: group, queue, hash, messages, busy_us."""
    schema = arrow_schema(_SHARDS)
    shard = ("group", "queue", "hash")
    parts = journals.delivered(lambda rows: [tallied(done(rows), shard, _LOADS, schema)], _SHARDS)
    return parts.groupBy(*shard).agg(*summed("messages", "busy_us"))


MOVED = ("hash", "queue")
OWNED = StructType(
    [
        DELIVERED[name]
        for name in (
            *("group", "queue", "hash", "member", "member_name", "incarnation", "delivery"),
            *("published_at_us", "delivered_at_us"),
        )
    ]
)
"""Deliveries in a mode in which one member has a queue at a time."""


def handoffs(journals: CachedJournals) -> DataFrame:
    """Table `handoffs`: a row for each hash and each queue that moved, in modes where one member has it at a time.

    `pause_us` is the time between the last delivery to the one member and the first to the other; `idle_us` is that
    part of it in which nothing was there to be delivered, as the message that ended it was not published yet.
    """
    owned = journals.delivered(_owned, OWNED)
    return reduce(DataFrame.unionByName, (_moves(owned, unit) for unit in MOVED))


def _owned(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield rows.filter(pc.is_in(rows["mode"], pa.array([EXCLUSIVE, PARTITIONED]))).select(OWNED.names)


def _moves(owned: DataFrame, unit: str) -> DataFrame:
    in_turn = Window.partitionBy("group", unit).orderBy("delivered_at_us", "incarnation", "delivery")
    before = {
        f"from_{name}": F.lag(name).over(in_turn) for name in ("member", "member_name", "delivered_at_us")
    }
    pause = F.col("delivered_at_us") - F.col("from_delivered_at_us")
    idle = F.col("published_at_us") - F.col("from_delivered_at_us")
    return (
        owned.withColumns(before)
        .where(F.col("from_member") != F.col("member"))
        .select(
            "group",
            F.lit(unit).alias("unit"),
            "queue",
            (F.col("hash") if unit == "hash" else F.lit(None).cast("int")).alias("hash"),
            "from_member",
            "from_member_name",
            F.col("member").alias("to_member"),
            F.col("member_name").alias("to_member_name"),
            F.col("delivered_at_us").alias("at_us"),
            pause.alias("pause_us"),
            F.greatest(F.least(idle, pause), F.lit(0)).alias("idle_us"),
        )
    )
