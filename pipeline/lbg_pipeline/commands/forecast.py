"""`lbg pipeline forecast`, and a spark-submit application."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from lbg_core.command_output import echo_json
from lbg_pipeline.commands.options import (
    delay,
    groups_option,
    journal_option,
    moment,
    output_options,
    seconds,
    submitted,
    zone,
)

if TYPE_CHECKING:
    from lbg_pipeline.forecast.history import Source
    from lbg_pipeline.forecast.model import ForecastSettings


def source_of(
    *,
    journals: tuple[str, ...],
    demand: tuple[str, ...],
    table: str | None,
    time_column: str | None,
    count_column: str | None,
    groups: tuple[str, ...],
    rates: tuple[str, ...],
    **_: Any,
) -> Source:
    from lbg_pipeline.forecast.history import FromJournals, FromProfiles, FromTable

    if bool(journals) + bool(demand) + (table is not None) != 1:
        raise click.UsageError("give the history with exactly one of --journal, --demand and --history")
    if journals and rates:
        raise click.UsageError(
            "--rates is for --demand and --history: journals contain the capacity of members themselves"
        )
    if table is None and (time_column or count_column):
        raise click.UsageError("--time and --messages are for --history")
    if journals:
        return FromJournals(journals)
    if table is None:
        return FromProfiles(demand)
    if time_column is None:
        raise click.UsageError("--history needs --time COLUMN: the column with the time of each row")
    if len(groups) != 1:
        raise click.UsageError("--history needs one --group NAME: the group that the rows belong to")
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
    calendar: Path | None,
    **_: Any,
) -> ForecastSettings:
    from lbg_pipeline.forecast.calendar import read_calendar
    from lbg_pipeline.forecast.model import HOUR_S, WEEK_S, ForecastSettings

    if interval < 60 or HOUR_S % interval:
        raise click.UsageError(f"--interval is {interval} s: give 1m to 1h, a whole part of an hour")
    if not interval <= horizon <= 8 * WEEK_S:
        raise click.UsageError(f"--horizon is {horizon} s: give at least one interval, and at most 56d")
    if is_weekly and horizon < WEEK_S:
        raise click.UsageError(
            "--weekly needs a --horizon of at least 7d, so that every day of the week is forecast"
        )
    at = datetime.now(UTC) if now is None else now
    # Entries repeat every week, so the days that they are made from must be ordinary.
    today = at.astimezone(ZoneInfo(time_zone)).date() if is_weekly else None
    return ForecastSettings(
        now_us=int(at.timestamp() * 1_000_000),
        interval_s=interval,
        horizon_s=horizon,
        time_zone=time_zone,
        quantile=quantile,
        backtest_periods=periods,
        calendar=() if calendar is None else read_calendar(calendar, until=today),
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
        raise click.UsageError("--namespace is for --apply")


_EXAMPLE = (
    "lbg pipeline forecast --journal journal/ --time-zone Europe/Berlin --max-replicas 20 --out forecast/"
)
_REPLICAS = click.IntRange(1, 4096)


@click.command(
    epilog=f"Example: {_EXAMPLE}",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@journal_option(required=False)
@click.option(
    "--demand", multiple=True, metavar="PARQUET", help="Tables demand of `lbg pipeline profile`. Repeatable."
)
@click.option(
    "--history", "table", metavar="TABLE", help="A CSV file or Parquet with rows of events or counts."
)
@click.option(
    "--time",
    "time_column",
    metavar="COLUMN",
    help="Column of --history with the time of a row; UTC if it has no offset.",
)
@click.option(
    "--messages",
    "count_column",
    metavar="COLUMN",
    help="Column of --history with the number of messages of a row; by default one message per row.",
)
@groups_option("With --history: the group that the rows belong to.")
@click.option("--now", type=moment, metavar="TIME", help="By default the present. Later records are ignored.")
@click.option(
    "--interval",
    type=seconds,
    metavar="SPAN",
    default="1h",
    show_default=True,
    help="Length of an interval: 1m to 1h, a whole part of an hour.",
)
@click.option(
    "--horizon", type=seconds, metavar="SPAN", default="7d", show_default=True, help="Length of the forecast."
)
@click.option(
    "--time-zone",
    type=zone,
    metavar="ZONE",
    default="UTC",
    show_default=True,
    help="Time zone of the hours by which demand repeats.",
)
@click.option(
    "--calendar",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Holidays and other events, past and future: CSV with date, and if needed until, name, like.",
)
@click.option(
    "--quantile",
    type=click.FloatRange(0.5, 0.999),
    default=0.9,
    show_default=True,
    help="Quantile of demand to plan for.",
)
@click.option(
    "--backtest",
    "periods",
    type=click.IntRange(1, 200),
    default=8,
    show_default=True,
    help="Number of past weeks on which the forecast is tested.",
)
@click.option(
    "--capacity",
    type=click.FloatRange(0, min_open=True),
    metavar="MESSAGES/S",
    help="Capacity of one member; by default as measured.",
)
@click.option(
    "--rates",
    multiple=True,
    metavar="PARQUET",
    help="Tables rates of `lbg pipeline profile`, from which capacity is measured. Repeatable.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 65535),
    help="Concurrent calls of the application per member; by default as measured.",
)
@click.option(
    "--target-utilisation",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.7,
    show_default=True,
    help="Utilisation of a member to plan for, if its capacity is measured.",
)
@click.option(
    "--target-delay",
    "target_delay_s",
    type=delay,
    metavar="SPAN",
    default="10s",
    show_default=True,
    help="Time that a new message may wait, if the capacity is measured.",
)
@click.option(
    "--min-replicas", type=_REPLICAS, default=1, show_default=True, help="Least number of replicas."
)
@click.option(
    "--max-replicas", type=_REPLICAS, help="Greatest number of replicas; with --apply by default the group's."
)
@click.option(
    "--lead-time",
    type=seconds,
    metavar="SPAN",
    default="300s",
    show_default=True,
    help="Time before the demand at which replicas are requested.",
)
@click.option(
    "--weekly", "is_weekly", is_flag=True, help="Write entries that repeat every week, in --time-zone."
)
@click.option("--apply", "is_applied", is_flag=True, help="Set scaling.schedule of the LoadBalancedGroup.")
@click.option(
    "--namespace",
    metavar="NAME",
    help="Namespace of the LoadBalancedGroup; by default the pod's, or KUBECONFIG's.",
)
@output_options
def forecast(*, out: str, master: str | None, conf: dict[str, str], as_json: bool, **options: Any) -> None:
    """Forecast the demand on each group, and the replicas that it needs.

    The forecast assumes that demand repeats by the hour of the week and grows or shrinks a little. It is compared on
    the past weeks with a naive forecast, "as last week", and the better of the two is used. Writes patch.yaml
    (for kubectl patch lbg NAME --type merge --patch-file patch.yaml), forecast.json, report.html and the Parquet
    tables forecast, backtest and schedule.
    """
    source = source_of(**options)
    settings = settings_of(**options)
    check_limits(**options)

    from lbg_pipeline.forecast.job import Applying, Capacity, Request, answer
    from lbg_pipeline.forecast.result import Scheduling
    from lbg_pipeline.spark.jobs import shown_progress
    from lbg_pipeline.spark.session import spark_job

    request = Request(
        source=source,
        groups=options["groups"],
        rates=options["rates"],
        settings=settings,
        capacity=Capacity(
            declared=options["capacity"],
            utilisation=options["target_utilisation"],
            concurrency=options["concurrency"],
            least=options["min_replicas"],
            most=options["max_replicas"],
            target_delay_s=options["target_delay_s"],
        ),
        scheduling=Scheduling(options["lead_time"], options["is_weekly"]),
        applying=Applying(options["namespace"]) if options["is_applied"] else None,
    )
    with spark_job("forecast", master, conf) as spark, shown_progress(spark) as progress:
        result = answer(spark, request, out, on_phase=progress.begin)
    if as_json:
        echo_json(result.document)
    else:
        click.echo("\n".join(result.lines))


if __name__ == "__main__":
    submitted(forecast)
