"""What a percentile is of: places of a group, and how its deliveries are brought to the task that counts them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..keeping import packed
from .columns import DONE, MINUTE_US
from .histograms import AGE, CONFIRM, SERVICE, SETTLE, SIZE, WAIT

SCOPES = {
    "group": (),
    "queue": ("queue",),
    "member": ("member",),
    "minute": ("minute",),
    "all": ("queue", "member", "minute"),
    "interval": ("interval",),
}
"""What a row is about besides its group: the value of `scope`, and the columns that are set. An interval is one of
the pictures', and is not in the table."""

OF_A_MINUTE = ("minute", "all")
"""Known as soon as all deliveries of a minute are together."""

NOBODY = -1
"""The member of a confirm: it has none."""

METRICS = (CONFIRM, AGE, WAIT, SERVICE, SETTLE, SIZE)


def measured_sent(published: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each message: group, queue, member, at_us, and what is measured of it (µs, or bytes)."""
    sent = published["published_at_us"]
    return _measured(published, sent, {CONFIRM: pc.subtract(published["confirmed_at_us"], sent)})


def measured_got(delivered: pa.RecordBatch) -> pa.RecordBatch:
    """The same for each delivery."""
    got, started, finished = (delivered[f"{name}_at_us"] for name in ("delivered", "started", "finished"))
    is_done = pc.is_in(delivered["verdict"], pa.array(DONE))
    spans = {
        AGE: pc.subtract(got, delivered["published_at_us"]),
        WAIT: pc.subtract(started, got),
        SERVICE: pc.if_else(is_done, pc.subtract(finished, started), None),
        SETTLE: pc.subtract(delivered["settled_at_us"], finished),
        SIZE: delivered["body_bytes"],
    }
    return _measured(delivered, got, spans)


def _measured(rows: pa.RecordBatch, at_us: pa.Array, values: dict[str, pa.Array]) -> pa.RecordBatch:
    member = (
        rows["member"]
        if "member" in rows.schema.names
        else pa.repeat(pa.scalar(NOBODY, pa.int32()), len(at_us))
    )
    return pa.RecordBatch.from_pydict(
        {"group": rows["group"], "queue": rows["queue"], "member": member, "at_us": at_us, **values}
    )


def by_minute(measured: pa.RecordBatch, lanes: int) -> Iterator[pa.RecordBatch]:
    """PIECES: what one minute of a group has is in one of `lanes` parts."""
    groups = measured["group"].dictionary_encode()
    names = np.array([zlib.crc32(name.encode()) for name in groups.dictionary.to_pylist()], np.int64)
    minutes = measured["at_us"].to_numpy() // MINUTE_US
    lane = (names[groups.indices.to_numpy()] + minutes) % lanes
    order = np.argsort(lane, kind="stable")
    there, starts = np.unique(lane[order], return_index=True)
    sorted_ = measured.take(pa.array(order))
    for one, start, end in zip(there, starts, np.append(starts[1:], len(order)), strict=True):
        yield packed(int(one), sorted_.slice(start, end - start))
