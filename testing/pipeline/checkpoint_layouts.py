"""Checkpoints of streams as the version before this one left them, and as one that is not known would."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lbg_pipeline.verify.stream_checkpoint import CHAINS_BEFORE
from lbg_pipeline.verify.stream_columns import piece, unpacked

Row = dict[str, Any]
ADDED = ("histories", "forgotten")
"""Tables that were not there before."""


def as_before(pieces: Iterable[Row]) -> list[Row]:
    """The pieces of one or more buckets, of publishers with one epoch each, in the layout before."""
    given = list(pieces)
    tables = {
        (one["bucket"], one["name"]): unpacked(one["blob"]).to_pylist()
        for one in given
        if one["kind"] == "state"
    }
    made = []
    for one in given:
        if one["kind"] == "state" and one["name"] in ADDED:
            continue
        if one["name"] == "chains":
            bucket = one["bucket"]
            chains = _chains(*(tables[bucket, name] for name in ("streams", "histories", "chains")))
            one = packed(one, chains)
        made.append(one)
    return made


def with_unknown_column(pieces: Iterable[Row]) -> list[Row]:
    """As a later version may leave it."""
    return [
        packed(one, unpacked(one["blob"]).append_column("more", pa.nulls(one["rows"], pa.int64())))
        if one["name"] == "chains"
        else one
        for one in pieces
    ]


def packed(one: Row, table: Any) -> Row:
    """The piece `one` with another table."""
    times = {name: one[name] for name in ("slice_us", "latest_us", "until_us")}
    return piece(one["bucket"], one["kind"], one["name"], table, **times)


def rewrite_state(checkpoint: Path, change: Callable[[Iterable[Row]], list[Row]]) -> list[Path]:
    """Changes what a stream that ended remembers; returns the files."""
    paths = []
    for path in checkpoint.glob("lbg/epoch=*/kind=state/slice_us=0/*.parquet"):
        table = pq.ParquetFile(path).read()
        rows = [{"kind": "state", "slice_us": 0, **row} for row in table.to_pylist()]
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        changed = [{name: row[name] for name in table.schema.names} for row in change(rows)]
        pq.write_table(pa.Table.from_pylist(changed, schema=table.schema), path)
        paths.append(path)
    return paths


def _chains(streams: list[Row], histories: list[Row], chains: list[Row]) -> Any:
    index = {(one["group"], one["publisher"], one["hash"]): number for number, one in enumerate(streams)}
    rows = []
    for one in chains:
        history = histories[one["history"]]
        stream = index[history["group"], history["history"], history["hash"]]
        rows.append({"stream": stream, **{name: one[name] for name in CHAINS_BEFORE.names[1:]}})
    return pa.Table.from_pylist(rows, schema=CHAINS_BEFORE)
