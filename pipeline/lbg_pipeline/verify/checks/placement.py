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


def elsewhere(one: Ints, other: Ints, times: Times, is_seen: Flags) -> Flags:
    """Mask of the deliveries whose `other` is not that of the first delivery of their `one`: messages and places,
    either way. `is_seen`: `one` came before these; its `other` is not remembered."""
    is_elsewhere = np.zeros(len(one), np.bool_)
    order = times.in_order(one)
    starts = np.flatnonzero(np.diff(one[order], prepend=-1))
    first = np.repeat(other[order][starts], np.diff(np.append(starts, len(order))))
    is_elsewhere[order] = (other[order] != first) & ~is_seen[order]
    return is_elsewhere


def misplaced(
    message: Ints, place: Ints, times: Times, is_message_seen: Flags, is_place_seen: Flags
) -> Flags:
    """Mask of the deliveries of a message that has another place, or in a place that has another message.

    `is_message_seen` and `is_place_seen`: the message, or the place, of a delivery before these. The pairs are not
        remembered: a message and a place of which one was seen and the other was not are misplaced.
    """
    is_misplaced: Flags = is_message_seen != is_place_seen
    is_misplaced |= elsewhere(message, place, times, is_message_seen)
    is_misplaced |= elsewhere(place, message, times, is_place_seen)
    return is_misplaced
