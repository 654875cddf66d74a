"""Rows of an input, CSV (RFC 4180) or JSON lines, and their key, topic and body."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json.encoder import encode_basestring
from pathlib import PurePath
from typing import Any, NoReturn

from lbg_core.counted_nouns import counted
from lbg_core.group import KEY_RULE, key_text
from lbg_core.publisher.errors import BadRow, InputError
from lbg_core.publisher.input.source import ROW_MAX_BYTES, Lines, LineTooLong, Source

FORMATS = ("csv", "tsv", "jsonl")

# R, and the data sets made with it, write a missing value as NA.
NO_KEY_VALUES = frozenset({"", "NA"})


@dataclass(frozen=True, slots=True)
class Row:
    """One message to be. `number` counts the rows from 1, a header not included; `line` is where it ends."""

    number: int
    line: int
    key: str | None
    topic: str
    body: bytes


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Fields of a row that are key, topic and body.

    `key_field`: the field that holds the key; None: no message has one. In JSON, `a.b` is field b of object
        a, unless there is a field called `a.b`.
    `topic`: the topic of every message, unless `topic_field` names the field that holds it.
    `no_key`: key values that mean that there is no key.
    `format`: csv, tsv or jsonl; None: by the file's name, else by its first character.
    """

    key_field: str | None = None
    topic: str = ""
    topic_field: str | None = None
    no_key: frozenset[str] = NO_KEY_VALUES
    format: str | None = None


def listed(names: list[str], *, limit: int = 40) -> str:
    """Field names for an error line."""
    return ", ".join(names[:limit]) + (f", … ({len(names)} in all)" if len(names) > limit else "")


ROW_TOO_LONG = f"it has more than {ROW_MAX_BYTES} bytes"


def csv_rows(lines: Lines, options: RowOptions, *, is_tsv: bool = False) -> Iterator[Row | BadRow]:
    """Values stay text as they are in the file: `007` is not 7. Empty lines are passed over.

    Raises InputError for an input without a usable header, or without a field that the options name.
    """
    csv.field_size_limit(max(csv.field_size_limit(), 2 * ROW_MAX_BYTES))  # the limit is that of the row
    name = lines.source.name
    delimiter = "\t" if is_tsv else ","
    texts = _Texts(lines, delimiter)
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    lines.source.header_read = header = _header(reader, name)
    key_at = _place(header, options.key_field, name)
    topic_at = _place(header, options.topic_field, name)
    no_key, topic, width = options.no_key, options.topic, len(header)
    # `{"first":` and `,"second":` …: a body is these and the quoted values, alternating.
    openings = [("," if at else "{") + encode_basestring(field) + ":" for at, field in enumerate(header)]
    number = 0
    while True:
        texts.begin_row()
        try:
            values = next(reader)
        except StopIteration:
            return
        except (UnicodeDecodeError, _RowTooLong, csv.Error) as error:
            number += 1
            why = (
                _not_utf8(error)
                if isinstance(error, UnicodeDecodeError)
                else f"{error if isinstance(error, csv.Error) else ROW_TOO_LONG}; check its quotes"
            )
            if not texts.end_row():
                why = f"{why}; a quoted field of it has no end, so what follows cannot be read"
                raise InputError(str(BadRow(name, number, why, line=lines.number))) from error
            yield BadRow(name, number, why, line=lines.number)
            continue
        if not values:
            continue
        number += 1
        if len(values) != width:
            why = f"{counted(len(values), 'field')} where the header has {width}; check its quotes and separators"
            yield BadRow(name, number, why, line=lines.number)
            continue
        body = (
            "".join(
                [opening + encode_basestring(value) for opening, value in zip(openings, values, strict=True)]
            )
            + "}"
        )
        key = None if key_at is None or (key := values[key_at]) in no_key else key
        yield Row(number, lines.number, key, topic if topic_at is None else values[topic_at], body.encode())


