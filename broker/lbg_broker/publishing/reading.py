"""Reading an input: its format, and its rows in batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from .csv_rows import csv_rows
from .errors import BadRow, InputError
from .jsonl_rows import jsonl_rows
from .rows import FORMATS, Row, RowOptions, listed
from .sources import Lines, Source

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
    format_ = named or _told_by(lines)
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


def without_rows(source: Source) -> str:
    """What was read of an input that had no row: an empty one, or one of another format than it was taken for."""
    header = source.header_read
    found = (
        f"a header row ({listed(list(header))}) and no row behind it"
        if header
        else "no line that is not blank"
    )
    return f"{source.name} was read as {source.format_read}: {found}"


def _told_by(lines: Lines) -> str:
    return "jsonl" if lines.peek().lstrip().startswith((b"{", b"[")) else "csv"
