"""Primaries and standbys of all queues by live set: computed once for all members of a simulation.

A member computes only what concerns itself (`lbg_core.group.backed_up`). Here the standbys of all queues follow from
the ranks of all indexes.
"""

from __future__ import annotations

from array import array
from typing import TypeVar

from lbg_core.group import balanced_owners
from lbg_core.group.assignment import weight

KNOWN_MAX = 256

Result = TypeVar("Result")


class Assignments:
    def __init__(self, queue_count: int, standbys: int) -> None:
        self._queue_count = queue_count
        self._count = standbys
        self._primaries: dict[frozenset[int], tuple[int | None, ...]] = {}
        self._standbys: dict[frozenset[int], tuple[tuple[int, ...], ...]] = {}
        self._backed_up: dict[frozenset[int], dict[int, tuple[int, ...]]] = {}
        self._ranks: list[array[int]] = []
        """For each queue all indexes up to the highest one so far, in its rank."""
        self._ranked = 0

    def primaries(self, live: frozenset[int]) -> tuple[int | None, ...]:
        found = self._primaries.get(live)
        if found is None:
            found = balanced_owners(self._queue_count, live) if live else (None,) * self._queue_count
            _remember(self._primaries, live, found)
        return found

    def standbys(self, live: frozenset[int]) -> tuple[tuple[int, ...], ...]:
        found = self._standbys.get(live)
        if found is None:
            self._rank(max(live, default=0) + 1)
            ranked = zip(self._ranks, self.primaries(live), strict=True)
            found = tuple(self._first(rank, live, primary) for rank, primary in ranked)
            _remember(self._standbys, live, found)
        return found

    def backed_up(self, live: frozenset[int]) -> dict[int, tuple[int, ...]]:
        """Queues that each member backs up."""
        found = self._backed_up.get(live)
        if found is None:
            queues: dict[int, list[int]] = {}
            for queue, indexes in enumerate(self.standbys(live)):
                for index in indexes:
                    queues.setdefault(index, []).append(queue)
            found = {index: tuple(some) for index, some in queues.items()}
            _remember(self._backed_up, live, found)
        return found

    def _first(self, rank: array[int], live: frozenset[int], primary: int | None) -> tuple[int, ...]:
        found = []
        for index in rank:
            if index in live and index != primary:
                found.append(index)
                if len(found) == self._count:
                    break
        return tuple(found)

    def _rank(self, members: int) -> None:
        """Ranks at least so many indexes, and some more, because the highest one grows step by step."""
        if members <= self._ranked:
            return
        self._ranked = members + members // 4 + 16
        indexes = range(self._ranked - 1, -1, -1)
        self._ranks = []
        for queue in range(self._queue_count):
            weights = [weight(queue, index) for index in range(self._ranked)]
            self._ranks.append(array("H", sorted(indexes, key=weights.__getitem__, reverse=True)))


def _remember(known: dict[frozenset[int], Result], live: frozenset[int], result: Result) -> None:
    known[live] = result
    if len(known) > KNOWN_MAX:
        del known[next(iter(known))]
