"""Options that every job has, and times on the command line."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

from lbg_core.command_output import output_option
from lbg_pipeline.errors import PipelineError

_SPAN = re.compile(r"([0-9]{1,9})(s|m|h|d|)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(text: str) -> int:
    """A span, as 300, 300s, 5m, 1h or 7d."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a duration: give it as 300s, 5m, 1h or 7d")
    return int(match[1]) * _SECONDS[match[2]]


def delay(text: str) -> int:
    """A span that targetDelay accepts, in seconds."""
    value = seconds(text)
    if not 1 <= value <= _SECONDS["d"]:
        raise click.BadParameter(f"{text!r} is not a delay from 1s to 1d")
    return value


def moment(text: str) -> datetime:
    """RFC 3339; UTC without an offset."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time: give it as 2026-11-27T16:55:00Z") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def zone(text: str) -> str:
    """A time zone of the IANA."""
    try:
        ZoneInfo(text)
    except (
        LookupError,
        ValueError,
        OSError,
    ):  # the last two for names of folders, and outside of the database
        raise click.BadParameter(f"{text!r} is not a known time zone: give it as Europe/Berlin") from None
    return text


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def journal_option(*, required: bool = True) -> Decorator:
    return click.option(
        "--journal",
        "journals",
        multiple=True,
        required=required,
        metavar="PATH",
        help="Journals: a file, a directory, a glob or any URL that Spark reads. Repeatable.",
    )


def groups_option(more: str = "") -> Decorator:
    """`more`: further use of the option."""
    return click.option(
        "--group",
        "groups",
        multiple=True,
        metavar="NAME",
        help=f"Only this group. Repeatable. By default all groups. {more}".rstrip(),
    )


def journal_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--journal and --group."""
    return journal_option()(groups_option()(command))


def _settings(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    for one in values:
        if not re.fullmatch(r"spark\.[^=\s]+=.*", one, re.DOTALL):
            raise click.BadParameter(f"{one!r} is not a setting of Spark: give it as spark.driver.memory=8g")
    return dict(one.split("=", 1) for one in values)


def out_option(*, required: bool = True) -> Decorator:
    return click.option(
        "--out",
        required=required,
        metavar="DIR",
        help="Directory of the results: a new one, or that of an earlier run, which is replaced. Any URL that Spark "
        "writes.",
    )


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--master, --conf, --output and --json."""
    for option in (
        output_option("the report, as one object.", has_flag=True),
        click.option(
            "--conf",
            multiple=True,
            callback=_settings,
            metavar="KEY=VALUE",
            help="A setting of Spark, as spark.driver.memory=8g (by default 4g on this machine). Repeatable.",
        ),
        click.option(
            "--master",
            metavar="URL",
            help="Spark master. By default spark-submit's, else local[*]: all cores of this machine.",
        ),
    ):
        command = option(command)
    return command


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--out and those of Spark."""
    return out_option()(spark_options(command))


def submitted(command: click.Command) -> None:
    """The entry of a spark-submit application."""
    try:
        sys.exit(command.main(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except PipelineError as error:
        click.echo(f"lbg: error: {error}", err=True)
        sys.exit(1)
    except click.Abort:
        click.echo("lbg: interrupted", err=True)
        sys.exit(128 + signal.SIGINT)
