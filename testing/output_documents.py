"""JSON that commands print, checked against docs/reference/output.schema.json: with no key that the schema lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import click
from jsonschema import Draft202012Validator

from lbgroup.cli import cli
from lbgroup.documents import STREAMS
from testing import ROOT

SCHEMA: dict[str, Any] = json.loads((ROOT / "docs/reference/output.schema.json").read_text())


def leaves() -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group of commands, by what is typed after `lbg`."""

    def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
        if not isinstance(command, click.Group):
            yield path, command
            return
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from walk(inner, f"{path} {name}".strip())

    return walk(cli, "")


def closed(schema: Any) -> Any:
    """The schema that refuses the keys that it does not name."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {
        name: {key: closed(one) for key, one in value.items()} if name == "properties" else closed(value)
        for name, value in schema.items()
    }
    return {**inner, "additionalProperties": False} if "properties" in schema else inner


@cache
def _validator(command: str) -> Draft202012Validator:
    made = {**closed(SCHEMA), "$ref": f"#/$defs/{command.replace(' ', '-')}"}
    return Draft202012Validator(made)


def checked(command: str, text: str) -> Any:
    """Output of a command in `text`, as its schema allows it."""
    document = json.loads(text)
    for error in _validator(command).iter_errors(document):
        best = min(error.context or [error], key=lambda one: -len(one.absolute_path))
        raise AssertionError(f"lbg {command}: {error.json_path}: {best.message}")
    return document


def check_output(arguments: Sequence[str], out: str) -> None:
    """Check all that a command with these arguments printed, if it printed JSON."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    if "--json" not in arguments and not any(
        one in ("-o", "--output") and word == "json" for one, word in pairs
    ):
        return
    command = next(
        (path for path, _ in leaves() if tuple(arguments[: len(path.split())]) == tuple(path.split())), None
    )
    if command is None:
        return
    is_stream = command in STREAMS or "--watch" in arguments
    for text in out.splitlines() if is_stream else [out] if out else []:
        checked(command, text)
