"""Check of order: the numbers of a sub-stream rise, as delivered and as acknowledged.

A sub-stream has one order: it is a key of one history, that is of a publisher with all its epochs, and hash; or
a session. It is a number from 0. All arrays have one item for each delivery; times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from lbg_pipeline.columns import Flags, Ints, Line, highest_so_far, is_again, joined, numbers_in_order

NOTHING = -1
"""Highest number of a sub-stream of which nothing was seen."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Deliveries of one sub-stream follow one another; the check is cheap where they do so in order of time.

    `is_checked`: false for earlier ones, which are there for comparison only. `is_seen`: its number was seen before any
    of these. `is_remembered`: false if the memory of its epoch was dropped; such a delivery is never inverted.
    """

    sub_stream: Ints
    number: Ints
    at_us: Ints
    incarnation: Ints
    delivery: Ints
    is_checked: Flags
    is_seen: Flags
    is_remembered: Flags

    @classmethod
    def at_once(
        cls, sub_stream: Ints, number: Ints, at_us: Ints, incarnation: Ints, delivery: Ints
    ) -> Deliveries:
        """All deliveries of a batch: there are no earlier ones."""
        everywhere = np.ones(len(number), np.bool_)
        return cls(sub_stream, number, at_us, incarnation, delivery, everywhere, ~everywhere, everywhere)

    def take(self, chosen: Ints) -> Deliveries:
        return Deliveries(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class OrderResult:
    """Indices of deliveries. `highest`: the highest number before each inverted and rewound one. `uncertain`: true
    for inverted ones that the clocks' skew explains."""

    rewound: Ints
    rewound_highest: Ints
    inverted: Ints
    inverted_highest: Ints
    uncertain: Flags

    def by_kind(self) -> Iterator[tuple[str, Ints, Ints, Flags]]:
        yield "rewound", self.rewound, self.rewound_highest, np.zeros(len(self.rewound), np.bool_)
        yield "inverted", self.inverted, self.inverted_highest, self.uncertain


def check_order(rows: Deliveries, highest: Ints, skew_us: int, *, message: Ints | None = None) -> OrderResult:
    """`highest`: by sub-stream, of all earlier deliveries, which are more than the skew before those that are
    checked. `message`: where several messages of a sub-stream may have one number, which one each delivery has."""
    suspects = _suspects(rows, highest)
    result = _check_order(
        rows.take(suspects), highest, skew_us, None if message is None else message[suspects]
    )
    return OrderResult(
        rewound=suspects[result.rewound],
        rewound_highest=result.rewound_highest,
        inverted=suspects[result.inverted],
        inverted_highest=result.inverted_highest,
        uncertain=result.uncertain,
    )


def highest_after(sub_stream: Ints, number: Ints, highest: Ints) -> Ints:
    """`highest` with these deliveries."""
    after = highest.copy()
    np.maximum.at(after, sub_stream, number)
    return after


def _suspects(rows: Deliveries, highest: Ints) -> Ints:
    """Deliveries of all sub-streams but those that are plainly in order, as almost all are."""
    if not len(rows.number):
        return np.zeros(0, np.int64)
    is_same = rows.sub_stream[1:] == rows.sub_stream[:-1]
    is_suspect = rows.is_seen.copy()
    is_suspect[1:] |= is_same & ((np.diff(rows.number) <= 0) | (np.diff(rows.at_us) < 0))
    ties = 1 + np.flatnonzero(is_same & (np.diff(rows.at_us) == 0))
    if len(ties):
        run, delivery = rows.incarnation, rows.delivery
        is_next = (run[ties] > run[ties - 1]) | (
            (run[ties] == run[ties - 1]) & (delivery[ties] > delivery[ties - 1])
        )
        is_suspect[ties[~is_next]] = True
    first = np.flatnonzero(np.r_[True, ~is_same])
    is_suspect[first] |= rows.number[first] <= highest[rows.sub_stream[first]]
    if not is_suspect.any():
        return np.zeros(0, np.int64)
    of_suspect = np.zeros(len(highest), np.bool_)
    of_suspect[rows.sub_stream[is_suspect]] = True
    return np.flatnonzero(of_suspect[rows.sub_stream])


