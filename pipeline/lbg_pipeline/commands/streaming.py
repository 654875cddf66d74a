"""`validate --stream`: its options, and what it tells while it runs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lbg_pipeline.streaming.epochs import Front

TRIGGER_S = 10.0

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
            help="With --stream: keys and publishers of which nothing came for so long are forgotten.",
        ),
        click.option(
            "--lost-after",
            "lost_after_s",
            type=_SECONDS,
            default=300.0,
            show_default=True,
            metavar="SECONDS",
            help="With --stream: a message without an end is lost so long after its confirm, and pending until then. "
            "At the end of a stream, what --settle is without it.",
        ),
        click.option(
            "--watermark",
            "watermark_s",
            type=_SECONDS,
            default=120.0,
            show_default=True,
            metavar="SECONDS",
            help="With --stream: how much later than the newest record others may come. What is later still is kept "
            "aside as late.",
        ),
        click.option(
            "--trigger",
            "trigger_s",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help=f"With --stream: how often it looks for new files. By default {TRIGGER_S:g}.",
        ),
        click.option("--available-now", is_flag=True, help="With --stream: judge what is there, and end."),
        click.option(
            "--checkpoint",
            metavar="DIR",
            help="With --stream: where it keeps what it remembers, to go on after a stop or a kill. Any URL that Spark "
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
            raise click.UsageError(
                "--stream needs --checkpoint: the directory where it keeps what it remembers"
            )
        if settle_s:
            raise click.UsageError("with --stream give --lost-after instead of --settle")
        if self.available_now and self.trigger_s:
            raise click.UsageError("give --available-now or --trigger: the one ends, the other goes on")


class Progress:
    """A line on stderr for each epoch."""

    def __init__(self) -> None:
        self._before = 0

    def __call__(self, epoch: int, front: Front, size_bytes: int, took_s: float) -> None:
        totals = front.totals.by_group().values()
        counts = {
            name: sum(each.get(name, 0) for each in totals) for name in ("published", "delivered", "late")
        }
        until = "none yet" if front.until_us < 0 else _time(front.until_us)
        found = ", ".join(f"{count} {name}" for name, count in sorted(front.found.items())) or "nothing"
        click.echo(
            f"epoch {epoch}: {size_bytes / 1e6:.1f} MB in {took_s:.1f} s; published {counts['published']}, judged "
            f"{counts['delivered']}, held back {front.held_rows}, late {counts['late']}; watermark {until}; remembers "
            f"{front.state_bytes / 1e6:.1f} MB; found {found}",
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
