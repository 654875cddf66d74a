"""The forecast of all groups at once: demand in, expectations of the past (the backtest) and of the future out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from .backtesting import Backtest, Expectation
from .seasons import History, Season
from .settings import ForecastSettings

MODELLED = StructType(
    [
        StructField("group", StringType(), False),
        StructField("season", StringType(), False),  # hour of week, hour of day or flat
        StructField("method", StringType(), False),  # seasonal, naive or flat
        StructField("variant", StringType()),  # half-life and trend; null of the naive method
        StructField("is_past", BooleanType(), False),
        StructField("origin_us", LongType(), False),  # what was known then went into it
        StructField("start_us", LongType(), False),
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
        backtest = Backtest(history_of(rows, settings), settings.quantiles)
        future = backtest.future(np.asarray(settings.starts_us(), dtype=np.int64))
        told = [*backtest.past(settings.backtest_periods), *future]
        return _frame(str(rows["group"].iloc[0]), backtest.season, told)

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


def _frame(group: str, season: Season, told: Sequence[Expectation]) -> pd.DataFrame:
    lengths = [len(one.starts_us) for one in told]
    unknown = [np.full(length, np.nan) for length in lengths]

    def repeated(values: Iterable[object]) -> list[object]:
        return [value for value, length in zip(values, lengths, strict=True) for _ in range(length)]

    return pd.DataFrame(
        {
            "group": group,
            "season": season.value,
            "method": repeated(one.method for one in told),
            "variant": repeated(
                None if one.candidate is None else one.candidate.told(season) for one in told
            ),
            "is_past": repeated(one.actual is not None for one in told),
            "origin_us": repeated(one.origin_us for one in told),
            "start_us": np.concatenate([one.starts_us for one in told]),
            "expected": np.concatenate([one.values for one in told]),
            "quantiles": [
                row
                for one, length in zip(told, lengths, strict=True)
                for row in ([None] * length if one.quantiles is None else one.quantiles)
            ],
            "actual": np.concatenate(
                [
                    nothing if one.actual is None else one.actual
                    for one, nothing in zip(told, unknown, strict=True)
                ]
            ),
        }
    )
