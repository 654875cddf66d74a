"""Forecast job: reads, forecasts, writes and applies."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from lbg_core import counted_nouns
from lbg_core.extras import install_command
from lbg_core.group.sizing import busy_share, delay_s
from lbg_pipeline.errors import ClusterRefused, ForecastRefused
from lbg_pipeline.forecast import groups as scoring
from lbg_pipeline.forecast import report as terminal
from lbg_pipeline.forecast.groups import modelled
from lbg_pipeline.forecast.history import Measured, Source, counted, demand, sourced
from lbg_pipeline.forecast.model import DAY_S, SECOND_US, ForecastSettings, Season
from lbg_pipeline.forecast.page import DRAWN_BACKTEST_S, DRAWN_HISTORY_S, Drawable, made_by, report
from lbg_pipeline.forecast.result import History, Interval, Planned, Scheduling, Score, planned
from lbg_pipeline.forecast.schedule import Sizing, patch_yaml
from lbg_pipeline.html import numbers
from lbg_pipeline.spark.jobs import run_concurrently
from lbg_pipeline.spark.output import Output

if TYPE_CHECKING:
    from lbg_pipeline.forecast.apply import Cluster, Target


OLDEST_S = 28 * DAY_S
"""A history that ended longer ago is refused."""
MOST_REPLICAS = 4096
"""The CRD allows no more."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of a member: `declared` messages a second, or as much as was measured times `utilisation`, or times the
    share at which a message waits `target_delay_s` if that is lower. `concurrency`, if not None, replaces the
    measured one."""

    declared: float | None
    utilisation: float
    concurrency: int | None
    least: int
    most: int | None
    target_delay_s: float = 10.0

    def sizing(self, measured: Measured | None, limit: int) -> tuple[Sizing | None, str]:
        """Sizing, and the origin of the capacity. `limit`: the most replicas of the group if `most` is None."""
        most = max(self.least, self.most or limit)
        if self.declared is not None:
            return Sizing(self.declared, self.least, most), "given"
        if measured is None:
            return None, "unknown"
        calls, service_s = self.concurrency or measured.concurrency, max(measured.service_us, 1.0) / 1e6
        share = min(self.utilisation, busy_share(service_s, calls, self.target_delay_s))
        delay_us = delay_s(service_s, calls, share) * 1e6
        origin = (
            f"{numbers.share(share)} of the {numbers.rate(calls / service_s)} that it can process with calls of "
            f"{numbers.duration(measured.service_us)}, {calls} at a time; the slowest message in a hundred waits "
            f"{numbers.duration(delay_us)}"
        )
        return Sizing(share * calls / service_s, self.least, most), origin


@dataclass(frozen=True, slots=True)
class Tables:
    """Cached tables of one run."""

    demand: DataFrame
    scores: DataFrame
    forecast: DataFrame
    backtest: DataFrame


def tables(arrived: DataFrame, settings: ForecastSettings) -> Tables:
    """Raises ForecastRefused for a history from which no forecast can be made."""
    came = counted(arrived, settings).cache()
    history = demand(came, settings).cache()
    _require_history(came, history, settings)
    expectations = modelled(history, settings).cache()
    scores = scoring.scored(expectations, settings).cache()
    chosen = scoring.chosen(expectations, scores)
    return Tables(history, scores, scoring.forecast(chosen).cache(), scoring.backtest(expectations))


def names(forecasts: Tables) -> list[str]:
    """Of the groups that there is a forecast of."""
    return [row["group"] for row in forecasts.demand.select("group").distinct().orderBy("group").collect()]


def groups(
    forecasts: Tables,
    settings: ForecastSettings,
    *,
    capacity: Capacity,
    measured: Mapping[str, Measured],
    scheduling: Scheduling,
    limits: Mapping[str, int],
) -> list[Planned]:
    """Plans of every group, by name. `limits`: the most replicas of groups, by name."""
    histories = {row["group"]: row for row in _histories(forecasts.demand).collect()}
    scores: dict[str, list[Score]] = defaultdict(list)
    for row in forecasts.scores.orderBy("group", F.desc("method")).collect():
        scores[row["group"]].append(_score(row))
    intervals: dict[str, list[Row]] = defaultdict(list)
    for row in forecasts.forecast.orderBy("group", "start_us").collect():
        intervals[row["group"]].append(row)
    plans = []
    for name, rows in intervals.items():
        history = histories[name]
        sizing, capacity_from = capacity.sizing(measured.get(name), limits.get(name, MOST_REPLICAS))
        plans.append(
            planned(
                group=name,
                season=Season(rows[0]["season"]),
                method=rows[0]["method"],
                variant=rows[0]["variant"],
                history=History(history["messages"], history["known_from_us"], history["known_until_us"]),
                scores=scores[name],
                intervals=[
                    Interval(
                        row["start_us"], row["expected"], row["q10"], row["q90"], row["planned"], row["event"]
                    )
                    for row in rows
                ],
                sizing=sizing,
                capacity_from=capacity_from,
                settings=settings,
                scheduling=scheduling,
            )
        )
    return plans


def drawables(forecasts: Tables, names: Sequence[str], settings: ForecastSettings) -> dict[str, Drawable]:
    """Data of the figures of these groups."""
    late = F.col("known_until_us") - DRAWN_HISTORY_S * SECOND_US
    came = forecasts.demand.where(F.col("group").isin(*names) & (F.col("start_us") >= late)).collect()
    recent = F.col("start_us") >= F.col("last_us") - DRAWN_BACKTEST_S * SECOND_US
    past = forecasts.backtest.where(F.col("group").isin(*names) & (F.col("ahead") == 1))
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
    """The forecast with the replicas of each interval; null without a capacity."""
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


def _require_history(came: DataFrame, history: DataFrame, settings: ForecastSettings) -> None:
    end = history.agg(F.max("known_until_us")).first()
    if end is None or end[0] is None:
        rows = came.count()
        raise ForecastRefused(
            "the history has no records before now: correct --now, or the paths"
            if rows == 0
            else "the history has no whole interval before now: use a shorter --interval, or wait"
        )
    age_s = (settings.now_us - end[0]) / SECOND_US
    if age_s > OLDEST_S:
        raise ForecastRefused(
            f"the history ends {age_s / DAY_S:,.0f} days before now, too long ago for a forecast: add newer "
            "records, or give --now TIME for a forecast from then"
        )


def _histories(history: DataFrame) -> DataFrame:
    return history.groupBy("group", "known_from_us", "known_until_us").agg(
        F.sum("messages").alias("messages")
    )


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


DRAWN_GROUPS = 12
PATCH = "patch.yaml"


@dataclass(frozen=True, slots=True)
class Applying:
    """Into which namespace. None: the one that this runs in."""

    namespace: str | None


@dataclass(frozen=True, slots=True)
class Request:
    """`groups`: only these, all if there are none. `rates`: tables of profiles, to measure service times by."""

    source: Source
    groups: tuple[str, ...]
    rates: tuple[str, ...]
    settings: ForecastSettings
    capacity: Capacity
    scheduling: Scheduling
    applying: Applying | None


@dataclass(frozen=True, slots=True)
class Answer:
    document: dict[str, Any]
    lines: Sequence[str]


def answer(
    spark: SparkSession, request: Request, out: str, *, on_phase: Callable[[str], None] = lambda _: None
) -> Answer:
    """`on_phase` receives the name of each phase as it begins. Raises PipelineError. Nothing is applied before
    everything is written."""
    settings = request.settings
    # First what can fail at once.
    cluster = None if request.applying is None else _connected(request.applying)
    output = Output(spark, out)
    on_phase("reading history")
    source = sourced(spark, request.source, groups=request.groups, rates=request.rates)
    broken = _set_aside(output, source.broken)
    group_tables = tables(source.arrived, settings)
    group_names = names(group_tables)
    _require_groups(request, group_names)
    targets, unfit = ({}, {}) if cluster is None else _targets(cluster, group_names, request)
    on_phase("forecasting")
    planned = groups(
        group_tables,
        settings,
        capacity=request.capacity,
        measured={} if source.measured is None else collected(source.measured),
        scheduling=request.scheduling,
        limits={name: target.max_replicas for name, target in targets.items()},
    )
    _require_schedules(planned, targets)
    document = terminal.as_json(planned, settings, broken=broken)
    lines = list(terminal.lines(planned, settings, broken=broken))
    on_phase("writing")
    _write(spark, output, group_tables, planned, request)
    output.text("forecast.json", json.dumps(document, indent=2) + "\n")
    if cluster is not None:
        on_phase("applying")
        for one in planned:
            if one.group in targets:
                cluster.apply(targets[one.group], one.schedule)
                entries = counted_nouns.counted(len(one.schedule), "entry", "entries")
                lines.append(f"applied to LoadBalancedGroup {targets[one.group]}: {entries}")
        lines += [f"not applied: {reason}" for reason in unfit.values()]
        document |= {
            "applied": {group: str(target) for group, target in targets.items()},
            "not_applied": unfit,
        }
    return Answer(document, lines)


def _connected(applying: Applying) -> Cluster:
    try:
        from lbg_pipeline.forecast.apply import Cluster
    except ImportError:
        raise ClusterRefused(
            f"--apply needs the Kubernetes client: run {install_command('operator')}"
        ) from None
    return Cluster(applying.namespace)


def _targets(
    cluster: Cluster, group_names: Sequence[str], request: Request
) -> tuple[dict[str, Target], dict[str, str]]:
    """Groups that --group does not name may be without a LoadBalancedGroup that scales; one group must have one."""
    targets, unfit = cluster.find(group_names)
    if unfit and (request.groups or not targets):
        raise ClusterRefused(
            f"{next(iter(unfit.values()))}: correct --group or --namespace, or set its scaling.maxReplicas"
        )
    return targets, unfit


def _set_aside(output: Output, broken: DataFrame | None) -> int:
    """Stores the broken rows, and returns their number."""
    if broken is None:
        return 0
    output.table("broken", broken)
    return output.read("broken").count()


def _require_groups(request: Request, group_names: Sequence[str]) -> None:
    missing = [name for name in request.groups if name not in group_names]
    if missing:
        raise ForecastRefused(
            f"the history has no group {missing[0]}, but {', '.join(group_names[:10])}: correct --group"
        )


def _require_schedules(planned: Sequence[Planned], targets: Mapping[str, Target]) -> None:
    """Without a capacity there is a forecast still, but nothing to apply."""
    unknown = [one.group for one in planned if one.sizing is None and one.group in targets]
    if unknown:
        raise ForecastRefused(
            f"the capacity of a member of group {unknown[0]} is unknown, so it has no schedule: give --capacity"
        )


def _write(
    spark: SparkSession,
    output: Output,
    group_tables: Tables,
    planned: Sequence[Planned],
    request: Request,
) -> None:
    settings = request.settings
    written = {
        "forecast": with_replicas(spark, group_tables.forecast, planned),
        "backtest": group_tables.backtest,
        "schedule": schedule_table(spark, planned),
    }
    run_concurrently(partial(output.table, name, table) for name, table in written.items())
    largest = sorted(planned, key=lambda one: -one.history.messages)[:DRAWN_GROUPS]
    pictures = drawables(group_tables, [one.group for one in largest], settings)
    drawn = [(one, pictures[one.group]) for one in largest]
    left_out = len(planned) - len(drawn)
    output.text("report.html", report(drawn, settings, left_out=left_out, made_by=made_by(settings)))
    sized = [one for one in planned if one.sizing is not None]
    if len(planned) != 1 or not sized:
        output.without(PATCH)
    for one in sized:
        name = PATCH if len(planned) == 1 else f"patch-{quote(one.group, safe='')}.yaml"
        output.text(name, patch_yaml(one.group, one.schedule, remarks=terminal.remarks(one, settings)))
