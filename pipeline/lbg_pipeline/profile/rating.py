"""How much was done, by whom and when; and how much was asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from ..keeping import Kept, tallied
from ..schemas import arrow_schema
from .columns import MINUTE_US, bytes_known, done, minute_of, started, summed

PLACE = ("group", "queue", "member")
_BYTES = [
    StructField("messages", LongType()),
    StructField("known", LongType()),
    StructField("bytes", LongType()),
]
_COUNTED = {
    "messages": ("at_us", "count"),
    "known": ("body_bytes", "count"),
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


def work(kept: Kept, every_us: int) -> DataFrame:
    """Work done in each interval of `every_us` by delivery: group, queue, member, at_us, messages, bytes, busy_us."""
    schema = arrow_schema(_WORK)

    def count(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        worked = done(rows)
        worked = worked.append_column("at_us", started(worked["delivered_at_us"], every_us))
        yield tallied(worked, (*PLACE, "at_us"), {**_COUNTED, "busy_us": ("service_us", "sum")}, schema)

    parts = kept.delivered(count, _WORK)
    return parts.groupBy(*PLACE, "at_us").agg(*summed("messages"), bytes_known(), *summed("busy_us"))


def rates(work_done: DataFrame) -> DataFrame:
    """Table `rates`: what `work` counted, by the minute."""
    return work_done.groupBy(*PLACE, minute_of("at_us").alias("minute")).agg(
        F.sum("messages").alias("messages"),
        F.when(F.count("bytes") == F.count(F.lit(1)), F.sum("bytes")).alias("bytes"),
        F.sum("busy_us").alias("busy_us"),
    )


def demand(kept: Kept) -> DataFrame:
    """Table `demand`: what was published, by the minute in which it was first sent."""
    schema = arrow_schema(_SENT)

    def count(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        sent = rows.append_column("at_us", started(rows["published_at_us"], MINUTE_US))
        yield tallied(sent, ("group", "at_us"), _COUNTED, schema)

    minute = minute_of("at_us").alias("minute")
    return kept.published(count, _SENT).groupBy("group", minute).agg(*summed("messages"), bytes_known())
