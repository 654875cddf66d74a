"""Sizes and latencies, counted in histograms, and the percentiles of those.

A value is kept to eight bits that count: a percentile is at most 0.4 % (1 / 256) from the exact one, and values below
256 are exact; least, greatest and mean are exact everywhere. Histograms of parts add up to that of the whole: one pass
over the deliveries serves every table and picture, and needs no memory for each group of rows, as a sketch does.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .columns import DONE, start_of

SIGNIFICANT_BITS = 8
PERMILLES = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999}
SIZE = "size"
CONFIRM, AGE, WAIT, SERVICE, SETTLE = "confirm", "age", "wait", "service", "settle"
_PLACE = ("group", "queue", "member", "at_us", "metric")


def measures(published: DataFrame, delivered: DataFrame, every_us: int) -> DataFrame:
    """A row for each thing measured: group, queue, member (null for confirms), at_us, metric, value (µs, or bytes)."""
    confirms = published.select(
        "group",
        "queue",
        F.lit(None).cast("int").alias("member"),
        start_of("published_at_us", every_us).alias("at_us"),
        F.lit(CONFIRM).alias("metric"),
        (F.col("confirmed_at_us") - F.col("published_at_us")).alias("value"),
    )
    spans = {
        AGE: F.col("delivered_at_us") - F.col("published_at_us"),
        WAIT: F.col("started_at_us") - F.col("delivered_at_us"),
        SERVICE: F.when(F.col("verdict").isin(*DONE), F.col("finished_at_us") - F.col("started_at_us")),
        SETTLE: F.col("settled_at_us") - F.col("finished_at_us"),
        SIZE: F.col("body_bytes"),
    }
    each = F.explode(
        F.array(
            *(
                F.struct(F.lit(metric).alias("metric"), value.alias("value"))
                for metric, value in spans.items()
            )
        )
    ).alias("measured")
    at = start_of("delivered_at_us", every_us).alias("at_us")
    taken = delivered.select("group", "queue", "member", at, each)
    return confirms.unionByName(
        taken.select("group", "queue", "member", "at_us", "measured.metric", "measured.value")
    ).where(F.col("value").isNotNull())


def histogram(measured: DataFrame) -> DataFrame:
    """How often each value was seen: what `measures` has, the value as it is kept, messages, total, least, greatest."""
    kept = measured.withColumn("exact", F.col("value")).withColumn("value", _kept(F.col("value")))
    return kept.groupBy(*_PLACE, "value").agg(
        F.count(F.lit(1)).alias("messages"),
        F.sum("exact").alias("total"),
        F.min("exact").alias("least"),
        F.max("exact").alias("greatest"),
    )


def _kept(value: Column) -> Column:
    """The middle of all values that begin with the same bits as `value`."""
    size = F.abs(value)
    # The half keeps the logarithm away from whole numbers, which it might miss by a rounding.
    dropped = F.greatest(F.floor(F.log2(size + 0.5)).cast("int") - (SIGNIFICANT_BITS - 1), F.lit(0))
    width = F.pow(F.lit(2.0), dropped).cast("long")
    middle = size - F.pmod(size, width) + F.floor((width - 1) / 2)
    return F.when(value < 0, -middle).otherwise(middle)


def summed(histogram: DataFrame, by: Sequence[str]) -> DataFrame:
    """The histogram of each metric for each of `by`."""
    return histogram.groupBy(*by, "metric", "value").agg(
        F.sum("messages").alias("messages"),
        F.sum("total").alias("total"),
        F.min("least").alias("least"),
        F.max("greatest").alias("greatest"),
    )


def percentiles(histogram: DataFrame, by: Sequence[str]) -> DataFrame:
    """A row for each of `by` and metric: messages, least, mean, p50, p90, p95, p99, p999, greatest.

    A percentile is the least value that at least so many in a thousand do not exceed.
    """
    every = Window.partitionBy(*by, "metric")
    upto = every.orderBy("value").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = (
        summed(histogram, by)
        .withColumn("upto", F.sum("messages").over(upto))
        .withColumn("of", F.sum("messages").over(every))
    )
    found = {
        name: F.min(F.when(F.col("upto") * 1000 >= F.col("of") * permille, F.col("value")))
        for name, permille in PERMILLES.items()
    }
    least, greatest = F.min("least"), F.max("greatest")
    return ranked.groupBy(*by, "metric").agg(
        F.sum("messages").alias("messages"),
        least.alias("least"),
        (F.sum("total") / F.sum("messages")).alias("mean"),
        *(F.least(F.greatest(value, least), greatest).alias(name) for name, value in found.items()),
        greatest.alias("greatest"),
    )
