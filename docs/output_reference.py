"""Makes docs/reference/output.schema.json and docs/reference/output.md from what commands print as JSON.

    python docs/output_reference.py --schema > docs/reference/output.schema.json
    python docs/output_reference.py > docs/reference/output.md

A test compares both with what this makes.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import sys
import types
from collections.abc import Iterator, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from lbg_core.declaration import declarations, without_links
from lbgroup.documents import DOCUMENTS, STREAMS, Extended
from lbgroup.group_documents import Declared

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", types.NoneType: "null"}

Schema = dict[str, Any]


class Definitions:
    """Schemas of objects by name, each made when it is first referred to."""

    def __init__(self) -> None:
        self.found: dict[str, Schema] = {}

    def schema_of(self, kind: Any) -> Schema:
        if isinstance(kind, Extended):
            return self._reference(kind)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated and isinstance(arguments[1], Declared):
            return self._declared(arguments[1])
        if origin is Annotated:
            words = [one for one in arguments[1:] if isinstance(one, str)]
            return {**self.schema_of(arguments[0]), **({"description": words[0]} if words else {})}
        if origin is Literal:
            return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return self._any_of(arguments)
        if origin in (list, tuple):
            return {"type": "array", "items": self.schema_of(arguments[0])}
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.schema_of(arguments[1])}
        if kind in PLAIN:
            return {"type": PLAIN[kind]}
        if kind in (Any, object):
            return {}
        if issubclass(kind, enum.StrEnum):
            return {"enum": [one.value for one in kind]}
        return self._reference(kind)

    def _any_of(self, kinds: tuple[Any, ...]) -> Schema:
        plain = [PLAIN[kind] for kind in kinds if kind in PLAIN]
        others = [self.schema_of(kind) for kind in kinds if kind not in PLAIN]
        if not others:
            return {"type": plain}
        return {"anyOf": [*others, *({"type": name} for name in plain)]}

    def _reference(self, kind: Any) -> Schema:
        if isinstance(kind, Extended):
            name, base, more = (
                "".join(map(_word, kind.more.values())) + kind.base.__name__,
                kind.base,
                kind.more,
            )
        else:
            name, base, more = kind.__name__, kind, {}
        if name not in self.found:
            self.found[name] = {}  # its place, before those of the objects in it
            self.found[name] = self._object(base, more)
        return {"$ref": f"#/$defs/{name}"}

    def _declared(self, holder: Declared) -> Schema:
        properties = {}
        for name, one in declarations(holder.base).items():
            kind = PLAIN[one.kind]
            values: Schema = {"type": [kind, "null"] if one.is_optional else kind}
            if one.choices:
                values = {"enum": list(one.choices)}
            text = without_links(one.help_for(lambda other: f"`{other}`"))
            properties[name] = {**values, "description": text}
        self.found[holder.name] = {
            "description": holder.about,
            "type": "object",
            "properties": properties,
            "required": list(properties),
        }
        return {"$ref": f"#/$defs/{holder.name}"}

    def _object(self, kind: Any, more: Mapping[str, Any]) -> Schema:
        hints = get_type_hints(kind, include_extras=True)
        if dataclasses.is_dataclass(kind):
            hints = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
        elif not is_typeddict(kind):
            raise TypeError(f"{kind} is no document")
        properties, required = {}, []
        for name, hint in {**more, **hints}.items():
            is_optional = get_origin(hint) is NotRequired
            properties[name] = self.schema_of(get_args(hint)[0] if is_optional else hint)
            if not is_optional:
                required.append(name)
        about = " ".join((inspect.getdoc(kind) or "").split())
        return {"description": about, "type": "object", "properties": properties, "required": required}


def _word(kind: Any) -> str:
    return "Event" if get_origin(kind) is Literal else "Group"


def schema() -> Schema:
    """All documents; those of a command are at `#/$defs/` and its name with hyphens."""
    definitions = Definitions()
    commands = {}
    for command, kind in DOCUMENTS.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        schemas = [definitions.schema_of(one) for one in kinds]
        commands[anchor(command)] = {
            "title": f"lbg {command}",
            **(schemas[0] if len(schemas) == 1 else {"anyOf": schemas}),
        }
    return {
        "$schema": DIALECT,
        "title": "Output of lbg with --output json",
        "description": "The output of `lbg group show` is `#/$defs/group-show`. Keys are added, and none is removed or "
        "changed: accept keys that are not here.",
        "$defs": {**commands, **dict(sorted(definitions.found.items()))},
    }


def anchor(command: str) -> str:
    return command.replace(" ", "-")


HEAD = """# Output as JSON

