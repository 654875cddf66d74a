"""How much was done, by whom and when; and how much was asked for."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from .columns import busy_us, bytes_known, done, messages, minute_of, start_of

PLACE = ("group", "queue", "member")


def work(delivered: DataFrame, every_us: int) -> DataFrame:
    """Work done in each interval of `every_us` by delivery: group, queue, member, at_us, messages, bytes, busy_us."""
    at = start_of("delivered_at_us", every_us).alias("at_us")
    return done(delivered).groupBy(*PLACE, at).agg(messages(), bytes_known(), busy_us())


def rates(work_done: DataFrame) -> DataFrame:
    """Table `rates`: what `work` counted, by the minute."""
    return work_done.groupBy(*PLACE, minute_of("at_us").alias("minute")).agg(
        F.sum("messages").alias("messages"),
        F.when(F.count("bytes") == F.count(F.lit(1)), F.sum("bytes")).alias("bytes"),
        F.sum("busy_us").alias("busy_us"),
    )


def demand(published: DataFrame) -> DataFrame:
    """Table `demand`: what was published, by the minute in which it was first sent."""
    minute = minute_of("published_at_us").alias("minute")
    return published.groupBy("group", minute).agg(messages(), bytes_known())
