"""Records of a block as columns for their check, packed for the shuffle.

Published numbers travel as ranges: a publisher counts without gaps, so that a block of its journal is a handful of
ranges for each hash. A *mark* is what both sides' records say of a message, in 64 bits: its key (28 bits of a digest),
the size of its body (22 bits) and its queue (14 bits).

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
from lbg_pipeline.columns import Ints, digests, to_bytes
from lbg_pipeline.journal import Parsed
from lbg_pipeline.schemas import BROKEN, arrow_schema
from lbg_pipeline.verify.settings import ValidationSettings

PUBLISHED_ROLE, DELIVERED_ROLE, SESSION_ROLE, CLOCK_ROLE, BROKEN_ROLE = range(5)
"""A range of published numbers; a delivery; a delivery once more, for its session; the latest time in a block, as
`delivered_at_us`; a line that is no record."""

SESSION_LANES = 1 << 32
"""Lanes below are hashes, or digests of keys; those from here on sessions."""

QUEUE_BITS, SIZE_BITS = 14, 22
KEY_MARK, SIZE_MARK = -1 << (QUEUE_BITS + SIZE_BITS), ((1 << SIZE_BITS) - 1) << QUEUE_BITS
QUEUE_MARK = (1 << QUEUE_BITS) - 1
"""Parts of a mark."""

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
        StructField("mark", LongType()),
        StructField("marks", BinaryType()),
        StructField("published_at_us", LongType()),
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
"""`verdict` is its place in VERDICTS, `mode` its place in CHECKED_MODES. `marks`: of a range, one after the other.
`published_at_us`: of deliveries by key only. Checked together: one (group, lane)."""

_TEXT, _LONG, _INT = pa.string(), pa.int64(), pa.int32()
_OTHER_MODE = len(CHECKED_MODES)
SCHEMA = arrow_schema(EVIDENCE)
_BROKEN = arrow_schema(BROKEN)
_BROKEN_TYPE = pa.struct(list(_BROKEN))


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
        group, publisher = batch["group"].dictionary_encode(), batch["publisher"].dictionary_encode()
        hashes, seqs = batch["hash"].to_numpy(), batch["seq"].to_numpy()
        codes = [np.asarray(one.indices, np.int64) for one in (group, publisher)]
        order = np.lexsort((seqs, hashes, *codes))
        hashes, seqs, codes = hashes[order], seqs[order], [one[order] for one in codes]
        is_next = (np.diff(seqs) == 1) & (np.diff(hashes) == 0)
        for one in codes:
            is_next &= np.diff(one) == 0
        if self._settings.settle_us:
            is_next[:] = False
        first = np.flatnonzero(np.concatenate(([True], ~is_next)))
        last = np.append(first[1:], len(seqs)) - 1
        columns = {
            "group": group.dictionary.take(pa.array(codes[0][first])),
            "publisher": publisher.dictionary.take(pa.array(codes[1][first])),
            "hash": pa.array(hashes[first]),
            "lane": pa.array(hashes[first].astype(np.int64)),
            "seq": pa.array(seqs[first]),
            "last": pa.array(seqs[last]),
            "marks": pa.Array.from_buffers(
                pa.binary(),
                len(first),
                [
                    None,
                    pa.py_buffer(8 * np.append(first, len(seqs)).astype(np.int32)),
                    pa.py_buffer(_marks(batch)[order]),
                ],
            ),
        }
        if self._settings.settle_us:
            columns["confirmed_at_us"] = batch["confirmed_at_us"].take(pa.array(order))
        return _rows(len(first), columns, PUBLISHED_ROLE)


class KeyStep:
    """`lbg_pipeline.journal.Step`: the deliveries that have an order by their key, with keys as lanes."""

    def __init__(self, groups: Iterable[str]) -> None:
        self._groups = pa.array(sorted(groups))

    def __call__(self, parsed: Parsed) -> Iterator[pa.RecordBatch]:
        for batch in parsed.delivered:
            is_chosen = pc.and_(pc.is_in(batch["group"], self._groups), pc.is_valid(batch["key"]))
            chosen = batch.filter(pc.and_(is_chosen, pc.not_equal(batch["mode"], SESSIONS)))
            if chosen.num_rows:
                lanes = (digests(chosen["key"]) >> np.uint64(33)).astype(np.int64)
                columns = {**_of_deliveries(chosen), "lane": pa.array(lanes)}
                columns["published_at_us"] = chosen["published_at_us"]
                yield _rows(chosen.num_rows, columns, DELIVERED_ROLE)


def _marks(batch: pa.RecordBatch) -> Ints:
    sizes = batch["body_bytes"].to_numpy() << QUEUE_BITS & SIZE_MARK
    queues = batch["queue"].to_numpy().astype(np.int64) & QUEUE_MARK
    return np.asarray(digests(batch["key"]).view(np.int64) & KEY_MARK | sizes | queues)


def _of_deliveries(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    columns = {name: batch[name] for name in SCHEMA.names if name in batch.schema.names}
    del columns["published_at_us"]
    columns["redelivered"] = batch["redelivered"].cast(_INT)
    columns["verdict"] = pc.index_in(batch["verdict"], pa.array(VERDICTS))
    columns["mode"] = pc.fill_null(pc.index_in(batch["mode"], pa.array(CHECKED_MODES)), _OTHER_MODE)
    return columns


def _delivered(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    columns = _of_deliveries(batch)
    columns["lane"] = batch["hash"].cast(_LONG)
    columns["mark"] = pa.array(_marks(batch))
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
SOURCE = "source"
UNPACKED = pa.schema(
    [*(field for field in SCHEMA if field.name != "lane"), (SOURCE, pa.dictionary(_INT, _TEXT))]
)


class PackingStep:
    """`lbg_pipeline.journal.Step`."""

    def __init__(self, step: RecordStep | KeyStep, buckets: int) -> None:
        self._step = step
        self._buckets = buckets

    def __call__(self, parsed: Parsed) -> Iterator[pa.RecordBatch]:
        batches = list(self._step(parsed))
        if not batches:
            return
        evidence = pa.Table.from_batches(batches)
        bucket = (evidence["lane"].to_numpy() % self._buckets).astype(np.int32)
        order = np.argsort(bucket, kind="stable")
        evidence = _narrow(evidence, parsed.source).take(pa.array(order)).combine_chunks()
        there, starts = np.unique(bucket[order], return_index=True)
        ends = np.append(starts[1:], len(order))
        pieces = [
            to_bytes(evidence.slice(start, end - start)) for start, end in zip(starts, ends, strict=True)
        ]
        yield pa.RecordBatch.from_arrays([pa.array(there), pa.array(pieces, pa.binary())], schema=_SCHEMA)


def _narrow(evidence: pa.Table, source: str) -> pa.Table:
    """Without lanes, columns that are null throughout, and those with one value in every row: the schema's metadata has
    these, and the source."""
    names = [name for name in evidence.schema.names if evidence[name].null_count < evidence.num_rows]
    names.remove("lane")
    same = {name: evidence[name][0].as_py() for name in names if _is_same(evidence[name])}
    # A table has rows by its columns: one is there in any case.
    names = [name for name in names if name not in same] or [next(iter(same))]
    same = {name: value for name, value in same.items() if name not in names}
    return evidence.select(names).replace_schema_metadata({_SAME: json.dumps({**same, SOURCE: source})})


def _is_same(column: pa.ChunkedArray) -> bool:
    if (
        column.null_count
        or column.type in (_BROKEN_TYPE, pa.binary())
        or column[0] != column[len(column) - 1]
    ):
        return False
    return bool(pc.all(pc.equal(column, column[0])).as_py())


def unpacked(pieces: Iterable[pa.RecordBatch]) -> pa.Table:
    """Rows of the schema EVIDENCE, without lanes and with their sources."""
    alike: dict[tuple[str, ...], list[tuple[pa.RecordBatch, dict[str, Any]]]] = {}
    for batch in pieces:
        for piece in batch.column(1):
            for rows in pa.ipc.open_stream(piece.as_buffer()):
                same = json.loads(rows.schema.metadata[_SAME])
                alike.setdefault((*rows.schema.names, "", *same), []).append((rows, same))
    return pa.concat_tables([_widened(parts) for parts in alike.values()] or [UNPACKED.empty_table()])


def _widened(parts: list[tuple[pa.RecordBatch, dict[str, Any]]]) -> pa.Table:
    """Of parts with the same columns."""
    table = pa.Table.from_batches([rows.replace_schema_metadata(None) for rows, _ in parts])
    part_of = pa.array(np.repeat(np.arange(len(parts), dtype=np.int32), [rows.num_rows for rows, _ in parts]))
    columns = []
    for field in UNPACKED:
        if field.name in table.schema.names:
            columns.append(table[field.name])
        elif field.name in parts[0][1]:
            values = pa.array([same[field.name] for _, same in parts])
            if pa.types.is_dictionary(field.type):
                columns.append(pa.DictionaryArray.from_arrays(part_of, values))
            else:
                columns.append(values.cast(field.type).take(part_of))
        else:
            columns.append(pa.nulls(len(table), field.type))
    return pa.table(columns, schema=UNPACKED)
