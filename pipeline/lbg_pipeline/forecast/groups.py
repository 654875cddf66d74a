"""Forecasts of all groups at once, their scores, and the method that serves each.

The rule: the method whose weighted MAPE over the backtest is lower, to a hundredth of a percent; ours when they are
level. Without a backtest (a history of less than two periods) there is only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)
from pyspark.sql.window import Window, WindowSpec

from lbg_pipeline.forecast.backtest import Backtest, Expectation
from lbg_pipeline.forecast.model import SECOND_US, ForecastSettings, History, Season

MODELLED = StructType(
    [
        StructField("group", StringType(), False),
        StructField("season", StringType(), False),  # hour of week, hour of day or flat
        StructField("method", StringType(), False),  # seasonal, naive or flat
        StructField("variant", StringType()),  # half-life and trend; null of the naive method
        StructField("is_past", BooleanType(), False),
        StructField("origin_us", LongType(), False),  # what was known then went into it
        StructField("start_us", LongType(), False),
        StructField("ahead", LongType(), False),  # periods of the season from the origin on, from 1
        StructField("event", StringType()),  # of the calendar, and what it is expected to be like
        StructField("expected", DoubleType(), False),  # messages in the interval
        StructField("quantiles", ArrayType(DoubleType(), False)),  # of the settings' levels
        StructField("actual", DoubleType()),  # null of the future
    ]
)


def modelled(demand: DataFrame, settings: ForecastSettings) -> DataFrame:
    """Of DEMAND, MODELLED. Every group fits one Python worker: a year by the minute is half a million rows."""
    # The table is so small that Spark would put all groups on one core.
    cores = demand.sparkSession.sparkContext.defaultParallelism
    return demand.repartition(cores, "group").groupBy("group").applyInPandas(_modelling(settings), MODELLED)


def _modelling(settings: ForecastSettings) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def of_group(rows: pd.DataFrame) -> pd.DataFrame:
        history = history_of(rows, settings)
        backtest = Backtest(history, settings.quantiles, settings.horizon_s, settings.calendar)
        future = backtest.future(np.asarray(settings.starts_us(), dtype=np.int64))
        expectations = [*backtest.past(settings.backtest_periods), *future]
        return _frame(str(rows["group"].iloc[0]), backtest.season, expectations)

    return of_group


def history_of(rows: pd.DataFrame, settings: ForecastSettings) -> History:
    """Of one group's rows of DEMAND, with 0 where there is none."""
    starts_us = np.arange(
        rows["known_from_us"].iloc[0], rows["known_until_us"].iloc[0], settings.interval_us, dtype=np.int64
    )
    values = np.zeros(len(starts_us))
    values[((rows["start_us"] - starts_us[0]) // settings.interval_us).to_numpy()] = rows[
        "messages"
    ].to_numpy()
    return History(starts_us, values, settings.interval_s, settings.time_zone)


def _frame(group: str, season: Season, expectations: Sequence[Expectation]) -> pd.DataFrame:
    lengths = [len(one.starts_us) for one in expectations]
    unknown = [np.full(length, np.nan) for length in lengths]

    def repeated(values: Iterable[object]) -> list[object]:
        return [value for value, length in zip(values, lengths, strict=True) for _ in range(length)]

    return pd.DataFrame(
        {
            "group": group,
            "season": season.value,
            "method": repeated(one.method for one in expectations),
            "variant": repeated(
                None if one.candidate is None else one.candidate.description(season) for one in expectations
            ),
            "is_past": repeated(one.actual is not None for one in expectations),
            "origin_us": repeated(one.origin_us for one in expectations),
            "start_us": np.concatenate([one.starts_us for one in expectations]),
            "ahead": np.concatenate(
                [(one.starts_us - one.origin_us) // (season.period_s * SECOND_US) + 1 for one in expectations]
            ),
            "event": [
                event
                for one, length in zip(expectations, lengths, strict=True)
                for event in one.events or [None] * length
            ],
            "expected": np.concatenate([one.values for one in expectations]),
            "quantiles": [
                row
                for one, length in zip(expectations, lengths, strict=True)
                for row in ([None] * length if one.quantiles is None else one.quantiles)
            ],
            "actual": np.concatenate(
                [
                    nothing if one.actual is None else one.actual
                    for one, nothing in zip(expectations, unknown, strict=True)
                ]
            ),
        }
    )


def scored(modelled: DataFrame, settings: ForecastSettings) -> DataFrame:
    """Of MODELLED's past, a row for each group and method.

    `wmape`: the sum of the misses divided by the sum of the actual demand; null without demand. Over the intervals that
    had quantiles: `pinball`, the mean loss of the planned quantile in messages (Koenker and Bassett 1978), `covered`,
    the share of them that did not exceed it, and `in_band`, the share between the first and the third of BAND.
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
    """The future of `chosen`, with readable times: `planned` is the quantile that replicas are planned for."""
    quantiles = F.col("quantiles")
    return chosen.where(~F.col("is_past")).select(
        "group",
        F.timestamp_micros("start_us").alias("start"),
        "start_us",
        "method",
        "season",
        "variant",
        "event",
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
        "ahead",
        "method",
        "season",
        "variant",
        "event",
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
