"""What goes wrong is shown, and changes nothing of what runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lbg_broker.provisioning.actions import DeclareQueue
from lbg_broker.provisioning.errors import Refused
from lbg_operator.cluster.kinds import BROKER, CONFIG_MAP, DEPLOYMENT, NETWORK_POLICY, POD, SECRET, Kind
from lbg_operator.cluster.seam import ClusterError, Forbidden, Invalid
from lbg_operator.reconciling.store import Key
from support.operated import MAIN, Place
from support.operated_broker import OperatedBroker
from support.virtual_time import in_virtual_time

SETTLED_S = 10.0
COPY = Key("shop", "copy")


async def ready(place: Place, **spec: Any) -> None:
    place.apply_broker()
    await place.start()
    place.apply_group(**spec)
    await asyncio.sleep(SETTLED_S)


def running(place: Place) -> dict[Any, Any]:
    """What consumers run on: everything but the objects that people write, and statuses."""
    kinds = ("Deployment", "Pod", "ConfigMap", "Secret", "PodDisruptionBudget", "NetworkPolicy")
    return {
        where: {key: value for key, value in one.items() if key not in ("status", "metadata")}
        for where, one in place.cluster.objects.items()
        if one["kind"] in kinds
    }


# The manifest


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"queues": {"size": "many"}}, "Invalid"),
        ({"brokerRef": {"name": "nobody"}}, "BrokerNotFound"),
        ({"brokerRef": {"name": "other", "namespace": "far"}}, "BrokerNotAllowed"),
        ({"consumer": {"app": {"container": "nobody"}}}, "Invalid"),
    ],
)
@in_virtual_time
async def test_a_manifest_that_is_not_followed_changes_nothing_that_runs(
    spec: dict[str, Any], reason: str
) -> None:
    async with Place() as place:
        place.brokers[Key("far", "other")] = OperatedBroker()
        place.apply_broker("other", "far")
        await ready(place)
        before, performed = running(place), len(place.broker.performed)
        place.edit_group(spec)
        await asyncio.sleep(40)
        assert place.conditions()["Accepted"] == ("False", reason)
        assert place.conditions()["Provisioned"] == ("False", "NotAccepted")
        assert running(place) == before
        assert len(place.broker.performed) == performed
        assert place.reasons().count(reason) == 1


@in_virtual_time
async def test_a_manifest_that_is_mended_is_followed_again() -> None:
    async with Place() as place:
        await ready(place)
        place.edit_group({"queues": {"size": "many"}})
        await asyncio.sleep(5)
        place.edit_group({"queues": {"size": "1G"}, "replicas": 3})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Ready"] == ("True", "Served")
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 3


@in_virtual_time
async def test_the_older_of_two_groups_has_the_name_and_the_younger_gets_it_after() -> None:
    async with Place() as place:
        await ready(place, deletionPolicy="Retain")
        place.apply_group("copy", groupName="shop-orders", replicas=1)
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Accepted"] == ("True", "Accepted")
        assert place.conditions(COPY)["Accepted"] == ("False", "NameTaken")
        assert "shop/orders is group shop-orders" in place.message("Accepted", COPY)
        assert not place.has(DEPLOYMENT, "copy")
        place.delete_group()
        await asyncio.sleep(SETTLED_S)
        assert place.conditions(COPY)["Accepted"] == ("True", "Accepted")
        assert place.has(DEPLOYMENT, "copy")


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
        await ready(place)
        assert place.conditions()["Accepted"] == ("False", "Invalid")
        assert "no image" in place.message("Accepted")
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
        await ready(place)
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


# The broker


@in_virtual_time
async def test_a_broker_that_is_away_makes_everything_unknown_and_touches_nothing() -> None:
    async with Place() as place:
        await ready(place)
        before = running(place)
        place.broker.is_down = True
        await asyncio.sleep(120)
        assert place.conditions()["Provisioned"] == ("Unknown", "BrokerNotReady")
        assert place.conditions()["Ready"] == ("Unknown", "NotObserved")
        assert place.conditions()["Degraded"] == ("Unknown", "NotKnown")
        assert not {"lag", "memberCount", "members", "queues"} & place.status().keys()
        assert running(place) == before
        assert place.conditions(MAIN, BROKER)["Ready"] == ("Unknown", "NotReached")
        place.broker.is_down = False
        await asyncio.sleep(60)
        assert place.conditions()["Ready"] == ("True", "Served")
        assert running(place) == before


@in_virtual_time
async def test_drift_is_repaired_while_the_broker_is_away() -> None:
    async with Place() as place:
        await ready(place)
        place.broker.is_down = True
        await asyncio.sleep(60)
        place.cluster.take_away(DEPLOYMENT, "shop", "orders")
        await asyncio.sleep(SETTLED_S)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 2


@in_virtual_time
async def test_a_broker_that_is_away_at_a_restart_leaves_consumers_alone() -> None:
    async with Place() as place:
        await ready(place)
        before = running(place)
        place.broker.is_down = True
        await place.restart()
        await asyncio.sleep(120)
        assert running(place) == before
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

        broken.check = hangs  # type: ignore[method-assign]
        place.apply_broker("broken")
        for number in range(20):
            place.apply_group(f"stuck-{number}", brokerRef={"name": "broken"})
        await ready(place)
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
        await ready(place)
        assert place.conditions()["Provisioned"] == ("False", "ProvisioningFailed")
        assert "no more queues" in place.message("Provisioned")
        assert place.broker.holds_nothing()
        assert not place.has(DEPLOYMENT)


@in_virtual_time
async def test_an_administrator_s_password_that_changes_is_taken_from_its_secret() -> None:
    async with Place() as place:
        await ready(place)
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
        await ready(place)
        place.broker.is_deaf = True
        await asyncio.sleep(60)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert place.conditions()["Ready"] == ("Unknown", "NotObserved")
        assert "statistics are away" in place.message("Ready")
        assert "lag" not in place.status()


# Scaling in


@in_virtual_time
async def test_pods_that_serve_the_fewest_queues_go_first() -> None:
    async with Place() as place:
        await ready(place, queues={"count": 3}, replicas=3)
        place.edit_group({"replicas": 2})
        costs: list[int] = []
        place.cluster.watchers.append(
            lambda kind, seen, is_gone: (
                costs.append(len(place.pods.gone))
                if kind is POD and seen["metadata"].get("annotations")
                else None
            )
        )
        await asyncio.sleep(SETTLED_S)
        assert len(place.pods.of("orders")) == 2
        assert costs
        assert costs[0] == 0, "the costs were written before a pod went"


@in_virtual_time
async def test_those_who_stand_by_go_first() -> None:
    async with Place() as place:
        await ready(place, queues={"count": 4}, replicas=4)
        members = place.broker.members_of
        standby = place.pods.of("orders")[0]["metadata"]["name"]

        def first_stands_by(group: str) -> Any:
            beats = [dict(one) for one in members(group)]
            for beat in beats:
                if beat["name"] == standby:
                    beat["queues"] = []
            return beats

        place.broker.members_of = first_stands_by
        place.edit_group({"replicas": 3})
        await asyncio.sleep(SETTLED_S)
        assert place.pods.gone == [standby]


@in_virtual_time
async def test_nobody_goes_while_nobody_knows_who_serves_and_then_the_scale_in_goes_on() -> None:
    async with Place() as place:
        await ready(place, replicas=3)
        place.broker.is_deaf = True
        place.edit_group({"replicas": 1})
        await asyncio.sleep(50)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 3
        await asyncio.sleep(60)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 1


@in_virtual_time
async def test_scaling_out_asks_nobody() -> None:
    async with Place() as place:
        await ready(place)
        place.broker.is_deaf = True
        place.edit_group({"replicas": 5})
        await asyncio.sleep(1)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 5


@in_virtual_time
async def test_replicas_never_pass_the_queues() -> None:
    async with Place() as place:
        await ready(place, queues={"count": 4})
        place.edit_group({"replicas": 40})
        await asyncio.sleep(SETTLED_S)
        assert max(place.pods.replicas_seen) == 4


@in_virtual_time
async def test_costs_that_cannot_be_written_are_tried_again_before_anybody_goes() -> None:
    async with Place() as place:
        await ready(place, replicas=3)

        def refuse(verb: str, kind: Kind, name: str) -> None:
            if kind is POD:
                raise ClusterError("patch Pod", "connection reset")

        place.cluster.fail = refuse
        place.edit_group({"replicas": 1})
        await asyncio.sleep(30)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 3
        place.cluster.fail = lambda verb, kind, name: None
        await asyncio.sleep(70)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 1


@in_virtual_time
async def test_scaling_can_be_changed_at_any_time() -> None:
    async with Place() as place:
        await ready(place)
        for most in (4, 2, 8):
            place.edit_group({"scaling": {"maxReplicas": most, "targetLag": 100}, "replicas": 8})
            await asyncio.sleep(SETTLED_S)
            assert place.seen(DEPLOYMENT)["spec"]["replicas"] == most
            await place.restart()
            await asyncio.sleep(SETTLED_S)
            assert place.conditions()["Provisioned"] == ("True", "Provisioned")
