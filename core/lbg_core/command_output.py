"""Output of commands: the option --output, documents as JSON, and tables as lines of text."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

C = TypeVar("C", bound=Callable[..., Any])

TABLE, JSON = FORMATS = ("table", "json")


def output_option(result: str, *, has_flag: bool = False) -> Callable[[C], C]:
    """--output, handed to the command as `as_json`. `result`: the JSON, for the help. `has_flag`: with --json, which
    commands had before --output."""

    def decorate(command: C) -> C:
        @functools.wraps(command)
        def with_format(*args: Any, output: str, as_json: bool = False, **kwargs: Any) -> Any:
            source = click.get_current_context().get_parameter_source("output")
            if as_json and output == TABLE and source is not ParameterSource.DEFAULT:
                raise click.UsageError("--json is --output json: give it without --output table")
            return command(*args, as_json=as_json or output == JSON, **kwargs)

        made: Any = with_format
        if has_flag:
            made = click.option("--json", "as_json", is_flag=True, help="The same as --output json.")(made)
        option = click.option(
            "-o",
            "--output",
            type=click.Choice(FORMATS),
            default=TABLE,
            show_default=True,
            help=f"table: text for people. json: {result}",
        )
        return cast(C, option(made))

    return decorate


def echo_json(document: object) -> None:
    """Print a document that is all the output of a command; one of a stream is a line."""
    click.echo(json.dumps(document, indent=2))


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, names: int | None = None
) -> Iterator[str]:
    """A line for the header and each row, columns as wide as they need to be.

    The first `names` columns stand at the left, the others, numbers, at the right; None: all stand at the left.
    """
    table = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.ljust(width) if names is None or place < names else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
