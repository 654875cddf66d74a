"""The name of a group on its broker, and groups there of another owner."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lbg_core.admin.actions import Action
from lbg_core.admin.groups import adopt_group, create_group
from lbg_core.admin.record import BY_HAND, Claim, kubernetes_owner
from lbg_core.group import GroupSpec
from lbg_operator.errors import MetricUnknown
from lbg_operator.kube.kinds import BROKER, DEPLOYMENT, GROUP, SECRET
from lbg_operator.reconcile.object_cache import Key
from lbg_operator.runtime.operator import metric_reader
from testing.kubernetes.manifests import consumer
from testing.operator.operated import MAIN, ORDERS, SETTLED_S, Place
from testing.virtual_time import in_virtual_time

NAME = "shop-orders"
DEFAULT = "shop-orders-644f7b8c"
CHECKED_S = 700.0
"""By then the operator has compared the group with the broker again."""
THEIRS = GroupSpec(NAME, hash_count=128, queue_count=8, queue_size_mb=1000)
ELSEWHERE = kubernetes_owner("another-cluster", "another-object")


def annotations(place: Place, key: Key = ORDERS) -> dict[str, str]:
    return place.seen(GROUP, key.name, key.namespace)["metadata"].get("annotations", {})


def state(place: Place) -> tuple[object, ...]:
    broker = place.broker
    return (
        dict(broker.exchanges),
        dict(broker.queues),
        set(broker.bindings),
        dict(broker.users),
        dict(broker.passwords),
        dict(broker.permissions),
        dict(broker.records),
        dict(broker.owners),
    )


async def theirs(place: Place, owner: str = BY_HAND, **attributes: Any) -> None:
    """A group of another owner that has messages."""
    await create_group(
        place.broker, THEIRS.altered(**attributes), password="theirs", claim=Claim(owner), finish=True
    )
    place.broker.waiting[f"lbg.{NAME}.q.0"] = 7


# Names


@in_virtual_time
async def test_a_new_group_has_a_name_that_is_in_its_object_before_anything_is_made() -> None:
    async with Place() as place:
        named: list[dict[str, str]] = []

        def note(action: Action) -> None:
            named.append(annotations(place))

        place.broker.fail_on = note
        await place.ready(groupName=None)
        assert place.conditions()["Ready"] == ("True", "Served")
        assert place.status()["groupName"] == DEFAULT
        assert set(place.broker.records) == {DEFAULT}
        assert place.broker.objects == {DEFAULT: ""}
        assert named[0] == {"lbg.dev/group-name": DEFAULT}


@in_virtual_time
async def test_a_name_that_the_manifest_gives_is_not_written_again() -> None:
    async with Place() as place:
        await place.ready(groupName="orders-of-all")
        assert set(place.broker.records) == {"orders-of-all"}
        assert place.broker.objects == {"orders-of-all": "shop/orders"}, "by which the console finds it"
        assert annotations(place) == {}


@in_virtual_time
async def test_names_that_are_alike_when_joined_are_two_groups() -> None:
    async with Place() as place:
        place.apply_broker(allowedNamespaces=["*"])
        await place.start()
        keys = Key("team", "a-orders"), Key("team-a", "orders")
        for key in keys:
            place.apply_group(
                key.name, key.namespace, groupName=None, brokerRef={"name": "main", "namespace": "shop"}
            )
        await asyncio.sleep(SETTLED_S)
        for key in keys:
            assert place.conditions(key)["Provisioned"] == ("True", "Provisioned")
        assert len(place.broker.records) == 2


@in_virtual_time
async def test_a_namespace_that_may_not_use_a_broker_occupies_no_name_there() -> None:
    async with Place() as place:
        place.apply_broker()
        await place.start()
        elsewhere = {"name": "main", "namespace": "shop"}
        place.apply_group("squatter", "alley", groupName=DEFAULT, brokerRef=elsewhere)
        await asyncio.sleep(SETTLED_S)
        place.apply_group(groupName=None)
        await asyncio.sleep(SETTLED_S)
        assert place.conditions(Key("alley", "squatter"))["Accepted"] == ("False", "BrokerNotAllowed")
        assert place.conditions()["Accepted"] == ("True", "Accepted")
        assert set(place.broker.records) == {DEFAULT}


# Owners


@pytest.mark.parametrize("owner", [BY_HAND, ELSEWHERE], ids=["by hand", "another cluster"])
@pytest.mark.parametrize("attributes", [{}, {"queue_count": 5}], ids=["alike", "different"])
@in_virtual_time
async def test_a_group_of_another_owner_is_neither_changed_nor_shown_nor_deleted(
    owner: str, attributes: dict[str, Any]
) -> None:
    async with Place() as place:
        await theirs(place, owner, **attributes)
        before = state(place)
        await place.ready(drainTimeoutSeconds=5)
        assert place.conditions()["Provisioned"] == ("False", "NotOwned")
        assert place.message("Provisioned") == (
            f"group '{NAME}' on this broker has another owner, and nothing was changed there: recreate this object "
            "with another groupName, or take the group over: set adopt here, and list shop in allowAdoptionFrom of "
            "Broker shop/main"
        )
        assert not {"queues", "members", "lag"} & place.status().keys()
        assert not place.has(DEPLOYMENT)
        place.delete_group()
        await asyncio.sleep(60)
        assert not place.has(GROUP)
        assert place.last_words() == (
            f"it has no objects on the broker: {NAME} there has another owner, and stays as it is"
        )
        assert state(place) == before


@in_virtual_time
async def test_adoption_needs_the_object_and_the_broker() -> None:
    async with Place() as place:
        await theirs(place)
        before = state(place)
        await place.ready(adopt=True, drainTimeoutSeconds=5)
        assert place.conditions()["Provisioned"] == ("False", "NotOwned")
        assert place.message("Provisioned").endswith(
            "adopt is set, and Broker shop/main does not list shop in its allowAdoptionFrom"
        )
        assert state(place) == before
        place.cluster.edit(BROKER, *MAIN, {"spec": {"allowAdoptionFrom": ["alley"]}})
        await asyncio.sleep(SETTLED_S)
        assert state(place) == before
        place.cluster.edit(BROKER, *MAIN, {"spec": {"allowAdoptionFrom": ["alley", "shop"]}})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert place.broker.owners[NAME] == kubernetes_owner("", place.seen(GROUP)["metadata"]["uid"])
        assert place.broker.passwords[NAME] != "theirs"
        place.delete_group()
        await asyncio.sleep(60)
        assert place.broker.holds_nothing()


@in_virtual_time
async def test_a_broker_that_allows_adoption_gives_nothing_to_who_does_not_ask_for_it() -> None:
    async with Place() as place:
        await theirs(place)
        before = state(place)
        place.apply_broker(allowAdoptionFrom=["*"])
        await place.start()
        place.apply_group()
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Provisioned"] == ("False", "NotOwned")
        assert state(place) == before


@in_virtual_time
async def test_an_object_that_asks_for_adoption_deletes_nothing_that_it_did_not_adopt() -> None:
    async with Place() as place:
        await theirs(place)
        before = state(place)
        await place.ready(adopt=True, drainTimeoutSeconds=5)
        await place.stop()
        place.cluster.edit(BROKER, *MAIN, {"spec": {"allowAdoptionFrom": ["shop"]}})
        place.delete_group()
        await place.start()
        await asyncio.sleep(60)
        assert not place.has(GROUP)
        assert state(place) == before


@in_virtual_time
async def test_a_config_map_that_anybody_can_make_is_no_proof_of_ownership() -> None:
    async with Place() as place:
        await theirs(place)
        before = state(place)
        place.apply_broker()
        place.apply_group(drainTimeoutSeconds=5)
        owner = {"apiVersion": GROUP.api_version, "kind": GROUP.kind, "name": "orders", "controller": True}
        uid = place.seen(GROUP)["metadata"]["uid"]
        labels = {"lbg.dev/group": "orders", "app.kubernetes.io/managed-by": "lbg-operator"}
        metadata = {"name": "orders-lbg", "namespace": "shop", "labels": labels}
        forged = {**metadata, "ownerReferences": [{**owner, "uid": uid}]}
        place.cluster.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": forged, "data": {}})
        await place.start()
        await asyncio.sleep(CHECKED_S)
        assert place.conditions()["Provisioned"] == ("False", "NotOwned")
        assert not {"queues", "members", "lag"} & place.status().keys()
        await place.restart()
        place.delete_group()
        await asyncio.sleep(60)
        assert not place.has(GROUP)
        assert "Draining" not in place.reasons()
        assert state(place) == before


@in_virtual_time
async def test_a_group_of_before_owners_is_the_objects_by_the_password_of_its_secret() -> None:
    async with Place() as place:
        await place.ready(drainTimeoutSeconds=5)
        await place.stop()
        place.broker.owners.clear()
        place.give_secret("orders-lbg", username=NAME, password="guessed", uris="amqp://rabbit")
        before = state(place)
        await place.start()
        await asyncio.sleep(CHECKED_S)
        assert place.conditions()["Provisioned"] == ("False", "NotOwned")
        assert state(place) == before
        place.delete_group()
        await asyncio.sleep(60)
        assert not place.has(GROUP)
        assert state(place) == before


@in_virtual_time
async def test_a_group_that_was_adopted_by_hand_is_left_alone_and_its_consumers_run_on() -> None:
    async with Place() as place:
        await place.ready(drainTimeoutSeconds=5)
        running = place.running()
        await adopt_group(place.broker, NAME)
        before = state(place)
        await asyncio.sleep(CHECKED_S)
        assert place.conditions()["Provisioned"] == ("False", "NotOwned")
        assert not {"queues", "members", "lag"} & place.status().keys()
        other = {"spec": {"containers": [{"name": "app", "image": "example.org/app:2"}]}}
        place.edit_group({"consumer": consumer(template=other)})
        await asyncio.sleep(SETTLED_S)
        assert place.running() == running
        assert place.has(SECRET, "orders-lbg")
        place.delete_group()
        await asyncio.sleep(60)
        assert not place.has(GROUP)
        assert state(place) == before


@in_virtual_time
async def test_the_lag_of_another_owners_group_is_not_reported() -> None:
    async with Place() as place:
        await theirs(place)
        await place.ready()
        assert place.operator is not None
        with pytest.raises(MetricUnknown, match="has no group of its own on the broker"):
            await metric_reader(place.operator.world)("lbg_group_lag", "shop", "orders")
        assert place.broker.counted == []
