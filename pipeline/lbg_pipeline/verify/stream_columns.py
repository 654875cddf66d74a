"""Columns of a bucket's deliveries, and rows packed for the shuffle.

A bucket is a share of all hashes. All records that share an order or a completeness are in one bucket, so buckets are
checked separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_core.group import EXCLUSIVE, PARTITIONED, SESSIONS
from lbg_pipeline.columns import NEVER, Flags, Ints, coded, digests, ranked, to_bytes
from lbg_pipeline.verify.settings import Window

BUCKETS = 16
"""Also the most tasks that check at once. More would cost: a bucket needs some 10 ms an epoch however small it is."""

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
KEYS = pa.schema(
    [field for field in DELIVERED if field.name in ("group", "publisher", "key", "hash", "seq", "member")]
    + [
        field
        for field in DELIVERED
        if field.name in ("member_name", "incarnation", "delivery", "delivered_at_us")
    ]
)
"""The first delivery of each key and hash in a block, in a bucket by key."""
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
held records are due from here on. `latest_us`: the latest time in a record so far. `until_us`: the watermark."""

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


def piece(bucket: int, kind: str, name: str, table: Any, **times: int) -> dict[str, Any]:
    """A row of PIECES."""
    return {
        "bucket": bucket,
        "kind": kind,
        "name": name,
        "slice_us": times.get("slice_us", 0),
        "latest_us": times.get("latest_us", 0),
        "until_us": times.get("until_us", NEVER),
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
    columns = [batch.column(name).cast(kind) for name, kind in _named(DELIVERED)[:-2]]
    in_session = pc.equal(batch.column("mode"), SESSIONS).to_numpy(zero_copy_only=False)
    late = pa.array(np.zeros(len(batch), np.int8))
    latest_us = _latest_us(batch)
    narrow = pa.table(
        [*columns, pa.array(np.where(in_session, COUNTED, BOTH).astype(np.int8)), late], schema=DELIVERED
    )
    for bucket, part in _shared_out(narrow, _bucket_of(narrow, narrow["hash"].to_numpy())):
        yield piece(bucket, "new", "delivered", part, latest_us=latest_us)
    keys = _firsts(narrow.select(KEYS.names).filter(pc.and_(narrow["key"].is_valid(), pa.array(~in_session))))
    for bucket, part in _shared_out(
        keys, (digests(keys["key"].combine_chunks()) % np.uint64(BUCKETS)).astype(np.int64)
    ):
        yield piece(bucket, "new", "keys", part, latest_us=latest_us)
    if in_session.any():
        role = pa.array(np.full(len(batch), IN_SESSION, np.int8))
        sessions = narrow.set_column(narrow.schema.get_field_index("role"), "role", role).filter(in_session)
        for bucket, part in _shared_out(sessions, _bucket_of(sessions, np.zeros(len(sessions), np.int64))):
            yield piece(bucket, "new", "delivered", part, latest_us=latest_us)


def _firsts(deliveries: Any) -> Any:
    """The first delivery of each key and hash."""
    deliveries = deliveries.combine_chunks()
    if not len(deliveries):
        return deliveries
    [code], _ = coded([deliveries["group"], deliveries["key"], deliveries["hash"]])
    order = np.lexsort((deliveries["delivery"].to_numpy(), deliveries["delivered_at_us"].to_numpy(), code))
    return deliveries.take(pa.array(order[np.diff(code[order], prepend=-1) != 0])).combine_chunks()


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


LATE_DELIVERED, LATE_ACKNOWLEDGED, LATE_STARTED = 1, 2, 4


class Columns:
    """`table` has the schema `rows.DELIVERED`; the first `fresh` rows are of this epoch's files."""

    def __init__(self, table: Any, fresh: int) -> None:
        self.table = table
        self.is_fresh: Flags = np.arange(len(table)) < fresh

    def ints(self, name: str) -> Ints:
        values: Ints = pc.fill_null(self.table[name].cast(pa.int64()), NEVER).to_numpy()
        return values

    def equals(self, name: str, *values: str) -> Flags:
        flags: Flags = pc.is_in(self.table[name], pa.array(values)).to_numpy()
        return flags

    def _is_there(self, name: str) -> Flags:
        flags: Flags = self.table[name].is_valid().to_numpy()
        return flags

    @cached_property
    def seq(self) -> Ints:
        return self.ints("seq")

    @cached_property
    def hash(self) -> Ints:
        return self.ints("hash")

    @cached_property
    def role(self) -> Ints:
        return self.ints("role")

    @cached_property
    def is_counted(self) -> Flags:
        return np.asarray(self.role != IN_SESSION)

    @cached_property
    def incarnation(self) -> Ints:
        return ranked(self.table["incarnation"])

    @cached_property
    def delivery(self) -> Ints:
        return self.ints("delivery")

    @cached_property
    def delivered_us(self) -> Ints:
        return self.ints("delivered_at_us")

    @cached_property
    def started_us(self) -> Ints:
        return self.ints("started_at_us")

    @cached_property
    def finished_us(self) -> Ints:
        return self.ints("finished_at_us")

    @cached_property
    def settled_us(self) -> Ints:
        return self.ints("settled_at_us")

    @cached_property
    def is_ack(self) -> Flags:
        return self.equals("verdict", "ack", "dead")

    @cached_property
    def is_final(self) -> Flags:
        return self.equals("verdict", "ack", "dead", "repeat")

    @cached_property
    def has_key(self) -> Flags:
        return self._is_there("key")

    @cached_property
    def is_in_order(self) -> Flags:
        """Has an order in this bucket: by its key, or by its session."""
        in_session = self._is_there("session") & self._is_there("sequence")
        return np.asarray(
            np.where(self.role == IN_SESSION, in_session, (self.role != COUNTED) & self.has_key)
        )

    @cached_property
    def is_placed(self) -> Flags:
        """True if its member is the holder of its shard."""
        return self.equals("mode", EXCLUSIVE) | (self.equals("mode", PARTITIONED) & self.has_key)

    @cached_property
    def has_span(self) -> Flags:
        has_span: Flags = (
            self.has_key
            & ~self.equals("mode", SESSIONS)
            & (self.started_us > NEVER)
            & (self.started_us < self.finished_us)
        )
        return has_span

    @cached_property
    def is_settled(self) -> Flags:
        return np.asarray(self.is_ack & (self.settled_us > NEVER))

    def late(self, window: Window) -> Ints:
        """By row, the views that have passed it by already, as bits; also those of rows that are held."""
        fresh = self.is_fresh
        late: Ints = (
            self.ints("late")
            + LATE_DELIVERED * (fresh & (self.delivered_us <= window.after_us))
            + LATE_ACKNOWLEDGED * (fresh & self.is_settled & (self.settled_us <= window.after_us))
            + LATE_STARTED * (fresh & self.has_span & (self.started_us <= window.after_us))
        )
        return late

    def done_us(self) -> Ints:
        """Time from which nothing of a row is left to check, but for the clocks' skew."""
        times = (self.delivered_us, self.settled_us, self.started_us, self.finished_us)
        return np.asarray(np.maximum.reduce(times))


def within(at_us: Ints, after_us: int, until_us: int) -> Flags:
    return np.asarray((at_us > after_us) & (at_us <= until_us))