def _header(reader: Iterator[list[str]], name: str) -> list[str]:
    try:
        header = next((values for values in reader if values), None)
    except UnicodeDecodeError as error:
        raise InputError(f"{name}, header: {_not_utf8(error)}") from error
    except csv.Error as error:
        raise InputError(f"{name}, header: {error}; is it CSV?") from error
    except _RowTooLong as error:
        raise InputError(f"{name}, header: {ROW_TOO_LONG}; is this a text file?") from error
    if header is None:
        raise InputError(f"{name} is empty: CSV begins with a header row")
    repeated = sorted({field for field in header if header.count(field) > 1})
    if repeated:
        raise InputError(
            f"{name}: the header has {listed(repeated)} more than once; give each field its own name"
        )
    return header


def _place(header: list[str], field: str | None, name: str) -> int | None:
    if field is None:
        return None
    if field not in header:
        raise InputError(f"{name} has no field {field!r}; its fields are {listed(header)}")
    return header.index(field)


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"byte 0x{error.object[error.start]:02x} is not UTF-8; convert it, with iconv for example"


class _RowTooLong(Exception):
    pass


class _Quotes:
    """Detects whether a row of CSV goes on behind its line: a quoted field is open."""

    def __init__(self, delimiter: str) -> None:
        self._at_begin, self._is_quoted, self._after_quote = True, False, False
        self._field_end = re.compile(f"[{delimiter}\n]".encode())

    @property
    def is_open(self) -> bool:
        return self._is_quoted

    def feed(self, part: bytes) -> None:
        """The next part of the row."""
        at, size = 0, len(part)
        while at < size:
            if self._is_quoted:
                at = part.find(b'"', at) + 1
                if not at:
                    return
                self._is_quoted, self._after_quote = False, True
                continue
            if (self._at_begin or self._after_quote) and part[at] == _QUOTE:
                self._at_begin, self._is_quoted, self._after_quote = False, True, False
                at += 1
                continue
            end = self._field_end.search(part, at)
            self._at_begin, self._after_quote = end is not None, False
            if end is None:
                return
            at = end.end()


_QUOTE = ord('"')


class _Texts:
    """Decoded lines. No generator, because it goes on after a line that cannot be decoded. Raises _RowTooLong."""

    def __init__(self, lines: Lines, delimiter: str) -> None:
        self._lines = lines
        self._delimiter = delimiter
        self._row: list[bytes] = []
        self._row_bytes = 0

    def __iter__(self) -> _Texts:
        return self

    def __next__(self) -> str:
        try:
            line = next(self._lines)
        except LineTooLong as error:
            self._row.append(error.head)
            raise _RowTooLong from error
        self._row.append(line)
        self._row_bytes += len(line)
        if self._row_bytes > ROW_MAX_BYTES:
            raise _RowTooLong
        return line.decode()

    def begin_row(self) -> None:
        self._row.clear()
        self._row_bytes = 0

    def end_row(self) -> bool:
        """Passes over the rest of a row that is not used; False if it has no end."""
        quotes = _Quotes(self._delimiter)
        for line in self._row:
            quotes.feed(line)
        self._row.clear()
        while True:
            for part in self._lines.rest_of_line():
                quotes.feed(part)
            if not quotes.is_open:
                return True
            try:
                quotes.feed(next(self._lines))
            except LineTooLong as error:
                quotes.feed(error.head)
            except StopIteration:
                return False


