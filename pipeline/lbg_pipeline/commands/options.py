"""The options that every job has."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

DEFAULT_GROUP = "unnamed"


def journal_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--journal, --group and --default-group."""
    for option in (
        click.option(
            "--default-group",
            default=DEFAULT_GROUP,
            show_default=True,
            metavar="NAME",
            help="The group of records that name none: journals did not always say it.",
        ),
        click.option(
            "--group",
            "groups",
            multiple=True,
            metavar="NAME",
            help="Only this group. May be given more than once. By default all.",
        ),
        click.option(
            "--journal",
            "journals",
            multiple=True,
            required=True,
            metavar="PATH",
            help="Where journals are: a file, a directory, a glob or any URL that Spark reads. May be given more "
            "than once.",
        ),
    ):
        command = option(command)
    return command


def _settings(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    for one in given:
        if not re.fullmatch(r"spark\.[^=\s]+=.*", one, re.DOTALL):
            raise click.BadParameter(f"{one!r} is no setting of Spark's: say it as spark.driver.memory=8g")
    return dict(one.split("=", 1) for one in given)


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--out, --master, --conf and --json."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="The report as JSON on standard output."),
        click.option(
            "--conf",
            multiple=True,
            callback=_settings,
            metavar="KEY=VALUE",
            help="A setting of Spark's, as spark.driver.memory=8g (by default 4g on this machine). May be given more "
            "than once.",
        ),
        click.option(
            "--master",
            metavar="URL",
            help="The Spark to run on. By default spark-submit's, else local[*]: all cores of this machine.",
        ),
        click.option(
            "--out",
            required=True,
            metavar="DIR",
            help="Where results go: a new directory, or one of an earlier run, which is replaced. Any URL that "
            "Spark writes.",
        ),
    ):
        command = option(command)
    return command
