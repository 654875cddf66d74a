"""What a picture shows of a table: its first rows, its greatest parts, its course over time."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

PAUSE_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def first(table: DataFrame, limit: int, *order: Column | str) -> DataFrame:
    """The first `limit` rows of each group in this order."""
    place = F.row_number().over(Window.partitionBy("group").orderBy(*order))
    return table.withColumn("place", place).where(F.col("place") <= limit).drop("place")


def over_time(work: DataFrame, unit: str, limit: int) -> DataFrame:
    """Work in each interval by the `limit` members, or queues, that did most: group, unit, at_us, messages, busy_us."""
    totals = work.groupBy("group", unit).agg(F.sum("messages").alias("total"))
    most = first(totals, limit, F.desc("total"), unit).select("group", unit)
    return (
        work.join(F.broadcast(most), ["group", unit])
        .groupBy("group", unit, "at_us")
        .agg(F.sum("messages").alias("messages"), F.sum("busy_us").alias("busy_us"))
    )


def made_of(loads: DataFrame, whole: str, part: str, limit: int) -> DataFrame:
    """The hottest queues with their hottest hash, or hashes with their hottest key.

    Columns: group, `whole`, messages, busy_us, parts, hottest (the part's name), hottest_messages.
    """
    wholes = loads.groupBy("group", whole).agg(
        F.sum("messages").alias("messages"),
        F.sum("busy_us").alias("busy_us"),
        F.count(F.lit(1)).alias("parts"),
        F.min_by(F.col(part).cast("string"), F.struct(-F.col("messages"), F.col(part))).alias("hottest"),
        F.max("messages").alias("hottest_messages"),
    )
    return first(wholes, limit, F.desc("messages"), whole)


def pauses(handoffs: DataFrame) -> DataFrame:
    """Exact percentiles of the pauses, and of what they are without their idle part, by group and unit that moved."""
    waited = handoffs.withColumn("waited_us", F.col("pause_us") - F.col("idle_us"))
    return waited.groupBy("group", "unit").agg(
        F.count(F.lit(1)).alias("count"),
        *(
            F.expr(f"percentile_disc({at}) within group (order by {name}_us)").alias(f"{name}_{label}")
            for name in ("pause", "waited")
            for label, at in PAUSE_PERCENTILES.items()
        ),
        F.max("pause_us").alias("pause_greatest"),
        F.max("waited_us").alias("waited_greatest"),
    )
