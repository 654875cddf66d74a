"""Age of a count: two seconds while it is above 0 or changes, more with hundreds of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

import pytest

from lbg_core.admin import Unreachable
from lbg_core.admin.lag import Backlog
from lbg_core.admin.snapshot import UNKNOWN, Unknown
from lbg_core.group import GroupSpec
from lbg_operator.reconcile.lag_counts import (
    COUNT_INTERVAL_MAX_S,
    COUNT_INTERVAL_S,
    FAILED_S,
    REPORTS_PER_S,
    Counters,
    LagCounts,
)
from lbg_operator.reconcile.object_cache import Key
from testing.operator.operated import ORDERS, Place, wall_clock
from testing.virtual_time import in_virtual_time

MAIN = Key("shop", "main")
QUEUE = "lbg.shop-orders.q.0"
GROUPS = tuple(Key("shop", f"g{number}") for number in range(500))
A, B = GROUPS[:2]


def spec(key: Key) -> GroupSpec:
    name = key.name
    return GroupSpec(name, name, hash_count=8, queue_count=2, queue_size_mb=1, client_username=name)


@dataclass
class Broker:
    """`waiting` by group; `backlogs` and `lags`: when they were asked for, and of which groups."""

    waiting: dict[str, int | Unknown] = field(default_factory=dict)
    takes_s: Callable[[int], float] = lambda groups: 0.0
    is_down: bool = False
    backlogs: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    lags: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    consumers: int | Unknown = 2

    async def _backlogs(self, specs: Mapping[str, GroupSpec]) -> Mapping[str, Backlog]:
        found = await self._count(self.backlogs, specs)
        return {name: Backlog(count, self.consumers) for name, count in found.items()}

    async def _count(
        self, asked: list[tuple[float, frozenset[str]]], specs: Mapping[str, GroupSpec]
    ) -> Mapping[str, int | Unknown]:
        asked.append((asyncio.get_running_loop().time(), frozenset(specs)))
        await asyncio.sleep(self.takes_s(len(specs)))
        if self.is_down:
            raise Unreachable("no broker answers")
        return {name: self.waiting.get(name, 0) for name in specs}

    @property
    def counters(self) -> Counters:
        return Counters(self._backlogs, lambda specs: self._count(self.lags, specs))


class Counting:
    def __init__(self, *groups: Key, broker: Broker | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.told: list[tuple[float, Key]] = []
        self.changed: list[tuple[float, Key]] = []
        self.broker = broker or Broker()
        self.counts = LagCounts(
            lambda key: self.told.append((loop.time(), key)),
            now=loop.time,
            timestamp=lambda: f"{loop.time():.0f}",
            on_consumers_changed=lambda key: self.changed.append((loop.time(), key)),
        )
        self.counts.begin(MAIN, self.broker.counters)
        for group in groups:
            self.counts.watch(group, MAIN, spec(group))

    def lag(self, group: Key) -> int | None:
        count = self.counts.latest(group)
        return None if count is None else count.lag

    async def __aenter__(self) -> Counting:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.counts.close()


@in_virtual_time
async def test_what_comes_to_a_group_at_rest_is_counted_within_two_seconds_and_so_is_its_end() -> None:
    async with Counting(A, B) as place:
        await asyncio.sleep(100)
        assert place.broker.lags == []
        place.broker.waiting[A.name] = 7
        await asyncio.sleep(COUNT_INTERVAL_S)
        assert (place.lag(A), [key for _, key in place.told]) == (7, [A])
        place.broker.waiting[A.name] = 0
        await asyncio.sleep(COUNT_INTERVAL_S)
        assert (place.lag(A), len(place.told)) == (0, 2)
        await asyncio.sleep(COUNT_INTERVAL_S)
        asked = len(place.broker.lags)
        await asyncio.sleep(100)
        assert len(place.broker.lags) == asked, "it is at rest again"
        assert {names for _, names in place.broker.lags} == {frozenset({A.name})}


@in_virtual_time
async def test_a_group_that_stays_behind_is_counted_on_and_told_only_when_it_changes() -> None:
    async with Counting(A) as place:
        place.broker.waiting[A.name] = 7
        await asyncio.sleep(100)
        assert len(place.told) == 1
        pauses = {after - before for (before, _), (after, _) in pairwise(place.broker.lags)}
        assert pauses == {COUNT_INTERVAL_S}
        count = place.counts.latest(A)
        assert count is not None
        assert asyncio.get_running_loop().time() - count.at <= COUNT_INTERVAL_S


@in_virtual_time
async def test_hundreds_of_groups_at_rest_are_counted_a_hundredth_of_the_time() -> None:
    """And not at all beyond what the surveys do by themselves."""
    broker = Broker(takes_s=lambda groups: groups * 0.0004)
    async with Counting(*GROUPS, broker=broker) as place:
        await asyncio.sleep(1000)
        assert len(place.broker.backlogs) <= 1000 * 0.01 / (500 * 0.0004) + 1
        broker.takes_s = lambda groups: 10.0
        await asyncio.sleep(100)
        asked = len(place.broker.backlogs)
        await asyncio.sleep(1000)
        assert len(place.broker.backlogs) - asked <= 1000 / COUNT_INTERVAL_MAX_S + 1


@in_virtual_time
async def test_groups_that_are_behind_are_counted_a_tenth_of_the_time() -> None:
    broker = Broker(takes_s=lambda groups: groups * 0.001, waiting={group.name: 1 for group in GROUPS})
    async with Counting(*GROUPS, broker=broker) as place:
        await asyncio.sleep(COUNT_INTERVAL_MAX_S)
        asked = len(place.broker.lags)
        await asyncio.sleep(1000)
        assert len(place.broker.lags) - asked <= 1000 * 0.1 / 0.5 + 1


@pytest.mark.parametrize("behind", [1, 10, 50, 500])
@in_virtual_time
async def test_numbers_are_told_as_often_as_the_api_server_is_to_be_written_to(behind: int) -> None:
    groups = GROUPS[:behind]
    async with Counting(*groups) as place:
        for number in range(1, 1 + int(120 / COUNT_INTERVAL_S)):
            place.broker.waiting = {group.name: number for group in groups}
            await asyncio.sleep(COUNT_INTERVAL_S)
        at_most = max(REPORTS_PER_S, behind / COUNT_INTERVAL_MAX_S) * 120 + behind
        assert len(place.told) <= at_most
        for group in groups:
            assert sum(key == group for _, key in place.told) >= 120 / COUNT_INTERVAL_MAX_S - 1
        place.broker.waiting = {group.name: 0 for group in groups}
        last = len(place.told)
        await asyncio.sleep(2 * COUNT_INTERVAL_MAX_S)
        assert {key for _, key in place.told[last:]} == set(groups), "the last number is not held back"


@in_virtual_time
async def test_a_queue_that_cannot_be_counted_makes_the_number_unknown() -> None:
    async with Counting(A) as place:
        place.broker.waiting[A.name] = 7
        await asyncio.sleep(COUNT_INTERVAL_S)
        place.broker.waiting[A.name] = UNKNOWN
        await asyncio.sleep(COUNT_INTERVAL_S)
        assert place.lag(A) is None
        place.broker.waiting[A.name] = 3
        await asyncio.sleep(COUNT_INTERVAL_S)
        assert place.lag(A) == 3


@in_virtual_time
async def test_a_broker_that_is_away_is_asked_seldom_and_counted_again_when_it_is_back() -> None:
    async with Counting(A) as place:
        place.broker.is_down = True
        await asyncio.sleep(100)
        assert len(place.broker.backlogs) <= 100 / FAILED_S + 2
        place.broker.is_down = False
        place.broker.waiting[A.name] = 7
        await asyncio.sleep(FAILED_S + COUNT_INTERVAL_S)
        assert place.lag(A) == 7


@in_virtual_time
async def test_what_only_a_survey_sees_is_counted_from_then_on() -> None:
    """On RabbitMQ what is with consumers is no backlog."""
    async with Counting(A) as place:
        place.counts.surveyed(A, MAIN, 5)
        place.counts.surveyed(B, MAIN, 5)
        await asyncio.sleep(2 * COUNT_INTERVAL_S)
        assert place.broker.lags[0][1] == {A.name}, "and nothing of a group that is not looked at"


@in_virtual_time
async def test_a_group_that_is_forgotten_is_counted_no_more() -> None:
    async with Counting(A, B) as place:
        place.broker.waiting = {A.name: 7, B.name: 7}
        await asyncio.sleep(COUNT_INTERVAL_S)
        place.counts.forget(A)
        await asyncio.sleep(COUNT_INTERVAL_S)
        assert (place.lag(A), place.lag(B)) == (None, 7)
        assert place.broker.lags[-1][1] == {B.name}
        await place.counts.end(MAIN)
        asked = len(place.broker.lags)
        await asyncio.sleep(100)
        assert len(place.broker.lags) == asked


# In the status


def age_s(place: Place) -> float:
    counted = datetime.fromisoformat(place.status()["lagTime"])
    return (wall_clock() - counted).total_seconds()


@pytest.mark.long
@in_virtual_time
async def test_the_status_has_a_lag_of_a_few_seconds_ago_from_the_first_message_to_the_last() -> None:
    async with Place() as place:
        await place.ready()
        await asyncio.sleep(45)
        for number in range(20, -1, -1):
            place.broker.waiting[QUEUE] = number * 50
            await asyncio.sleep(5)
            assert place.status()["lag"] == number * 50
            assert age_s(place) <= 5
        await asyncio.sleep(600)
        assert place.status()["lag"] == 0
        assert age_s(place) <= 330


@pytest.mark.long
@in_virtual_time
async def test_many_groups_whose_numbers_change_do_not_flood_the_api_server() -> None:
    async with Place() as place:
        await place.ready(replicas=0)
        groups = [f"g{number}" for number in range(30)]
        for name in groups:
            place.apply_group(name, replicas=0)
        await asyncio.sleep(35)
        written = len(place.cluster.changed)
        for number in range(1, 11):
            for name in groups:
                place.broker.waiting[f"lbg.shop-{name}.q.0"] = number
            await asyncio.sleep(2)
        assert len(place.cluster.changed) - written <= 20 * REPORTS_PER_S + len(groups)
        await asyncio.sleep(10)
        assert {place.status(Key("shop", name))["lag"] for name in groups} == {10}


@in_virtual_time
async def test_a_lag_that_cannot_be_read_is_absent_from_the_status() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.waiting[QUEUE] = 9
        await asyncio.sleep(5)
        assert place.status(ORDERS)["lag"] == 9
        place.broker.is_deaf = True
        await asyncio.sleep(45)
        assert not {"lag", "lagTime"} & place.status(ORDERS).keys()


@in_virtual_time
async def test_a_member_that_comes_or_goes_is_noticed_once_also_of_a_group_that_is_behind() -> None:
    async with Counting(A) as counting:
        await asyncio.sleep(10)
        assert counting.changed == []
        for consumers, waiting in ((4, 0), (0, 7)):
            counting.broker.waiting["a"] = waiting
            counting.broker.consumers = consumers
            since = asyncio.get_running_loop().time()
            await asyncio.sleep(10)
            ((at, group),) = counting.changed
            assert group == A
            assert at - since <= COUNT_INTERVAL_S + 0.1
            counting.changed.clear()
        counting.broker.consumers = UNKNOWN
        await asyncio.sleep(10)
        counting.broker.consumers = 0
        await asyncio.sleep(10)
        assert counting.changed == []
