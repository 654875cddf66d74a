"""Checks of placement: the member that a hash is with, and the session and number that a message has.

All arrays have one item for each delivery; by `Times` deliveries are in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lbg_pipeline.columns import Flags, Ints, in_order


@dataclass(frozen=True, slots=True)
class Times:
    """The order of events: by time, then by incarnation and delivery."""

    at_us: Ints
    incarnation: Ints
    delivery: Ints

    def in_order(self, major: Ints) -> Ints:
        """Indices by `major`, then by time."""
        return in_order(major, self.at_us, self.incarnation, self.delivery)

    def last(self, major: Ints) -> Ints:
        """Index of the last delivery of each `major`."""
        order = self.in_order(major)
        of = major[order]
        return order[np.r_[of[1:] != of[:-1], True]] if len(of) else order


def moves(shard: Ints, member: Ints, times: Times) -> tuple[Ints, Ints]:
    """Indices of deliveries of one shard that follow one another with two members: the last of one, the first of the
    other."""
    order = times.in_order(shard)
    shards, members = shard[order], member[order]
    moved = (shards[1:] == shards[:-1]) & (members[1:] != members[:-1])
    return order[:-1][moved], order[1:][moved]


def elsewhere(one: Ints, other: Ints, times: Times, is_known: Flags) -> Flags:
    """Mask of the deliveries whose `other` is not that of the first delivery of their `one`: messages and places,
    either way. `is_known`: `one` came before these, and with which `other` is not remembered."""
    found = np.zeros(len(one), np.bool_)
    order = times.in_order(one)
    starts = np.flatnonzero(np.diff(one[order], prepend=-1))
    first = np.repeat(other[order][starts], np.diff(np.append(starts, len(order))))
    found[order] = (other[order] != first) & ~is_known[order]
    return found


def misplaced(message: Ints, place: Ints, times: Times, has_come: Flags, was_taken: Flags) -> Flags:
    """Mask of the deliveries of a message that has another place, or in a place that has another message.

    `has_come` and `was_taken`: the message, and the place, of a delivery before these. Which with which is not
    remembered: where one of the two was seen and the other was not, it is another one's.
    """
    found: Flags = has_come != was_taken
    found |= elsewhere(message, place, times, has_come)
    found |= elsewhere(place, message, times, was_taken)
    return found
