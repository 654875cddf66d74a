"""Columns that several tables have, from the rows of a journal."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

MINUTE_US = 60_000_000
DONE = ("ack", "dead")
"""Verdicts of a delivery that the application has done its work for."""


def done(delivered: DataFrame) -> DataFrame:
    """The deliveries that were work, with `service_us`: 0 where the application never had the message, or where its
    clock was set back meanwhile."""
    service = F.greatest(F.col("finished_at_us") - F.col("started_at_us"), F.lit(0))
    return delivered.where(F.col("verdict").isin(*DONE)).withColumn("service_us", service)


def start_of(time_us: str, every_us: int) -> Column:
    """When the interval of `every_us` began that the time is in, in µs since the epoch."""
    return F.col(time_us) - F.pmod(F.col(time_us), F.lit(every_us))


def minute_of(time_us: str) -> Column:
    """The minute that the time is in, as people read it."""
    return F.timestamp_micros(start_of(time_us, MINUTE_US))


def messages() -> Column:
    return F.count(F.lit(1)).alias("messages")


def busy_us() -> Column:
    return F.sum("service_us").alias("busy_us")


def bytes_known() -> Column:
    """Size of all bodies; null where that of one is not known."""
    return F.when(F.count("body_bytes") == F.count(F.lit(1)), F.sum("body_bytes")).alias("bytes")
