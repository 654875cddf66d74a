"""Order of what has numbers: a number seen before is a rewind, one first seen after a higher one an inversion.

A *chain* is what has one order: a key of one history, that is of a publisher with all its epochs, and hash; or a
session. Numbers are those of `lbg_pipeline.numbering.numbers_in_order`. All arrays have one item for a delivery; times
are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from .intervals import Flags, Ints
from .lines import Line

NOTHING = -1
"""The highest number of a chain of which nothing was seen."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """`is_judged`: what came before is there only to be compared with. `is_seen`: its number was seen before any of
    these. `is_remembered`: it is known whether it was seen; what is not is not taken for inverted."""

    chain: Ints
    number: Ints
    at_us: Ints
    incarnation: Ints
    delivery: Ints
    is_judged: Flags
    is_seen: Flags
    is_remembered: Flags


@dataclass(frozen=True, slots=True)
class Judged:
    """Indices of deliveries. `highest`: the highest number before each inverted and rewound one. `uncertain`: of each
    inverted one, whether the clocks' skew would explain it."""

    rewound: Ints
    rewound_highest: Ints
    inverted: Ints
    inverted_highest: Ints
    uncertain: Flags


def judge_order(rows: Deliveries, highest: Ints, skew_us: int) -> Judged:
    """`highest`: by chain, of all that came before these, and more than the skew before those that are judged."""
    order = np.lexsort((rows.delivery, rows.incarnation, rows.at_us, rows.chain))
    chain, number = rows.chain[order], rows.number[order]
    before = _highest_before(chain, number, highest)
    again = rows.is_seen[order]
    if (number <= before).any():
        again |= pd.DataFrame({"chain": chain, "number": number}).duplicated().to_numpy()
    judged = rows.is_judged[order]
    rewound = np.flatnonzero(again & judged)
    inverted = np.flatnonzero(~again & judged & rows.is_remembered[order] & (number < before))
    uncertain = np.zeros(len(inverted), np.bool_)
    if len(inverted):
        uncertain = ~_certain(rows, order, inverted, highest, skew_us)
    return Judged(
        rewound=order[rewound],
        rewound_highest=np.maximum(before[rewound], number[rewound]),
        inverted=order[inverted],
        inverted_highest=before[inverted],
        uncertain=uncertain,
    )


def highest_after(chain: Ints, number: Ints, highest: Ints) -> Ints:
    """`highest` with these deliveries."""
    after = highest.copy()
    np.maximum.at(after, chain, number)
    return after


def _highest_before(chain: Ints, number: Ints, highest: Ints) -> Ints:
    """For each of rows sorted by chain, the highest number before it."""
    if not len(chain):
        return number
    running = pd.Series(number).groupby(chain, sort=False).cummax().to_numpy()
    before = np.r_[NOTHING, running[:-1]]
    before[np.r_[True, chain[1:] != chain[:-1]]] = NOTHING
    return np.maximum(before, highest[chain])


def _certain(rows: Deliveries, order: Ints, inverted: Ints, highest: Ints, skew_us: int) -> Flags:
    """A higher number came before on the same incarnation, or more than the skew earlier on another."""
    chain, number, at_us = rows.chain[order], rows.number[order], rows.at_us[order]
    line = Line(len(highest), (at_us, at_us - skew_us))
    when = line.place(chain, at_us)
    earlier = np.searchsorted(when, line.place(chain[inverted], at_us[inverted] - skew_us), "left") - 1
    running = np.maximum(pd.Series(number).groupby(chain, sort=False).cummax().to_numpy(), highest[chain])
    in_chain = (earlier >= 0) & (chain[np.maximum(earlier, 0)] == chain[inverted])
    long_ago = np.where(in_chain, running[np.maximum(earlier, 0)], highest[chain[inverted]])
    own = pd.DataFrame({"chain": chain, "incarnation": rows.incarnation[order], "number": number})
    own_highest = own.groupby(["chain", "incarnation"], sort=False)["number"].cummax().to_numpy()
    return np.asarray((long_ago > number[inverted]) | (own_highest[inverted] > number[inverted]))
