"""Deletion of a group whose broker is unreachable or owned by others: it ends, and deletes nothing of others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest.mock import AsyncMock

import pytest

from lbg_core.admin.actions import DeclareExchange, DeleteQueue
from lbg_core.admin.errors import RecordUnavailable, Refused
from lbg_core.admin.snapshot import ExchangeState, QueueStatus, UserState
from lbg_operator.kube.api import Forbidden
from lbg_operator.kube.kinds import GROUP, SECRET, Kind
from lbg_operator.reconcile.object_cache import Key
from testing.operator.operated import SETTLED_S, Place
from testing.virtual_time import in_virtual_time

DRAIN_S = 300
QUEUE = "lbg.shop-orders.q.0"


@in_virtual_time
async def test_a_broker_that_stays_away_is_waited_for_as_long_as_a_drain_may_take() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.is_down = True
        place.delete_group()
        await asyncio.sleep(DRAIN_S - 5)
        assert place.has(GROUP)
        await asyncio.sleep(15)
        assert not place.has(GROUP)
        assert "could not be reached" in place.last_words() or "could not be deleted" in place.last_words()


@in_virtual_time
async def test_an_administrator_whose_secret_is_gone_does_not_keep_a_group() -> None:
    async with Place() as place:
        await place.ready()
        place.cluster.take_away(SECRET, "shop", "main-admin")
        await asyncio.sleep(40)
        place.delete_group()
        await asyncio.sleep(DRAIN_S + SETTLED_S)
        assert not place.has(GROUP)


@in_virtual_time
async def test_a_broker_that_refuses_to_delete_does_not_keep_a_group_for_ever() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.fail_on = lambda action: (
            Refused("no", status=403) if isinstance(action, DeleteQueue) else None
        )
        place.delete_group()
        await asyncio.sleep(DRAIN_S - 5)
        assert place.reasons().count("DeletionWaits") == 1
        await asyncio.sleep(DRAIN_S)
        assert not place.has(GROUP)


async def expect_kept(place: Place) -> None:
    """A group whose object is deleted now, while somebody holds it."""
    place.delete_group()
    await asyncio.sleep(60)
    assert place.has(GROUP)


async def expect_gone(place: Place) -> None:
    await asyncio.sleep(60)
    assert not place.has(GROUP)
    assert place.broker.holds_nothing()


@in_virtual_time
async def test_a_group_that_a_command_changes_is_deleted_when_that_has_ended() -> None:
    """Its time to drain is over by then. The lock goes with the command's connection, so nobody waits for ever."""
    async with Place() as place:
        await place.ready(drainTimeoutSeconds=5)
        async with place.broker.lock("shop-orders"):
            await expect_kept(place)
        await expect_gone(place)


@in_virtual_time
async def test_a_group_whose_record_a_client_holds_is_deleted_when_that_has_ended() -> None:
    """Its time to drain is over by then. Without its record nobody knows what is the group's."""
    async with Place() as place:
        await place.ready(drainTimeoutSeconds=5)
        with pytest.MonkeyPatch.context() as patched:
            held = RecordUnavailable("shop-orders", cause="a client reads it, and does not return it")
            patched.setattr(place.broker, "observe", AsyncMock(side_effect=held))
            await expect_kept(place)
        await expect_gone(place)


@in_virtual_time
async def test_a_group_that_never_had_the_name_takes_nothing_of_who_has_it() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.waiting[QUEUE] = 7
        place.apply_group("copy", groupName="shop-orders", drainTimeoutSeconds=5)
        await asyncio.sleep(2)
        assert place.conditions(Key("shop", "copy"))["Accepted"] == ("False", "NameTaken")
        place.delete_group(Key("shop", "copy"))
        await asyncio.sleep(60)
        assert not place.has(GROUP, "copy")
        assert not any(isinstance(one, DeleteQueue) for one in place.broker.performed)
        assert "shop-orders" in place.broker.users
        assert place.conditions()["Ready"] == ("True", "Served")


def foreign_queues(place: Place) -> None:
    place.broker.queues.update(
        {QUEUE: QueueStatus(0, 0, 0, None, {}), "lbg.shop-orders.audit": QueueStatus()}
    )
    place.broker.exchanges["lbg.shop-orders"] = ExchangeState("fanout", {})
    place.broker.waiting[QUEUE] = 7


def foreign_user(place: Place) -> None:
    place.broker.users["shop-orders"] = UserState("shop-orders", "elsewhere")


