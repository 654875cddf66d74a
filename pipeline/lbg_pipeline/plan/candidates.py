"""Candidates as a table and as JSON, and keys that no number of queues helps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from lbg_pipeline.plan.load import hashes_of
from lbg_pipeline.plan.simulate import Candidate

_INT, _NUMBER, _FLAG = IntegerType(), DoubleType(), BooleanType()
_LOADS = ArrayType(DoubleType(), containsNull=False)

CANDIDATES = StructType(
    [
        StructField("hash_count", _INT, nullable=False),
        StructField("queue_count", _INT, nullable=False),
        StructField("members", _INT, nullable=False),
        StructField("is_recommended", _FLAG, nullable=False),
        StructField("is_existing", _FLAG, nullable=False),
        StructField("meets", _FLAG, nullable=False),  # at most as busy as the target
        StructField("max_queue_load_mean", _NUMBER, nullable=False),  # loads: calls at once
        StructField("max_queue_load_peak", _NUMBER, nullable=False),
        StructField("max_member_load_mean", _NUMBER, nullable=False),
        StructField("max_member_load_peak", _NUMBER, nullable=False),
        StructField("max_queue_messages_peak", _NUMBER, nullable=False),  # messages a second
        StructField("max_member_messages_peak", _NUMBER, nullable=False),
        StructField("utilisation_mean", _NUMBER, nullable=False),  # of the busiest, 1 is all that it can
        StructField("utilisation_peak", _NUMBER, nullable=False),
        StructField("utilisation_away", _NUMBER),  # at the peak, the worst member away; null for one member
        StructField(
            "delay_peak_us", LongType()
        ),  # slowest message in a hundred; null where the backlog grows
        StructField("spread", _NUMBER, nullable=False),  # busiest member's mean load, divided by that of all
        StructField("moved_by_join", _INT, nullable=False),  # queues, when the last of the members joins
        StructField("moved_by_leave", _INT, nullable=False),  # queues, when the worst one to lose leaves
        StructField("queue_loads_mean", _LOADS, nullable=False),
        StructField("queue_loads_peak", _LOADS, nullable=False),
        StructField("member_loads_mean", _LOADS, nullable=False),
        StructField("member_loads_peak", _LOADS, nullable=False),
    ]
)


def candidates_table(
    spark: SparkSession,
    candidates: Sequence[Candidate],
    *,
    recommended: Candidate,
    existing: Candidate | None,
) -> DataFrame:
    """CANDIDATES."""
    rows = [
        {
            **summary(one),
            "is_recommended": one == recommended,
            "is_existing": one == existing,
            "queue_loads_mean": list(one.queue_calls_mean),
            "queue_loads_peak": list(one.queue_calls_peak),
            "member_loads_mean": list(one.member_calls_mean),
            "member_loads_peak": list(one.member_calls_peak),
        }
        for one in candidates
    ]
    return spark.createDataFrame(
        [tuple(row[name] for name in CANDIDATES.names) for row in rows], schema=CANDIDATES
    ).coalesce(1)


def summary(one: Candidate) -> dict[str, Any]:
    """Values by the names of the columns, without those of single queues and members."""
    return {
        "hash_count": one.hash_count,
        "queue_count": one.queue_count,
        "members": one.members,
        "meets": one.meets,
        "max_queue_load_mean": max(one.queue_calls_mean),
        "max_queue_load_peak": max(one.queue_calls_peak),
        "max_member_load_mean": max(one.member_calls_mean),
        "max_member_load_peak": max(one.member_calls_peak),
        "max_queue_messages_peak": one.queue_messages_peak,
        "max_member_messages_peak": one.member_messages_peak,
        "utilisation_mean": one.utilisation_mean,
        "utilisation_peak": one.utilisation_peak,
        "utilisation_away": one.away_utilisation,
        "delay_peak_us": one.delay_peak_us,
        "spread": one.spread,
        "moved_by_join": one.moved.join,
        "moved_by_leave": one.moved.leave_max,
    }


HOT_KEYS = StructType(
    [
        StructField("key", StringType(), nullable=False),
        StructField("hash", IntegerType()),  # by the recommended hash count
        StructField("queue", IntegerType()),  # of as many as are recommended
        StructField("messages", LongType(), nullable=False),
        StructField(
            "mean_load", DoubleType(), nullable=False
        ),  # busy seconds a second; 1 is all that a key can have
        StructField("peak_load", DoubleType(), nullable=False),  # the same in the key's busiest minute
        StructField("share_of_group", DoubleType(), nullable=False),  # of the work, 0 to 1
        StructField("share_of_queue", DoubleType(), nullable=False),
        StructField(
            "is_too_hot", BooleanType(), nullable=False
        ),  # comes in faster than one call at a time goes
        StructField("is_hot", BooleanType(), nullable=False),  # busier in its busiest minute than the target
        StructField(
            "is_dominant", BooleanType(), nullable=False
        ),  # most of a queue that has more than its share
    ]
)

_MOST = 0.5
"""Of its queue's work: more than all its other keys together."""


def hot_keys(
    keys: DataFrame,
    *,
    hash_count: int,
    queue_count: int,
    function: str,
    span_us: int,
    peak_span_us: int,
    growth: float,
    target: float,
    has_order: bool = True,
) -> DataFrame:
    """HOT_KEYS of KEYS, the busiest first. Without order (mode Sessions) a key is as fast as all members together."""
    hashed = keys.where(F.col("key").isNotNull()).withColumn(
        "hash", hashes_of(F.col("key"), [hash_count], function)[0]
    )
    everything = Window.partitionBy(F.lit(0))
    placed = hashed.withColumn("queue", F.col("hash") % F.lit(queue_count))
    queues = placed.groupBy("queue").agg(F.sum("busy_us").alias("queue_busy_us"))
    queues = queues.withColumn("group_busy_us", F.sum("queue_busy_us").over(everything))
    loaded = placed.join(F.broadcast(queues), "queue")
    is_heavy = F.col("queue_busy_us") * queue_count > F.col("group_busy_us")
    shared = F.col("busy_us") / F.greatest(F.col("queue_busy_us"), F.lit(1))
    peak_load = F.col("peak_minute_busy_us") * growth / peak_span_us
    loads = loaded.select(
        "key",
        "hash",
        F.col("queue").cast("int").alias("queue"),
        "messages",
        (F.col("busy_us") * growth / span_us).alias("mean_load"),
        F.greatest(peak_load, F.col("busy_us") * growth / span_us).alias("peak_load"),
        (F.col("busy_us") / F.greatest(F.col("group_busy_us"), F.lit(1))).alias("share_of_group"),
        shared.alias("share_of_queue"),
        is_heavy.alias("is_heavy"),
    )
    return (
        loads.withColumn("is_too_hot", F.lit(has_order) & (F.col("peak_load") > 1))
        .withColumn("is_hot", F.lit(has_order) & (F.col("peak_load") > target))
        .withColumn(
            "is_dominant", F.col("is_heavy") & (F.col("share_of_queue") > _MOST) & F.lit(queue_count > 1)
        )
        .where(F.col("is_hot") | F.col("is_dominant"))
        .drop("is_heavy")
        .orderBy(F.desc("peak_load"), "key")
    )