def jsonl_rows(lines: Lines, options: RowOptions) -> Iterator[Row | BadRow]:
    """A body is the line's own bytes without the white space around them. Empty lines are passed over.

    A key may be text, a number or a boolean (`group.key_text`: 1, 1.0 and "1" are the same), null or absent in a null
    object: no key.
    Raises InputError if the first object lacks a field that the options name: then the option is wrong, not
    the row.
    """
    name = lines.source.name
    decode = json.JSONDecoder(parse_constant=_no_constant).decode
    number = 0
    while True:
        try:
            line = next(lines)
        except StopIteration:
            return
        except LineTooLong:
            number += 1
            yield BadRow(
                name, number, f"{ROW_TOO_LONG} without a newline; is this a text file?", line=lines.number
            )
            continue
        body = line.strip()
        if not body:
            continue
        number += 1
        try:
            fields = decode(body.decode())
            if not isinstance(fields, dict):
                raise _NoMessage("it is JSON but no object; JSON Lines has one object on each line")
            key = _key(fields, options)
            topic = options.topic if options.topic_field is None else _text(fields, options.topic_field)
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


def _key(fields: dict[str, Any], options: RowOptions) -> str | None:
    if options.key_field is None:
        return None
    key = _text(fields, options.key_field)
    return None if key in options.no_key else key


def _text(fields: dict[str, Any], path: str) -> str | None:
    value = fields[path] if path in fields else _along(fields, path)
    if value is None:
        return None
    if value == "":
        return ""
    text = key_text(value)
    if text is None:
        kinds = {dict: "an object", list: "an array", float: "beyond the range of a double"}
        kind = kinds.get(type(value), "text with an unpaired surrogate")
        raise _NoMessage(f"field {path!r} is {kind}: it {KEY_RULE}")
    return text


def _along(fields: dict[str, Any], path: str) -> Any:
    value: Any = fields
    for name in path.split("."):
        if value is None:
            return None
        if not isinstance(value, dict) or name not in value:
            raise _NoField(path, _paths(fields))
        value = value[name]
    return value


def _paths(fields: dict[str, Any]) -> list[str]:
    """The fields, and those of objects in them with a dot."""
    paths = []
    for name, value in fields.items():
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


BATCH_ROWS = 256

_BY_SUFFIX = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}

_NAMES = {"csv": "CSV", "tsv": "tab-separated text", "jsonl": "JSON Lines"}


def read_rows(source: Source, options: RowOptions) -> Iterator[list[Row | BadRow]]:
    """The rows of `source` in batches of up to `BATCH_ROWS`, smaller when a pipe has no more at the moment.

    A row that is no message is there as a BadRow, for the caller to raise or to count. Raises InputError for
    what no row can be read past: an unknown field, a damaged file. Memory does not grow with the input.
    """
    lines = Lines(source)
    named = options.format or _BY_SUFFIX.get(PurePath(source.inner_name).suffix.lower())
    format_ = named or _format_of(lines)
    if format_ not in FORMATS:
        raise InputError(f"format {format_!r} is not one of {', '.join(FORMATS)}")
    source.format_read = _NAMES[format_] if named else f"{_NAMES[format_]} (by its first character)"
    rows = (
        jsonl_rows(lines, options)
        if format_ == "jsonl"
        else csv_rows(lines, options, is_tsv=format_ == "tsv")
    )
    batch: list[Row | BadRow] = []
    for row in rows:
        batch.append(row)
        if len(batch) >= BATCH_ROWS or not lines.at_hand:
            yield batch
            batch = []
    if batch:
        yield batch


def count_rows(source: Source, options: RowOptions) -> int:
    """Number of messages that an input has. Raises BadRow for the first row that is none, and InputError."""
    rows = 0
    for batch in read_rows(source, options):
        for row in batch:
            if isinstance(row, BadRow):
                raise row
        rows += len(batch)
    return rows


def without_rows(source: Source) -> str:
    """Reason for which an input had no row: an empty one, or one of another format than it was taken for."""
    header = source.header_read
    content = (
        f"a header row ({listed(list(header))}) and no row behind it"
        if header
        else "no line that is not blank"
    )
    return f"{source.name} was read as {source.format_read}: {content}"


def _format_of(lines: Lines) -> str:
    return "jsonl" if lines.peek().lstrip().startswith((b"{", b"[")) else "csv"
