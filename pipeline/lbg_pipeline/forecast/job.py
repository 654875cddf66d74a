"""The job: from whatever history there is to tables, and what is known of each group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from ..errors import ForecastRefused
from . import scoring
from .demand import counted, demand
from .figures import DRAWN_BACKTEST_S, DRAWN_HISTORY_S, Drawable
from .measuring import Measured
from .modelling import modelled
from .planned import History, Interval, Planned, Scheduling, Score, planned
from .scheduling import Sizing
from .seasons import Season
from .settings import DAY_S, SECOND_US, ForecastSettings

OLDEST_S = 28 * DAY_S
"""A history that ended longer ago tells nothing of now."""
MOST_REPLICAS = 4096
"""The CRD allows no more."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How demand becomes replicas: `given` messages a second of a member, or as much as was measured times
    `utilisation`, with `concurrency` where that is given instead of what was seen."""

    given: float | None
    utilisation: float
    concurrency: int | None
    least: int
    most: int | None

    def sizing(self, measured: Measured | None, limit: int) -> tuple[Sizing | None, str]:
        """And where it is from. `limit`: the most replicas of the group, where `most` says none."""
        most = max(self.least, self.most or limit)
        if self.given is not None:
            return Sizing(self.given, self.least, most), "given"
        if measured is None:
            return None, "unknown"
        capacity = measured.capacity(utilisation=self.utilisation, concurrency=self.concurrency)
        told = (
            f"{self.concurrency or measured.concurrency} at once of {measured.service_us / 1000:.3g} ms each, "
            f"{self.utilisation:.0%} of the time".replace("%", " %")
        )
        return Sizing(capacity, self.least, most), told


@dataclass(frozen=True, slots=True)
class Tables:
    """Of one run, cached: ask for them as often as need be."""

    demand: DataFrame
    scores: DataFrame
    forecast: DataFrame
    backtest: DataFrame


def tables(arrived: DataFrame, settings: ForecastSettings) -> Tables:
    """Raises ForecastRefused for a history of which nothing can be said."""
    came = counted(arrived, settings).cache()
    known = demand(came, settings).cache()
    _require_history(came, known, settings)
    told = modelled(known, settings).cache()
    scores = scoring.scored(told, settings).cache()
    chosen = scoring.chosen(told, scores)
    return Tables(known, scores, scoring.forecast(chosen).cache(), scoring.backtest(told))


def names(told: Tables) -> list[str]:
    """Of the groups that there is a forecast of."""
    return [row["group"] for row in told.demand.select("group").distinct().orderBy("group").collect()]


def groups(
    told: Tables,
    settings: ForecastSettings,
    *,
    capacity: Capacity,
    measured: Mapping[str, Measured],
    scheduling: Scheduling,
    limits: Mapping[str, int],
) -> list[Planned]:
    """Of every group, by name. `limits`: the most replicas of each, where they are known."""
    histories = {row["group"]: row for row in _histories(told.demand).collect()}
    scores: dict[str, list[Score]] = defaultdict(list)
    for row in told.scores.orderBy("group", F.desc("method")).collect():
        scores[row["group"]].append(_score(row))
    intervals: dict[str, list[Row]] = defaultdict(list)
    for row in told.forecast.orderBy("group", "start_us").collect():
        intervals[row["group"]].append(row)
    found = []
    for name, rows in intervals.items():
        history = histories[name]
        sizing, capacity_from = capacity.sizing(measured.get(name), limits.get(name, MOST_REPLICAS))
        found.append(
            planned(
                group=name,
                season=Season(rows[0]["season"]),
                method=rows[0]["method"],
                variant=rows[0]["variant"],
                history=History(history["messages"], history["known_from_us"], history["known_until_us"]),
                scores=scores[name],
                intervals=[
                    Interval(row["start_us"], row["expected"], row["q10"], row["q90"], row["planned"])
                    for row in rows
                ],
                sizing=sizing,
                capacity_from=capacity_from,
                settings=settings,
                scheduling=scheduling,
            )
        )
    return found


def drawables(told: Tables, names: Sequence[str], settings: ForecastSettings) -> dict[str, Drawable]:
    """What figures need of these groups."""
    late = F.col("known_until_us") - DRAWN_HISTORY_S * SECOND_US
    came = told.demand.where(F.col("group").isin(*names) & (F.col("start_us") >= late)).collect()
    recent = F.col("start_us") >= F.col("last_us") - DRAWN_BACKTEST_S * SECOND_US
    past = told.backtest.where(F.col("group").isin(*names))
    ends = past.groupBy("group").agg(F.max("start_us").alias("last_us"))
    compared = (
        past.join(ends, "group")
        .where(recent)
        .groupBy("group", "start_us")
        .pivot("method", ["seasonal", "naive"])
        .agg(F.first("expected").alias("expected"), F.first("actual").alias("actual"))
        .orderBy("start_us")
        .collect()
    )
    return {
        name: Drawable(
            _without_gaps([row for row in came if row["group"] == name], settings),
            [
                (row["start_us"], row["seasonal_actual"], row["seasonal_expected"], row["naive_expected"])
                for row in compared
                if row["group"] == name
            ],
        )
        for name in names
    }


def collected(measured: DataFrame) -> dict[str, Measured]:
    """By group."""
    return {
        row["group"]: Measured(row["service_us"], row["concurrency"], row["messages"])
        for row in measured.collect()
    }


def with_replicas(spark: SparkSession, forecast: DataFrame, planned: Sequence[Planned]) -> DataFrame:
    """The forecast with the replicas of each interval; null where no capacity is known."""
    rows = [(one.group, at.start_us, at.replicas) for one in planned for at in one.intervals]
    replicas = spark.createDataFrame(rows, "group string, start_us long, replicas int")
    return forecast.join(replicas, ["group", "start_us"]).orderBy("group", "start_us")


def schedule_table(spark: SparkSession, planned: Sequence[Planned]) -> DataFrame:
    """An entry a row; `from` and `until` are RFC 3339, or of the clock with `days` and `time_zone` for every week."""
    rows = []
    for one in planned:
        for place, entry in enumerate(one.schedule):
            times = entry.get("weekly", entry)
            rows.append(
                (
                    one.group,
                    place,
                    entry["minReplicas"],
                    times["from"],
                    times["until"],
                    times.get("days"),
                    times.get("timeZone"),
                )
            )
    return spark.createDataFrame(
        rows,
        "group string, place int, min_replicas int, from string, until string, days array<string>, time_zone string",
    )


def _require_history(came: DataFrame, known: DataFrame, settings: ForecastSettings) -> None:
    end = known.agg(F.max("known_until_us")).first()
    if end is None or end[0] is None:
        rows = came.count()
        raise ForecastRefused(
            "there is no history before now: correct --now, or the paths"
            if rows == 0
            else "the history has no whole interval before now: use a shorter --interval, or wait"
        )
    age_s = (settings.now_us - end[0]) / SECOND_US
    if age_s > OLDEST_S:
        raise ForecastRefused(
            f"the history ends {age_s / DAY_S:,.0f} days before now, and tells nothing of now: add what came since, "
            "or say --now TIME for a forecast from then"
        )


def _histories(known: DataFrame) -> DataFrame:
    return known.groupBy("group", "known_from_us", "known_until_us").agg(F.sum("messages").alias("messages"))


def _score(row: Row) -> Score:
    return Score(
        row["method"],
        row["origins"],
        row["wmape"],
        row["pinball"],
        row["covered"],
        row["in_band"],
        row["is_used"],
    )


def _without_gaps(rows: Sequence[Row], settings: ForecastSettings) -> list[tuple[int, float]]:
    if not rows:
        return []
    until_us = rows[0]["known_until_us"]
    from_us = max(rows[0]["known_from_us"], until_us - DRAWN_HISTORY_S * SECOND_US)
    came = {row["start_us"]: float(row["messages"]) for row in rows}
    return [(at_us, came.get(at_us, 0.0)) for at_us in range(from_us, until_us, settings.interval_us)]
