"""Reading an input: its format, and its rows in batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from .csv_rows import csv_rows
from .errors import BadRow, InputError
from .jsonl_rows import jsonl_rows
from .rows import FORMATS, Row, RowOptions
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


def read_rows(source: Source, options: RowOptions) -> Iterator[list[Row | BadRow]]:
    """The rows of `source` in batches of up to `BATCH_ROWS`, smaller when a pipe has no more at the moment.

    A row that is no message is there as a BadRow, for the caller to raise or to count. Raises InputError for
    what no row can be read past: an unknown field, a damaged file. Memory does not grow with the input.
    """
    lines = Lines(source)
    format_ = options.format or _BY_SUFFIX.get(PurePath(source.inner_name).suffix.lower()) or _told_by(lines)
    if format_ not in FORMATS:
        raise InputError(f"format {format_!r} is not one of {', '.join(FORMATS)}")
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


def _told_by(lines: Lines) -> str:
    return "jsonl" if lines.peek().lstrip().startswith((b"{", b"[")) else "csv"
