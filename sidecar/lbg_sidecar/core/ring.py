"""The ring of members: their indexes in ascending order, and from the last one on to the first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def following(others: Sequence[int], index: int, places: int = 1) -> int:
    """The member so many places after `index`. `others`: indexes of the other members, ascending, at least one."""
    return others[(bisect_right(others, index) + places - 1) % len(others)]


def neighbour(others: Sequence[int], index: int, uniform: float) -> int:
    """One of the members that are 1, 2, 4, 8, … places after `index`, as the fingers of Chord (Stoica et al., 2001),
    chosen by a number from 0 up to 1. `others`: at least one.

    Over these a change reaches all in a few rounds, and each member exchanges messages with log2 N others. RabbitMQ
    keeps statistics of each pair of channel and queue, and goes through all of them every 5 s.
    """
    return following(others, index, 1 << int(uniform * len(others).bit_length()))