@pytest.mark.parametrize(("taking", "reason"), [(foreign_queues, "NotOwned"), (foreign_user, "GroupDiffers")])
@in_virtual_time
async def test_what_another_owner_has_under_the_name_of_a_group_stays_and_is_not_waited_for(
    taking: Callable[[Place], None], reason: str
) -> None:
    async with Place() as place:
        place.apply_broker()
        taking(place)
        there = (dict(place.broker.queues), dict(place.broker.exchanges), dict(place.broker.users))
        await place.start()
        place.apply_group()
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Provisioned"] == ("False", reason)
        place.delete_group()
        await asyncio.sleep(2)
        assert not place.has(GROUP)
        assert place.last_words().startswith(
            ("it has no objects on the broker", "nothing of shop-orders is on the broker")
        )
        assert (place.broker.queues, place.broker.exchanges, place.broker.users) == there


@in_virtual_time
async def test_another_owners_group_of_the_same_attributes_stays_where_it_could_not_be_adopted() -> None:
    async with Place() as place:
        await place.ready(deletionPolicy="Retain")
        place.delete_group()
        await asyncio.sleep(2)
        foreign_user(place)
        place.broker.waiting[QUEUE] = 7
        place.apply_group(drainTimeoutSeconds=5)
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Provisioned"] == ("False", "NotOwned")
        place.delete_group()
        await asyncio.sleep(60)
        assert not place.has(GROUP)
        assert place.events[-1].message == (
            "it has no objects on the broker: shop-orders there has another owner, and stays as it is"
        )
        assert QUEUE in place.broker.queues
        assert not any(isinstance(one, DeleteQueue) for one in place.broker.performed)


@in_virtual_time
async def test_a_group_that_was_seen_whole_is_deleted_without_its_record_too() -> None:
    async with Place() as place:
        await place.ready(drainTimeoutSeconds=5)
        place.broker.waiting[QUEUE] = 7
        await place.stop()
        for name in ("lbg.shop-orders.config", "lbg.shop-orders.q.1"):
            await place.broker.perform(DeleteQueue(name))
        place.delete_group()
        await place.start()
        await expect_gone(place)


@in_virtual_time
async def test_a_namespace_that_a_broker_does_not_allow_deletes_nothing_there() -> None:
    async with Place() as place:
        await place.ready()
        place.apply_group(
            "thief",
            "alley",
            groupName="shop-orders",
            brokerRef={"name": "main", "namespace": "shop"},
            drainTimeoutSeconds=5,
        )
        await asyncio.sleep(2)
        thief = Key("alley", "thief")
        assert place.conditions(thief)["Accepted"] == ("False", "BrokerNotAllowed")
        place.delete_group(thief)
        await asyncio.sleep(60)
        assert not place.has(GROUP, "thief", "alley")
        assert not any(isinstance(one, DeleteQueue) for one in place.broker.performed)


@in_virtual_time
async def test_a_group_that_differs_from_the_one_on_the_broker_does_not_delete_it() -> None:
    async with Place() as place:
        await place.ready(deletionPolicy="Retain")
        place.delete_group()
        await asyncio.sleep(2)
        place.apply_group(queues={"count": 4}, drainTimeoutSeconds=5)
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Provisioned"] == ("False", "NotOwned")
        place.delete_group()
        await asyncio.sleep(60)
        assert not place.has(GROUP)
        assert QUEUE in place.broker.queues


@in_virtual_time
async def test_a_group_that_was_never_on_its_broker_is_gone_at_once() -> None:
    async with Place() as place:
        place.apply_broker()
        place.broker.fail_on = lambda action: (
            Refused("no", status=403) if isinstance(action, DeclareExchange) else None
        )
        place.broker.exchanges.clear()
        await place.start()
        place.apply_group()
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Provisioned"][0] == "False"
        place.delete_group()
        await asyncio.sleep(SETTLED_S)
        assert not place.has(GROUP)


@in_virtual_time
async def test_a_broker_that_takes_its_time_to_answer_a_new_operator_is_not_given_up() -> None:
    async with Place() as place:
        await place.ready()
        await place.stop()
        place.delete_group()
        await asyncio.sleep(3600)
        place.broker.check_takes_s = 8.0
        await place.start()
        await asyncio.sleep(30)
        assert not place.has(GROUP)
        assert place.broker.holds_nothing()


@in_virtual_time
async def test_a_broker_that_cannot_even_be_tried_keeps_no_group_for_ever() -> None:
    async with Place() as place:
        await place.ready()
        await place.stop()
        place.delete_group()
        await asyncio.sleep(3600)

        def refuse(verb: str, kind: Kind, name: str) -> None:
            if (verb, kind) == ("watch", SECRET):
                raise Forbidden("watch Secret", "secrets is forbidden", status=403)

        place.cluster.fail = refuse
        await place.start()
        await asyncio.sleep(90)
        assert not place.has(GROUP)
        assert "could not be reached" in place.last_words()
