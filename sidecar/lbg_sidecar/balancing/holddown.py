"""The rebalance delay: membership must be stable for it before primaries move."""

from __future__ import annotations


class HoldDown:
    """Which live set primaries are computed from.

    A change of the live set starts the delay, a further change starts it again, and a return to the set that
    counts already ends it with nothing to move ("Configuring Partitioned Queues", rebalance delay).
    """

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.settled: frozenset[int] = frozenset()
        self.due: float | None = None
        """When the delay ends; None while nothing has changed."""
        self._latest: frozenset[int] = frozenset()

    def observe(self, live: frozenset[int], now: float) -> None:
        if live == self._latest:
            return
        self._latest = live
        self.due = None if live == self.settled else now + self.delay_s

    def tick(self, now: float) -> bool:
        """True if the latest set counts from now on."""
        if self.due is None or now < self.due:
            return False
        self.due = None
        self.settled = self._latest
        return True
