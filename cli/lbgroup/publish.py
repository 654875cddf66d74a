"""`lbg publish`: the rows of a file to a group, with progress."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from lbg_core.command_output import echo_json, output_option
from lbg_core.counted_nouns import counted
from lbg_core.redaction import redacted
from lbgroup.commands import EXIT_UNROUTED, CliError, exporting_traces
from lbgroup.live_map import Meter
from lbgroup.options import broker_options

if TYPE_CHECKING:
    from lbg_core.client import BrokerAddress
    from lbg_core.publisher import BadRow, GroupPublisher, PublisherEvent, PublishingReport, RowOptions
    from lbg_core.publisher.input.source import Source
    from lbg_sidecar.io.log_events import StateLogger


REFRESH_S = 0.1
BAD_ROWS_SHOWN = 10


class PublishingProgress:
    """Shows a publisher at work, its events and bad rows. `nothing_read`: the format of an input without a row."""

    def __init__(self, group: str) -> None:
        self.bad_rows = 0
        self.nothing_read = ""
        self._console = Console(stderr=True, highlight=False)
        self._group = group
        self._last_line = ""
        self._queues: StateLogger[str] | None = None
        """States of the queues as few lines, where there is no bar that shows them."""

    def show(self, event: PublisherEvent) -> None:
        from lbg_core.publisher import events
        from lbg_sidecar.core.state_log import FULL

        match event:
            case events.QueueFull(queue) if self._queues is not None:
                self._queues.enter(FULL, queue)
            case events.QueueTaking(queue) if self._queues is not None:
                self._queues.leave(queue)
            case events.QueueFull() | events.QueueTaking():
                pass  # the bar shows them
            case _:
                self._print(str(event))

    def count_bad_row(self, row: BadRow) -> None:
        self.bad_rows += 1
        if self.bad_rows <= BAD_ROWS_SHOWN:
            self._print(f"skipped: {row}")
        if self.bad_rows == BAD_ROWS_SHOWN:
            self._print("more bad rows are counted and not shown")

    @contextmanager
    def shown(self, publisher: GroupPublisher, source: Source) -> Iterator[None]:
        if not self._console.is_terminal:
            from lbg_sidecar.io.log_events import StateLogger

            self._queues = StateLogger(f"publishing to {self._group}", {"group": self._group}, self._logger())
            yield
            self._queues.disconnected()
            return
        bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeRemainingColumn(),
            console=self._console,
            auto_refresh=False,
        )
        with bar:
            task = bar.add_task("", total=source.total_bytes, counts="")
            rate = Meter()

            def refresh() -> None:
                now_s = time.monotonic()
                rate.read(publisher.confirmed_count, now_s)
                bar.update(
                    task,
                    completed=source.read_bytes,
                    counts=counts_text(publisher, rate.rate(now_s)),
                )
                bar.refresh()

            refreshing = asyncio.ensure_future(_repeat(refresh))
            try:
                yield
            finally:
                refreshing.cancel()
                refresh()

    def _logger(self) -> logging.Logger:
        """Logger whose records are lines on standard error, and nothing else."""
        logger = logging.Logger("lbg.publish", logging.INFO)
        handler = logging.Handler()
        handler.emit = lambda record: self._print(record.getMessage())  # type: ignore[method-assign]  # a class for one line
        logger.addHandler(handler)
        return logger

    def _print(self, line: str) -> None:
        if line != self._last_line:
            self._console.print(redacted(line), markup=False, soft_wrap=True)
        self._last_line = line


def counts_text(publisher: GroupPublisher, rate_per_s: float) -> str:
    full = publisher.full_queues
    waiting = f" [yellow]full: {', '.join(full[:3])}{', …' if len(full) > 3 else ''}[/]" if full else ""
    return f"{publisher.accepted_count:,} read, {publisher.confirmed_count:,} confirmed, {rate_per_s:,.0f}/s{waiting}"


async def _repeat(refresh: Callable[[], None]) -> None:
    while True:
        refresh()
        await asyncio.sleep(REFRESH_S)


SETTLE_S = 5.0
"""Seconds that SIGTERM waits for confirms: less than the grace period of a container."""


@click.command(
    epilog="Example: lbg publish --group orders --key tailnum --state flights.state examples/flights-sample.csv.gz"
)
@click.argument("file", metavar="FILE")
@click.option("--group", required=True, metavar="NAME", help="The group to publish to.")
@click.option(
    "--key",
    "key_field",
    metavar="FIELD",
    help="Field that holds the key; in JSON, a.b is field b of object a.",
)
@click.option("--keyless", is_flag=True, help="No message has a key: each gets a random hash.")
@click.option(
    "--no-key",
    "no_key",
    multiple=True,
    metavar="TEXT",
    help="Key value that means: no key. Repeatable; by default an empty one and NA.",
)
@click.option("--topic", default="", metavar="TEXT", help="Rest of every routing key.")
@click.option("--topic-field", metavar="FIELD", help="Field that holds the topic.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["csv", "tsv", "jsonl"]),
    help="Format of the input; by default that of the file's name, else of its first character.",
)
@click.option(
    "--bad-rows",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="A row that is no message: stop there, or count and skip it.",
)
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="State file, from which the same command resumes after any end, kill -9 too.",
)
@click.option("--name", metavar="NAME", help="The publisher's name; by default the file's.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N messages a second."
)
@click.option(
    "--strict-order",
    is_flag=True,
    help="One unconfirmed message per key: no inversion even on a RabbitMQ queue that fills up, at the cost of rate.",
)
@click.option(
    "--journal",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the journal.",
)
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="File for the report, as JSON."
)
@click.option(
    "--max-message-size",
    type=click.IntRange(min=1),
    metavar="BYTES",
    show_default="what the broker announces",
    help="A larger row is a bad row. RabbitMQ does not announce its max_message_size: give it here.",
)
@click.option(
    "--connect-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Longest wait for the first connection; later ones have no limit.",
)
@output_option("the report, with the name of the group.")
@broker_options(login=True)
def publish(
    file: str,
    address: BrokerAddress,
    group: str,
    key_field: str | None,
    keyless: bool,
    no_key: tuple[str, ...],
    topic: str,
    topic_field: str | None,
    format_: str | None,
    bad_rows: str,
    state: Path | None,
    name: str | None,
    rate: float | None,
    strict_order: bool,
    journal: Path | None,
    report: Path | None,
    max_message_size: int | None,
    connect_timeout: float,
    as_json: bool,
) -> int:
    """Publish FILE (CSV or JSON Lines, also .gz or .zip; - is standard input) to a group, a message for each row.

    A CSV row becomes a JSON object of text, with the header's names; a JSON line stays as it is. Order is kept per
    key: while a queue is full or the broker is away, publishing waits. The command ends when the broker has confirmed
    every message. The exit status is 1 if something went wrong, and 3 if all is confirmed, and messages came to
    lbg.NAME.unrouted meanwhile (a queue or binding is missing) or it could not be counted.
    """
    from lbg_core.publisher import GroupPublisher, Identity, PublishingSettings, RowOptions
    from lbg_core.publisher.input.rows import NO_KEY_VALUES

    if (key_field is None) != keyless:
        raise click.UsageError("say which field is the key with --key FIELD, or --keyless that there is none")
    options = RowOptions(
        key_field=key_field,
        topic=topic,
        topic_field=topic_field,
        no_key=frozenset(no_key) if no_key else NO_KEY_VALUES,
        format=format_,
    )
    try:
        identity = Identity(name or default_name(file), input=reading_of(options))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    progress = PublishingProgress(group)
    publisher = GroupPublisher(
        address.spread_places(),
        group=group,
        identity=identity,
        settings=PublishingSettings(
            one_per_key=strict_order,
            first_connection_s=connect_timeout,
            max_message_bytes=max_message_size,
        ),
        content_type="application/json",
        state=state,
        journal=journal,
        on_event=progress.show,
    )
    skips_bad_rows = bad_rows == "skip"
    try:
        with exporting_traces("lbg-publish"):
            asyncio.run(
                _publish(
                    publisher, file, options, progress=progress, skips_bad_rows=skips_bad_rows, rate=rate
                )
            )
    finally:
        if publisher.is_opened:
            done = publisher.report(bad_rows=progress.bad_rows)
            if done.published or sys.exception() is None:
                if as_json:
                    echo_json({"group": group, **json.loads(done.to_json())})
                else:
                    click.echo(summary(done, group))
            for line in unrouted_lines(done, group):
                click.echo(line, err=True)
            if progress.nothing_read:
                click.echo(f"  nothing to publish: {progress.nothing_read}", err=as_json)
            if report is not None:
                report.write_text(done.to_json())
            if state is not None and (done.confirmed < done.published or sys.exception() is not None):
                click.echo(f"the same command goes on from {state}", err=True)
    is_unknown = done.unrouted is None and bool(done.published)
    return EXIT_UNROUTED if done.unrouted or is_unknown else 0


def unrouted_lines(report: PublishingReport, group: str) -> Iterator[str]:
    from lbg_core.publisher.events import Unrouted

    if report.unrouted is None:
        yield (
            f"lbg: error: it is not known whether queues took all messages, as lbg.{group}.unrouted could not be "
            f"counted: `lbg group show {group}` names what is missing"
        )
    elif report.unrouted:
        yield f"lbg: error: {Unrouted(group, report.unrouted)}"


async def _publish(
    publisher: GroupPublisher,
    file: str,
    options: RowOptions,
    *,
    progress: PublishingProgress,
    skips_bad_rows: bool,
    rate: float | None,
) -> None:
    from lbg_core.publisher import open_source, publish_rows, without_rows

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        with open_source(file) as source:
            async with publisher:
                with progress.shown(publisher, source):
                    try:
                        await publish_rows(
                            publisher,
                            source,
                            options,
                            on_bad_row=progress.count_bad_row if skips_bad_rows else None,
                            rate_per_s=rate,
                        )
                    except asyncio.CancelledError:
                        await _settle(publisher)
                        raise
                if not publisher.accepted_count and not progress.bad_rows:
                    progress.nothing_read = without_rows(source)
    except asyncio.CancelledError:
        raise CliError("stopped by SIGTERM") from None


async def _settle(publisher: GroupPublisher) -> None:
    """Wait for pending confirms, so that the next run, perhaps on another broker, repeats nothing."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            await publisher.flush()


