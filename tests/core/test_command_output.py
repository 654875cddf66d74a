"""The option --output, with and without the flag --json that some commands had before it."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from lbg_core.command_output import echo_json, output_option


@click.command()
@output_option("one object.")
def new(as_json: bool) -> None:
    show(as_json)


@click.command()
@output_option("one object.", has_flag=True)
def former(as_json: bool) -> None:
    show(as_json)


def show(as_json: bool) -> None:
    if as_json:
        echo_json({"a": 1})
    else:
        click.echo("a is 1")


@pytest.mark.parametrize("command", [new, former])
@pytest.mark.parametrize("option", ["-o", "--output"])
def test_the_format_is_chosen_by_its_name(command: click.Command, option: str) -> None:
    def said(*arguments: str) -> str:
        return CliRunner().invoke(command, arguments).output

    assert said(option, "json") == '{\n  "a": 1\n}\n'
    assert said(option, "table") == said() == "a is 1\n"


def test_the_flag_is_the_same_as_json_and_goes_with_it() -> None:
    expected = CliRunner().invoke(former, ["-o", "json"]).output
    assert CliRunner().invoke(former, ["--json"]).output == expected
    assert CliRunner().invoke(former, ["--json", "-o", "json"]).output == expected
    assert CliRunner().invoke(new, ["--json"]).exit_code == 2


@pytest.mark.parametrize("arguments", [("-o", "table", "--json"), ("--json", "--output", "table")])
def test_the_flag_and_table_are_refused(arguments: tuple[str, ...]) -> None:
    refused = CliRunner().invoke(former, arguments)
    assert refused.exit_code == 2
    assert refused.output.splitlines()[-1] == "Error: --json is --output json: give it without --output table"


@pytest.mark.parametrize("wrong", ["yaml", "JSON", ""])
def test_another_format_is_refused(wrong: str) -> None:
    refused = CliRunner().invoke(former, ["-o", wrong])
    assert refused.exit_code == 2
    assert "is not one of 'table', 'json'" in refused.output
