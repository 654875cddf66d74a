"""`spec.paused` and `spec.ingress`: members start no new calls, and neither autoscaler nor schedule adds consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lbg_core.admin.actions import Announce, OpenIngress, WriteRecord
from lbg_core.admin.ingress_permissions import allows
from lbg_core.admin.record import CONSUMPTION, INGRESS
from lbg_core.admin.snapshot import Snapshot
from lbg_core.group import GroupSpec, Names
from lbg_core.group.members_protocol import Pause
from lbg_operator.crds import GroupManifest
from lbg_operator.kube.kinds import AUTOSCALER, DEPLOYMENT
from lbg_operator.resources.autoscaler import scaled_object_of
from testing.kubernetes.manifests import consumer, group_manifest
from testing.kubernetes.schedules import weekly
from testing.operator.operated import Place
from testing.virtual_time import in_virtual_time

GROUP_NAME = "shop-orders"
DISABLED = {"selectPolicy": "Disabled"}


def announced(place: Place) -> list[bool]:
    sent = [one.message for one in place.broker.performed if isinstance(one, Announce)]
    return [one.consumption for one in sent if isinstance(one, Pause)]


def follow_requests(place: Place) -> None:
    """Members report what the last request states, as those of this version do."""
    joined = place.broker.members_of

    def members(group: str) -> Sequence[Mapping[str, Any]]:
        is_paused = announced(place)[-1:] == [True]
        return [{**beat, "paused": True} if is_paused else beat for beat in joined(group)]

    place.broker.members_of = members


@in_virtual_time
async def test_a_group_is_paused_and_resumed_by_its_manifest() -> None:
    async with Place() as place:
        follow_requests(place)
        await place.ready(scaling={"maxReplicas": 6, "targetLag": 100})
        assert announced(place) == []
        assert "scaleUp" not in place.seen(AUTOSCALER)["spec"]["behavior"]
        workload = place.seen(DEPLOYMENT)["spec"]

        place.edit_group({"paused": True})
        await asyncio.sleep(10)
        assert place.broker.paused[GROUP_NAME] == {CONSUMPTION}
        assert announced(place) == [True]
        assert place.seen(AUTOSCALER)["spec"]["behavior"]["scaleUp"] == DISABLED
        assert place.status()["paused"] is True
        assert place.conditions()["ScalingActive"] == ("False", "ScalingPaused")
        assert place.conditions()["Degraded"] == ("False", "AsExpected")
        assert place.seen(DEPLOYMENT)["spec"] == workload, "no pod is restarted"

        place.edit_group({"paused": False})
        await asyncio.sleep(10)
        assert place.broker.paused[GROUP_NAME] == frozenset()
        assert announced(place)[:2] == [True, False]
        assert True not in announced(place)[1:]
        assert "scaleUp" not in place.seen(AUTOSCALER)["spec"]["behavior"]
        assert "paused" not in place.status()


@in_virtual_time
async def test_a_group_may_be_made_paused_and_the_next_operator_leaves_it_so() -> None:
    async with Place() as place:
        follow_requests(place)
        await place.ready(paused=True)
        assert place.broker.paused[GROUP_NAME] == {CONSUMPTION}
        written = sum(isinstance(one, WriteRecord) for one in place.broker.performed)
        await place.restart()
        await asyncio.sleep(10)
        assert place.broker.paused[GROUP_NAME] == {CONSUMPTION}
        assert sum(isinstance(one, WriteRecord) for one in place.broker.performed) == written
        assert place.status()["paused"] is True


@in_virtual_time
async def test_a_resume_that_was_not_received_is_requested_again() -> None:
    async with Place() as place:
        joined = place.broker.members_of
        are_paused = True
        place.broker.members_of = lambda group: [
            {**beat, "paused": True} if are_paused else beat for beat in joined(group)
        ]
        await place.ready()
        await asyncio.sleep(60)
        assert False in announced(place), "a former operator was killed before it sent the request"
        are_paused = False
        await asyncio.sleep(60)
        count = len(announced(place))
        await asyncio.sleep(60)
        assert len(announced(place)) == count


@in_virtual_time
async def test_members_of_older_versions_are_not_reported_as_paused() -> None:
    async with Place() as place:
        await place.ready(paused=True)
        assert place.status()["paused"] is False


@in_virtual_time
async def test_a_schedule_adds_no_consumers_during_a_pause() -> None:
    scaling = {"maxReplicas": 6, "schedule": [weekly(5, "00:00", "00:00", zone=None)]}
    async with Place() as place:
        follow_requests(place)
        await place.ready(scaling=scaling, paused=True)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 2
        place.edit_group({"paused": False})
        await asyncio.sleep(10)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 5


def may_publish(place: Place) -> list[bool]:
    exchange = Names(GROUP_NAME).exchange
    return [allows(one.write, exchange) for one in place.broker.permissions.values()]


@in_virtual_time
async def test_ingress_is_paused_and_resumed_by_the_manifest_and_by_nobody_else() -> None:
    async with Place() as place:
        await place.ready(publisherUser="Additional")
        assert place.status()["ingress"] == "Open"
        assert may_publish(place) == [True, True]
        place.edit_group({"ingress": "Paused"})
        await asyncio.sleep(10)
        assert may_publish(place) == [False, False]
        assert place.broker.paused[GROUP_NAME] == {INGRESS}
        assert place.status()["ingress"] == "Paused"
        assert place.conditions()["Degraded"] == ("False", "AsExpected")
        performed = len(place.broker.performed)
        await place.restart()
        await asyncio.sleep(900)
        assert all(isinstance(one, Announce) for one in place.broker.performed[performed:]), (
            "nothing is changed"
        )
        await place.broker.perform(OpenIngress(GROUP_NAME))
        await asyncio.sleep(60)
        assert may_publish(place) == [False, False]
        place.edit_group({"ingress": "Open", "paused": True})
        await asyncio.sleep(10)
        assert may_publish(place) == [True, True]
        assert place.broker.paused[GROUP_NAME] == {CONSUMPTION}
        assert place.status()["ingress"] == "Open"


@in_virtual_time
async def test_a_group_may_be_made_with_its_ingress_paused() -> None:
    async with Place() as place:
        await place.ready(ingress="Paused")
        assert may_publish(place) == [False, False]
        assert place.status()["ingress"] == "Paused"


@pytest.mark.parametrize("paused", [True, False])
def test_keda_adds_no_consumers_either(paused: bool) -> None:
    spec = {"scaling": {"maxReplicas": 4, "targetLag": 10}, "paused": paused}
    manifest = group_manifest({**spec, "consumer": consumer()})
    scaled = scaled_object_of(GroupManifest.parse(manifest), url="https://operator")
    assert scaled is not None
    behavior = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior.get("scaleUp") == (DISABLED if paused else None)


@in_virtual_time
async def test_a_record_that_is_lost_between_create_and_pause_does_not_end_the_pause_of_ingress() -> None:
    async with Place() as place:
        await place.ready()
        observe, lost = place.broker.observe, 1

        async def without_record(group: str, *, desired: GroupSpec | None = None) -> Snapshot:
            nonlocal lost
            observed = await observe(group, desired=desired)
            if desired is not None or not lost:
                return observed
            lost -= 1
            return replace(observed, record=None)

        place.broker.observe = without_record
        place.edit_group({"ingress": "Paused"})
        await asyncio.sleep(30)
        assert not lost
        assert place.broker.paused[GROUP_NAME] == {INGRESS}
        assert not any(may_publish(place))
