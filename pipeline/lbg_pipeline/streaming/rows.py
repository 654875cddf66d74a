"""The columns that are judged, and pieces: some rows of one bucket, packed so that Spark carries them as one value.

A bucket is a share of all hashes. What has order or completeness is in one bucket, so buckets are judged each for
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_broker.group import SESSIONS
from lbg_pipeline.arrow_bytes import to_bytes

from .intervals import Ints

BUCKETS = 16
"""Also how many tasks can judge at once. More would cost: a bucket takes some 10 ms an epoch whatever it holds."""

NEVER = -(1 << 62)
"""A time that is null."""

_TEXT, _LONG = pa.string(), pa.int64()

PUBLISHED = pa.schema(
    [("group", _TEXT), ("publisher", _TEXT), ("hash", _LONG), ("seq", _LONG), ("confirmed_at_us", _LONG)]
)
DELIVERED = pa.schema(
    [
        ("group", _TEXT),
        ("publisher", _TEXT),
        ("key", _TEXT),
        ("hash", _LONG),
        ("seq", _LONG),
        ("member", _LONG),
        ("member_name", _TEXT),
        ("incarnation", _TEXT),
        ("delivery", _LONG),
        ("redelivered", pa.bool_()),
        ("delivered_at_us", _LONG),
        ("started_at_us", _LONG),
        ("finished_at_us", _LONG),
        ("settled_at_us", _LONG),
        ("verdict", _TEXT),
        ("session", _TEXT),
        ("sequence", _LONG),
        ("mode", _TEXT),
        ("role", pa.int8()),
        ("late", pa.int8()),
    ]
)
BOTH, COUNTED, IN_SESSION = 0, 1, 2
"""`role`: in mode Sessions a delivery is in two buckets, counted with its hash, in order with its group's sessions."""

PIECES = pa.schema(
    [
        ("bucket", pa.int32()),
        ("kind", _TEXT),
        ("name", _TEXT),
        ("slice_us", _LONG),
        ("latest_us", _LONG),
        ("until_us", _LONG),
        ("rows", _LONG),
        ("blob", pa.binary()),
    ]
)
"""`kind`: new (of this epoch's files), held, state, found. `name`: of the table that is packed in `blob`. `slice_us`:
what is held is due from here on. `latest_us`: the latest time in a record so far. `until_us`: the watermark."""

_TIMES = (
    "published_at_us",
    "confirmed_at_us",
    "delivered_at_us",
    "started_at_us",
    "finished_at_us",
    "settled_at_us",
)


def unpacked(blob: bytes) -> Any:
    return pa.ipc.open_stream(blob).read_all()


def piece(bucket: int, kind: str, name: str, table: Any, **told: int) -> dict[str, Any]:
    """A row of PIECES."""
    return {
        "bucket": bucket,
        "kind": kind,
        "name": name,
        "slice_us": told.get("slice_us", 0),
        "latest_us": told.get("latest_us", 0),
        "until_us": told.get("until_us", NEVER),
        "rows": len(table),
        "blob": to_bytes(table.combine_chunks(), compression="lz4"),
    }


def published_pieces(batch: Any) -> Iterator[dict[str, Any]]:
    """Of a batch with the schema of `lbg_pipeline.schemas.PUBLISHED`."""
    narrow = pa.table([batch.column(name).cast(kind) for name, kind in _named(PUBLISHED)], schema=PUBLISHED)
    latest_us = _latest_us(batch)
    for bucket, part in _shared_out(narrow, _bucket_of(narrow, narrow["hash"].to_numpy())):
        yield piece(bucket, "new", "published", part, latest_us=latest_us)


def delivered_pieces(batch: Any) -> Iterator[dict[str, Any]]:
    """Of a batch with the schema of `lbg_pipeline.schemas.DELIVERED`."""
    given = [batch.column(name).cast(kind) for name, kind in _named(DELIVERED)[:-2]]
    in_session = pc.equal(batch.column("mode"), SESSIONS).to_numpy(zero_copy_only=False)
    late = pa.array(np.zeros(len(batch), np.int8))
    latest_us = _latest_us(batch)
    narrow = pa.table(
        [*given, pa.array(np.where(in_session, COUNTED, BOTH).astype(np.int8)), late], schema=DELIVERED
    )
    for bucket, part in _shared_out(narrow, _bucket_of(narrow, narrow["hash"].to_numpy())):
        yield piece(bucket, "new", "delivered", part, latest_us=latest_us)
    if in_session.any():
        role = pa.array(np.full(len(batch), IN_SESSION, np.int8))
        sessions = narrow.set_column(narrow.schema.get_field_index("role"), "role", role).filter(in_session)
        for bucket, part in _shared_out(sessions, _bucket_of(sessions, np.zeros(len(sessions), np.int64))):
            yield piece(bucket, "new", "delivered", part, latest_us=latest_us)


def batch_of(pieces: Iterable[dict[str, Any]]) -> Any:
    rows = list(pieces)
    return pa.RecordBatch.from_pylist(rows, schema=PIECES)


def _named(schema: Any) -> list[tuple[str, Any]]:
    return list(zip(schema.names, schema.types, strict=True))


def _latest_us(batch: Any) -> int:
    names = [name for name in _TIMES if name in batch.schema.names]
    return max((pc.max(batch.column(name)).as_py() or NEVER for name in names), default=NEVER)


def _bucket_of(table: Any, hash_: Ints) -> Ints:
    groups = table["group"].combine_chunks().dictionary_encode()
    if isinstance(groups, pa.ChunkedArray):
        groups = groups.combine_chunks()
    salt = np.array([crc32(name.encode()) for name in groups.dictionary.to_pylist()], np.int64)
    return np.asarray((salt[groups.indices.to_numpy()] + hash_) % BUCKETS)


def _shared_out(table: Any, bucket: Ints) -> Iterator[tuple[int, Any]]:
    order = np.argsort(bucket, kind="stable")
    bounds = np.searchsorted(bucket[order], np.arange(BUCKETS + 1))
    table = table.take(pa.array(order))
    for number in range(BUCKETS):
        begin, end = int(bounds[number]), int(bounds[number + 1])
        if end > begin:
            yield number, table.slice(begin, end - begin)
