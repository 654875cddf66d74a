"""Counts of the lag, their greatest age, and unknown values, which are never 0."""

from __future__ import annotations

from typing import Any

from lbg_sidecar.process.lag import COUNT_EVERY_S, STALE_ROUNDS, Lag, LagWatch


class Watched:
    """A member with queues as the test says, and a broker that counts."""

    def __init__(self, *queues: dict[str, Any]) -> None:
        self.state: dict[str, Any] = {"connected": True, "queues": list(queues)}
        self.ready: dict[int, int | None] = {one["queue"]: 0 for one in queues}
        self.now = 100.0
        self.watch = LagWatch(lambda: self.state, self.count, lambda: self.now)

    async def count(self, queue: int) -> int | None:
        return self.ready[queue]

    async def count_queue(self) -> None:
        for queue in self.ready:
            await self.watch.count_queue(queue)


def queue(number: int, **told: Any) -> dict[str, Any]:
    return {"queue": number, "role": "primary", "active": True, "in_flight": 0, "served_by": 0, **told}


async def test_the_lag_is_what_waits_and_what_is_in_flight() -> None:
    watched = Watched(queue(0, in_flight=3), queue(1, in_flight=0), queue(2, role="secondary", in_flight=9))
    watched.ready = {0: 40, 1: 2, 2: 1000}
    await watched.count_queue()
    assert watched.watch.lag() == Lag(45, 100.0)
    assert [one["queue"] for one in watched.watch.describe()["queues"]] == [0, 1]


async def test_of_a_shared_queue_the_primary_counts_what_waits_and_each_member_what_it_holds() -> None:
    primary = Watched(queue(0, shared=True, in_flight=3))
    primary.ready = {0: 40}
    await primary.count_queue()
    others = [
        Watched(queue(0, role="secondary", shared=True, in_flight=held, active=active, served_by=None))
        for held, active in ((7, True), (0, False))
    ]
    assert primary.watch.lag() == Lag(43, 100.0)
    assert [other.watch.lag() for other in others] == [Lag(7, None), Lag(0, None)]


async def test_before_every_queue_is_counted_the_lag_is_not_known() -> None:
    watched = Watched(queue(0), queue(1))
    await watched.watch.count_queue(0)
    assert watched.watch.lag() is None
    assert watched.watch.describe()["messages"] is None


async def test_a_failed_count_makes_the_lag_unknown_again() -> None:
    watched = Watched(queue(0))
    await watched.count_queue()
    assert watched.watch.lag() == Lag(0, 100.0)
    watched.ready[0] = None
    await watched.count_queue()
    assert watched.watch.lag() is None


async def test_an_old_count_says_nothing_any_more() -> None:
    watched = Watched(queue(0), queue(1))
    await watched.watch.count_queue(0)
    watched.now += COUNT_EVERY_S
    await watched.watch.count_queue(1)
    assert watched.watch.lag() == Lag(0, 100.0), "as old as its oldest count"
    watched.now = 100.0 + STALE_ROUNDS * COUNT_EVERY_S + 0.1
    assert watched.watch.lag() is None


async def test_what_another_member_has_in_flight_is_not_known_here() -> None:
    watched = Watched(queue(0, active=False, served_by=3))
    await watched.count_queue()
    assert watched.watch.lag() is None


async def test_a_queue_that_nobody_was_given_anything_of_has_nothing_in_flight() -> None:
    watched = Watched(queue(0, active=False, served_by=None))
    watched.ready[0] = 5
    await watched.count_queue()
    assert watched.watch.lag() == Lag(5, 100.0)


async def test_a_member_without_primary_queues_is_not_behind_and_one_outside_the_group_does_not_know() -> (
    None
):
    watched = Watched(queue(0, role="secondary"))
    assert watched.watch.lag() == Lag(0, None)
    watched.state["connected"] = False
    assert watched.watch.lag() is None
    watched.state = {"connected": False}
    assert watched.watch.lag() is None
