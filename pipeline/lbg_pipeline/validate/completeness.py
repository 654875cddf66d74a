"""What was published and never finally delivered, in ranges of numbers.

A stream is what has numbers of its own: a publisher and hash of a group. All streams lie one behind the other on one
line of integers, so that each question is asked of all of them at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lbg_pipeline.numbering import Ints

from .deposition import Flags

_LINE = 2.0**61
"""Longer lines would not be sure to fit 64 bits."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    stream: Ints
    seq: Ints
    is_final: Flags


@dataclass(frozen=True, slots=True)
class Ranges:
    """Numbers `first` to `last` of each `stream`. `confirmed_at_us` is there if all are ranges of one."""

    stream: Ints
    first: Ints
    last: Ints
    confirmed_at_us: Ints | None = None

    def of(self, wanted: Flags) -> Ranges:
        confirmed = None if self.confirmed_at_us is None else self.confirmed_at_us[wanted]
        return Ranges(self.stream[wanted], self.first[wanted], self.last[wanted], confirmed)


@dataclass(frozen=True, slots=True)
class Completeness:
    """Different messages, by stream; `missing` are in order of stream and number."""

    published: Ints
    distinct: Ints
    unpublished: Ints
    missing: Ranges


def completeness(streams: int, published: Ranges, delivered: Deliveries) -> Completeness:
    low = np.full(streams, np.iinfo(np.int64).max)
    high = np.full(streams, np.iinfo(np.int64).min)
    for stream, first, last in (
        (published.stream, published.first, published.last),
        (delivered.stream, delivered.seq, delivered.seq),
    ):
        np.minimum.at(low, stream, first)
        np.maximum.at(high, stream, last)
    # One number stays free between two streams, so that no range of one touches the other's.
    spans = high - low + 2
    line = (np.cumsum(spans.astype(np.float64)) // _LINE).astype(np.int64)
    counted = [np.zeros(streams, np.int64) for _ in range(3)]
    missing = []
    for one in range(int(line[-1]) + 1 if streams else 0):
        is_on = line == one
        ends = np.cumsum(np.where(is_on, spans, 0))
        offset = ends - spans - low
        on_line = _on_line(
            ends,
            offset,
            published.of(is_on[published.stream]),
            Deliveries(*(column[is_on[delivered.stream]] for column in _columns(delivered))),
        )
        for total, count in zip(counted, _columns_of_counts(on_line), strict=True):
            total += count
        missing.append(on_line.missing)
    return Completeness(counted[0], counted[1], counted[2], _together(missing))


def _on_line(ends: Ints, offset: Ints, published: Ranges, delivered: Deliveries) -> Completeness:
    def stream_of(places: Ints) -> Ints:
        return np.searchsorted(ends, places, "right")

    def counted(in_order: Ints) -> Ints:
        return np.diff(np.searchsorted(in_order, ends), prepend=0)

    first, last = _union(
        published.first + offset[published.stream], published.last + offset[published.stream]
    )
    places = delivered.seq + offset[delivered.stream]
    arrived = _different(places)
    final = arrived if delivered.is_final.all() else _different(places[delivered.is_final])
    range_of = np.searchsorted(first, arrived, "right") - 1
    is_published = (
        (range_of >= 0) & (arrived <= last[range_of]) if len(first) else np.zeros(len(arrived), bool)
    )
    sizes = np.zeros(len(ends), np.int64)
    np.add.at(sizes, stream_of(first), last - first + 1)
    gap_first, gap_last = _gaps(first, last, final)
    missing = Ranges(stream_of(gap_first), gap_first, gap_last)
    if published.confirmed_at_us is not None:
        missing = _one_by_one(missing, published.first + offset[published.stream], published.confirmed_at_us)
    to_numbers = offset[missing.stream]
    return Completeness(
        sizes,
        counted(arrived),
        counted(arrived[~is_published]),
        Ranges(
            missing.stream, missing.first - to_numbers, missing.last - to_numbers, missing.confirmed_at_us
        ),
    )


def _different(places: Ints) -> Ints:
    """In order; numpy's unique hashes them first, which takes five times as long."""
    in_order = np.sort(places)
    found: Ints = in_order[np.diff(in_order, prepend=in_order[:1] - 1) != 0]
    return found


def _union(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Ranges that touch or overlap made one, in order."""
    order = np.argsort(first)
    first, last = first[order], last[order]
    reach = np.maximum.accumulate(last)
    begins = np.flatnonzero(np.concatenate(([True], first[1:] > reach[:-1] + 1)[: len(first) + 1]))
    if not len(first):
        return first, last
    return first[begins], reach[np.append(begins[1:], len(first)) - 1]


def _gaps(first: Ints, last: Ints, there: Ints) -> tuple[Ints, Ints]:
    """What the ranges have that `there` has not; `there` is sorted and without duplicates."""
    low, high = np.searchsorted(there, first), np.searchsorted(there, last, "right")
    is_short = high - low < last - first + 1
    gaps_first, gaps_last = [first[:0]], [last[:0]]
    for one, other, begin, end in zip(
        first[is_short], last[is_short], low[is_short], high[is_short], strict=True
    ):
        edges = np.concatenate(([one - 1], there[begin:end], [other + 1]))
        is_gap = np.diff(edges) > 1
        gaps_first.append(edges[:-1][is_gap] + 1)
        gaps_last.append(edges[1:][is_gap] - 1)
    return np.concatenate(gaps_first), np.concatenate(gaps_last)


def _one_by_one(missing: Ranges, places: Ints, confirmed_at_us: Ints) -> Ranges:
    """Each missing number with when it was first confirmed."""
    sizes = missing.last - missing.first + 1
    starts = np.cumsum(sizes) - sizes
    wanted = np.repeat(missing.first - starts, sizes) + np.arange(int(sizes.sum()))
    order = np.lexsort((confirmed_at_us, places))
    confirmed = confirmed_at_us[order][np.searchsorted(places[order], wanted)]
    return Ranges(np.repeat(missing.stream, sizes), wanted, wanted, confirmed)


def _columns(delivered: Deliveries) -> tuple[Ints, Ints, Flags]:
    return delivered.stream, delivered.seq, delivered.is_final


def _columns_of_counts(found: Completeness) -> tuple[Ints, Ints, Ints]:
    return found.published, found.distinct, found.unpublished


def _together(missing: list[Ranges]) -> Ranges:
    if len(missing) == 1:
        return missing[0]
    none = np.zeros(0, np.int64)
    stream, first, last = (
        np.concatenate([none, *(getattr(one, name) for one in missing)])
        for name in ("stream", "first", "last")
    )
    confirmed = [one.confirmed_at_us for one in missing if one.confirmed_at_us is not None]
    return Ranges(stream, first, last, np.concatenate(confirmed) if confirmed else None)