def reading_of(options: RowOptions) -> dict[str, object]:
    """Options that decide the messages: a state file resumes with the same only."""
    return {
        "--key": options.key_field,
        "--no-key": sorted(options.no_key),
        "--topic": options.topic,
        "--topic-field": options.topic_field,
        "--format": options.format,
    }


def default_name(file: str) -> str:
    """A publisher's name from its file: `flights` of `data/flights.csv.gz`."""
    stem = PurePath(file).name.partition(".")[0] if file != "-" else "stdin"
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in stem).strip("-")
    return name[:60] or "publisher"


def summary(report: PublishingReport, group: str) -> str:
    """Summary for a person at the end."""
    from lbg_core.publisher.events import utc

    head = (
        f"{report.confirmed:,} of {counted(report.published, 'message')} confirmed by group {group}, "
        f"{report.published_in_this_run:,} in this run in {report.seconds:,.1f} s ({report.messages_per_s:,.0f}/s)"
    )
    counts = {
        "without a key": report.without_key,
        "bad rows skipped": report.bad_rows,
        "refusals by full or closed queues": report.refused,
        "may be there twice": report.maybe_twice,
        "accepted behind a gap": report.accepted_after_gap,
        "of them out of order": report.inverted,
    }
    nonzero = [f"{count:,} {name}" for name, count in counts.items() if count]
    lines = [head, *([f"  {', '.join(nonzero)}"] if nonzero else [])]
    if report.resumed_at_us is not None and report.new_epoch:
        saved = f" saved at {utc(report.resumed_at_us)}" if report.resumed_at_us else ""
        lines.append(
            f"  {report.new_epoch:,} were new to the state{saved}: those that a run published after that are repeated"
        )
    return "\n".join(lines)
