"""Records of a block as columns for their check, packed for the shuffle.

Published numbers travel as ranges: a publisher counts without gaps, so that a block of its journal is a handful of
ranges for each hash.

Spark makes its own rows of Arrow's columns, shuffles those and makes columns of them again, which costs as much as all
the rest. Of a piece it converts the bucket only.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from lbg_core.group import EXCLUSIVE, PARTITIONED, SESSIONS
from lbg_core.group.journal_record import VERDICTS
from lbg_pipeline.columns import to_bytes
from lbg_pipeline.journal import Parsed
from lbg_pipeline.schemas import BROKEN, arrow_schema
from lbg_pipeline.verify.settings import ValidationSettings

PUBLISHED_ROLE, DELIVERED_ROLE, SESSION_ROLE, CLOCK_ROLE, BROKEN_ROLE = range(5)
"""A range of published numbers; a delivery; a delivery once more, for its session; the latest time in a block, as
`delivered_at_us`; a line that is no record."""

SESSION_LANES = 1 << 32
"""Lanes below are hashes, those from here on sessions."""

CHECKED_MODES = (EXCLUSIVE, PARTITIONED, SESSIONS)
"""All others are checked as mode MessageGroups."""

EVIDENCE = StructType(
    [
        StructField("group", StringType()),
        StructField("lane", LongType()),
        StructField("role", IntegerType()),
        StructField("publisher", StringType()),
        StructField("key", StringType()),
        StructField("hash", IntegerType()),
        StructField("seq", LongType()),
        StructField("last", LongType()),
        StructField("confirmed_at_us", LongType()),
        StructField("member", IntegerType()),
        StructField("member_name", StringType()),
        StructField("incarnation", StringType()),
        StructField("delivery", LongType()),
        StructField("redelivered", IntegerType()),
        StructField("delivered_at_us", LongType()),
        StructField("started_at_us", LongType()),
        StructField("finished_at_us", LongType()),
        StructField("settled_at_us", LongType()),
        StructField("verdict", IntegerType()),
        StructField("mode", IntegerType()),
        StructField("session", StringType()),
        StructField("sequence", LongType()),
        StructField("broken", BROKEN),
    ]
)
"""`verdict` is its place in VERDICTS, `mode` its place in CHECKED_MODES. Checked together: one (group, lane)."""

_TEXT, _LONG, _INT = pa.string(), pa.int64(), pa.int32()
_OTHER_MODE = len(CHECKED_MODES)
SCHEMA = arrow_schema(EVIDENCE)
_BROKEN = arrow_schema(BROKEN)


class RecordStep:
    """`lbg_pipeline.journal.Step`."""

    def __init__(self, settings: ValidationSettings) -> None:
        self._settings = settings

    def __call__(self, parsed: Parsed) -> Iterator[pa.RecordBatch]:
        for batch in parsed.broken:
            lines = pa.StructArray.from_arrays(batch.columns, fields=list(_BROKEN))
            yield _rows(len(lines), {"group": pa.repeat("", len(lines)), "broken": lines}, BROKEN_ROLE)
        for batch in parsed.published:
            if self._settings.settle_us:
                yield _clock(batch, "published_at_us", "confirmed_at_us")
            chosen = self._of_groups(batch)
            if chosen.num_rows:
                yield self._published(chosen)
        for batch in parsed.delivered:
            if self._settings.settle_us:
                yield _clock(batch, *(name for name in batch.schema.names if name.endswith("_at_us")))
            chosen = self._of_groups(batch)
            if chosen.num_rows:
                yield from _delivered(chosen)

    def _of_groups(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        groups = self._settings.groups
        return batch if groups is None else batch.filter(pc.is_in(batch["group"], pa.array(sorted(groups))))

    def _published(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._settings.settle_us:
            seqs = batch["seq"]
            columns = {name: batch[name] for name in ("group", "publisher", "hash", "seq", "confirmed_at_us")}
            return _rows(
                len(seqs), {**columns, "last": seqs, "lane": batch["hash"].cast(_LONG)}, PUBLISHED_ROLE
            )
        group, publisher = batch["group"].dictionary_encode(), batch["publisher"].dictionary_encode()
        hashes, seqs = batch["hash"].to_numpy(), batch["seq"].to_numpy()
        codes = [np.asarray(one.indices, np.int64) for one in (group, publisher)]
        order = np.lexsort((seqs, hashes, *codes))
        hashes, seqs, codes = hashes[order], seqs[order], [one[order] for one in codes]
        is_next = (np.diff(seqs) == 1) & (np.diff(hashes) == 0)
        for one in codes:
            is_next &= np.diff(one) == 0
        first = np.flatnonzero(np.concatenate(([True], ~is_next)))
        last = np.append(first[1:], len(seqs)) - 1
        columns = {
            "group": group.dictionary.take(pa.array(codes[0][first])),
            "publisher": publisher.dictionary.take(pa.array(codes[1][first])),
            "hash": pa.array(hashes[first]),
            "lane": pa.array(hashes[first].astype(np.int64)),
            "seq": pa.array(seqs[first]),
            "last": pa.array(seqs[last]),
        }
        return _rows(len(first), columns, PUBLISHED_ROLE)


def _delivered(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    columns = {name: batch[name] for name in SCHEMA.names if name in batch.schema.names}
    columns["lane"] = batch["hash"].cast(_LONG)
    columns["redelivered"] = batch["redelivered"].cast(_INT)
    columns["verdict"] = pc.index_in(batch["verdict"], pa.array(VERDICTS))
    columns["mode"] = pc.fill_null(pc.index_in(batch["mode"], pa.array(CHECKED_MODES)), _OTHER_MODE)
    rows = _rows(batch.num_rows, columns, DELIVERED_ROLE)
    yield rows
    sessions = batch["session"]
    if sessions.null_count == len(sessions):
        return
    is_placed = pc.and_(
        pc.equal(columns["mode"], CHECKED_MODES.index(SESSIONS)),
        pc.and_(pc.is_valid(sessions), pc.is_valid(batch["sequence"])),
    )
    placed = {name: rows[name].filter(is_placed) for name in rows.schema.names}
    encoded = placed["session"].dictionary_encode()
    lanes = [SESSION_LANES + zlib.crc32(name.encode()) for name in encoded.dictionary.to_pylist()]
    placed["lane"] = pa.array(lanes, _LONG).take(encoded.indices)
    yield _rows(len(encoded), placed, SESSION_ROLE)


def _clock(batch: pa.RecordBatch, *names: str) -> pa.RecordBatch:
    latest = [pc.max(batch[name]).as_py() for name in names]
    at_us = max(at for at in latest if at is not None)
    return _rows(1, {"group": pa.array([""]), "delivered_at_us": pa.array([at_us])}, CLOCK_ROLE)


def _rows(count: int, columns: dict[str, pa.Array], role: int) -> pa.RecordBatch:
    columns = {"lane": pa.repeat(pa.scalar(0, _LONG), count), **columns}
    columns["role"] = pa.repeat(pa.scalar(role, _INT), count)
    arrays = [columns.get(field.name) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(
        [
            pa.nulls(count, field.type) if column is None else column
            for field, column in zip(SCHEMA, arrays, strict=True)
        ],
        schema=SCHEMA,
    )


PIECES = StructType(
    [
        StructField("bucket", IntegerType(), nullable=False),
        StructField("rows", BinaryType(), nullable=False),
    ]
)
"""Checked together: one bucket, which has all of its lanes. `rows` is a stream of Arrow's."""

_SCHEMA = pa.schema(
    [pa.field("bucket", pa.int32(), nullable=False), pa.field("rows", pa.binary(), nullable=False)]
)

_SAME = b"same"


class PackingStep:
    """`lbg_pipeline.journal.Step`."""

    def __init__(self, step: RecordStep, buckets: int) -> None:
        self._step = step
        self._buckets = buckets

    def __call__(self, parsed: Parsed) -> Iterator[pa.RecordBatch]:
        batches = list(self._step(parsed))
        if not batches:
            return
        evidence = pa.Table.from_batches(batches)
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
    """Without columns that are null throughout, and without those that have one value in every row, or as lanes the
    value of `hash`: the schema's metadata has these."""
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
