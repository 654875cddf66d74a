"""Checkpoints of streams as a version that is not known would leave them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lbg_pipeline.verify.stream_columns import piece, unpacked

Row = dict[str, Any]


def with_unknown_column(pieces: Iterable[Row]) -> list[Row]:
    """As a newer version may leave it."""
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
