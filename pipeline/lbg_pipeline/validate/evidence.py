"""What judging needs of each record, and no more: these rows are shuffled.

Published numbers travel as ranges: a publisher counts without gaps, so that a block of its journal is a handful of
ranges for each hash.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from lbg_broker.group import EXCLUSIVE, PARTITIONED, SESSIONS
from lbg_broker.group.journal import VERDICTS
from lbg_pipeline.reading import Parsed
from lbg_pipeline.schemas import BROKEN, arrow_schema

from .settings import ValidationSettings

PUBLISHED_ROLE, DELIVERED_ROLE, SESSION_ROLE, CLOCK_ROLE, BROKEN_ROLE = range(5)
"""A range of published numbers; a delivery; a delivery once more, for its session; the latest time in a block, as
`delivered_at_us`; a line that is no record."""

SESSION_LANES = 1 << 32
"""Lanes below are hashes, those from here on sessions."""

JUDGED_MODES = (EXCLUSIVE, PARTITIONED, SESSIONS)
"""All others are judged as mode MessageGroups."""

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
"""`verdict` is its place in VERDICTS, `mode` its place in JUDGED_MODES. Judged together: what has one (group, lane)."""

_TEXT, _LONG, _INT = pa.string(), pa.int64(), pa.int32()
_OTHER_MODE = len(JUDGED_MODES)
SCHEMA = arrow_schema(EVIDENCE)
_BROKEN = arrow_schema(BROKEN)


class EvidenceStep:
    """`lbg_pipeline.reading.Step`."""

    def __init__(self, settings: ValidationSettings) -> None:
        self._settings = settings

    def __call__(self, parsed: Parsed) -> Iterator[pa.RecordBatch]:
        for batch in parsed.broken:
            lines = pa.StructArray.from_arrays(batch.columns, fields=list(_BROKEN))
            yield _rows(len(lines), {"group": pa.repeat("", len(lines)), "broken": lines}, BROKEN_ROLE)
        for batch in parsed.published:
            if self._settings.settle_us:
                yield _clock(batch, "published_at_us", "confirmed_at_us")
            wanted = self._wanted(batch)
            if wanted.num_rows:
                yield self._published(wanted)
        for batch in parsed.delivered:
            if self._settings.settle_us:
                yield _clock(batch, *(name for name in batch.schema.names if name.endswith("_at_us")))
            wanted = self._wanted(batch)
            if wanted.num_rows:
                yield from _delivered(wanted)

    def _wanted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        groups = self._settings.groups
        return batch if groups is None else batch.filter(pc.is_in(batch["group"], pa.array(sorted(groups))))

    def _published(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._settings.settle_us:
            seqs = batch["seq"]
            told = {name: batch[name] for name in ("group", "publisher", "hash", "seq", "confirmed_at_us")}
            return _rows(len(seqs), {**told, "last": seqs, "lane": batch["hash"].cast(_LONG)}, PUBLISHED_ROLE)
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
        told = {
            "group": group.dictionary.take(pa.array(codes[0][first])),
            "publisher": publisher.dictionary.take(pa.array(codes[1][first])),
            "hash": pa.array(hashes[first]),
            "lane": pa.array(hashes[first].astype(np.int64)),
            "seq": pa.array(seqs[first]),
            "last": pa.array(seqs[last]),
        }
        return _rows(len(first), told, PUBLISHED_ROLE)


def _delivered(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    told = {name: batch[name] for name in SCHEMA.names if name in batch.schema.names}
    told["lane"] = batch["hash"].cast(_LONG)
    told["redelivered"] = batch["redelivered"].cast(_INT)
    told["verdict"] = pc.index_in(batch["verdict"], pa.array(VERDICTS))
    told["mode"] = pc.fill_null(pc.index_in(batch["mode"], pa.array(JUDGED_MODES)), _OTHER_MODE)
    rows = _rows(batch.num_rows, told, DELIVERED_ROLE)
    yield rows
    sessions = batch["session"]
    if sessions.null_count == len(sessions):
        return
    is_placed = pc.and_(
        pc.equal(told["mode"], JUDGED_MODES.index(SESSIONS)),
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


def _rows(count: int, told: dict[str, pa.Array], role: int) -> pa.RecordBatch:
    told = {"lane": pa.repeat(pa.scalar(0, _LONG), count), **told}
    told["role"] = pa.repeat(pa.scalar(role, _INT), count)
    columns = [told.get(field.name) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(
        [
            pa.nulls(count, field.type) if column is None else column
            for field, column in zip(SCHEMA, columns, strict=True)
        ],
        schema=SCHEMA,
    )
