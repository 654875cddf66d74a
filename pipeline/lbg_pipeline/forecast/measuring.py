"""What one member can do, from what members have done: `concurrency` calls at once, each `service_us` long."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

MINUTE_US = 60_000_000
DONE = ("ack", "dead")


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one group. `concurrency` is the most that any member had at once over a minute, at least 1: what members that
    were never busy could do beyond that is not known."""

    service_us: float
    concurrency: int
    messages: int

    def capacity(self, *, utilisation: float, concurrency: int | None) -> float:
        """Messages a second that keep a member busy for `utilisation` of its time. `concurrency`, if given, is what
        is set and counts instead of what was seen."""
        return (concurrency or self.concurrency) * 1e6 / max(self.service_us, 1.0) * utilisation


def measured_of_delivered(delivered: DataFrame) -> DataFrame:
    """For each group `messages`, `service_us` (the mean), `concurrency`. Of a call that goes on beyond its minute
    only what is inside counts for concurrency, so that one call at a time is never taken for more."""
    minute_us = F.col("started_at_us") - F.pmod("started_at_us", F.lit(MINUTE_US))
    inside_us = F.least("finished_at_us", minute_us + MINUTE_US) - F.col("started_at_us")
    minutes = (
        delivered.where(F.col("verdict").isin(*DONE) & (F.col("finished_at_us") > F.col("started_at_us")))
        .groupBy("group", "member", "incarnation", minute_us.alias("minute_us"))
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum(F.col("finished_at_us") - F.col("started_at_us")).alias("busy_us"),
            F.sum(inside_us).alias("inside_us"),
        )
    )
    return minutes.groupBy("group").agg(
        F.sum("messages").alias("messages"),
        (F.sum("busy_us") / F.sum("messages")).alias("service_us"),
        F.greatest(F.lit(1), F.ceil(F.max("inside_us") / MINUTE_US)).cast("int").alias("concurrency"),
    )


def measured_of_rates(rates: DataFrame) -> DataFrame:
    """The same of `rates` as `lbg pipeline profile` keeps it. It has the work of a minute's deliveries, whenever that
    was done, so concurrency is not in it: 1 is what is safe to say."""
    return (
        rates.groupBy("group")
        .agg(F.sum("messages").alias("messages"), F.sum("busy_us").alias("busy_us"))
        .where(F.col("busy_us") > 0)
        .select(
            "group",
            "messages",
            (F.col("busy_us") / F.col("messages")).alias("service_us"),
            F.lit(1).alias("concurrency"),
        )
    )
