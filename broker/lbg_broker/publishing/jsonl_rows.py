"""Rows of JSON Lines: one object a line, which is the body as it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from .errors import BadRow, InputError
from .rows import Row, RowOptions, listed
from .sources import Lines


def jsonl_rows(lines: Lines, options: RowOptions) -> Iterator[Row | BadRow]:
    """A body is the line's own bytes without the white space around them. Empty lines are passed over.

    A key may be text, a number or a boolean (as JSON writes it), null or absent in a null object: no key.
    Raises InputError if the first object lacks a field that the options name: then the option is wrong, not
    the row.
    """
    name = lines.source.name
    decode = json.JSONDecoder(parse_constant=_no_constant).decode
    number = 0
    for line in lines:
        body = line.strip()
        if not body:
            continue
        number += 1
        try:
            found = decode(body.decode())
            if not isinstance(found, dict):
                raise _NoMessage("it is JSON but no object; JSON Lines has one object on each line")
            key = _key(found, options)
            topic = options.topic if options.topic_field is None else _text(found, options.topic_field)
        except _NoField as error:
            if number == 1:
                raise InputError(
                    f"{name} has no field {error.path!r}; its fields are {listed(error.fields)}"
                ) from None
            yield BadRow(name, number, str(error), line=lines.number)
        except (_NoMessage, ValueError, RecursionError) as error:
            yield BadRow(name, number, _why(error), line=lines.number)
        else:
            yield Row(number, lines.number, key, topic or "", body)


class _NoMessage(Exception):
    pass


class _NoField(_NoMessage):
    def __init__(self, path: str, fields: list[str]) -> None:
        super().__init__(f"it has no field {path!r}; its fields are {listed(fields)}")
        self.path = path
        self.fields = fields


def _key(found: dict[str, Any], options: RowOptions) -> str | None:
    if options.key_field is None:
        return None
    key = _text(found, options.key_field)
    return None if key in options.no_key else key


def _text(found: dict[str, Any], path: str) -> str | None:
    value = found[path] if path in found else _along(found, path)
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "an array"
        raise _NoMessage(f"field {path!r} is {kind}; it has to be text or a number")
    return json.dumps(value)


def _along(found: dict[str, Any], path: str) -> Any:
    value: Any = found
    for name in path.split("."):
        if value is None:
            return None
        if not isinstance(value, dict) or name not in value:
            raise _NoField(path, _paths(found))
        value = value[name]
    return value


def _paths(found: dict[str, Any]) -> list[str]:
    """The fields, and those of objects in them with a dot."""
    paths = []
    for name, value in found.items():
        paths += [f"{name}.{inner}" for inner in value] if isinstance(value, dict) and value else [name]
    return paths


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte 0x{error.object[error.start]:02x} is not UTF-8; convert it, with iconv for example"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at character {error.colno}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error)
