"""How much work the hashes of a group bring, and how it adds up over queues and members.

Work is told in *calls at once*: seconds of service time for each second. A key never has more than one call at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lbg_broker.group import queue_of

from .sharing import Owners

Table = npt.NDArray[np.float64]
"""A row for each stretch of time: the first is all that was observed, the others are its busiest minutes."""


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What each hash of `hash_count` asks for; `calls` at once and `messages` a second, a column for each hash."""

    hash_count: int
    calls: Table
    messages: Table

    @property
    def total_mean(self) -> float:
        """Calls at once of the whole group, over all that was observed."""
        return float(self.calls[0].sum())

    @property
    def total_peak(self) -> float:
        """The same in its busiest stretch."""
        return float(self.calls.sum(axis=1).max())

    def mean_alone(self) -> Demand:
        """As if every minute were like the mean."""
        return Demand(self.hash_count, self.calls[:1], self.messages[:1])


def queue_loads(loads: Table, queue_count: int) -> Table:
    """From a column for each hash to a column for each queue."""
    queues = np.array([queue_of(hash_, queue_count) for hash_ in range(loads.shape[1])])
    return _summed(loads, queues, queue_count)


def member_loads(loads: Table, owners: Owners, members: int) -> Table:
    """From a column for each queue to a column for each member. Queues that wander all go to whoever has most: the
    worst that can happen."""
    held = np.array([-1 if owner is None else owner for owner in owners])
    served = held >= 0
    result = _summed(loads[:, served], held[served], members)
    busiest = result.argmax(axis=1)
    result[np.arange(len(result)), busiest] += loads[:, ~served].sum(axis=1)
    return result


def _summed(loads: Table, places: npt.NDArray[np.int64], count: int) -> Table:
    result = np.zeros((count, loads.shape[0]))
    np.add.at(result, places, loads.T)
    return result.T
