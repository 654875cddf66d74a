"""Check of completeness: every published message is delivered, and acknowledged once.

A stream has numbers of its own: those of a publisher and hash of a group. All streams lie one behind the other on one
line of integers (`lbg_pipeline.columns.Line`), so that one operation on intervals serves all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from lbg_pipeline.columns import (
    NONE,
    Flags,
    Intervals,
    Ints,
    Line,
    dense,
    holds,
    joined,
    minus,
    of_points,
    piece_of,
    union,
)


@dataclass(frozen=True, slots=True)
class Completeness:
    """All sets are of places on one line, that is of a stream and a number. `open_since_us`: by interval of `open`,
    when it was confirmed; only `open` may hold intervals that touch."""

    published: Intervals = NONE
    distinct: Intervals = NONE
    """Delivered, with any verdict."""
    final: Intervals = NONE
    settled: Intervals = NONE
    """Acknowledged, at a time that the watermark has passed."""
    unsettled: Intervals = NONE
    """Acknowledged by a member that never wrote it to the broker."""
    open: Intervals = NONE
    """Published, without an end, and not yet reported as lost."""
    open_since_us: Ints = field(default_factory=lambda: NONE.firsts)
    lost: Intervals = NONE
    """Reported as lost, and still without an end."""

    @property
    def unpublished(self) -> Intervals:
        return minus(self.distinct, self.published)


def with_published(
    completeness: Completeness, places: Ints, confirmed_us: Ints, *, grain_us: int
) -> Completeness:
    """Adds published messages. Those confirmed within one grain of time get one time, that of the last of them."""
    order = np.lexsort((confirmed_us, places))
    places, confirmed_us = places[order], confirmed_us[order]
    # Sent again after a kill, a message has two records; the first of them counts.
    is_first = np.r_[True, places[1:] != places[:-1]] if len(places) else np.zeros(0, np.bool_)
    is_open = is_first & ~holds(completeness.published, places) & ~holds(completeness.final, places)
    points, since_us = places[is_open], confirmed_us[is_open]
    cuts = np.flatnonzero((np.diff(points) > 1) | (np.diff(since_us // grain_us) != 0))
    begins, ends = (np.r_[0, cuts + 1], np.r_[cuts, len(points) - 1]) if len(points) else (cuts, cuts)
    added_us = np.maximum.reduceat(since_us, begins) if len(begins) else since_us
    return _opened(completeness, of_points(places), Intervals(points[begins], points[ends]), added_us)


def with_published_ranges(completeness: Completeness, ranges: Intervals) -> Completeness:
    """Adds published messages without their times of confirm; ranges may overlap."""
    published = union(ranges)
    added = minus(minus(published, completeness.published), completeness.final)
    return _opened(completeness, published, added, np.zeros(len(added.firsts), np.int64))


def _opened(
    completeness: Completeness, published: Intervals, added: Intervals, added_us: Ints
) -> Completeness:
    firsts = np.concatenate([completeness.open.firsts, added.firsts])
    order = np.argsort(firsts)
    return replace(
        completeness,
        published=union(completeness.published, published),
        open=Intervals(firsts[order], np.concatenate([completeness.open.lasts, added.lasts])[order]),
        open_since_us=np.concatenate([completeness.open_since_us, added_us])[order],
    )


def with_delivered(
    completeness: Completeness, distinct: Intervals, final: Intervals
) -> tuple[Completeness, Intervals]:
    """Adds deliveries; returns recovered messages too, which were reported as lost. `final`: the ended ones of
    `distinct`."""
    still_open = minus(completeness.open, final)
    still_lost = minus(completeness.lost, final)
    return replace(
        completeness,
        distinct=union(completeness.distinct, distinct),
        final=union(completeness.final, final),
        open=still_open,
        open_since_us=completeness.open_since_us[piece_of(completeness.open, still_open)],
        lost=still_lost,
    ), minus(completeness.lost, still_lost)


def with_lost(completeness: Completeness, upto_us: int) -> tuple[Completeness, Intervals]:
    """Moves messages confirmed until `upto_us` that have not ended to the lost; returned too, to be reported
    once."""
    overdue = completeness.open_since_us <= upto_us
    lost = union(Intervals(completeness.open.firsts[overdue], completeness.open.lasts[overdue]))
    rest = Intervals(completeness.open.firsts[~overdue], completeness.open.lasts[~overdue])
    return replace(
        completeness,
        open=rest,
        open_since_us=completeness.open_since_us[~overdue],
        lost=union(completeness.lost, lost),
    ), lost


def repeated(places: Ints, settled_us: Ints, incarnation: Ints, delivery: Ints, is_seen: Flags) -> Ints:
    """Indices of the acknowledgements after the first of each message, which is at one of `places`. Those that were
    not settled (times below 0) count as the last. `is_seen`: its message was acknowledged before any of these."""
    ordered = np.sort(places)
    twice = of_points(ordered[1:][ordered[1:] == ordered[:-1]])
    chosen = np.flatnonzero(is_seen | holds(twice, places))
    at_us = np.where(settled_us < 0, np.iinfo(np.int64).max, settled_us)[chosen]
    chosen = chosen[np.lexsort((delivery[chosen], incarnation[chosen], at_us, places[chosen]))]
    again = is_seen[chosen]
    again[1:] |= places[chosen][1:] == places[chosen][:-1]
    return chosen[again]


@dataclass(frozen=True, slots=True)
class Gaps:
    """Ranges of numbers of a stream that no journal has, though it has a higher one. `is_early`: they are below all
    that the publisher's journal has, as where its older files were removed."""

    stream: Ints
    first: Ints
    last: Ints
    is_early: Flags

    def count(self, streams: int, *, is_early: bool) -> Ints:
        """By stream."""
        count = np.zeros(streams, np.int64)
        chosen = self.is_early == is_early
        np.add.at(count, self.stream[chosen], (self.last - self.first + 1)[chosen])
        return count


def gaps(completeness: Completeness, line: Line) -> Gaps:
    stream, first, last = line.ranges(union(completeness.published, completeness.distinct))
    before = np.r_[np.int64(-1), last[:-1]]
    before[np.flatnonzero(np.diff(stream, prepend=-1))] = -1
    hole = np.flatnonzero(first > before + 1)
    published, lowest, _ = line.ranges(completeness.published)
    published, at = np.unique(published, return_index=True)
    begins = np.full(int(stream.max(initial=0)) + 1, -1)
    starts = np.flatnonzero(np.diff(stream, prepend=-1))
    begins[stream[starts]] = first[starts]
    begins[published] = lowest[at]
    return Gaps(stream[hole], before[hole] + 1, first[hole] - 1, first[hole] <= begins[stream[hole]])


def copies(incarnation: Ints, delivery: Ints, *message: Ints, rank: Ints) -> tuple[Ints, Ints]:
    """Indices of records of a delivery that has another one, and of that: the one of the lowest `rank`. A run of a
    member numbers its deliveries, so that one number with one message is one delivery."""
    number = joined(incarnation, delivery)
    ordered = np.sort(number)
    twice = of_points(ordered[1:][ordered[1:] == ordered[:-1]])
    chosen = np.flatnonzero(holds(twice, number))
    if not len(chosen):
        return chosen, chosen
    record, _ = dense(number[chosen], *(column[chosen] for column in message))
    order = np.lexsort((rank[chosen], record))
    starts = np.flatnonzero(np.diff(record[order], prepend=-1))
    first = np.repeat(order[starts], np.diff(np.append(starts, len(order))))
    is_copy = order != first
    return chosen[order[is_copy]], chosen[first[is_copy]]
