"""Errors of a manifest and refusals of the cluster are shown, and change nothing that runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lbg_operator.kube.api import Forbidden, Invalid
from lbg_operator.kube.kinds import BROKER, CONFIG_MAP, DEPLOYMENT, NETWORK_POLICY, SECRET, Kind
from lbg_operator.reconcile.object_cache import Key
from testing.operator.operated import MAIN, SETTLED_S, Place
from testing.operator.operated_broker import OperatedBroker
from testing.virtual_time import in_virtual_time

COPY = Key("shop", "copy")


@pytest.mark.parametrize(
    ("spec", "reason", "provisioned"),
    [
        ({"queues": {"size": "many"}}, "Invalid", ("False", "NotAccepted")),
        ({"brokerRef": {"name": "nobody"}}, "BrokerNotFound", ("Unknown", "BrokerNotReady")),
        ({"brokerRef": {"name": "other", "namespace": "far"}}, "BrokerNotAllowed", ("False", "NotAccepted")),
        ({"consumer": {"app": {"container": "nobody"}}}, "Invalid", ("True", "Retained")),
    ],
)
@in_virtual_time
async def test_a_manifest_that_is_not_followed_changes_nothing_that_runs(
    spec: dict[str, Any], reason: str, provisioned: tuple[str, str]
) -> None:
    async with Place() as place:
        place.brokers[Key("far", "other")] = OperatedBroker()
        place.apply_broker("other", "far")
        await place.ready()
        before, performed = place.running(), len(place.broker.performed)
        place.edit_group(spec)
        await asyncio.sleep(40)
        assert place.conditions()["Accepted"] == ("False", reason)
        assert place.conditions()["Provisioned"] == provisioned
        assert place.running() == before
        assert len(place.broker.performed) == performed
        assert place.reasons().count(reason) == 1


@in_virtual_time
async def test_a_manifest_that_is_mended_is_followed_again() -> None:
    async with Place() as place:
        await place.ready()
        place.edit_group({"queues": {"size": "many"}})
        await asyncio.sleep(5)
        place.edit_group({"queues": {"size": "1G"}, "replicas": 3})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Ready"] == ("True", "Served")
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 3


@in_virtual_time
async def test_the_older_of_two_groups_has_the_name_and_the_younger_gets_it_after() -> None:
    async with Place() as place:
        await place.ready(deletionPolicy="Retain")
        place.apply_group("copy", groupName="shop-orders", replicas=1)
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Accepted"] == ("True", "Accepted")
        assert place.conditions(COPY)["Accepted"] == ("False", "NameTaken")
        assert "orders is group shop-orders" in place.message("Accepted", COPY)
        assert not place.has(DEPLOYMENT, "copy")
        place.delete_group()
        await asyncio.sleep(SETTLED_S)
        assert place.conditions(COPY)["Accepted"] == ("True", "Accepted")
        assert place.conditions(COPY)["Provisioned"] == ("False", "NotOwned")
        place.cluster.edit(BROKER, *MAIN, {"spec": {"allowAdoptionFrom": ["shop"]}})
        place.edit_group({"adopt": True}, COPY)
        await asyncio.sleep(SETTLED_S)
        assert place.has(DEPLOYMENT, "copy")


@in_virtual_time
async def test_a_group_keeps_its_name_when_an_older_object_may_use_the_broker_later() -> None:
    async with Place() as place:
        place.apply_broker()
        await place.start()
        place.apply_group(
            "elder",
            namespace="alley",
            groupName="shop-orders",
            replicas=1,
            brokerRef={"name": "main", "namespace": "shop"},
        )
        await asyncio.sleep(SETTLED_S)
        place.apply_group()
        await asyncio.sleep(SETTLED_S)
        elder = Key("alley", "elder")
        assert place.conditions(elder)["Accepted"] == ("False", "BrokerNotAllowed")
        place.cluster.edit(BROKER, *MAIN, {"spec": {"allowedNamespaces": ["alley"]}})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions(elder)["Accepted"] == ("False", "NameTaken")
        assert place.conditions()["Accepted"] == ("True", "Accepted")
        place.edit_group({"replicas": 3})
        await asyncio.sleep(SETTLED_S)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 3


@in_virtual_time
async def test_a_group_is_made_as_soon_as_its_broker_is_there() -> None:
    async with Place() as place:
        await place.start()
        place.apply_group()
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Accepted"] == ("False", "BrokerNotFound")
        place.apply_broker()
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Ready"] == ("True", "Served")


@in_virtual_time
async def test_a_namespace_that_is_allowed_later_is_let_in_at_once() -> None:
    async with Place() as place:
        place.apply_broker()
        await place.start()
        place.apply_group(namespace="alley", brokerRef={"name": "main", "namespace": "shop"})
        await asyncio.sleep(SETTLED_S)
        alley = Key("alley", "orders")
        assert place.conditions(alley)["Accepted"] == ("False", "BrokerNotAllowed")
        place.cluster.edit(BROKER, *MAIN, {"spec": {"allowedNamespaces": ["alley"]}})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions(alley)["Ready"] == ("True", "Served")


@in_virtual_time
async def test_a_pod_template_that_the_api_server_refuses_is_shown() -> None:
    async with Place() as place:

        def refuse(verb: str, kind: Kind, name: str) -> None:
            if (verb, kind) == ("apply", DEPLOYMENT):
                raise Invalid("patch Deployment shop/orders", "spec.template: no image", status=422)

        place.cluster.fail = refuse
        await place.ready()
        assert place.conditions()["Accepted"] == ("False", "Invalid")
        assert "no image" in place.message("Accepted")
        assert place.conditions()["Degraded"] == ("True", "Refused")
        assert place.message("Degraded") == place.message("Stalled")
        place.cluster.fail = lambda verb, kind, name: None
        place.edit_group({"replicas": 1})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Ready"] == ("True", "Served")


@pytest.mark.parametrize("forbidden", [DEPLOYMENT, CONFIG_MAP, NETWORK_POLICY, SECRET])
@in_virtual_time
async def test_what_the_cluster_forbids_is_shown_and_tried_again(forbidden: Kind) -> None:
    async with Place() as place:

        def refuse(verb: str, kind: Kind, name: str) -> None:
            if (verb, kind) == ("apply", forbidden):
                raise Forbidden(f"patch {kind.kind} shop/{name}", "exceeded quota", status=403)

        place.cluster.fail = refuse
        await place.ready()
        assert place.conditions()["Degraded"] == ("True", "ClusterRefuses")
        assert "exceeded quota" in place.message("Degraded")
        assert (place.conditions()["Provisioned"][0] == "True") == (forbidden is not SECRET)
        place.cluster.fail = lambda verb, kind, name: None
        await asyncio.sleep(90)
        assert place.conditions()["Degraded"] == ("False", "AsExpected")
        assert place.conditions()["Ready"] == ("True", "Served")


@in_virtual_time
async def test_an_api_server_that_is_away_for_a_while_costs_time_only() -> None:
    async with Place() as place:
        place.apply_broker()
        await place.start()
        place.cluster.failing = {"read", "apply", "merge", "create", "delete"}
        place.apply_group()
        await asyncio.sleep(30)
        assert not place.broker.queues
        place.cluster.failing = set()
        await asyncio.sleep(70)
        assert place.conditions()["Ready"] == ("True", "Served")
