"""Checks of closed journals: order, overlaps, moves, sessions and completeness.

A line is what has an order of its own: a key of a publisher, over its epochs, and hash; or a session.

A stream is what has numbers of its own: a publisher and hash of a group. All streams lie one behind the other on one
line of integers, so that each question is asked of all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lbg_broker.group import EXCLUSIVE, PARTITIONED
from lbg_pipeline.columns import IntArray
from lbg_pipeline.verify.batch_columns import NEVER, Flags, RecordColumns
from lbg_pipeline.verify.shuffle import JUDGED_MODES

DELIVERED_VIEW, ACKNOWLEDGED_VIEW = "delivered", "acknowledged"


def out_of_order(
    of: RecordColumns,
    line: IntArray,
    number: IntArray,
    judged: Flags,
    skew_us: int,
    *,
    told: IntArray | None = None,
) -> Iterator[dict[str, Any]]:
    """The offences among the `judged` deliveries as delivered and as acknowledged; `number` rises within `line`, and
    `told` is what it is called where that is not the same."""
    told = number if told is None else told
    rows = of.before_us(np.flatnonzero(judged), of.delivered_at_us, line)
    suspects = _not_rising(line, rows, number)
    yield from _judged(
        of, _of_lines(rows, line, suspects), line, number, told, of.delivered_at_us, DELIVERED_VIEW, skew_us
    )

    settled = rows[of.is_acknowledged[rows] & (of.settled_at_us[rows] != NEVER)]
    suspects = np.union1d(_not_rising(line, settled, number), _not_rising(line, settled, of.settled_at_us))
    of_suspects = _of_lines(settled, line, suspects)
    in_order = of.before_us(of_suspects, of.settled_at_us, line)
    yield from _judged(of, in_order, line, number, told, of.settled_at_us, ACKNOWLEDGED_VIEW, skew_us)


def _not_rising(line: IntArray, rows: IntArray, value: IntArray) -> IntArray:
    """The lines in which `value` does not rise from row to row."""
    lines, values = line[rows], value[rows]
    falls = (lines[1:] == lines[:-1]) & (values[1:] <= values[:-1])
    return np.unique(lines[1:][falls])


def _of_lines(rows: IntArray, line: IntArray, wanted: IntArray) -> IntArray:
    return rows[np.isin(line[rows], wanted)] if len(wanted) else rows[:0]


def _judged(
    of: RecordColumns,
    rows: IntArray,
    line: IntArray,
    number: IntArray,
    told: IntArray,
    at_us: IntArray,
    view: str,
    skew_us: int,
) -> Iterator[dict[str, Any]]:
    """`rows` are sorted by line."""
    starts = np.flatnonzero(np.diff(line[rows], prepend=-1))
    for of_line in np.split(rows, starts[1:]):
        numbers, ats, runs = number[of_line], at_us[of_line], of.run[of_line]
        highest = np.maximum.accumulate(numbers)
        latest = np.maximum.accumulate(np.where(numbers == highest, np.arange(len(numbers)), 0))
        seen: set[int] = set()
        for place, row in enumerate(of_line.tolist()):
            one = int(numbers[place])
            if place and one <= highest[place - 1]:
                expected = int(told[of_line[latest[place - 1]]]) + 1
                offence = {**of.told(row), "expected": expected, "view": view, "at_us": int(ats[place])}
                if one in seen:
                    yield {**offence, "kind": "rewound", "uncertain": False}
                else:
                    is_higher = numbers[:place] > one
                    is_certain = (runs[:place] == runs[place]) | (ats[place] - ats[:place] > skew_us)
                    uncertain = not np.any(is_higher & is_certain)
                    yield {**offence, "kind": "inverted", "uncertain": uncertain}
            seen.add(one)


def repeated(of: RecordColumns, message: IntArray) -> Iterator[dict[str, Any]]:
    """Each acknowledgement of a message after its first. Those that were not settled count as the last."""
    rows = np.flatnonzero(of.is_acknowledged)
    of_message = message[rows]
    times = np.bincount(of_message) if len(rows) else np.zeros(0, np.int64)
    rows = rows[times[of_message] > 1]
    settled = of.settled_at_us[rows]
    is_open = settled == NEVER
    order = np.lexsort(
        (of.delivery[rows], of.run[rows], np.where(is_open, 0, settled), is_open, message[rows])
    )
    rows = rows[order]
    again = np.diff(message[rows], prepend=-1) == 0
    for row in rows[again].tolist():
        at_us = int(of.settled_at_us[row])
        yield {
            **of.told(row),
            "kind": "repeated",
            "at_us": None if at_us == NEVER else at_us,
            "uncertain": False,
        }


def overlaps(of: RecordColumns, key: IntArray, skew_us: int) -> Iterator[dict[str, Any]]:
    """Each delivery that the application was given while others' deliveries of its key were with it, once: with
    whoever finished last of those. `key` numbers the keys of all groups."""
    has_span = of.has_key & ~of.is_in_sessions & (of.started_at_us != NEVER)
    has_span &= of.finished_at_us > of.started_at_us
    rows = of.before_us(np.flatnonzero(has_span), of.started_at_us, key)
    if not len(rows):
        return
    for of_key in _suspects(of, rows, key[rows]):
        yield from _of_key(of, of_key, skew_us)


def _suspects(of: RecordColumns, rows: IntArray, keys: IntArray) -> Iterator[IntArray]:
    """The rows of each key in which one span starts before all that started before it have ended."""
    started, finished = of.started_at_us[rows], of.finished_at_us[rows]
    # If no span reaches beyond the start of the next, none reaches beyond that of a later one.
    reaches = (keys[1:] == keys[:-1]) & (finished[:-1] > started[1:])
    for key in np.unique(keys[1:][reaches]):
        low, high = np.searchsorted(keys, [key, key + 1])
        yield rows[low:high]


def _of_key(of: RecordColumns, rows: IntArray, skew_us: int) -> Iterator[dict[str, Any]]:
    open_rows: list[int] = []
    for row in rows.tolist():
        at_us = of.started_at_us[row]
        open_rows = [other for other in open_rows if of.finished_at_us[other] > at_us]
        into = [other for other in open_rows if not _is_one_run(of, row, other)]
        if into:
            other = max(into, key=lambda one: (of.finished_at_us[one], of.run[one], of.delivery[one]))
            uncertain = all(
                of.run[each] != of.run[row] and _shift_us(of, each, row) <= skew_us for each in into
            )
            yield {
                **of.told(row),
                "kind": "overlap",
                "at_us": int(at_us),
                "uncertain": uncertain,
                "other_member": int(of.member[other]),
                "other_incarnation": of.incarnation[other],
            }
        open_rows.append(row)


def _is_one_run(of: RecordColumns, one: int, other: int) -> bool:
    return bool(of.run[one] == of.run[other] and of.member[one] == of.member[other])


def _shift_us(of: RecordColumns, first: int, second: int) -> int:
    """Shift by which one of two spans no longer intersects the other."""
    started, finished = of.started_at_us, of.finished_at_us
    return int(min(finished[first] - started[second], finished[second] - started[first]))


def moves(of: RecordColumns, shard: IntArray) -> Iterator[dict[str, Any]]:
    """Moves of queues and partitions, which have one consumer at a time; a message without a key goes anywhere."""
    is_placed = of.mode == JUDGED_MODES.index(EXCLUSIVE)
    is_placed |= (of.mode == JUDGED_MODES.index(PARTITIONED)) & of.has_key
    rows = of.before_us(np.flatnonzero(is_placed), of.delivered_at_us, shard)
    shards, members = shard[rows], of.member[rows]
    moved = (shards[1:] == shards[:-1]) & (members[1:] != members[:-1])
    for was, now in zip(rows[:-1][moved].tolist(), rows[1:][moved].tolist(), strict=True):
        yield {
            "group": of.group[now],
            "hash": int(of.hash[now]),
            "was": int(of.member[was]),
            "now": int(of.member[now]),
            "at_us": int(of.delivered_at_us[now]),
            "pause_us": int(of.delivered_at_us[now] - of.delivered_at_us[was]),
        }


def misplaced(of: RecordColumns, one: IntArray, other: IntArray, judged: Flags) -> Iterator[dict[str, Any]]:
    """Deliveries whose `other` is not that of the first delivery of their `one`: messages and places, either way."""
    rows = of.before_us(np.flatnonzero(judged), of.delivered_at_us, one)
    if not len(rows):
        return
    starts = np.flatnonzero(np.diff(one[rows], prepend=-1))
    first = np.repeat(other[rows][starts], np.diff(np.append(starts, len(rows))))
    for row in rows[other[rows] != first].tolist():
        yield _offence(of, row)


def nowhere(of: RecordColumns) -> Iterator[dict[str, Any]]:
    for row in np.flatnonzero(of.is_in_sessions & ~is_placed(of)).tolist():
        yield _offence(of, row)


def is_placed(of: RecordColumns) -> Flags:
    found: Flags = (of.session.codes < len(of.session.told)) & (of.sequence != NEVER)
    return found


def _offence(of: RecordColumns, row: int) -> dict[str, Any]:
    at_us = int(of.delivered_at_us[row])
    return {**of.told(row), "kind": "misplaced", "view": "delivered", "at_us": at_us, "uncertain": False}


_LINE = 2.0**61
"""Longer lines would not be sure to fit 64 bits."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    stream: IntArray
    seq: IntArray
    is_final: Flags


