"""What each run of a member did with its time."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from .columns import busy_us, done

RUN = ("group", "member", "member_name", "incarnation")


def utilisation(delivered: DataFrame) -> DataFrame:
    """Table `utilisation`: a row for each incarnation of a member.

    It was present from its first delivery to the last thing that it did: what a journal shows of it. `utilisation` is
    busy time over presence, the mean number of messages that its application had at once: over 1 where lanes worked
    side by side. `occupied_us` is the time in which it had at least one, so never more than presence.
    """
    last = F.max(F.greatest("delivered_at_us", "finished_at_us", "settled_at_us"))
    presence = F.col("last_us") - F.col("first_us")
    runs = delivered.groupBy(*RUN).agg(
        F.min("delivered_at_us").alias("first_us"),
        last.alias("last_us"),
        F.count(F.lit(1)).alias("deliveries"),
        *(
            F.count_if(F.col("verdict") == verdict).alias(verdict)
            for verdict in ("ack", "dead", "repeat", "released")
        ),
        F.count_if("redelivered").alias("redelivered"),
        F.countDistinct("queue").alias("queues"),
    )
    return (
        runs.join(_busy(delivered), list(RUN), "left")
        .withColumn("presence_us", presence)
        .fillna(0, ["busy_us", "occupied_us"])
        .withColumn("utilisation", F.when(presence > 0, F.col("busy_us") / presence))
        .withColumn("occupied_share", F.when(presence > 0, F.col("occupied_us") / presence))
        .select(
            *(*RUN, "first_us", "last_us", "presence_us", "deliveries", "ack", "dead", "repeat", "released"),
            *("redelivered", "queues", "busy_us", "occupied_us", "utilisation", "occupied_share"),
        )
    )


def _busy(delivered: DataFrame) -> DataFrame:
    """`busy_us`, the sum of all service times, and `occupied_us`, the length of their union."""
    earlier = Window.partitionBy(*RUN).orderBy("started_at_us").rowsBetween(Window.unboundedPreceding, -1)
    covered_from = F.greatest("started_at_us", F.max("finished_at_us").over(earlier))
    spans = done(delivered).where(F.col("service_us") > 0)
    return (
        spans.withColumn("added_us", F.greatest(F.col("finished_at_us") - covered_from, F.lit(0)))
        .groupBy(*RUN)
        .agg(
            busy_us(),
            F.sum("added_us").alias("occupied_us"),
        )
    )
