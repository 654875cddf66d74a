"""How good a forecast was, and which method serves a group.

The rule: the method whose weighted MAPE over the backtest is lower, to a hundredth of a percent; ours when they are
level. Without a backtest (a history of less than two periods) there is only one.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window, WindowSpec

from .settings import ForecastSettings


def scored(modelled: DataFrame, settings: ForecastSettings) -> DataFrame:
    """Of MODELLED's past, a row for each group and method.

    `wmape`: the sum of the misses in parts of the sum of what came; null where nothing came. Over the intervals that
    had quantiles: `pinball`, the mean loss of the planned quantile in messages (Koenker and Bassett 1978), `covered`,
    how much of them came to no more than it, and `in_band`, how much lay between the first and the third of BAND.
    """
    miss = F.abs(F.col("actual") - F.col("expected"))
    planned = _planned()
    level = F.lit(settings.quantile)
    over = F.col("actual") - planned
    low, high = F.col("quantiles")[0], F.col("quantiles")[2]
    return (
        modelled.where("is_past")
        .groupBy("group", "season", "method")
        .agg(
            F.count_distinct("origin_us").alias("origins"),
            F.count(F.lit(1)).alias("intervals"),
            F.sum("actual").alias("messages"),
            F.try_divide(F.sum(miss), F.sum("actual")).alias("wmape"),
            F.avg(F.greatest(level * over, (level - 1) * over)).alias("pinball"),
            F.avg((F.col("actual") <= planned).cast("double")).alias("covered"),
            F.avg(F.col("actual").between(low, high).cast("double")).alias("in_band"),
        )
        .withColumn("is_used", F.row_number().over(_by_rule()) == 1)
    )


def chosen(modelled: DataFrame, scores: DataFrame) -> DataFrame:
    """The expectations of the method that serves each group. One of which there is no backtest serves by itself, before
    the naive one."""
    used = scores.where("is_used").select("group", F.col("method").alias("used"))
    fallback = F.when(F.col("season") == "flat", "flat").otherwise("seasonal")
    return (
        modelled.join(F.broadcast(used), "group", "left")
        .where(F.col("method") == F.coalesce("used", fallback))
        .drop("used")
    )


def forecast(chosen: DataFrame) -> DataFrame:
    """The future of `chosen`, as people read it: `planned` is the quantile that replicas are planned for."""
    quantiles = F.col("quantiles")
    return chosen.where(~F.col("is_past")).select(
        "group",
        F.timestamp_micros("start_us").alias("start"),
        "start_us",
        "method",
        "season",
        "variant",
        "expected",
        quantiles[0].alias("q10"),
        quantiles[1].alias("q50"),
        quantiles[2].alias("q90"),
        _planned().alias("planned"),
    )


def backtest(modelled: DataFrame) -> DataFrame:
    """The past by both methods, side by side."""
    quantiles = F.col("quantiles")
    return modelled.where("is_past").select(
        "group",
        F.timestamp_micros("start_us").alias("start"),
        "start_us",
        F.timestamp_micros("origin_us").alias("origin"),
        "method",
        "season",
        "variant",
        "actual",
        "expected",
        quantiles[0].alias("q10"),
        quantiles[1].alias("q50"),
        quantiles[2].alias("q90"),
        _planned().alias("planned"),
    )


def _planned() -> Column:
    return F.element_at("quantiles", -1)


def _by_rule() -> WindowSpec:
    return Window.partitionBy("group").orderBy(F.round("wmape", 4).asc_nulls_last(), F.col("method").desc())
