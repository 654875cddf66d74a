"""Lag of the group, in the queues that this member is the primary of.

A queue's lag is what waits at the broker, counted there by a passive declare, and what is delivered and not
acknowledged, counted here. Every queue has one primary, so the sum over all members is the group's. A queue that the
broker shares out has deliveries at every member: the primary counts what waits, and each member its own. Counting costs
the broker one request for each queue of the group in five seconds, or ten a second for each member at most; between
two, the last count stands, with its age.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

COUNT_EVERY_S = 5.0
LOOKS_PER_S_MAX = 10.0
STALE_ROUNDS = 3
"""A count that is older than so many rounds is unknown."""


@dataclass(frozen=True, slots=True)
class Count:
    ready: int
    unacked: int
    counted_at: float


@dataclass(frozen=True, slots=True)
class Lag:
    """Over all primary queues, and own deliveries of shared ones; `counted_at` is of the oldest count in it, None where
    there is no primary queue."""

    messages: int
    counted_at: float | None


class LagWatch:
    """`state` is the member's, `count` reads a queue at the broker, `now` is the loop's clock."""

    def __init__(
        self,
        state: Callable[[], Mapping[str, Any]],
        count: Callable[[int], Awaitable[int | None]],
        now: Callable[[], float],
    ) -> None:
        self._state = state
        self._count = count
        self._now = now
        self._counts: dict[int, Count] = {}

    async def run(self) -> None:
        while True:
            queues = [one["queue"] for one in _primary(self._state())]
            for queue in queues:
                await self.count_queue(queue)
                await asyncio.sleep(_step_s(len(queues)))
            if not queues:
                await asyncio.sleep(1.0)

    async def count_queue(self, queue: int) -> None:
        """Count one queue."""
        ready = await self._count(queue)
        unacked = next((_unacked(one) for one in _primary(self._state()) if one["queue"] == queue), None)
        if ready is None or unacked is None:
            self._counts.pop(queue, None)
        else:
            self._counts[queue] = Count(ready, unacked, self._now())

    def lag(self) -> Lag | None:
        """None while any of it is unknown."""
        state = self._state()
        queues = _primary(state)
        if not state.get("connected") or "queues" not in state:
            return None
        stale_s = STALE_ROUNDS * max(COUNT_EVERY_S, _step_s(len(queues)) * len(queues))
        counts = [self._counts.get(one["queue"]) for one in queues]
        fresh = [one for one in counts if one is not None and self._now() - one.counted_at <= stale_s]
        if len(fresh) < len(queues):
            return None
        oldest = min((one.counted_at for one in fresh), default=None)
        own = sum(
            one["in_flight"] for one in state["queues"] if one.get("shared") and one["role"] != "primary"
        )
        return Lag(sum(one.ready + one.unacked for one in fresh) + own, oldest)

    def describe(self) -> dict[str, Any]:
        """For a view: the whole, and each queue with the age of its count."""
        lag, now = self.lag(), self._now()
        return {
            "messages": lag.messages if lag is not None else None,
            "queues": [
                {
                    "queue": queue,
                    "ready": one.ready,
                    "unacked": one.unacked,
                    "age_seconds": round(now - one.counted_at, 3),
                }
                for queue, one in sorted(self._counts.items())
                if queue in {state["queue"] for state in _primary(self._state())}
            ],
        }


def _primary(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in state.get("queues", ()) if one["role"] == "primary"]


def _unacked(queue: Mapping[str, Any]) -> int | None:
    """None when another member serves it, and alone has the number."""
    if queue["active"] or queue.get("shared"):
        return int(queue["in_flight"])
    return 0 if queue["served_by"] is None else None


def _step_s(queues: int) -> float:
    return max(COUNT_EVERY_S / max(queues, 1), 1 / LOOKS_PER_S_MAX)
