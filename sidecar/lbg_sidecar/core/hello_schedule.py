"""Hellos of a member that joins: to whom, and when the next one is due without an answer.

One to all costs as many messages as there are members. When many start together, and the broker or the coordinator is
late for all of them, hellos to all would be N x N messages, and make it later. So a member asks single ones before:
first index 0, which is the coordinator as a rule, then two lower indexes at random. Indexes have few gaps, and any
member has the directory. The higher its index is, the longer it waits for an answer: so many may join at that time.
"""

from __future__ import annotations

from collections.abc import Callable

from lbg_sidecar.core.timings import Timings, spread

JOINS_AT_ONCE = 100
"""So many members get their directories in less than half a second."""

PROBED = 16
"""A member with a lower index sends its second hello to index 0, too: there are few others."""

HELLOS_TO_ALL = 4


class HelloSchedule:
    def __init__(self, timings: Timings, uniform: Callable[[], float]) -> None:
        self.due = float("inf")
        """Time of the next one; infinite once a directory has come."""
        self._timings = timings
        self._uniform = uniform
        self._index = 0
        self._singles: list[int] = []
        self._to_all = 0

    def begin(self, index: int) -> None:
        """A member has joined as `index`. Nobody is below 0: that one says hello to all at once."""
        self._index = index
        self._to_all = 0
        if index > PROBED:
            self._singles = [0, *(1 + int(self._uniform() * (index - 1)) % (index - 1) for _ in range(2))]
        else:
            self._singles = [0, 0] if index else []

    @property
    def is_for_one(self) -> bool:
        """True until the first one to all, while no directory has come."""
        return self.due < float("inf") and not self._to_all

    @property
    def is_over(self) -> bool:
        return self._to_all >= HELLOS_TO_ALL

    def next(self, now: float) -> tuple[int, int | None]:
        """The attempt, and the index that gets it; None: all. More members answer with each attempt."""
        to = None
        within_s = self._timings.answer_s * (1 + self._index / JOINS_AT_ONCE)
        if self._singles:
            to = self._singles.pop(0)
        else:
            if self.is_over:
                within_s = max(within_s, self._timings.alone_s)
            self._to_all = min(self._to_all + 1, HELLOS_TO_ALL)
        self.due = now + spread(within_s, self._uniform)
        return self._to_all, to

    def returned(self, index: int) -> None:
        """There is no member of this index. The next hello may be sent now."""
        self._singles = [one for one in self._singles if one != index]
