"""Primaries and standbys of all queues by live set: computed once for all members of a simulation, and charged to each.

A member computes only what concerns itself (`lbg_core.group.backed_up`). Here the standbys of all queues follow from
the ranks of all indexes.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from lbg_core.group import balanced_owners
from lbg_core.group.assignment import NOWHERE_ELSE, Exceptions, weight
from lbg_sidecar.core import queue_bindings
from testing.simulation.large.costs import MemberCosts
from testing.simulation.large.processor import Processor, ProcessorClock

KNOWN_MAX = 256

CACHED_MAX = 64
"""As in `lbg_core.group.assignment`, which every process has of its own."""


class Computed:
    """Results that a process has. `span`: the highest index, and 1, of which it has the homes of all queues. `ranked`:
    the live set of which it has the queues that it backs up."""

    def __init__(self) -> None:
        self.owners: OrderedDict[frozenset[int], None] = OrderedDict()
        self.span = 0
        self.ranked: frozenset[int] = frozenset()


class Assignments:
    """Has the functions of `lbg_core.group` that `lbg_sidecar.core.queue_bindings` uses, for Balanced."""

    def __init__(self, clock: ProcessorClock, costs: MemberCosts) -> None:
        self._clock = clock
        self._costs = costs
        self._computed: dict[Processor, Computed] = {}
        self._standbys: OrderedDict[Any, tuple[tuple[int, ...], ...]] = OrderedDict()
        self._backed_up: OrderedDict[Any, dict[int, tuple[int, ...]]] = OrderedDict()
        self._ranks: list[array[int]] = []
        """For each queue all indexes up to the highest one so far, in its rank."""
        self._ranked = 0

    def in_place(self) -> AbstractContextManager[Any]:
        """Members use it meanwhile."""
        return patch.multiple(
            queue_bindings,
            owners_with=self.owners_with,
            backed_up=self.backed_up,
            standbys_of=self.standbys_of,
        )

    def owners_with(self, exceptions: Exceptions, queue_count: int, live: frozenset[int]) -> tuple[int, ...]:
        assert not exceptions
        running = self._clock.running
        if running is not None and len(live) > 1:
            self._charge_owners(self._of(running), queue_count, live)
        return balanced_owners(queue_count, live)

    def backed_up(
        self,
        queue_count: int,
        live: frozenset[int],
        index: int,
        count: int,
        exceptions: Exceptions = NOWHERE_ELSE,
    ) -> tuple[int, ...]:
        assert not exceptions
        running = self._clock.running
        if running is not None and (computed := self._of(running)).ranked != live:
            changed = min(1.0, len(live ^ computed.ranked) / len(live))
            computed.ranked = live
            self._clock.charge(self._costs.rank_us * (1 + 3 * changed) * queue_count)
        found = self._backed_up.get((live, count))
        if found is None:
            queues: dict[int, list[int]] = {}
            for queue, indexes in enumerate(self.standbys(queue_count, live, count)):
                for one in indexes:
                    queues.setdefault(one, []).append(queue)
            found = {one: tuple(some) for one, some in queues.items()}
            _remember(self._backed_up, (live, count), found)
        return found.get(index, ())

    def standbys_of(
        self,
        queue_count: int,
        live: frozenset[int],
        queue: int,
        count: int,
        exceptions: Exceptions = NOWHERE_ELSE,
    ) -> tuple[int, ...]:
        assert not exceptions
        return self.standbys(queue_count, live, count)[queue]

    def standbys(self, queue_count: int, live: frozenset[int], count: int) -> tuple[tuple[int, ...], ...]:
        """Of each queue."""
        found = self._standbys.get((live, count))
        if found is None:
            self._rank(queue_count, max(live, default=0) + 1)
            ranked = zip(self._ranks, balanced_owners(queue_count, live), strict=True)
            found = tuple(_first(rank, live, primary, count) for rank, primary in ranked)
            _remember(self._standbys, (live, count), found)
        return found

    def _of(self, process: Processor) -> Computed:
        return self._computed.setdefault(process, Computed())

    def _charge_owners(self, computed: Computed, queue_count: int, live: frozenset[int]) -> None:
        if live in computed.owners:
            return
        _remember(computed.owners, live, None, CACHED_MAX)
        span = max(live) + 1
        self._clock.charge(self._costs.assignment_queue_us * queue_count)
        if span > computed.span:
            self._clock.charge(self._costs.homes_us * queue_count * (span - computed.span))
            computed.span = span

    def _rank(self, queue_count: int, members: int) -> None:
        """Ranks at least so many indexes, and some more, because the highest one grows step by step."""
        if members <= self._ranked:
            return
        self._ranked = members + members // 4 + 16
        indexes = range(self._ranked - 1, -1, -1)
        self._ranks = []
        for queue in range(queue_count):
            weights = [weight(queue, index) for index in range(self._ranked)]
            self._ranks.append(array("H", sorted(indexes, key=weights.__getitem__, reverse=True)))


def _first(rank: array[int], live: frozenset[int], primary: int, count: int) -> tuple[int, ...]:
    found = []
    for index in rank:
        if index in live and index != primary:
            found.append(index)
            if len(found) == count:
                break
    return tuple(found)


def _remember(known: OrderedDict[Any, Any], of: Any, result: Any, most: int = KNOWN_MAX) -> None:
    known[of] = result
    if len(known) > most:
        known.popitem(last=False)
