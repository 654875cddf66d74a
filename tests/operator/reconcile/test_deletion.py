"""Deletion of a group, which always ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lbg_operator.kube.api import Forbidden
from lbg_operator.kube.kinds import BROKER, DEPLOYMENT, GROUP
from lbg_operator.reconcile.group_deletion import FINALIZER
from testing.operator.operated import MAIN, ORDERS, SETTLED_S, Place
from testing.virtual_time import in_virtual_time

DRAIN_S = 300
QUEUE = "lbg.shop-orders.q.0"


@in_virtual_time
async def test_members_work_off_what_waits_before_consumers_and_queues_go() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.waiting[QUEUE] = 7
        place.delete_group()
        await asyncio.sleep(60)
        assert place.has(GROUP)
        assert len(place.pods.of("orders")) == 2
        assert QUEUE in place.broker.queues
        place.broker.waiting[QUEUE] = 0
        await asyncio.sleep(SETTLED_S)
        assert not place.has(GROUP)
        assert not place.has(DEPLOYMENT)
        assert place.broker.holds_nothing()
        assert place.reasons()[-2:] == ["Draining", "Deleted"]


@in_virtual_time
async def test_retain_leaves_everything_on_the_broker() -> None:
    async with Place() as place:
        await place.ready(deletionPolicy="Retain")
        place.broker.waiting[QUEUE] = 7
        before = dict(place.broker.queues)
        place.delete_group()
        await asyncio.sleep(2)
        assert not place.has(GROUP)
        assert place.broker.queues == before
        assert "shop-orders" in place.broker.users
        assert "stay on the broker" in place.last_words()


@in_virtual_time
async def test_a_group_whose_broker_is_deleted_too_waits_for_nobody() -> None:
    async with Place() as place:
        await place.ready()
        place.cluster.take_away(BROKER, *MAIN)
        place.delete_group()
        await asyncio.sleep(15)
        assert not place.has(GROUP)
        assert "is gone" in place.last_words()


@in_virtual_time
async def test_a_group_that_does_not_drain_is_deleted_when_its_time_is_over_and_its_messages_are_counted() -> (
    None
):
    async with Place() as place:
        await place.ready()
        place.broker.waiting[QUEUE] = 7
        place.delete_group()
        await asyncio.sleep(DRAIN_S + SETTLED_S)
        assert not place.has(GROUP)
        assert place.broker.holds_nothing()
        assert "7 waiting messages" in place.last_words()


@in_virtual_time
async def test_finalizers_of_others_are_kept() -> None:
    async with Place() as place:
        await place.ready()
        place.cluster.edit(
            GROUP,
            *ORDERS,
            {"metadata": {"finalizers": ["other.example/first", FINALIZER, "other.example/last"]}},
        )
        await asyncio.sleep(1)
        place.delete_group()
        await asyncio.sleep(SETTLED_S)
        assert place.seen(GROUP)["metadata"]["finalizers"] == ["other.example/first", "other.example/last"]
        assert place.broker.holds_nothing()
        await asyncio.sleep(60)
        assert place.reasons().count("Deleted") == 1
        assert place.broker.holds_nothing(), "a group that is going is not made again"


@in_virtual_time
async def test_an_operator_that_is_restarted_in_the_middle_goes_on() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.waiting[QUEUE] = 7
        place.delete_group()
        for _ in range(4):
            await asyncio.sleep(3)
            await place.restart()
        assert place.has(GROUP)
        place.broker.waiting[QUEUE] = 0
        await asyncio.sleep(SETTLED_S)
        assert not place.has(GROUP)
        assert place.broker.holds_nothing()


@in_virtual_time
async def test_a_group_that_is_deleted_while_no_operator_runs_is_finished_by_the_next() -> None:
    async with Place() as place:
        await place.ready()
        await place.stop()
        place.delete_group()
        await asyncio.sleep(3600)
        await place.start()
        await asyncio.sleep(SETTLED_S)
        assert not place.has(GROUP)
        assert place.broker.holds_nothing()


@in_virtual_time
async def test_a_namespace_that_is_going_takes_its_groups_along() -> None:
    """It takes no new objects, and its objects are deleted in any order."""
    async with Place() as place:
        await place.ready()
        for kind, namespace, name in list(place.cluster.objects):
            if kind is not GROUP and (kind, namespace, name) in place.cluster.objects:
                place.cluster.take_away(kind, namespace, name)
        place.delete_group()

        def refuse(verb: str, kind: Any, name: str) -> None:
            if verb in ("create", "apply"):
                raise Forbidden(verb, "the namespace is being terminated", status=403)

        place.cluster.fail = refuse
        await asyncio.sleep(30)
        assert not place.has(GROUP)


@in_virtual_time
async def test_an_invalid_manifest_can_be_deleted() -> None:
    async with Place() as place:
        await place.ready()
        place.edit_group({"queues": {"size": "many"}})
        await asyncio.sleep(1)
        assert place.conditions()["Accepted"] == ("False", "Invalid")
        place.delete_group()
        await asyncio.sleep(2)
        assert not place.has(GROUP)
        assert "is invalid" in place.last_words()


@in_virtual_time
async def test_somebody_elses_finalizer_that_comes_in_between_is_not_lost() -> None:
    async with Place(delay_s=2.0) as place:
        await place.ready()
        place.cluster.edit(GROUP, *ORDERS, {"metadata": {"finalizers": [FINALIZER, "other.example/hold"]}})
        place.delete_group()
        await asyncio.sleep(30)
        assert place.seen(GROUP)["metadata"]["finalizers"] == ["other.example/hold"]


@pytest.mark.parametrize("after_s", [0.01, 0.1, 0.3, 1.0])
@in_virtual_time
async def test_a_group_that_is_deleted_while_it_is_being_made_leaves_nothing(after_s: float) -> None:
    async with Place(delay_s=0.2) as place:
        place.apply_broker()
        await place.start()
        await asyncio.sleep(1)
        place.apply_group()
        await asyncio.sleep(after_s)
        place.delete_group()
        await asyncio.sleep(60)
        assert not place.has(GROUP)
        assert place.broker.holds_nothing()
