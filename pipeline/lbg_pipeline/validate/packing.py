"""Evidence on its way through the shuffle, packed: what a block has for a bucket is one value.

Spark makes its own rows of Arrow's columns, shuffles those and makes columns of them again, which costs as much as all
the rest. Of a piece it looks at the bucket only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from lbg_pipeline.reading import Parsed

from .evidence import SCHEMA, EvidenceStep

PIECES = StructType(
    [
        StructField("bucket", IntegerType(), nullable=False),
        StructField("rows", BinaryType(), nullable=False),
    ]
)
"""Judged together: what has one bucket, in which is all that has one lane. `rows` is a stream of Arrow's."""

_SCHEMA = pa.schema(
    [pa.field("bucket", pa.int32(), nullable=False), pa.field("rows", pa.binary(), nullable=False)]
)


class PackingStep:
    """`lbg_pipeline.reading.Step`."""

    def __init__(self, step: EvidenceStep, buckets: int) -> None:
        self._step = step
        self._buckets = buckets

    def __call__(self, parsed: Parsed) -> Iterator[pa.RecordBatch]:
        told = list(self._step(parsed))
        if not told:
            return
        evidence = pa.Table.from_batches(told)
        names = [name for name in evidence.schema.names if evidence[name].null_count < evidence.num_rows]
        bucket = (evidence["lane"].to_numpy() % self._buckets).astype(np.int32)
        order = np.argsort(bucket, kind="stable")
        evidence = evidence.select(names).take(pa.array(order)).combine_chunks()
        there, starts = np.unique(bucket[order], return_index=True)
        ends = np.append(starts[1:], len(order))
        pieces = [
            _packed(evidence.slice(start, end - start)) for start, end in zip(starts, ends, strict=True)
        ]
        yield pa.RecordBatch.from_arrays([pa.array(there), pa.array(pieces, pa.binary())], schema=_SCHEMA)


def _packed(rows: pa.Table) -> Any:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue().to_pybytes()


def unpacked(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches with the schema EVIDENCE."""
    for batch in pieces:
        for piece in batch.column(1):
            for rows in pa.ipc.open_stream(piece.as_buffer()):
                there = set(rows.schema.names)
                columns = [
                    rows.column(field.name) if field.name in there else pa.nulls(rows.num_rows, field.type)
                    for field in SCHEMA
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
