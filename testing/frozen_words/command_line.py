"""Words of the command line, of environments and of Python."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import pytest

import lbg_sidecar as sidecar
from lbg_operator import settings as operator_settings
from lbg_sidecar.process import settings as sidecar_settings
from lbgroup.cli import cli as commands
from lbgroup.commands import EXIT_UNROUTED
from lbgroup.commands import run as run_command
from testing.frozen_words.operator import cluster_objects, containers_in
from testing.frozen_words.words import Words
from testing.output_documents import SCHEMA


def environment(place: Path) -> Words:
    """Variables that a process reads, or an application finds."""
    told = RecordingEnvironment()
    operator_settings.OperatorSettings.from_environment(told)
    options = {name for _, command in walked() for option in command.params for name in envvars(option)}
    in_help = set(re.findall(r"\bLBG_[A-Z_]*[A-Z]\b", "".join(help_of(command) for _, command in walked())))
    return {
        "command line": options | in_help,
        "command line, as read": asked_by_commands(),
        "sidecar": {row.variable for row in sidecar_settings.table().values()},
        "operator": {name for name in told.asked if name.startswith("LBG_")},
        "containers of consumers": {
            variable["name"]
            for made in cluster_objects()
            for container in containers_in(made)
            for variable in container.get("env", ())
        },
    }


class RecordingEnvironment(dict[str, str]):
    """An environment that has every variable that must be there, and records all that is asked for."""

    def __init__(self, there: Mapping[str, str] | None = None) -> None:
        super().__init__(there or {})
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return "registry/image:1" if name.endswith("_IMAGE") else super().get(name, default)

    def __getitem__(self, name: str) -> str:
        return str(self.get(name))


def asked_by_commands() -> set[str]:
    """Settings that a failing command and one that makes a user read beside their options."""

    def fail() -> None:
        raise RuntimeError("a bug")

    nowhere = ["--broker", "amqp://127.0.0.1:1/", "--management", "http://127.0.0.1:1"]
    counts = ["--hash-count", "4", "--queue-count", "2", "--queue-size-mb", "1", "--hash-prefix", "orders"]
    told = RecordingEnvironment(os.environ)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "environ", told)
        run_command(click.Command("lbg", callback=fail), [])
        run_command(commands, ["group", "create", "orders", *counts, *nowhere])
    return {name for name in told.asked if name.startswith("LBG_")}


def command_line(place: Path) -> Words:
    """Every command with its options, arguments and choices."""
    found: Words = {
        "executables": {one.name for one in entry_points(group="console_scripts") if one.name == "lbg"}
    }
    for path, command in walked():
        above, _, name = path.rpartition(" ")
        found.setdefault(above or "executables", set()).add(name)
        for option in command.params:
            is_option = option.param_type_name == "option"
            spelled = [*option.opts, *option.secondary_opts] if is_option else [f"argument {option.nargs}"]
            choices = {f"{spelled[0]}={choice}" for choice in getattr(option.type, "choices", ())}
            found.setdefault(path, set()).update(choices, spelled)
    return found


def exit_codes(place: Path) -> Words:
    def failing(error: BaseException) -> click.Command:
        def callback() -> None:
            raise error

        return click.Command("lbg", callback=callback)

    outcomes = {
        "success": click.Command("lbg", callback=lambda: None),
        "failure": failing(OSError("no such file")),
        "internal error": failing(RuntimeError("a bug")),
        "wrong command line": failing(click.UsageError("no such option")),
        "interrupted": failing(KeyboardInterrupt()),
        "verdict": click.Command("lbg", callback=lambda: 1),
        "unrouted": click.Command("lbg", callback=lambda: EXIT_UNROUTED),
    }
    return {"lbg": {f"{outcome}: {run_command(command, [])}" for outcome, command in outcomes.items()}}


def python_names(place: Path) -> Words:
    """Names that programs import, with the parameters and public attributes of each."""
    found: Words = {}
    exported = {
        "lbg_sidecar": sidecar.__all__,
        "lbg_sidecar.inbox": importlib.import_module("lbg_sidecar.inbox").__all__,
        "lbg_sidecar.inbox.postgres": ["PostgresInbox"],
        "lbgroup": importlib.import_module("lbgroup").__all__,
    }
    for module, exports in exported.items():
        for export in exports:
            thing = getattr(importlib.import_module(module), export)
            if (
                module == "lbgroup" and export in sidecar.__all__
            ):  # with its attributes it is among lbg_sidecar's
                found.setdefault(module, set()).add(export)
                continue
            words = {export, *(f"{export}({parameter})" for parameter in parameters(thing))}
            if inspect.isclass(thing):
                inherited = {
                    name for base in (Exception, str) if issubclass(thing, base) for name in dir(base)
                }
                words |= {
                    f"{export}.{name}" for name in set(dir(thing)) - inherited if not name.startswith("_")
                }
            found.setdefault(module, set()).update(words - INTERNAL)
    inboxes = [getattr(importlib.import_module(path), name) for path, name in INBOXES]
    found["inbox tables"] = {
        str(one.default) for inbox in inboxes for one in inspect.signature(inbox).parameters.values()
    }
    return found


INTERNAL = {
    *(f"AppChannel.{name}" for name in ("abort", "describe", "limit", "start", "stop", "wake", "withdraw")),
    *(
        f"CommandChannel.{name}"
        for name in ("abort", "describe", "limit", "start", "stop", "wake", "withdraw")
    ),
    *("CommandChannel(down_grace_s)", "CommandChannel(uniform)"),
    *("Member(contact)", "Member(observer)", "Member.count", "Member.last_received_at"),
    *(f"Group.{name}" for name in ("altered", "from_record", "from_unfinished", "parse", "limits_clients")),
    *("Group.attributes", "Group.to_record", "Group.to_unfinished", "GroupAdmin(admin)"),
    *("Publisher.failed", "Publisher.is_opened", "Publisher.publish_soon", "Publisher.require_usable"),
    *("Message(in_flight)", "Message(group)", "Message.in_flight", "Message.delivery"),
}
"""Of exported classes, and for the product alone."""

INBOXES = (("lbg_sidecar.inbox", "SQLiteInbox"), ("lbg_sidecar.inbox.postgres", "PostgresInbox"))


def parameters(thing: Any) -> list[str]:
    if not callable(thing) or isinstance(thing, enum.EnumMeta):
        return []
    try:
        return [name for name in inspect.signature(thing).parameters if name not in ("args", "kwargs")]
    except ValueError:  # of a class of the interpreter's own
        return []


def walked() -> Iterator[tuple[str, Any]]:
    """Every command of `lbg`, by what is typed."""

    def walk(command: Any, path: str, parent: Any) -> Iterator[tuple[str, Any]]:
        yield path, command
        context = click.Context(command, info_name=path.split()[-1], parent=parent)
        for name in command.list_commands(context) if isinstance(command, click.Group) else ():
            yield from walk(command.get_command(context, name), f"{path} {name}", context)

    return walk(commands, "lbg", None)


def envvars(option: Any) -> Sequence[str]:
    given = option.envvar
    return () if given is None else (given,) if isinstance(given, str) else given


def help_of(command: Any) -> str:
    with click.Context(command, info_name="lbg") as context:
        return str(command.get_help(context))


def output_documents(place: Path) -> Words:
    """Keys of the JSON of commands with their types, and the words that a key may have."""
    found: Words = {}
    for name, schema in SCHEMA["$defs"].items():
        if "properties" not in schema:  # of a command
            found[name] = {type_text(one) for one in schema.get("anyOf", [schema])}
            continue
        words = found[name] = set[str]()
        for key, value in schema["properties"].items():
            optional = "" if key in schema["required"] else ", not always there"
            listed = value.get("enum") or ([value["const"]] if "const" in value else [])
            words |= {f"{key}={one}{optional}" for one in listed} or {f"{key}: {type_text(value)}{optional}"}
    return found


def type_text(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"$ref": reference}:
            return str(reference).rpartition("/")[2]
        case {"const": constant}:
            return json.dumps(constant)
        case {"anyOf": kinds}:
            return " or ".join(map(type_text, kinds))
        case {"items": items}:
            return f"array of {type_text(items)}"
        case {"additionalProperties": values}:
            return f"object of {type_text(values)}"
        case {"type": [*names]}:
            return " or ".join(names)
        case {"type": name}:
            return str(name)
    return "any"
