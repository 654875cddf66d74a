"""What `lbg pipeline forecast` was asked for: its options checked and put together. Each raises UsageError."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lbg_pipeline.forecast.settings import ForecastSettings
    from lbg_pipeline.forecast.sources import Source


def source_of(
    *,
    journals: tuple[str, ...],
    demand: tuple[str, ...],
    table: str | None,
    time_column: str | None,
    count_column: str | None,
    groups: tuple[str, ...],
    default_group: str,
    rates: tuple[str, ...],
    **_: Any,
) -> Source:
    from lbg_pipeline.forecast.sources import FromJournals, FromProfiles, FromTable

    if bool(journals) + bool(demand) + (table is not None) != 1:
        raise click.UsageError("say where the history is with one of --journal, --demand and --history")
    if journals and rates:
        raise click.UsageError(
            "--rates goes with --demand and --history: journals tell what members do themselves"
        )
    if table is None and (time_column or count_column):
        raise click.UsageError("--time and --messages go with --history")
    if journals:
        return FromJournals(journals, default_group)
    if table is None:
        return FromProfiles(demand)
    if time_column is None:
        raise click.UsageError("--history needs --time COLUMN: which of its columns says when a row happened")
    if len(groups) != 1:
        raise click.UsageError("--history needs one --group NAME: whose demand it is")
    return FromTable(table, groups[0], time_column, count_column)


def settings_of(
    *,
    now: datetime | None,
    interval: int,
    horizon: int,
    time_zone: str,
    quantile: float,
    periods: int,
    is_weekly: bool,
    **_: Any,
) -> ForecastSettings:
    from lbg_pipeline.forecast.settings import HOUR_S, WEEK_S, ForecastSettings

    if interval < 60 or HOUR_S % interval:
        raise click.UsageError(f"--interval is {interval} s: say 1m to 1h, a whole part of an hour")
    if not interval <= horizon <= 8 * WEEK_S:
        raise click.UsageError(f"--horizon is {horizon} s: say at least one interval, and at most 56d")
    if is_weekly and horizon < WEEK_S:
        raise click.UsageError("--weekly needs a --horizon of at least 7d, so that every day is known")
    return ForecastSettings(
        now_us=int((time.time() if now is None else now.timestamp()) * 1_000_000),
        interval_s=interval,
        horizon_s=horizon,
        time_zone=time_zone,
        quantile=quantile,
        backtest_periods=periods,
    )


def check_limits(
    *,
    min_replicas: int,
    max_replicas: int | None,
    is_applied: bool,
    namespace: str | None,
    **_: Any,
) -> None:
    if max_replicas is not None and max_replicas < min_replicas:
        raise click.UsageError(
            f"--max-replicas is {max_replicas} and must be at least --min-replicas, which is {min_replicas}"
        )
    if namespace and not is_applied:
        raise click.UsageError("--namespace goes with --apply")
