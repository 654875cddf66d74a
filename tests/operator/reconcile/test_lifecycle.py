"""A group from its manifest to Ready, and its repair."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from dataclasses import replace
from typing import Any

import pytest

from lbg_core.admin.actions import DeclareExchange, PutUser
from lbg_operator.kube.kinds import (
    BROKER,
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    GROUP,
    NETWORK_POLICY,
    SECRET,
    Kind,
)
from lbg_operator.reconcile.group_deletion import FINALIZER
from testing.operator.operated import MAIN, SETTLED_S, Place
from testing.virtual_time import in_virtual_time
from testing.waiting import until

HALF_A_MINUTE_S = 30.0

LONG_S = 120.0


def password_of(place: Place) -> str:
    return b64decode(place.seen(SECRET, "orders-lbg")["data"]["password"]).decode()


@in_virtual_time
async def test_a_group_comes_from_its_manifest_to_ready() -> None:
    async with Place() as place:
        await place.ready()
        assert place.conditions() == {
            "Accepted": ("True", "Accepted"),
            "Provisioned": ("True", "Provisioned"),
            "Ready": ("True", "Served"),
            "ScalingActive": ("False", "NotAsked"),
            "Degraded": ("False", "AsExpected"),
        }
        assert (place.status()["memberCount"], place.status()["readyReplicas"]) == (2, 2)
        assert place.conditions(MAIN, BROKER) == {
            "Accepted": ("True", "Accepted"),
            "Ready": ("True", "Reachable"),
            "Degraded": ("False", "AsExpected"),
        }


@in_virtual_time
async def test_the_password_is_written_down_before_the_broker_knows_it_and_pods_come_last() -> None:
    async with Place() as place:
        order: list[str] = []
        place.broker.fail_on = lambda action: order.append(type(action).__name__)
        place.cluster.fail = lambda verb, kind, name: (
            order.append(kind.kind) if verb in ("apply", "merge") else None
        )
        await place.ready()
        assert order.index("LoadBalancedGroup") < order.index("Secret"), "the finalizer comes first"
        assert order.index("Secret") < order.index(DeclareExchange.__name__)
        assert order.index("WriteRecord") < order.index("ConfigMap") < order.index("Deployment")
        assert order.index("PodDisruptionBudget") < order.index("Deployment")
        assert FINALIZER in place.seen(GROUP)["metadata"]["finalizers"]
        assert place.broker.passwords["shop-orders"] == password_of(place)


@in_virtual_time
async def test_nothing_is_applied_twice_while_nothing_changes() -> None:
    async with Place() as place:
        await place.ready()
        written, performed = len(place.cluster.written), len(place.broker.performed)
        await asyncio.sleep(LONG_S)
        further = place.cluster.written[written:]
        assert {one[:2] for one in further} <= {("merge", "LoadBalancedGroup")}, "a look's time, at most"
        assert len(further) <= LONG_S / 30
        assert len(place.broker.performed) == performed


@in_virtual_time
async def test_a_group_that_is_quiet_costs_the_api_server_no_request_but_for_its_status() -> None:
    async with Place() as place:
        await place.ready()
        asked: list[tuple[str, str]] = []
        place.cluster.fail = lambda verb, kind, name: asked.append((verb, name))
        await asyncio.sleep(300)
        assert set(asked) <= {("merge", "orders")}
        assert asked.count(("merge", "orders")) <= 2


@in_virtual_time
async def test_the_ten_minutes_comparison_changes_nothing_on_a_broker_where_all_is_as_it_should_be() -> None:
    async with Place() as place:
        await place.ready()
        performed = len(place.broker.performed)
        await asyncio.sleep(700)
        assert place.broker.performed[performed:] == []
        place.broker.users["shop-orders"] = replace(
            place.broker.users["shop-orders"], password_hash="another"
        )
        await asyncio.sleep(700)
        (put,) = place.broker.performed[performed:]
        assert put == PutUser("shop-orders", password_of(place), "shop-orders", is_new=False)


@pytest.mark.parametrize(
    ("kind", "name", "patch"),
    [
        (DEPLOYMENT, "orders", {"spec": {"replicas": 5}}),
        (DEPLOYMENT, "orders", {"spec": {"template": {"spec": {"containers": []}}}}),
        (CONFIG_MAP, "orders-lbg", {"data": {"queue-count": "9"}}),
        (CONFIG_MAP, "orders-lbg", {"data": {"queue-count": None}}),
        (BUDGET, "orders", {"spec": {"maxUnavailable": 3}}),
        (NETWORK_POLICY, "orders", {"spec": {"podSelector": {"matchLabels": {"lbg.dev/group": "other"}}}}),
    ],
)
@in_virtual_time
async def test_what_somebody_changes_is_as_it_was_after_one_round(
    kind: Kind, name: str, patch: dict[str, Any]
) -> None:
    async with Place() as place:
        await place.ready()
        before = place.seen(kind, name)
        place.cluster.edit(kind, "shop", name, patch)
        assert place.seen(kind, name) != before
        written = len(place.cluster.changed)
        await asyncio.sleep(5)
        mended = place.seen(kind, name)
        assert {**mended, "metadata": None, "status": None} == {**before, "metadata": None, "status": None}
        assert place.cluster.changed[written:].count(("apply", kind.kind, name)) == 1


@pytest.mark.parametrize(
    ("kind", "name"),
    [(DEPLOYMENT, "orders"), (CONFIG_MAP, "orders-lbg"), (BUDGET, "orders"), (NETWORK_POLICY, "orders")],
)
@in_virtual_time
async def test_what_somebody_deletes_is_back_after_one_round(kind: Kind, name: str) -> None:
    async with Place() as place:
        await place.ready()
        place.cluster.take_away(kind, "shop", name)
        await asyncio.sleep(1)
        assert place.has(kind, name)
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Ready"] == ("True", "Served")


@in_virtual_time
async def test_a_queue_whose_handoff_is_put_off_again_and_again_degrades_the_group_until_it_moves() -> None:
    async with Place() as place:
        await place.ready()
        members = place.broker.members_of
        place.broker.members_of = lambda group: [
            {
                **beat,
                "queues": [{**one, "put_off": 3, "next_drain_s": 24.0} for one in beat["queues"][:1]]
                + beat["queues"][1:],
            }
            for beat in members(group)
        ]
        await asyncio.sleep(45)
        assert place.conditions()["Degraded"] == ("True", "HandoffsPutOff")
        assert "q.0 from orders-0 is postponed (3 in a row)" in place.message("Degraded")
        place.broker.members_of = members
        await asyncio.sleep(45)
        assert place.conditions()["Degraded"] == ("False", "AsExpected")


@in_virtual_time
async def test_queues_that_somebody_deletes_are_made_again() -> None:
    async with Place() as place:
        await place.ready()
        del place.broker.queues["lbg.shop-orders.q.3"]
        await asyncio.sleep(45)
        assert "lbg.shop-orders.q.3" in place.broker.queues
        assert "Repaired" in place.reasons()
        assert place.conditions()["Degraded"] == ("False", "AsExpected")


@in_virtual_time
async def test_a_restart_of_the_operator_keeps_the_password() -> None:
    async with Place() as place:
        await place.ready()
        password = password_of(place)
        await place.restart()
        await asyncio.sleep(SETTLED_S)
        assert password_of(place) == password == place.broker.passwords["shop-orders"]


@in_virtual_time
async def test_a_secret_that_is_gone_is_back_at_once_with_a_new_password_that_the_broker_knows() -> None:
    async with Place() as place:
        await place.ready()
        password = password_of(place)
        place.cluster.take_away(SECRET, "shop", "orders-lbg")
        await asyncio.sleep(1)
        assert password_of(place) != password
        assert place.broker.passwords["shop-orders"] == password_of(place)


@in_virtual_time
async def test_a_password_that_is_changed_in_the_secret_is_the_brokers_at_once() -> None:
    async with Place() as place:
        await place.ready()
        told = {"password": b64encode(b"chosen").decode(), "uris": b64encode(b"amqp://elsewhere").decode()}
        place.cluster.edit(SECRET, "shop", "orders-lbg", {"data": told})
        await asyncio.sleep(1)
        assert place.broker.passwords["shop-orders"] == "chosen" == password_of(place)
        assert b64decode(place.seen(SECRET, "orders-lbg")["data"]["uris"]) == b"amqp://rabbit"


@in_virtual_time
async def test_a_restart_of_the_operator_changes_nothing() -> None:
    async with Place() as place:
        await place.ready()
        place.apply_group("payments", replicas=1)
        await asyncio.sleep(LONG_S)
        changed, events, objects = len(place.cluster.changed), len(place.events), dict(place.cluster.objects)
        await place.restart()
        await asyncio.sleep(20)
        assert place.cluster.changed[changed:] == []
        assert place.events[events:] == []
        assert place.cluster.objects == objects


@in_virtual_time
async def test_an_operator_that_was_away_repairs_what_changed_meanwhile() -> None:
    async with Place() as place:
        await place.ready()
        await place.stop()
        place.cluster.edit(DEPLOYMENT, "shop", "orders", {"spec": {"replicas": 7}})
        await asyncio.sleep(1)
        await place.start()
        await asyncio.sleep(SETTLED_S)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 2


@in_virtual_time
async def test_a_group_that_is_deleted_and_made_again_at_once_is_a_new_one() -> None:
    async with Place() as place:
        await place.ready()
        manifest = place.seen(GROUP)
        uid = manifest["metadata"]["uid"]
        await place.stop()
        await place.start()
        await asyncio.sleep(SETTLED_S)
        place.cluster.edit(GROUP, "shop", "orders", {"metadata": {"finalizers": None}})
        place.delete_group()
        for queue in list(place.broker.queues):
            del place.broker.queues[queue]
        place.broker.records.clear()
        place.broker.exchanges.clear()
        place.broker.bindings.clear()
        place.apply_group()
        await asyncio.sleep(5)
        made = place.seen(GROUP)["metadata"]
        assert made["uid"] != uid
        assert all(
            one["lastTransitionTime"] >= made["creationTimestamp"] for one in place.status()["conditions"]
        )
        assert "lbg.shop-orders.q.0" in place.broker.queues
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@pytest.mark.parametrize("delay_s", [0.02, 0.6, 3.0])
@in_virtual_time
async def test_a_group_that_is_made_again_within_a_second_of_its_end_is_a_new_one(delay_s: float) -> None:
    """The watches report its end before, while, and long after the new one is made."""
    async with Place(delay_s=delay_s) as place:
        await place.ready()
        uid = place.seen(GROUP)["metadata"]["uid"]
        place.delete_group()
        await until(lambda: not place.has(GROUP), what="the end of the group")
        assert not any(queue.startswith("lbg.shop-orders") for queue in place.broker.queues)
        await asyncio.sleep(0.5)
        place.apply_group(replicas=3)
        await asyncio.sleep(SETTLED_S + 10 * delay_s)
        made = place.seen(GROUP)["metadata"]
        assert made["uid"] != uid
        assert place.conditions()["Ready"] == ("True", "Served")
        assert all(
            one["lastTransitionTime"] >= made["creationTimestamp"] for one in place.status()["conditions"]
        )
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 3
        assert "lbg.shop-orders.q.0" in place.broker.queues


@pytest.mark.parametrize("waiting", [0, 7])
@in_virtual_time
async def test_the_status_says_within_five_seconds_that_members_rebalance_and_that_they_are_done(
    waiting: int,
) -> None:
    """A member that is no pod of the cluster's joins, of which nothing tells the operator but the broker."""
    async with Place() as place:
        await place.ready()
        await asyncio.sleep(HALF_A_MINUTE_S)
        assert place.status()["rebalance"] == "Ready"
        pods, word = place.pods.members, "HoldDown"

        def members(name: str) -> list[dict[str, Any]]:
            guest = {"index": 9, "name": "guest", "incarnation": "guest", "queues": [], "counts": {}}
            return [{**one, "rebalance": word} for one in (*pods(name), guest)]

        place.broker.waiting["lbg.shop-orders.q.0"] = waiting
        place.broker.members_of = members
        for word in ("HoldDown", "Rebalancing", "Ready"):
            await asyncio.sleep(5)
            assert place.status()["rebalance"] == word
            await asyncio.sleep(3)
        assert place.status()["memberCount"] == 3
        asked: list[str] = []
        place.cluster.fail = lambda verb, kind, name: asked.append(verb)
        await asyncio.sleep(HALF_A_MINUTE_S)
        assert asked == []
