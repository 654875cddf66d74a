"""Rows of CSV (RFC 4180) and of tab-separated text: the first row is the header, a body is a JSON object of
text.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from json.encoder import encode_basestring

from .errors import BadRow, InputError
from .rows import Row, RowOptions, listed
from .sources import Lines

# A quote that is never closed would take the rest of the file for one field. Python's own limit (131,072
# characters) is too small for a document in a field.
FIELD_MAX_CHARACTERS = 8 * 1024 * 1024


def csv_rows(lines: Lines, options: RowOptions, *, is_tsv: bool = False) -> Iterator[Row | BadRow]:
    """Values stay text as they are in the file: `007` is not 7. Empty lines are passed over.

    Raises InputError for an input without a usable header, or without a field that the options name.
    """
    csv.field_size_limit(max(csv.field_size_limit(), FIELD_MAX_CHARACTERS))
    name = lines.source.name
    texts = _Texts(lines)
    reader = csv.reader(texts, delimiter="\t" if is_tsv else ",", strict=True)
    lines.source.header_read = header = _header(reader, name)
    key_at = _place(header, options.key_field, name)
    topic_at = _place(header, options.topic_field, name)
    no_key, topic, width = options.no_key, options.topic, len(header)
    # `{"first":` and `,"second":` …: a body is these and the quoted values, alternating.
    openings = [("," if at else "{") + encode_basestring(field) + ":" for at, field in enumerate(header)]
    number = 0
    while True:
        try:
            values = next(reader)
        except StopIteration:
            return
        except UnicodeDecodeError as error:
            number += 1
            yield BadRow(name, number, _not_utf8(error), line=lines.number)
            continue
        except csv.Error as error:
            number += 1
            yield BadRow(name, number, f"{error}; check its quotes", line=lines.number)
            continue
        if not values:
            continue
        number += 1
        if len(values) != width:
            why = f"{len(values)} fields where the header has {width}; check its quotes and separators"
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


class _Texts:
    """Decoded lines. No generator, because it goes on after a line that cannot be decoded."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def __iter__(self) -> _Texts:
        return self

    def __next__(self) -> str:
        return next(self._lines).decode()
