"""A run from end to end: read, forecast, write, and apply."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession

from ..errors import ClusterRefused, ForecastRefused
from ..together import together
from ..writing import Output
from . import job, telling
from .manifest import patch_yaml
from .planned import Planned, Scheduling
from .report import made_by, report
from .settings import ForecastSettings
from .sources import Source, sourced

if TYPE_CHECKING:
    from .applying import Cluster, Target

DRAWN_GROUPS = 12
PATCH = "patch.yaml"


@dataclass(frozen=True, slots=True)
class Applying:
    """Into which namespace. None: the one that this runs in."""

    namespace: str | None


@dataclass(frozen=True, slots=True)
class Request:
    """`groups`: only these, all if there are none. `rates`: kept by profiles, to measure service times by."""

    source: Source
    groups: tuple[str, ...]
    rates: tuple[str, ...]
    settings: ForecastSettings
    capacity: job.Capacity
    scheduling: Scheduling
    applying: Applying | None


@dataclass(frozen=True, slots=True)
class Answer:
    told: dict[str, Any]
    lines: Sequence[str]


def answer(
    spark: SparkSession, request: Request, out: str, *, says: Callable[[str], None] = lambda _: None
) -> Answer:
    """`says` is told what begins. Raises PipelineError. Nothing is applied before everything is written."""
    settings = request.settings
    # First what can fail at once.
    cluster = None if request.applying is None else _connected(request.applying)
    output = Output(spark, out)
    says("reading history")
    found = sourced(spark, request.source, groups=request.groups, rates=request.rates)
    broken = _set_aside(output, found.broken)
    tables = job.tables(found.arrived, settings)
    names = job.names(tables)
    _require_groups(request, names)
    targets, unfit = ({}, {}) if cluster is None else _targets(cluster, names, request)
    says("forecasting")
    planned = job.groups(
        tables,
        settings,
        capacity=request.capacity,
        measured={} if found.measured is None else job.collected(found.measured),
        scheduling=request.scheduling,
        limits={name: target.max_replicas for name, target in targets.items()},
    )
    _require_schedules(planned, targets)
    told = telling.as_json(planned, settings, broken=broken)
    lines = list(telling.lines(planned, settings, broken=broken))
    says("writing")
    _write(spark, output, tables, planned, request)
    output.text("forecast.json", json.dumps(told, indent=2) + "\n")
    if cluster is not None:
        says("applying")
        for one in planned:
            if one.group in targets:
                cluster.apply(targets[one.group], one.schedule)
                lines.append(
                    f"applied to LoadBalancedGroup {targets[one.group]}: {len(one.schedule)} entries"
                )
        lines += [f"not applied: {why}" for why in unfit.values()]
        told |= {"applied": {group: str(target) for group, target in targets.items()}, "not_applied": unfit}
    return Answer(told, lines)


def _connected(applying: Applying) -> Cluster:
    try:
        from .applying import Cluster
    except ImportError:
        raise ClusterRefused("--apply needs the Kubernetes client: pip install 'lbg[operator]'") from None
    return Cluster(applying.namespace)


def _targets(
    cluster: Cluster, names: Sequence[str], request: Request
) -> tuple[dict[str, Target], dict[str, str]]:
    """Groups that were not asked for by name may be without a LoadBalancedGroup that scales; one has to be left."""
    targets, unfit = cluster.find(names)
    if unfit and (request.groups or not targets):
        raise ClusterRefused(
            f"{next(iter(unfit.values()))}: correct --group or --namespace, or set its scaling.maxReplicas"
        )
    return targets, unfit


def _set_aside(output: Output, broken: DataFrame | None) -> int:
    """How many there are."""
    if broken is None:
        return 0
    output.table("broken", broken)
    return output.read("broken").count()


def _require_groups(request: Request, names: Sequence[str]) -> None:
    missing = [name for name in request.groups if name not in names]
    if missing:
        raise ForecastRefused(
            f"there is no history of group {missing[0]}: there is of {', '.join(names[:10])}: correct --group"
        )


def _require_schedules(planned: Sequence[Planned], targets: Mapping[str, Target]) -> None:
    """Without a capacity there is a forecast still, but nothing to apply."""
    unknown = [one.group for one in planned if one.sizing is None and one.group in targets]
    if unknown:
        raise ForecastRefused(
            f"nobody knows what a member of group {unknown[0]} can do, so there is nothing to apply: say --capacity"
        )


def _write(
    spark: SparkSession, output: Output, tables: job.Tables, planned: Sequence[Planned], request: Request
) -> None:
    settings = request.settings
    written = {
        "forecast": job.with_replicas(spark, tables.forecast, planned),
        "backtest": tables.backtest,
        "schedule": job.schedule_table(spark, planned),
    }
    together(partial(output.table, name, table) for name, table in written.items())
    largest = sorted(planned, key=lambda one: -one.history.messages)[:DRAWN_GROUPS]
    drawables = job.drawables(tables, [one.group for one in largest], settings)
    drawn = [(one, drawables[one.group]) for one in largest]
    left_out = len(planned) - len(drawn)
    output.text("report.html", report(drawn, settings, left_out=left_out, made_by=made_by(settings)))
    sized = [one for one in planned if one.sizing is not None]
    if len(planned) != 1 or not sized:
        output.without(PATCH)
    for one in sized:
        name = PATCH if len(planned) == 1 else f"patch-{quote(one.group, safe='')}.yaml"
        output.text(name, patch_yaml(one.group, one.schedule, remarks=telling.remarks(one, settings)))
