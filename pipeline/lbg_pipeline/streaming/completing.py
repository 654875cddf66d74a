"""Completeness of many streams: what was published and has no end yet, what is lost, repeated, never published."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from .intervals import NONE, Flags, Intervals, Ints, holds, minus, of_points, piece_of, union

_GRAIN_US = 1_000_000
"""What was confirmed in the same second is remembered with one time, that of the last of it."""


@dataclass(frozen=True, slots=True)
class Completeness:
    """All sets are of places on one line (`lines`), that is of a stream and a number. `open_since_us`: by interval of
    `open`, when it was confirmed; only `open` may hold intervals that touch."""

    published: Intervals = NONE
    distinct: Intervals = NONE
    """Delivered, in whatever way it ended."""
    final: Intervals = NONE
    settled: Intervals = NONE
    """Acknowledged, at a time that the watermark has passed."""
    unsettled: Intervals = NONE
    """Acknowledged by a member that never wrote it to the broker."""
    open: Intervals = NONE
    """Published, without an end, and not yet told as lost."""
    open_since_us: Ints = field(default_factory=lambda: NONE.firsts)
    lost: Intervals = NONE
    """Told as lost, and still without an end."""


def with_published(known: Completeness, places: Ints, confirmed_us: Ints) -> Completeness:
    order = np.lexsort((confirmed_us, places))
    places, confirmed_us = places[order], confirmed_us[order]
    # Sent again after a kill, a message has two records; the first of them counts.
    is_first = np.r_[True, places[1:] != places[:-1]] if len(places) else np.zeros(0, np.bool_)
    is_new = is_first & ~holds(known.published, places)
    points = places[is_new & ~holds(known.final, places)]
    since_us = confirmed_us[is_new & ~holds(known.final, places)]
    cuts = np.flatnonzero((np.diff(points) > 1) | (np.diff(since_us // _GRAIN_US) != 0))
    begins, ends = (np.r_[0, cuts + 1], np.r_[cuts, len(points) - 1]) if len(points) else (cuts, cuts)
    added = Intervals(points[begins], points[ends])
    added_us = np.maximum.reduceat(since_us, begins) if len(begins) else since_us
    firsts = np.concatenate([known.open.firsts, added.firsts])
    order = np.argsort(firsts)
    return replace(
        known,
        published=union(known.published, of_points(places)),
        open=Intervals(firsts[order], np.concatenate([known.open.lasts, added.lasts])[order]),
        open_since_us=np.concatenate([known.open_since_us, added_us])[order],
    )


def with_delivered(known: Completeness, places: Ints, is_final: Flags) -> tuple[Completeness, Intervals]:
    """Also what was told as lost and has come after all. `places` rise."""
    final = of_points(places[is_final])
    still_open = minus(known.open, final)
    still_lost = minus(known.lost, final)
    return replace(
        known,
        distinct=union(known.distinct, of_points(places)),
        final=union(known.final, final),
        open=still_open,
        open_since_us=known.open_since_us[piece_of(known.open, still_open)],
        lost=still_lost,
    ), minus(known.lost, still_lost)


def with_lost(known: Completeness, upto_us: int) -> tuple[Completeness, Intervals]:
    """What was confirmed until `upto_us` and has no end by now is lost: told once, here."""
    overdue = known.open_since_us <= upto_us
    told = union(Intervals(known.open.firsts[overdue], known.open.lasts[overdue]))
    rest = Intervals(known.open.firsts[~overdue], known.open.lasts[~overdue])
    return replace(
        known, open=rest, open_since_us=known.open_since_us[~overdue], lost=union(known.lost, told)
    ), told
