"""Rows of Arrow's as one value, which Spark carries and does not look into."""

from __future__ import annotations

import pyarrow as pa


def to_bytes(rows: pa.Table | pa.RecordBatch, *, compression: str | None = None) -> bytes:
    """A stream of Arrow's; `pyarrow.ipc.open_stream` reads it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as stream:
        stream.write(rows)
    told: bytes = sink.getvalue().to_pybytes()
    return told
