"""Demand: how many messages each group was given in each interval.

An interval without rows had none, if it lies between a group's first row and the end of the whole history; outside of
that nothing is known. Where rows have times of their own, the first interval of a group and the last of the history
were recorded in part, and are left out; where every time is the start of an interval, rows were counted by interval
before, and all are whole.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from .settings import ForecastSettings

MINUTE_US = 60_000_000

ARRIVED = StructType(
    [
        StructField("group", StringType(), False),
        StructField("at_us", LongType(), False),  # microseconds since the epoch
        StructField("messages", LongType(), False),
    ]
)
"""What history is made of: so many messages at a time."""

DEMAND = StructType(
    [
        StructField("group", StringType(), False),
        StructField("start_us", LongType(), False),  # of the interval
        StructField("messages", LongType(), False),
        StructField("known_from_us", LongType(), False),  # start of the first whole interval of the group
        StructField("known_until_us", LongType(), False),  # end of the last whole interval of the history
    ]
)
"""Only intervals in which something came have a row."""


def arrived_of_published(published: DataFrame) -> DataFrame:
    """A publisher's record is a message. One that was sent again after a crash may have two."""
    return published.select(
        "group", F.col("published_at_us").alias("at_us"), F.lit(1).cast("long").alias("messages")
    )


def arrived_of_delivered(delivered: DataFrame) -> DataFrame:
    """Of members' journals alone: each message once, as it is done with once."""
    return delivered.where(F.col("verdict").isin("ack", "dead")).select(
        "group", F.col("published_at_us").alias("at_us"), F.lit(1).cast("long").alias("messages")
    )


def arrived_of_minutes(minutes: DataFrame) -> DataFrame:
    """Of `demand` as `lbg pipeline profile` keeps it. Its messages came during a minute, and of the first and the last
    only a part is recorded: the middle of it stands for them, or they would be taken for rows counted by interval."""
    middle_us = F.unix_micros("minute") + MINUTE_US // 2
    return minutes.select("group", middle_us.alias("at_us"), "messages")


def counted(arrived: DataFrame, settings: ForecastSettings) -> DataFrame:
    """Of ARRIVED, what came in each interval before `settings.now_us`; `furthest_us` tells whether rows have times of
    their own: how far from the interval's start they lie at most."""
    into_us = F.pmod("at_us", F.lit(settings.interval_us))
    return (
        arrived.where(F.col("at_us") < settings.now_us)
        .groupBy("group", (F.col("at_us") - into_us).alias("start_us"))
        .agg(F.sum("messages").alias("messages"), F.max(into_us).alias("furthest_us"))
    )


def demand(counted: DataFrame, settings: ForecastSettings) -> DataFrame:
    """DEMAND. `counted` is read three times: cache it."""
    interval_us = settings.interval_us
    begins = counted.groupBy("group").agg(F.min("start_us").alias("first_us"))
    end = counted.agg(
        F.max("start_us").alias("last_us"),
        F.when(F.max("furthest_us") == 0, 0).otherwise(interval_us).alias("partly_us"),
    )
    whole_until_us = F.lit(settings.now_us - settings.now_us % interval_us)
    known_from_us = F.col("first_us") + F.col("partly_us")
    known_until_us = F.least(F.col("last_us") + interval_us - F.col("partly_us"), whole_until_us)
    return (
        counted.join(F.broadcast(begins), "group")
        .crossJoin(F.broadcast(end))
        .select(
            "group",
            "start_us",
            "messages",
            known_from_us.cast("long").alias("known_from_us"),
            known_until_us.cast("long").alias("known_until_us"),
        )
        .where(F.col("start_us").between(F.col("known_from_us"), F.col("known_until_us") - interval_us))
    )
