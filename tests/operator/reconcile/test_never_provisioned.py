"""The end of a group that was never on a broker: at once, and said as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lbg_core.admin.actions import Bind, DeclareExchange
from lbg_core.admin.errors import Refused, Unreachable
from lbg_core.admin.groups import create_group
from lbg_core.group import GroupSpec
from lbg_operator.kube.kinds import CONFIG_MAP, GROUP, SECRET
from lbg_operator.reconcile.group_deletion import FINALIZER
from testing.operator.operated import ORDERS, SETTLED_S, Place
from testing.virtual_time import in_virtual_time

AT_ONCE_S = 2.0
DRAIN_S = 300
NOTHING = ("it has no objects on a broker", "nothing of shop-orders is on the broker")


def away(place: Place) -> None:
    place.broker.is_down = True


def another_password(place: Place) -> None:
    place.broker.password = "another"


def no_secret(place: Place) -> None:
    place.cluster.take_away(SECRET, "shop", "main-admin")


def refusing(place: Place) -> None:
    place.broker.fail_on = lambda action: (
        Refused("no", status=403) if isinstance(action, DeclareExchange) else None
    )


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("trouble", [away, another_password, no_secret, refusing])
@in_virtual_time
async def test_a_group_that_its_broker_never_had_is_gone_at_once(
    trouble: Callable[[Place], None], restarts: bool
) -> None:
    async with Place() as place:
        place.apply_broker()
        trouble(place)
        await place.start()
        place.apply_group()
        await asyncio.sleep(60)
        if restarts:
            await place.restart()
            await asyncio.sleep(SETTLED_S)
        place.delete_group()
        await asyncio.sleep(AT_ONCE_S)
        assert not place.has(GROUP)
        assert place.last_words().startswith(NOTHING)


@pytest.mark.parametrize("trouble", [away, another_password, no_secret])
@in_virtual_time
async def test_a_finalizer_without_a_secret_is_not_waited_for(trouble: Callable[[Place], None]) -> None:
    async with Place() as place:
        place.apply_broker()
        trouble(place)
        place.apply_group()
        place.cluster.edit(GROUP, *ORDERS, {"metadata": {"finalizers": [FINALIZER]}})
        await place.start()
        await asyncio.sleep(60)
        place.delete_group()
        await asyncio.sleep(AT_ONCE_S)
        assert not place.has(GROUP)
        assert place.last_words() == "it has no objects on a broker, because it was never provisioned"
        assert place.broker.holds_nothing()


@in_virtual_time
async def test_a_group_whose_secrets_went_with_it_is_waited_for() -> None:
    """Foreground deletion takes what a group owns before the group."""
    async with Place() as place:
        await place.ready()
        place.broker.is_down = True
        await place.stop()
        held = [FINALIZER, "foregroundDeletion"]
        place.cluster.edit(GROUP, *ORDERS, {"metadata": {"finalizers": held}})
        place.delete_group()
        place.cluster.take_away(SECRET, "shop", "orders-lbg")
        place.cluster.take_away(CONFIG_MAP, "shop", "orders-lbg")
        await place.start()
        await asyncio.sleep(60)
        assert place.seen(GROUP)["metadata"]["finalizers"] == held
        place.broker.is_down = False
        await asyncio.sleep(SETTLED_S)
        assert place.broker.holds_nothing()


@in_virtual_time
async def test_a_group_whose_broker_does_not_exist_is_gone_at_once() -> None:
    async with Place() as place:
        await place.start()
        place.apply_group()
        await asyncio.sleep(SETTLED_S)
        place.delete_group()
        await asyncio.sleep(AT_ONCE_S)
        assert not place.has(GROUP)
        assert place.last_words().startswith(NOTHING)


@in_virtual_time
async def test_a_group_that_is_made_again_at_once_is_told_apart_from_the_one_that_was_never_made() -> None:
    async with Place() as place:
        await place.start()
        place.apply_group()
        await asyncio.sleep(SETTLED_S)
        place.delete_group()
        await asyncio.sleep(0.001)
        place.apply_group()
        place.apply_broker()
        await asyncio.sleep(SETTLED_S)
        assert place.reasons().count("Deleted") == 1
        assert place.conditions()["Ready"] == ("True", "Served")
        place.delete_group()
        await asyncio.sleep(SETTLED_S)
        assert place.events[-1].reason == "Deleted"
        assert "are deleted on the broker" in place.events[-1].message


@in_virtual_time
async def test_somebody_else_s_group_of_the_same_name_is_not_waited_for() -> None:
    async with Place() as place:
        place.apply_broker()
        theirs = GroupSpec(
            "shop-orders",
            "shop-orders",
            queue_count=4,
            queue_size_mb=100,
            hash_count=64,
            client_username="shop-orders",
        )
        await create_group(place.broker, theirs, password="theirs")
        place.broker.waiting["lbg.shop-orders.q.0"] = 7
        await place.start()
        place.apply_group(deletionPolicy="Delete")
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Provisioned"] == ("False", "NotOwned")
        place.pods.has_members = False
        place.delete_group()
        await asyncio.sleep(2 * AT_ONCE_S)
        assert not place.has(GROUP)
        assert "shop-orders there has another owner" in place.last_words()
        assert "lbg.shop-orders.q.0" in place.broker.queues


@in_virtual_time
async def test_a_group_that_may_be_half_made_is_waited_for_and_deleted_when_its_broker_is_back() -> None:
    async with Place() as place:
        place.apply_broker()

        def breaks(action: Any) -> Exception | None:
            place.broker.is_down = place.broker.is_down or isinstance(action, Bind)
            return Unreachable("gone") if place.broker.is_down else None

        place.broker.fail_on = breaks
        await place.start()
        place.apply_group()
        await asyncio.sleep(60)
        assert not place.broker.holds_nothing()
        assert place.seen(GROUP)["metadata"]["finalizers"] == [FINALIZER]
        place.delete_group()
        await asyncio.sleep(60)
        assert place.has(GROUP)
        place.broker.fail_on = lambda action: None
        place.broker.is_down = False
        await asyncio.sleep(SETTLED_S)
        assert not place.has(GROUP)
        assert place.broker.holds_nothing()


@in_virtual_time
async def test_that_a_deletion_waits_for_a_broker_is_said_at_once_and_its_end_as_it_is() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.is_down = True
        await asyncio.sleep(60)
        place.delete_group()
        await asyncio.sleep(AT_ONCE_S)
        (waits,) = (one for one in place.events if one.reason == "DeletionWaits")
        assert waits.type == "Warning"
        assert f"{DRAIN_S} s" in waits.message
        await asyncio.sleep(DRAIN_S + SETTLED_S)
        assert not place.has(GROUP)
        assert "what it has of shop-orders is left there" in place.last_words()


@in_virtual_time
async def test_a_group_on_a_broker_that_is_away_has_its_finalizer_again_after_an_uninstall() -> None:
    async with Place() as place:
        await place.ready()
        await place.stop()
        place.cluster.edit(GROUP, *ORDERS, {"metadata": {"finalizers": None}})
        place.broker.is_down = True
        await place.start()
        await asyncio.sleep(SETTLED_S)
        assert place.seen(GROUP)["metadata"]["finalizers"] == [FINALIZER]
