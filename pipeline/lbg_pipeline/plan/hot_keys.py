"""Keys that no number of queues helps: one key is served one call at a time."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from .hashes import hashes_of

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
    known = placed.join(F.broadcast(queues), "queue")
    is_heavy = F.col("queue_busy_us") * queue_count > F.col("group_busy_us")
    shared = F.col("busy_us") / F.greatest(F.col("queue_busy_us"), F.lit(1))
    peak_load = F.col("peak_minute_busy_us") * growth / peak_span_us
    told = known.select(
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
        told.withColumn("is_too_hot", F.lit(has_order) & (F.col("peak_load") > 1))
        .withColumn("is_hot", F.lit(has_order) & (F.col("peak_load") > target))
        .withColumn(
            "is_dominant", F.col("is_heavy") & (F.col("share_of_queue") > _MOST) & F.lit(queue_count > 1)
        )
        .where(F.col("is_hot") | F.col("is_dominant"))
        .drop("is_heavy")
        .orderBy(F.desc("peak_load"), "key")
    )
