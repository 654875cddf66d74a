"""Evidence on its way through the shuffle, packed: what a block has for a bucket is one value.

Spark makes its own rows of Arrow's columns, shuffles those and makes columns of them again, which costs as much as all
the rest. Of a piece it looks at the bucket only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from lbg_pipeline.arrow_bytes import to_bytes
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

_SAME = b"same"


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
        bucket = (evidence["lane"].to_numpy() % self._buckets).astype(np.int32)
        order = np.argsort(bucket, kind="stable")
        evidence = _narrow(evidence).take(pa.array(order)).combine_chunks()
        there, starts = np.unique(bucket[order], return_index=True)
        ends = np.append(starts[1:], len(order))
        pieces = [
            to_bytes(evidence.slice(start, end - start)) for start, end in zip(starts, ends, strict=True)
        ]
        yield pa.RecordBatch.from_arrays([pa.array(there), pa.array(pieces, pa.binary())], schema=_SCHEMA)


def _narrow(evidence: pa.Table) -> pa.Table:
    """Without columns that are null throughout, and without those that say the same in every row, or as lanes the same
    as `hash`: these are told in the schema."""
    names = [name for name in evidence.schema.names if evidence[name].null_count < evidence.num_rows]
    same = {name: evidence[name][0].as_py() for name in names if _is_same(evidence[name])}
    names = [name for name in names if name not in same]
    if "lane" in names and evidence["lane"].equals(evidence["hash"].cast(pa.int64())):
        names.remove("lane")
    if not names:  # a table has rows by its columns
        names = [next(iter(same))]
        del same[names[0]]
    return evidence.select(names).replace_schema_metadata({_SAME: json.dumps(same)})


def _is_same(column: pa.ChunkedArray) -> bool:
    if column.null_count or pa.types.is_nested(column.type) or column[0] != column[len(column) - 1]:
        return False
    return bool(pc.all(pc.equal(column, column[0])).as_py())


def unpacked(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches with the schema EVIDENCE."""
    for batch in pieces:
        for piece in batch.column(1):
            for rows in pa.ipc.open_stream(piece.as_buffer()):
                same = json.loads(rows.schema.metadata[_SAME])
                there = set(rows.schema.names)
                yield pa.RecordBatch.from_arrays(
                    [_widened(rows, field, there, same) for field in SCHEMA], schema=SCHEMA
                )


def _widened(rows: pa.RecordBatch, field: pa.Field, there: set[str], same: dict[str, Any]) -> pa.Array:
    if field.name in there:
        return rows.column(field.name)
    if field.name in same:
        return pa.repeat(pa.scalar(same[field.name], field.type), rows.num_rows)
    if field.name == "lane":
        return rows.column("hash").cast(field.type)
    return pa.nulls(rows.num_rows, field.type)
