"""Utilisation of each run of a member."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from lbg_pipeline.columns import IntArray, ints_of
from lbg_pipeline.journal.cached import CachedJournals, tallied
from lbg_pipeline.profile.tables import VERDICTS, done, summed, with_verdicts
from lbg_pipeline.schemas import arrow_schema

RUN = ("group", "member", "member_name", "incarnation")
_RUN = [
    StructField("group", StringType()),
    StructField("member", IntegerType()),
    StructField("member_name", StringType()),
    StructField("incarnation", StringType()),
]
_COUNTS = ("deliveries", *VERDICTS, "redelivered", "busy_us")
_WORKED = StructType(
    [
        *_RUN,
        StructField("queue", IntegerType()),
        *(StructField(name, LongType()) for name in (*_COUNTS, "first_us", "last_us")),
    ]
)
_SPANS = StructType([*_RUN, StructField("from_us", LongType()), StructField("until_us", LongType())])


def utilisation(journals: CachedJournals) -> DataFrame:
    """Table `utilisation`: a row for each incarnation of a member.

    It was present from its first delivery to its last event in the journal. `utilisation` is
    busy time over presence, the mean number of messages that its application had at once: over 1 where lanes worked
    side by side. `occupied_us` is the time in which it had at least one, so never more than presence.
    """
    presence = F.col("last_us") - F.col("first_us")
    runs = (
        journals.delivered(_worked, _WORKED)
        .groupBy(*RUN)
        .agg(
            F.min("first_us").alias("first_us"),
            F.max("last_us").alias("last_us"),
            *summed(*_COUNTS),
            F.countDistinct("queue").alias("queues"),
        )
    )
    return (
        runs.join(_occupied(journals.delivered(_spans, _SPANS)), list(RUN), "left")
        .withColumn("presence_us", presence)
        .fillna(0, ["occupied_us"])
        .withColumn("utilisation", F.when(presence > 0, F.col("busy_us") / presence))
        .withColumn("occupied_share", F.when(presence > 0, F.col("occupied_us") / presence))
        .select(
            *(*RUN, "first_us", "last_us", "presence_us", "deliveries", *VERDICTS),
            *("redelivered", "queues", "busy_us", "occupied_us", "utilisation", "occupied_share"),
        )
    )


def _occupied(spans: DataFrame) -> DataFrame:
    """`occupied_us`: the length of the union of all spans of a run."""
    earlier = Window.partitionBy(*RUN).orderBy("from_us").rowsBetween(Window.unboundedPreceding, -1)
    covered_from = F.greatest("from_us", F.max("until_us").over(earlier))
    added = F.greatest(F.col("until_us") - covered_from, F.lit(0)).alias("occupied_us")
    return spans.select(*RUN, added).groupBy(*RUN).agg(*summed("occupied_us"))


def _worked(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    service_us = pc.max_element_wise(pc.subtract(rows["finished_at_us"], rows["started_at_us"]), 0)
    rows = with_verdicts(rows)
    busy = pc.multiply(service_us, pc.add(rows["ack"].cast(pa.int64()), rows["dead"].cast(pa.int64())))
    counts = {name: (name, "sum") for name in (*VERDICTS, "redelivered", "busy_us")}
    aggregates = {
        "deliveries": ("delivered_at_us", "count"),
        **counts,
        "first_us": ("delivered_at_us", "min"),
        "last_us": ("last_us", "max"),
    }
    yield tallied(rows.append_column("busy_us", busy), (*RUN, "queue"), aggregates, arrow_schema(_WORKED))


def _spans(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Service times of a block; those that overlap are one."""
    work = done(rows)
    work = work.filter(pc.greater(work["service_us"], 0))
    run = np.zeros(work.num_rows, np.int64)
    for name in RUN:
        column = work[name].dictionary_encode()
        run = run * max(len(column.dictionary), 1) + column.indices.to_numpy()
    start, end = (ints_of(work[name]) for name in ("started_at_us", "finished_at_us"))
    for one in np.unique(run):
        mine = np.flatnonzero(run == one)
        starts, ends = merged(start[mine], end[mine])
        named = {name: pa.repeat(work[name][int(mine[0])], len(starts)) for name in RUN}
        yield pa.RecordBatch.from_pydict(
            {**named, "from_us": starts, "until_us": ends}, schema=arrow_schema(_SPANS)
        )


def merged(start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """The fewest spans that cover the same time, in order."""
    order = np.argsort(start)
    start, reached = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.append(True, start[1:] > reached[:-1]))
    return start[first], reached[np.append(first[1:], len(start)) - 1]