@dataclass(frozen=True, slots=True)
class Ranges:
    """Numbers `first` to `last` of each `stream`. `confirmed_at_us` is there if all are ranges of one."""

    stream: IntArray
    first: IntArray
    last: IntArray
    confirmed_at_us: IntArray | None = None

    def of(self, wanted: Flags) -> Ranges:
        confirmed = None if self.confirmed_at_us is None else self.confirmed_at_us[wanted]
        return Ranges(self.stream[wanted], self.first[wanted], self.last[wanted], confirmed)


@dataclass(frozen=True, slots=True)
class Completeness:
    """Different messages, by stream; `missing` are in order of stream and number."""

    published: IntArray
    distinct: IntArray
    unpublished: IntArray
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


def _on_line(ends: IntArray, offset: IntArray, published: Ranges, delivered: Deliveries) -> Completeness:
    def stream_of(places: IntArray) -> IntArray:
        return np.searchsorted(ends, places, "right")

    def counted(in_order: IntArray) -> IntArray:
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


def _different(places: IntArray) -> IntArray:
    """In order; numpy's unique hashes them first, which takes five times as long."""
    in_order = np.sort(places)
    found: IntArray = in_order[np.diff(in_order, prepend=in_order[:1] - 1) != 0]
    return found


def _union(first: IntArray, last: IntArray) -> tuple[IntArray, IntArray]:
    """Ranges that touch or overlap made one, in order."""
    order = np.argsort(first)
    first, last = first[order], last[order]
    reach = np.maximum.accumulate(last)
    begins = np.flatnonzero(np.concatenate(([True], first[1:] > reach[:-1] + 1)[: len(first) + 1]))
    if not len(first):
        return first, last
    return first[begins], reach[np.append(begins[1:], len(first)) - 1]


def _gaps(first: IntArray, last: IntArray, there: IntArray) -> tuple[IntArray, IntArray]:
    """Numbers of the ranges that are not in `there`, which is sorted and without duplicates."""
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


def _one_by_one(missing: Ranges, places: IntArray, confirmed_at_us: IntArray) -> Ranges:
    """Each missing number with when it was first confirmed."""
    sizes = missing.last - missing.first + 1
    starts = np.cumsum(sizes) - sizes
    wanted = np.repeat(missing.first - starts, sizes) + np.arange(int(sizes.sum()))
    order = np.lexsort((confirmed_at_us, places))
    confirmed = confirmed_at_us[order][np.searchsorted(places[order], wanted)]
    return Ranges(np.repeat(missing.stream, sizes), wanted, wanted, confirmed)


def _columns(delivered: Deliveries) -> tuple[IntArray, IntArray, Flags]:
    return delivered.stream, delivered.seq, delivered.is_final


def _columns_of_counts(found: Completeness) -> tuple[IntArray, IntArray, IntArray]:
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
