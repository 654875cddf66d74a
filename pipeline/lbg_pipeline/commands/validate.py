"""`lbg pipeline validate`, with `--stream`, and the same for spark-submit."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from lbg_core.command_output import echo_json
from lbg_pipeline.commands.options import journal_options, out_option, spark_options, submitted

if TYPE_CHECKING:
    from lbg_pipeline.verify.report import Report
    from lbg_pipeline.verify.stream import Front, StreamReport


TRIGGER_S = 10.0

EXIT_UNCHECKED = 4

_SECONDS = click.FloatRange(min=0)


def stream_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--forget",
            "forget_s",
            type=_SECONDS,
            default=3600.0,
            show_default=True,
            metavar="SECONDS",
            help="With --stream: idle time after which the state of a key or publisher is dropped.",
        ),
        click.option(
            "--lost-after",
            "lost_after_s",
            type=_SECONDS,
            default=300.0,
            show_default=True,
            metavar="SECONDS",
            help="With --stream: time after its confirm at which an unacknowledged message counts as lost; until then "
            "it is pending. It also replaces --settle at the end of a stream.",
        ),
        click.option(
            "--watermark",
            "watermark_s",
            type=_SECONDS,
            default=120.0,
            show_default=True,
            metavar="SECONDS",
            help="With --stream: delay behind the newest record within which others are accepted. Later ones go to "
            "table late.",
        ),
        click.option(
            "--trigger",
            "trigger_s",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help=f"With --stream: interval between searches for new files. By default {TRIGGER_S:g}.",
        ),
        click.option(
            "--available-now", is_flag=True, help="With --stream: validate the existing files, and end."
        ),
        click.option(
            "--checkpoint",
            metavar="DIR",
            help="With --stream: directory of the state from which a stopped or killed run resumes. Any URL that Spark "
            "writes.",
        ),
        click.option(
            "--stream", is_flag=True, help="Follow the journals until SIGINT or SIGTERM. Needs --checkpoint."
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class StreamOptions:
    checkpoint: str | None
    available_now: bool
    trigger_s: float | None
    watermark_s: float
    lost_after_s: float
    forget_s: float

    def check(self, *, stream: bool, settle_s: float) -> None:
        """Raises click.UsageError."""
        if not stream:
            if self.checkpoint or self.available_now or self.trigger_s:
                raise click.UsageError("--checkpoint, --available-now and --trigger are for --stream")
            return
        if self.checkpoint is None:
            raise click.UsageError("--stream needs --checkpoint: the directory of its state")
        if settle_s:
            raise click.UsageError("--settle is for runs without --stream: give --lost-after instead")
        if self.available_now and self.trigger_s:
            raise click.UsageError("give either --available-now, which ends, or --trigger, which does not")


class Progress:
    """A line on stderr for each epoch."""

    def __init__(self) -> None:
        self._before = 0

    def __call__(self, epoch: int, front: Front, size_bytes: int, elapsed_s: float) -> None:
        totals = front.totals.by_group().values()
        counts = {
            name: sum(each.get(name, 0) for each in totals) for name in ("published", "delivered", "late")
        }
        until = "none yet" if front.until_us < 0 else _time(front.until_us)
        findings = ", ".join(f"{count} {name}" for name, count in sorted(front.findings.items())) or "nothing"
        click.echo(
            f"epoch {epoch}: {size_bytes / 1e6:.1f} MB in {elapsed_s:.1f} s; published {counts['published']}, checked "
            f"{counts['delivered']}, held {front.held_rows}, late {counts['late']}; watermark {until}; state "
            f"{front.state_bytes / 1e6:.1f} MB; found {findings}",
            err=True,
        )


def stopped_by_signals() -> Event:
    """Set by SIGINT or SIGTERM."""
    stopped = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@click.command(epilog="Example: lbg pipeline validate --journal journal --out verdict")
@journal_options
@out_option(required=False)
@spark_options
@click.option(
    "--key",
    metavar="KEY",
    help="Print the history of this key instead, in the words of `lbg group key`. Writes nothing: without --out.",
)
@click.option(
    "--settle",
    "settle_s",
    type=_SECONDS,
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="A message confirmed later than this before the end of the journals is pending and not lost: its delivery may "
    "not be recorded yet.",
)
@click.option(
    "--clock-skew",
    "clock_skew_s",
    type=_SECONDS,
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Largest difference between the clocks of two members. Inversions and overlaps within this skew are reported "
    "as uncertain and break no verdict.",
)
@click.option("--exactly-once", is_flag=True, help="A message acknowledged twice breaks the verdict.")
@click.option("--strict", is_flag=True, help="Exit with status 1 if any line is not a record.")
@stream_options
def validate(
    journals: tuple[str, ...],
    groups: tuple[str, ...],
    out: str | None,
    master: str | None,
    conf: dict[str, str],
    as_json: bool,
    key: str | None,
    settle_s: float,
    clock_skew_s: float,
    exactly_once: bool,
    strict: bool,
    stream: bool,
    **of_stream: Any,
) -> int:
    """Prove from journals that nothing was lost or out of order.

    Reports lost messages per publisher and hash; repeated, rewound and inverted messages per key, as delivered and as
    acknowledged; overlaps, in which two members had a key at once; and moves of hashes with their pauses. Writes a
    verdict for each group, and the list of all violations, as Parquet to --out.

    The exit status is 1 if the verdict of any group is broken, and 4 if none is and something was not checked: journals
    without records, of a named group or of its publishers or members.
    """
    options = StreamOptions(**of_stream)
    options.check(stream=stream, settle_s=settle_s)
    if key is not None:
        if out or stream:
            raise click.UsageError("--key prints a history and writes nothing: leave out --out and --stream")
        _print_key(journals, groups, master, conf, key, as_json=as_json)
        return 0
    if out is None:
        raise click.UsageError("Missing option '--out': the directory of the results")
    if stream:
        result = _streamed(journals, groups, out, master, conf, clock_skew_s, exactly_once, options)
        click.echo(json.dumps(result.as_json()) if as_json else "\n".join(result.lines()))
        return _status(result.report, strict)

    from lbg_pipeline.spark.jobs import shown_progress
    from lbg_pipeline.spark.session import spark_job
    from lbg_pipeline.verify.batch import validate_journals
    from lbg_pipeline.verify.report import report_lines
    from lbg_pipeline.verify.settings import ValidationSettings

    settings = ValidationSettings(settle_s, clock_skew_s, exactly_once, frozenset(groups) or None)
    with spark_job("validate", master, conf) as spark, shown_progress(spark) as progress:
        report = validate_journals(spark, journals, out, settings, progress=progress, made_by=_made_by())
    click.echo(json.dumps(report.as_json()) if as_json else "\n".join(report_lines(report)))
    return _status(report, strict)


def _made_by() -> str:
    return f"Made by lbg pipeline validate at {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}"


def _status(report: Report, strict: bool) -> int:
    if report.verdict == "broken" or (strict and report.broken_lines):
        return 1
    return 0 if report.verdict == "sound" else EXIT_UNCHECKED


def _print_key(
    journals: tuple[str, ...],
    groups: tuple[str, ...],
    master: str | None,
    conf: dict[str, str],
    key: str,
    *,
    as_json: bool,
) -> None:
    from lbg_pipeline.spark.jobs import shown_progress
    from lbg_pipeline.spark.session import spark_job
    from lbg_pipeline.verify.key_history import key_histories

    with spark_job("validate --key", master, conf) as spark, shown_progress(spark) as progress:
        progress.begin("reading")
        histories = key_histories(spark, journals, key, groups)
    if as_json:
        echo_json({"histories": [one.as_json() for one in histories]})
    else:
        click.echo("\n".join(line for one in histories for line in one.lines()))


def _streamed(
    journals: tuple[str, ...],
    groups: tuple[str, ...],
    out: str,
    master: str | None,
    conf: dict[str, str],
    clock_skew_s: float,
    exactly_once: bool,
    options: StreamOptions,
) -> StreamReport:
    from lbg_pipeline.spark.session import spark_job
    from lbg_pipeline.verify.settings import StreamSettings
    from lbg_pipeline.verify.stream import stream_journals

    settings = StreamSettings(
        watermark_s=options.watermark_s,
        lost_after_s=options.lost_after_s,
        forget_s=options.forget_s,
        clock_skew_s=clock_skew_s,
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
            on_epoch=Progress(),
            exactly_once=exactly_once,
            made_by=_made_by(),
        )


if __name__ == "__main__":
    submitted(validate)
