"""`lbg pipeline validate`, and the same for spark-submit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from lbg_pipeline.commands.options import journal_options, output_options
from lbg_pipeline.commands.streaming import (
    TRIGGER_S,
    Progress,
    StreamOptions,
    stopped_by_signals,
    stream_options,
)

if TYPE_CHECKING:
    from lbg_pipeline.streaming.job import StreamReport
    from lbg_pipeline.validate.reporting import Report

_SECONDS = click.FloatRange(min=0)


@click.command(epilog="Example: lbg pipeline validate --journal journal --out verdict")
@journal_options
@output_options
@click.option(
    "--settle",
    "settle_s",
    type=_SECONDS,
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="What was confirmed less than so long before the end of the journals is pending, not lost: it may still be "
    "on its way.",
)
@click.option(
    "--clock-skew",
    "clock_skew_s",
    type=_SECONDS,
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="By how much the clocks of two members may differ. Inversions and overlaps that this explains are told as "
    "uncertain and break no verdict.",
)
@click.option(
    "--exactly-once", is_flag=True, help="A message that was acknowledged twice breaks the verdict."
)
@click.option("--strict", is_flag=True, help="Exit with status 1 if any line is no record.")
@stream_options
def validate(
    journals: tuple[str, ...],
    groups: tuple[str, ...],
    default_group: str,
    out: str,
    master: str | None,
    conf: dict[str, str],
    as_json: bool,
    settle_s: float,
    clock_skew_s: float,
    exactly_once: bool,
    strict: bool,
    stream: bool,
    **of_stream: Any,
) -> int:
    """Prove from journals that nothing was lost or out of order.

    Per publisher and hash what was lost; per key what was repeated, rewound or inverted, as delivered and as
    acknowledged, and when two members had it at once; which shards moved and how long that took. A verdict for each
    group, and the exact list of the messages that it rests on, as Parquet in --out.

    The exit status is 1 if the verdict of any group is broken.
    """
    options = StreamOptions(**of_stream)
    options.check(stream=stream, settle_s=settle_s)
    if stream:
        told = _streamed(
            journals, groups, default_group, out, master, conf, clock_skew_s, exactly_once, options
        )
        click.echo(json.dumps(told.as_json()) if as_json else "\n".join(told.lines()))
        return _status(told.report, strict)

    from lbg_pipeline.commands.running import spark_job
    from lbg_pipeline.progress import shown_progress
    from lbg_pipeline.validate.job import validate_journals
    from lbg_pipeline.validate.reporting import report_lines
    from lbg_pipeline.validate.settings import ValidationSettings

    settings = ValidationSettings(settle_s, clock_skew_s, exactly_once, frozenset(groups) or None)
    with spark_job("validate", master, conf) as spark, shown_progress(spark) as progress:
        report = validate_journals(
            spark, journals, out, settings, default_group=default_group, progress=progress
        )
    click.echo(json.dumps(report.as_json()) if as_json else "\n".join(report_lines(report)))
    return _status(report, strict)


def _status(report: Report, strict: bool) -> int:
    return 0 if report.is_sound and not (strict and report.broken_lines) else 1


def _streamed(
    journals: tuple[str, ...],
    groups: tuple[str, ...],
    default_group: str,
    out: str,
    master: str | None,
    conf: dict[str, str],
    clock_skew_s: float,
    exactly_once: bool,
    options: StreamOptions,
) -> StreamReport:
    from lbg_pipeline.commands.running import spark_job
    from lbg_pipeline.streaming.job import stream_journals
    from lbg_pipeline.streaming.settings import StreamSettings

    settings = StreamSettings(
        watermark_s=options.watermark_s,
        lost_after_s=options.lost_after_s,
        forget_s=options.forget_s,
        clock_skew_s=clock_skew_s,
        default_group=default_group,
        groups=groups,
    )
    with spark_job("validate --stream", master, conf) as spark:
        return stream_journals(
            spark,
            journals,
            out,
            checkpoint=str(options.checkpoint),
            settings=settings,
            trigger_s=None if options.available_now else options.trigger_s or TRIGGER_S,
            stopped=stopped_by_signals(),
            tell=Progress(),
            exactly_once=exactly_once,
        )


if __name__ == "__main__":
    from lbg_pipeline.commands.running import submitted

    submitted(validate)
