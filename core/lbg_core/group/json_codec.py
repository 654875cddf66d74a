"""JSON that follows from dataclasses: the messages of members, and the entries of the group's streams.

An object has its class as `type` and the fields that differ from their default; a NamedTuple and a tuple are arrays.
A field accepts its type alone: integers count from 0, numbers are finite. Functions in its `Annotated` are its bounds:
each gets the value, and returns the one to be used or raises ValueError. Unknown fields are ignored.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lbg_core.group.errors import EntryError

T = TypeVar("T")
Sized = TypeVar("Sized", tuple[Any, ...], str)
Reader = Callable[[Any], Any]

ENTRY_VERSION = 1

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors of `json.loads` and of `JsonCodec.read`, for whatever was sent."""


def at_most(limit: int) -> Callable[[int], int]:
    """The bound of an integer."""

    def check(value: int) -> int:
        if value > limit:
            raise ValueError(f"{short(value)} is more than {limit}")
        return value

    return check


def capped_at(limit: int) -> Callable[[int], int]:
    """An integer above the limit counts as the limit."""
    return lambda value: min(value, limit)


def of_length(limit: int) -> Callable[[Sized], Sized]:
    """The bound of a text's characters, or of an array's entries."""

    def check(value: Sized) -> Sized:
        if len(value) > limit:
            raise ValueError(f"{len(value)} where at most {limit} are allowed")
        return value

    return check


class JsonCodec(Generic[T]):
    """The codec of a union of dataclasses, `classes`. Each is named in JSON by its own name, without `suffix` and in
    small letters."""

    def __init__(self, classes: Iterable[type], version: int, *, suffix: str = "") -> None:
        self._version = version
        self._names = {one: one.__name__.lower().removesuffix(suffix) for one in classes}
        self._defaults: dict[type, tuple[tuple[str, Any], ...]] = {}
        self._readers: dict[type, Reader] = {}
        self._by_name = {name: self._reader(one) for one, name in self._names.items()}
        self._encoder = json.JSONEncoder(separators=(",", ":"), default=self._fields_of)

    def encode(self, value: T) -> bytes:
        return self._encoder.encode({"v": self._version, **self._fields_of(value)}).encode()

    def read(self, content: Mapping[str, Any]) -> T | None:
        """The value of an object; None for a type that is not of these. Raises one of `UNREADABLE`."""
        reader = self._by_name.get(content["type"])
        return None if reader is None else reader(content)

    def _fields_of(self, value: object) -> dict[str, Any]:
        """The JSON object of a dataclass, its nested ones as they are."""
        class_ = type(value)
        content = {
            name: one for name, default in self._defaults[class_] if (one := getattr(value, name)) != default
        }
        return {"type": self._names[class_], **content} if class_ in self._names else content

    def _reader(self, hint: Any) -> Reader:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return _bounded(self._reader(arguments[0]), [one for one in arguments[1:] if callable(one)])
        if origin in (UnionType, Union):
            if NoneType in arguments:
                (kind,) = set(arguments) - {NoneType}
                return _optional(self._reader(kind))
            return self._union(arguments)
        if origin is tuple and arguments[1:] == (...,):
            return _array(self._reader(arguments[0]))
        if origin is tuple:
            return _row(list(map(self._reader, arguments)))
        if origin is dict:
            return _table(self._reader(arguments[1]))
        if hint in _PLAIN:
            return _PLAIN[hint]
        if origin is Literal:
            return _one_of(arguments)
        if issubclass(hint, enum.Enum):
            return _choice(hint)
        if hint not in self._readers:
            self._readers[hint] = self._object(hint)
        return self._readers[hint]

    def _union(self, classes: tuple[type, ...]) -> Reader:
        readers = {self._names[one]: self._reader(one) for one in classes}
        return lambda value: readers[value["type"]](value)

    def _object(self, class_: Any) -> Reader:
        readers = {
            name: self._reader(hint) for name, hint in get_type_hints(class_, include_extras=True).items()
        }
        if issubclass(class_, tuple):
            row, make = _row(list(readers.values())), class_._make
            return lambda value: make(row(value))
        given = [one for one in fields(class_) if one.init]
        self._defaults[class_] = tuple((one.name, _default(one)) for one in given)
        readers = {one.name: readers[one.name] for one in given}

        def read(value: Any) -> Any:
            return class_(**{name: readers[name](one) for name, one in value.items() if name in readers})

        return read


class EntryCodec(JsonCodec[T]):
    """The codec of the entries of a group's stream. `stream`: its name in errors."""

    def __init__(self, stream: str, classes: Iterable[type]) -> None:
        super().__init__(classes, ENTRY_VERSION, suffix="entry")
        self._stream = stream

    def decode(self, body: bytes | memoryview) -> T:
        """Raises EntryError."""
        try:
            content = json.loads(bytes(body))
            version = content["v"]
            entry = self.read(content) if version == ENTRY_VERSION else None
        except UNREADABLE as error:
            raise EntryError(f"no entry of {self._stream}: {bytes(body[:80])!r}") from error
        if version != ENTRY_VERSION:
            raise EntryError(
                f"the stream of {self._stream} has an entry of version {version}, and this LBG reads version "
                f"{ENTRY_VERSION}: upgrade it"
            )
        if entry is None:
            raise EntryError(
                f"an entry of {self._stream} of the type {short(content['type'])}, which is unknown"
            )
        return entry


def _default(field: Any) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _bounded(reader: Reader, bounds: Iterable[Reader]) -> Reader:
    for bound in bounds:
        reader = _behind(reader, bound)
    return reader


def _behind(reader: Reader, bound: Reader) -> Reader:
    return lambda value: bound(reader(value))


def _optional(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


def _array(reader: Reader) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise ValueError(f"{short(value)} is not an array")
        return tuple(map(reader, value))

    return read


def _row(readers: list[Reader]) -> Reader:
    match readers:  # without a loop where a message has thousands: runs, and streams
        case [first, second]:
            return lambda value: (first(value[0]), second(value[1]))
        case [first, second, third]:
            return lambda value: (first(value[0]), second(value[1]), third(value[2]))
    return lambda value: tuple([reader(one) for reader, one in zip(readers, value, strict=True)])


def _table(reader: Reader) -> Reader:
    return lambda value: {name: reader(one) for name, one in value.items()}


def _one_of(values: tuple[str, ...]) -> Reader:
    def read(value: Any) -> str:
        if value not in values:
            raise ValueError(f"{short(value)} is not one of {', '.join(values)}")
        return str(value)

    return read


def _choice(kind: type[enum.Enum]) -> Reader:
    members = {one.value: one for one in kind}
    return lambda value: members.get(value) or kind(value)


def _natural(value: Any) -> int:
    if type(value) is int and value >= 0:
        return value
    raise ValueError(f"{short(value)} is not an integer from 0 up")


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{short(value)} is not a number")
    return float(value)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{short(value)} is not a text")
    if not value.isascii():
        value.encode()  # UnicodeEncodeError, a ValueError, for half of a character
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{short(value)} is neither true nor false")
    return value


_PLAIN: dict[Any, Reader] = {int: _natural, float: _number, str: _text, bool: _flag}
