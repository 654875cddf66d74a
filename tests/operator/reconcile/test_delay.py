"""A group that scales by the time that messages wait: its status, and what its autoscaler reads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lbg_operator.errors import MetricUnknown
from lbg_operator.kube.kinds import AUTOSCALER, GROUP
from lbg_operator.metrics_api.metrics import MetricReader
from lbg_operator.runtime.operator import metric_reader
from testing.operator.operated import SETTLED_S, Place
from testing.virtual_time import in_virtual_time

SCALING = {"minReplicas": 1, "maxReplicas": 8, "targetDelay": "10s"}
PER_S, CALL_US = 300, 10_000
"""Three members' work, with calls one at a time."""


def at_work(place: Place) -> None:
    """Members keep up with PER_S messages a second, which they share."""
    members = place.broker.members_of
    loop = asyncio.get_running_loop()
    since = loop.time()

    def counted(group: str) -> list[Any]:
        beats = [dict(one) for one in members(group)]
        calls = int(PER_S * (loop.time() - since) / max(1, len(beats)))
        for beat in beats:
            beat["concurrency"] = 1
            beat["counts"] = {"calls": calls, "busy_us": calls * CALL_US}
        return beats

    place.broker.members_of = counted


def reader(place: Place) -> MetricReader:
    assert place.operator is not None
    return metric_reader(place.operator.world)


@in_virtual_time
async def test_the_status_has_the_sum_and_the_autoscaler_reads_the_wish() -> None:
    async with Place() as place:
        at_work(place)
        await place.ready(scaling=SCALING, queues={"count": 16}, replicas=4)
        with pytest.raises(MetricUnknown, match="is unknown"):
            await reader(place)("lbg_group_wanted_replicas", "shop", "orders")
        (metric,) = place.seen(AUTOSCALER)["spec"]["metrics"]
        assert metric["external"]["metric"]["name"] == "lbg_group_wanted_replicas"
        await asyncio.sleep(120)
        demand = place.seen(GROUP)["status"]["demand"]
        assert demand["arrivalsPerMinute"] == pytest.approx(60 * PER_S, rel=0.1)
        assert demand["memberCapacityPerMinute"] == 6000
        assert demand["wantedReplicas"] == 4, "three are busy for all of their time"
        assert demand["why"] == "Arrivals"
        assert await reader(place)("lbg_group_wanted_replicas", "shop", "orders") == 4


@in_virtual_time
async def test_the_demand_outlasts_a_look_at_the_broker() -> None:
    """Every ten minutes a group is compared with what the broker has, and it is at each change of its manifest."""
    async with Place() as place:
        at_work(place)
        await place.ready(scaling=SCALING, queues={"count": 16}, replicas=4)
        await asyncio.sleep(120)
        place.edit_group({"drainTimeoutSeconds": 77})
        await asyncio.sleep(0.5)
        assert await reader(place)("lbg_group_wanted_replicas", "shop", "orders") == 4


@in_virtual_time
async def test_a_group_that_does_not_scale_by_delay_shows_none_and_is_read_by_nobody() -> None:
    async with Place() as place:
        at_work(place)
        await place.ready(scaling={"maxReplicas": 8, "targetLag": 9}, replicas=2)
        await asyncio.sleep(120)
        assert "demand" not in place.seen(GROUP)["status"]
        with pytest.raises(MetricUnknown, match="has no spec"):
            await reader(place)("lbg_group_wanted_replicas", "shop", "orders")


@in_virtual_time
async def test_nothing_is_wanted_while_no_member_is_heard() -> None:
    async with Place() as place:
        at_work(place)
        await place.ready(scaling=SCALING, queues={"count": 16}, replicas=4)
        await asyncio.sleep(60)
        place.broker.is_deaf = True
        await asyncio.sleep(90 + SETTLED_S)
        with pytest.raises(MetricUnknown, match="is unknown"):
            await reader(place)("lbg_group_wanted_replicas", "shop", "orders")
        assert "demand" not in place.seen(GROUP)["status"]


@in_virtual_time
async def test_the_autoscaler_keeps_its_number_while_members_hold_their_calls() -> None:
    """Their lag grows, and more members would not process it."""
    async with Place() as place:
        at_work(place)
        await place.ready(scaling=SCALING, queues={"count": 16}, replicas=4)
        await asyncio.sleep(120)
        assert await reader(place)("lbg_group_wanted_replicas", "shop", "orders") == 4
        members = place.broker.members_of
        place.broker.members_of = lambda group: [{**one, "held": ["down", 1, 0]} for one in members(group)]
        await asyncio.sleep(60)
        for metric in ("lbg_group_wanted_replicas", "lbg_group_lag"):
            with pytest.raises(MetricUnknown, match="hold their calls"):
                await reader(place)(metric, "shop", "orders")