def _check_order(rows: Deliveries, highest: Ints, skew_us: int, message: Ints | None) -> OrderResult:
    order = np.lexsort((rows.delivery, rows.incarnation, rows.at_us, rows.sub_stream))
    sub_stream, number = rows.sub_stream[order], rows.number[order]
    before = _highest_before(sub_stream, number, highest)
    again = rows.is_seen[order]
    if (number <= before).any():
        again |= is_again(joined(sub_stream, number) if message is None else message[order])
    is_checked = rows.is_checked[order]
    rewound = np.flatnonzero(again & is_checked)
    inverted = np.flatnonzero(~again & is_checked & rows.is_remembered[order] & (number < before))
    uncertain = np.zeros(len(inverted), np.bool_)
    if len(inverted):
        uncertain = ~_certain(rows, order, inverted, highest, skew_us)
    return OrderResult(
        rewound=order[rewound],
        rewound_highest=np.maximum(before[rewound], number[rewound]),
        inverted=order[inverted],
        inverted_highest=before[inverted],
        uncertain=uncertain,
    )


def _highest_before(sub_stream: Ints, number: Ints, highest: Ints) -> Ints:
    """For each of rows sorted by sub-stream, the highest number before it."""
    if not len(sub_stream):
        return number
    running = highest_so_far(sub_stream, number)
    before = np.r_[running[:1], running[:-1]]
    is_first = np.r_[True, sub_stream[1:] != sub_stream[:-1]]
    before[is_first] = highest[sub_stream[is_first]]
    return np.maximum(before, highest[sub_stream])


def _certain(rows: Deliveries, order: Ints, inverted: Ints, highest: Ints, skew_us: int) -> Flags:
    """True if a higher number came before on the same incarnation, or more than the skew earlier on another."""
    sub_stream, number, at_us = rows.sub_stream[order], rows.number[order], rows.at_us[order]
    line = Line(len(highest), (at_us, at_us - skew_us))
    places = line.place(sub_stream, at_us)
    earlier = np.searchsorted(places, line.place(sub_stream[inverted], at_us[inverted] - skew_us), "left") - 1
    running = np.maximum(highest_so_far(sub_stream, number), highest[sub_stream])
    is_same = (earlier >= 0) & (sub_stream[np.maximum(earlier, 0)] == sub_stream[inverted])
    long_ago = np.where(is_same, running[np.maximum(earlier, 0)], highest[sub_stream[inverted]])
    own = joined(sub_stream, rows.incarnation[order])
    by_own = np.argsort(own, kind="stable")
    own_highest = np.empty_like(number)
    own_highest[by_own] = highest_so_far(own[by_own], number[by_own])
    return np.asarray((long_ago > number[inverted]) | (own_highest[inverted] > number[inverted]))


class Numbers:
    """Numbers of messages with the epochs that they are of, as integers in their order: `places`."""

    def __init__(self, began_us: Ints, number: Ints) -> None:
        self.places = numbers_in_order(began_us, number)
        self._began_us = began_us
        self._number = number
        self._has_epochs = bool(began_us.any())

    @cached_property
    def _first(self) -> tuple[Ints, Ints]:
        """Different places in order, and the index of one message at each."""
        places, first = np.unique(self.places, return_index=True)
        return places, first

    def _message(self, places: Ints) -> Ints:
        there, first = self._first
        return np.asarray(first[np.searchsorted(there, places)])

    def number(self, places: Ints) -> Ints:
        """The message's own; NOTHING for NOTHING."""
        if not self._has_epochs:
            return places
        return np.where(places == NOTHING, NOTHING, self._number[self._message(places)])

    def began_us(self, places: Ints) -> Ints:
        """Start of the message's epoch; 0 for NOTHING."""
        if not self._has_epochs:
            return np.zeros(len(places), np.int64)
        return np.where(places == NOTHING, 0, self._began_us[self._message(places)])
