"""Plan of moves by load: queues that should leave the member that has most to do, as a function of what members report.

A call takes as long as its message needs, times what its member needs for any. How the second compares between two
members is known from queues that both have called, as one of them handed a queue over. Until there is one, it is that
of the medians over their queues, so that one of heavy messages does not make its member look slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from lbg_core.group.members_protocol import Load

MOVES_FROM = 0.7
"""Share of its concurrency from which a member gives queues away."""

MOVES_MAX = 16
"""Of one plan: load is measured anew before the next."""


class PlannedMove(NamedTuple):
    queue: int
    to: int


class _Candidate(NamedTuple):
    """The best of several is the least: the share of the busier of both members afterwards, then that of `to`."""

    highest: float
    share_of_to: float
    queue: int
    to: int


def may_give(load: Load) -> bool:
    """True of a member that has much to do, and lastingly."""
    return load.share >= MOVES_FROM and load.is_steady


ServiceTimes = Mapping[int, Mapping[int, float]]
"""Seconds of a call on average, as each member measured it last of each queue, by index and queue."""

NOTHING_SEEN: ServiceTimes = {}


def moves_of(
    loads: Mapping[int, Load], *, pays_from: float, seen: ServiceTimes = NOTHING_SEEN
) -> tuple[int, Sequence[PlannedMove]] | None:
    """Of the members with much to do the first, by its share, that has moves which pay: its index, and the queues that
    it should hand over one after the other. None if there are none. `loads`: of all live members, by index. `seen`:
    also of queues that a member has served before.

    A move pays if it lowers the share of the busier one of both members by `pays_from` of itself. A queue that is too
    much for any member stays where it is, and the others leave it.
    """
    busy = sorted((-one.share, index) for index, one in loads.items() if may_give(one))
    planned = ((index, list(moves_from(index, loads, pays_from=pays_from, seen=seen))) for _, index in busy)
    return next(((index, moves) for index, moves in planned if moves), None)


def moves_from(
    mover: int, loads: Mapping[int, Load], *, pays_from: float, seen: ServiceTimes = NOTHING_SEEN
) -> Iterator[PlannedMove]:
    """The moves of this member that pay, one after another."""
    pays_below = 1 - pays_from
    factors = _factors(mover, loads, seen)
    shares = {index: one.share for index, one in loads.items()}
    left = {one.queue: one.demand for one in loads[mover].queues if one.demand > 0}

    def share_of(queue: int, index: int) -> float:
        return left[queue] * factors[index] / loads[index].concurrency

    for _ in range(MOVES_MAX):
        best = min(
            (
                _Candidate(max(shares[mover] - lost, share), share, queue, to)
                for queue in left
                for to in loads.keys() - {mover}
                for lost, gained in [(share_of(queue, mover), share_of(queue, to))]
                for share in [shares[to] + gained]
                if gained < max(1.0, lost * pays_below)
            ),
            default=None,
        )
        if shares[mover] < MOVES_FROM or best is None or best.highest > shares[mover] * pays_below:
            return
        shares[mover] -= share_of(best.queue, mover)
        shares[best.to] = best.share_of_to
        del left[best.queue]
        yield PlannedMove(best.queue, best.to)


def _factors(mover: int, loads: Mapping[int, Load], seen: ServiceTimes) -> dict[int, float]:
    """Time of a call at each member, as a multiple of that at the mover."""
    times = {
        index: {one.queue: one.service_s for one in load.queues if one.service_s > 0}
        for index, load in loads.items()
    }
    everywhere = [one for of_member in times.values() for one in of_member.values()]
    overall = median(everywhere) if everywhere else 1.0
    medians = {index: median(found.values()) if found else overall for index, found in times.items()}
    known = {index: {**seen.get(index, {}), **found} for index, found in times.items()}
    return {
        index: median(both)
        if (both := [found[queue] / here for queue, here in times[mover].items() if queue in found])
        else medians[index] / medians[mover]
        for index, found in known.items()
    }