Made by `python docs/output_reference.py > docs/reference/output.md`.

`--output json`, short `-o json`, of a command prints its result as JSON on standard output. `--output table`, the
default, is text for people, which may change at any time. Commands that had `--json` before still have it: it is the
same as `--output json`, and `--json --output table` is refused.

- A command prints one document. {streams} and `lbg group show --watch` print one a line (JSON Lines).
- A command that changes something answers with `action`: what was done, or `unchanged`.
- **Errors are the same as without it**: one line on standard error that begins with `lbg: error: `, and the exit status
  (1 for a failure, 2 for a wrong command line, 130 for Ctrl-C). Standard output is empty then, unless something was
  done or found before the error: `lbg group pause` prints its document and fails if a member does not follow. A
  verdict, as of `lbg validate`, is a document with status 1 and no error. So read the exit status first.
- Progress, warnings and logs go to standard error.
- Units are in names: `_us` is microseconds (of times: since the epoch), `_s` seconds; `_bytes`, `_mb`. Counts are
  numbers, and `"unknown"` where the broker did not report them: never 0.
- **Keys, and words for `action` and `event`, are added; none is removed, renamed or given another type.** Ignore those
  that you do not know.

[output.schema.json](output.schema.json) has the JSON Schemas (draft 2020-12): that of `lbg group show` is
`output.schema.json#/$defs/group-show`.

Without `--output`: `lbg consume` prints messages as JSON Lines in any case; with a command it prints logs only, as do
`lbg sidecar`, `lbg console` and `lbg operator run` ([logging.md](../logging.md)). `lbg completion` prints a script of a
shell.
"""


def page() -> str:
    made = schema()
    streams = ", ".join(f"`lbg {name}`" for name in STREAMS)
    parts = [HEAD.format(streams=streams)]
    references = [made["$defs"][anchor(command)] for command in DOCUMENTS]
    parts += ["## Commands\n", "| command | document |\n|---|---|"]
    for command, one in zip(DOCUMENTS, references, strict=True):
        kinds = one.get("anyOf", [one])
        parts.append(f"| `lbg {command}` | {' or '.join(map(_type_text, kinds))} |")
    shown = {anchor(command) for command in DOCUMENTS}
    parts.append("\n## Objects\n")
    for name, one in made["$defs"].items():
        if name not in shown:
            parts.append("\n".join(_table(name, one)) + "\n")
    return "\n".join(parts)


def _table(name: str, one: Schema) -> Iterator[str]:
    yield from (f"### {name}", "", one["description"], "", "| key | value | |", "|---|---|---|")
    for key, value in one["properties"].items():
        meaning = value.get("description", "")
        if key not in one["required"]:
            meaning = f"not always there{f': {meaning}' if meaning else ''}"
        yield f"| `{key}` | {_type_text(value)} | {meaning} |"


def _type_text(value: Schema) -> str:
    match value:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"const": constant}:
            return f"`{json.dumps(constant)}`"
        case {"enum": values}:
            return ", ".join(f"`{json.dumps(one)}`" for one in values)
        case {"anyOf": kinds}:
            return " or ".join(map(_type_text, kinds))
        case {"type": "array", "items": items}:
            return f"array of {_type_text(items)}"
        case {"type": "object", "additionalProperties": values}:
            return f"object of {_type_text(values)}" if values else "object"
        case {"type": [*names]}:
            return " or ".join(names)
        case {"type": name}:
            return str(name)
    return "any"


if __name__ == "__main__":
    if sys.argv[1:] == ["--schema"]:
        sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
    else:
        sys.stdout.write(page())
