"""Table `latencies`: percentiles of every metric, from the whole group down to a member's minute on a queue."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .columns import minute_of
from .histograms import SIZE, percentiles

SCOPES = {
    "group": (),
    "queue": ("queue",),
    "member": ("member",),
    "minute": ("minute",),
    "all": ("queue", "member", "minute"),
}
"""What a row is about besides its group: the value of `scope`, and the columns that are set."""
_PLACES = {"queue": "int", "member": "int", "minute": "timestamp"}


def latencies(histogram: DataFrame) -> DataFrame:
    """One pass for all scopes: each row of the histogram is counted once in each."""
    scopes = F.explode(F.array(*map(_scope, SCOPES))).alias("place")
    counted = histogram.withColumn("minute", minute_of("at_us")).select("*", scopes)
    # A confirm has no member: it is not part of what members did.
    counted = counted.where((F.col("place.scope") != "member") | F.col("member").isNotNull())
    found = percentiles(
        counted.select("group", "place.*", "metric", "value", "messages", "total", "least", "greatest"),
        ("scope", "group", *_PLACES),
    )
    unit = F.when(F.col("metric") == SIZE, "bytes").otherwise("us")
    return found.withColumn("unit", unit).select(
        *("scope", "group", *_PLACES, "metric", "unit", "messages", "least", "mean"),
        *("p50", "p90", "p95", "p99", "p999", "greatest"),
    )


def _scope(scope: str) -> Column:
    places = (
        (F.col(name) if name in SCOPES[scope] else F.lit(None).cast(kind)).alias(name)
        for name, kind in _PLACES.items()
    )
    return F.struct(F.lit(scope).alias("scope"), *places)
