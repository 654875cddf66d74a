"""A broker that is away, slow or refuses: shown, and nothing that runs is touched."""

from __future__ import annotations

import asyncio
from typing import Any

from lbg_core.admin.actions import DeclareQueue
from lbg_core.admin.errors import Refused
from lbg_operator.kube.kinds import BROKER, DEPLOYMENT, SECRET
from lbg_operator.reconcile.object_cache import Key
from testing.operator.operated import MAIN, SETTLED_S, Place
from testing.operator.operated_broker import OperatedBroker
from testing.virtual_time import in_virtual_time

COPY = Key("shop", "copy")


@in_virtual_time
async def test_a_broker_that_is_away_makes_everything_unknown_and_touches_nothing() -> None:
    async with Place() as place:
        await place.ready()
        before = place.running()
        place.broker.is_down = True
        await asyncio.sleep(120)
        assert place.conditions()["Provisioned"] == ("Unknown", "BrokerNotReady")
        assert place.conditions()["Ready"] == ("Unknown", "NotObserved")
        assert place.conditions()["Degraded"] == ("Unknown", "NotKnown")
        assert not {"lag", "memberCount", "members", "queues"} & place.status().keys()
        assert place.running() == before
        assert place.conditions(MAIN, BROKER)["Ready"] == ("Unknown", "NotReached")
        place.broker.is_down = False
        await asyncio.sleep(60)
        assert place.conditions()["Ready"] == ("True", "Served")
        assert place.running() == before


@in_virtual_time
async def test_drift_is_repaired_while_the_broker_is_away() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.is_down = True
        await asyncio.sleep(60)
        place.cluster.take_away(DEPLOYMENT, "shop", "orders")
        await asyncio.sleep(SETTLED_S)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 2


@in_virtual_time
async def test_a_broker_that_is_away_at_a_restart_leaves_consumers_alone() -> None:
    async with Place() as place:
        await place.ready()
        before = place.running()
        place.broker.is_down = True
        await place.restart()
        await asyncio.sleep(120)
        assert place.running() == before
        assert place.conditions()["Ready"][0] == "Unknown"
        place.broker.is_down = False
        await asyncio.sleep(60)
        assert place.conditions()["Ready"] == ("True", "Served")


@in_virtual_time
async def test_one_broken_broker_holds_up_no_group_of_another() -> None:
    async with Place() as place:
        broken = place.brokers[Key("shop", "broken")] = OperatedBroker()

        async def hangs(access: Any) -> Any:
            await asyncio.Event().wait()

        broken.check = hangs
        place.apply_broker("broken")
        for number in range(20):
            place.apply_group(f"stuck-{number}", brokerRef={"name": "broken"})
        await place.ready()
        assert place.conditions()["Ready"] == ("True", "Served")
        assert place.conditions(Key("shop", "broken"), BROKER) == {}
        await asyncio.sleep(20)
        assert place.conditions(Key("shop", "broken"), BROKER)["Ready"] == ("Unknown", "NotReached")


@in_virtual_time
async def test_a_change_that_the_broker_refuses_is_shown_and_leaves_nothing_half_made() -> None:
    async with Place() as place:
        place.broker.fail_on = lambda action: (
            Refused("no more queues", status=403) if isinstance(action, DeclareQueue) else None
        )
        await place.ready()
        assert place.conditions()["Provisioned"] == ("False", "ProvisioningFailed")
        assert "no more queues" in place.message("Provisioned")
        assert place.broker.holds_nothing()
        assert not place.has(DEPLOYMENT)


@in_virtual_time
async def test_an_administrator_s_password_that_changes_is_taken_from_its_secret() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.password = "new"
        await asyncio.sleep(40)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("False", "LoginRefused")
        place.give_secret("main-admin", username="admin", password="new")
        await asyncio.sleep(SETTLED_S)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("True", "Reachable")
        assert place.conditions()["Ready"] == ("True", "Served")


@in_virtual_time
async def test_an_administrator_s_secret_that_is_missing_is_named() -> None:
    async with Place() as place:
        place.apply_broker()
        place.cluster.take_away(SECRET, "shop", "main-admin")
        await place.start()
        place.apply_group()
        await asyncio.sleep(SETTLED_S)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("False", "SecretMissing")
        assert place.conditions()["Provisioned"] == ("Unknown", "BrokerNotReady")
        place.give_secret("main-admin", username="admin", password="admin")
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Ready"] == ("True", "Served")


@in_virtual_time
async def test_looks_that_fail_make_a_group_unknown_and_not_empty() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.is_deaf = True
        await asyncio.sleep(60)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert place.conditions()["Ready"] == ("Unknown", "NotObserved")
        assert "statistics are away" in place.message("Ready")
        assert "lag" not in place.status()
