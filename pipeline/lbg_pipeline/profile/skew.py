"""Skew of load over keys, hashes, queues and members.

The Gini coefficient is 0 where all bear the same and nears 1 where one bears everything. Only those that bore something
are counted: a journal has no hash without messages.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

UNITS = ("key", "hash", "queue", "member")
MESSAGES, BUSY = "messages", "busy_us"
STEPS = 100
"""Points along each side of a Lorenz curve, at most."""

_EACH = ("group", "unit", "bearing")


def loads(keys: DataFrame, shards: DataFrame, work: DataFrame) -> DataFrame:
    """Load of each key, hash, queue and member: group, unit, name, messages, busy_us."""
    sources = {"key": keys.where(F.col("key").isNotNull()), "hash": shards, "queue": shards, "member": work}
    each = (
        source.groupBy("group", F.lit(unit).alias("unit"), F.col(unit).cast("string").alias("name")).agg(
            F.sum("messages").alias("messages"), F.sum("busy_us").alias("busy_us")
        )
        for unit, source in sources.items()
    )
    return reduce(DataFrame.unionByName, each)


def skew(loads: DataFrame) -> DataFrame:
    """Table `skew`: for each group and unit how many there are, which is hottest, and the Gini coefficients.

    `hottest` has the most messages, `busiest` the most service time; of equal ones, the first by name.
    """
    compared = (
        _ranked(loads)
        .groupBy(*_EACH)
        .agg(
            F.sum("equals").cast("long").alias("count"),
            F.sum(F.col("borne") * F.col("equals")).cast("long").alias("total"),
            F.max_by("name", "borne").alias("hottest"),
            F.max("borne").alias("greatest"),
            _gini().alias("gini"),
        )
    )
    share = F.when(F.col("total") > 0, F.col("greatest") / F.col("total")).otherwise(0.0)
    return compared.groupBy("group", "unit").agg(
        _of(MESSAGES, F.col("count")).alias("count"),
        _of(MESSAGES, F.col("total")).alias("messages"),
        _of(BUSY, F.col("total")).alias("busy_us"),
        _of(MESSAGES, F.col("hottest")).alias("hottest"),
        _of(MESSAGES, share).alias("hottest_share"),
        _of(BUSY, F.col("hottest")).alias("busiest"),
        _of(BUSY, share).alias("busiest_share"),
        _of(MESSAGES, F.col("gini")).alias("gini_messages"),
        _of(BUSY, F.col("gini")).alias("gini_busy"),
    )


def lorenz(loads: DataFrame) -> DataFrame:
    """Points of the Lorenz curves, at most 2 * STEPS of each: group, unit, bearing, share_of_count, share_of_load.

    A point says what the least loaded of them bear together. Between two of them a straight line is a step off at most.
    """
    every = Window.partitionBy(*_EACH)
    so_far = every.orderBy("borne").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    borne = F.col("borne") * F.col("equals")
    points = _ranked(loads).select(
        *_EACH,
        (F.col("upto") / F.sum("equals").over(every)).alias("share_of_count"),
        (F.sum(borne).over(so_far) / F.greatest(F.sum(borne).over(every), F.lit(1.0))).alias("share_of_load"),
    )
    shares = ("share_of_count", "share_of_load")
    steps = (F.floor(F.col(share) * STEPS).alias(f"step_of_{share}") for share in shares)
    last = (F.max(share).alias(share) for share in shares)
    return points.groupBy(*_EACH, *steps).agg(*last).select(*_EACH, *shares)


def _ranked(loads: DataFrame) -> DataFrame:
    """A row for each different load: the number of those that bear it (`equals`), the first of them by name, and the
    number that bear it or less (`upto`)."""
    so_far = (
        Window.partitionBy(*_EACH).orderBy("borne").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    both = (
        F.struct(F.lit(each).alias("bearing"), F.col(each).cast("double").alias("borne"))
        for each in (MESSAGES, BUSY)
    )
    by_bearing = F.explode(F.array(*both)).alias("load")
    alike = (
        loads.select("group", "unit", "name", by_bearing)
        .groupBy("group", "unit", "load.bearing", "load.borne")
        .agg(F.count(F.lit(1)).cast("double").alias("equals"), F.min("name").alias("name"))
    )
    return alike.withColumn("upto", F.sum("equals").over(so_far))


def _gini() -> Column:
    # Equal ones have consecutive ranks, so their sum needs no row for each.
    ranks = F.col("equals") * (F.col("upto") - (F.col("equals") - 1) / 2)
    count, total = F.sum("equals"), F.sum(F.col("borne") * F.col("equals"))
    coefficient = 2 * F.sum(F.col("borne") * ranks) / (count * total) - (count + 1) / count
    return F.when(total > 0, F.greatest(coefficient, F.lit(0.0))).otherwise(0.0)


def _of(bearing: str, value: Column) -> Column:
    return F.max(F.when(F.col("bearing") == bearing, value))
