"""Sizes and latencies in histograms, their percentiles, and the scopes of those. Arrays in, arrays out.

A value is rounded to eight significant bits: a percentile is at most 0.4 % (1 / 256) from the exact one, and values
below 256 are exact; least, greatest and mean are exact everywhere. Histograms of parts add up to that of the whole: one
pass over the deliveries serves every table and picture, and needs no memory for each group of rows, as a sketch does.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lbg_pipeline.journal.cached import packed
from lbg_pipeline.profile.tables import DONE, MINUTE_US

Ints = NDArray[np.int64]

SIGNIFICANT_BITS = 8
PERMILLES = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999}
BINS_PER_DECADE = 12
SIZE = "size"
CONFIRM, AGE, WAIT, SERVICE, SETTLE = "confirm", "age", "wait", "service", "settle"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Count of each value at each place, in the order of places and of values: `messages`, and the sum, the
    least and the greatest of the exact values."""

    place: Ints
    value: Ints
    messages: Ints
    total: Ints
    least: Ints
    greatest: Ints


def counted(place: Ints, exact: Ints) -> Histogram:
    """Of single values."""
    return added_up(place, rounded(exact), np.ones(len(exact), np.int64), exact, exact, exact)


def added_up(place: Ints, value: Ints, messages: Ints, total: Ints, least: Ints, greatest: Ints) -> Histogram:
    """Of parts, in any order."""
    order = np.lexsort((value, place))
    place, value = place[order], value[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(place) != 0) | (np.diff(value) != 0)
    starts = np.flatnonzero(is_first)
    if not len(starts):
        return Histogram(place, value, messages, total, least, greatest)
    return Histogram(
        place[starts],
        value[starts],
        np.add.reduceat(messages[order], starts),
        np.add.reduceat(total[order], starts),
        np.minimum.reduceat(least[order], starts),
        np.maximum.reduceat(greatest[order], starts),
    )


def rounded(value: Ints) -> Ints:
    """The middle of all values that begin with the same bits as `value`."""
    size = np.abs(value)
    bits = np.frexp(size.astype(np.float64))[1].astype(np.int64)
    width = np.left_shift(np.int64(1), np.maximum(bits - SIGNIFICANT_BITS, 0))
    middle = size - size % width + (width - 1) // 2
    middles: Ints = np.where(value < 0, -middle, middle)
    return middles


def percentiles(of: Histogram) -> tuple[Ints, dict[str, NDArray[np.int64] | NDArray[np.float64]]]:
    """The places, and for each messages, least, mean, p50, p90, p95, p99, p999, greatest.

    A percentile is the least value that at least so many in a thousand do not exceed.
    """
    starts = np.flatnonzero(np.diff(of.place, prepend=-1))
    if not len(starts):
        return of.place, dict.fromkeys(("messages", "least", "mean", *PERMILLES, "greatest"), of.place)
    upto = np.cumsum(of.messages)
    messages = np.add.reduceat(of.messages, starts)
    before = upto[starts] - of.messages[starts]
    least, greatest = np.minimum.reduceat(of.least, starts), np.maximum.reduceat(of.greatest, starts)
    values = {
        name: np.clip(
            of.value[np.searchsorted(upto, before - (-messages * permille // 1000))], least, greatest
        )
        for name, permille in PERMILLES.items()
    }
    mean = np.add.reduceat(of.total, starts) / messages
    columns = {"messages": messages, "least": least, "mean": mean, **values, "greatest": greatest}
    return of.place[starts], columns


def densities(of: Histogram) -> list[Sequence[tuple[int, int]]]:
    """For each place, how many values fall between powers of ten, in twelfths: (bin, messages) each."""
    bins = np.floor(np.log10(np.maximum(of.value, 1)) * BINS_PER_DECADE).astype(np.int64)
    starts = np.flatnonzero(np.diff(of.place, prepend=-1))
    by_place: list[Sequence[tuple[int, int]]] = []
    for first, end in zip(starts, np.append(starts[1:], len(of.place)), strict=True):
        there, at = np.unique(bins[first:end], return_inverse=True)
        sums = np.bincount(at, weights=of.messages[first:end]).astype(np.int64)
        by_place.append(list(zip(there.tolist(), sums.tolist(), strict=True)))
    return by_place


SCOPES = {
    "group": (),
    "queue": ("queue",),
    "member": ("member",),
    "minute": ("minute",),
    "all": ("queue", "member", "minute"),
    "interval": ("interval",),
}
"""Scopes of a row within its group: the value of `scope`, and the columns that are set. An interval is a point of
the charts, and is not in the table."""

OF_A_MINUTE = ("minute", "all")
"""Scopes that are complete as soon as all deliveries of a minute are together."""

NOBODY = -1
"""The member of a confirm: it has none."""

METRICS = (CONFIRM, AGE, WAIT, SERVICE, SETTLE, SIZE)


def measured_sent(published: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each message: group, queue, member, at_us, and its measurements (µs, or bytes)."""
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
    """PIECES: all of one minute of a group is in one of `lanes` parts."""
    groups = measured["group"].dictionary_encode()
    names = np.array([zlib.crc32(name.encode()) for name in groups.dictionary.to_pylist()], np.int64)
    minutes = measured["at_us"].to_numpy() // MINUTE_US
    lane = (names[groups.indices.to_numpy()] + minutes) % lanes
    order = np.argsort(lane, kind="stable")
    there, starts = np.unique(lane[order], return_index=True)
    sorted_ = measured.take(pa.array(order))
    for one, start, end in zip(there, starts, np.append(starts[1:], len(order)), strict=True):
        yield packed(int(one), sorted_.slice(start, end - start))
