"""The fewest consumers follow the schedule, at its times and without anybody looking."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from lbg_operator.kube.kinds import AUTOSCALER, DEPLOYMENT, GROUP, SCALED_OBJECT, STATEFUL_SET
from lbg_operator.reconcile.metrics_provider import REFRESH_INTERVAL_S
from testing.operator.operated import BEGAN, ORDERS, SETTLED_S, Place
from testing.operator.operated_sessions import sessions_place
from testing.virtual_time import in_virtual_time

SESSIONS = {"mode": "Sessions", "queues": {"count": 1}}


def moment(after_s: float) -> str:
    return (BEGAN + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def dated(replicas: int, begins_s: float, ends_s: float) -> dict[str, Any]:
    return {"minReplicas": replicas, "from": moment(begins_s), "until": moment(ends_s)}


def scaling(*schedule: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**scheduling(*schedule), "targetLag": 100, **more}


def scheduling(*schedule: dict[str, Any]) -> dict[str, Any]:
    """Without a target."""
    return {"maxReplicas": 6, "schedule": [*schedule]}


def least(place: Place) -> int:
    return int(place.seen(AUTOSCALER)["spec"]["minReplicas"])


def consumers(place: Place) -> int:
    return int(place.seen(DEPLOYMENT)["spec"]["replicas"])


async def until(after_s: float) -> None:
    await asyncio.sleep(after_s - asyncio.get_running_loop().time())


@pytest.mark.long
@in_virtual_time
async def test_the_autoscalers_least_rises_and_falls_at_the_moment() -> None:
    async with Place() as place:
        await place.ready(scaling=scaling(dated(4, 100, 5000)))
        assert (least(place), place.status()["scaling"]) == (
            1,
            {"minReplicas": 1, "why": "MinReplicas", "until": moment(100)},
        )
        await until(99.9)
        assert least(place) == 1
        await until(100.2)
        assert least(place) == 4
        assert place.status()["scaling"] == {
            "minReplicas": 4,
            "why": "Schedule",
            "entry": 0,
            "until": moment(5000),
        }
        await until(4999.9)
        assert least(place) == 4
        await until(5000.2)
        assert (least(place), place.status()["scaling"]) == (1, {"minReplicas": 1, "why": "MinReplicas"})
        assert place.reasons().count("ScheduledReplicas") == 2
        assert place.seen(AUTOSCALER)["spec"]["maxReplicas"] == 6


@in_virtual_time
async def test_what_came_while_the_operator_was_away_is_so_when_it_is_back() -> None:
    async with Place() as place:
        await place.ready(scaling=scaling(dated(4, 100, 1000), dated(5, 500, 2000)))
        await place.stop()
        await until(700)
        assert least(place) == 1
        await place.start()
        await asyncio.sleep(SETTLED_S)
        assert least(place) == 5
        assert place.status()["scaling"]["entry"] == 1
        await place.restart()
        await until(2000.2)
        assert least(place) == 1
        assert place.reasons().count("ScheduledReplicas") == 2, "once for each change that it saw"


@in_virtual_time
async def test_between_the_changes_nothing_is_written() -> None:
    async with Place() as place:
        await place.ready(scaling=scaling(dated(4, 100, 5000)))
        await until(120)
        place.cluster.changed.clear()
        await until(400)
        assert [one for one in place.cluster.changed if one[1] == "HorizontalPodAutoscaler"] == []


@in_virtual_time
async def test_it_is_never_more_than_there_may_be_and_that_is_told() -> None:
    async with Place() as place:
        await place.ready(scaling=scaling(dated(40, 100, 5000)))
        await until(110)
        assert least(place) == 6
        assert place.status()["scaling"]["why"] == "MaxReplicas"
        (told,) = (one for one in place.events if one.reason == "ScheduledReplicas")
        assert told.type == "Warning"
        assert "scaling.schedule[0] asks for more than maxReplicas or the queues allow" in told.message
        place.edit_group({"scaling": {"maxReplicas": 8}})
        await asyncio.sleep(SETTLED_S)
        assert least(place) == 8


@in_virtual_time
async def test_who_applies_the_schedule_later_needs_no_more_than_that() -> None:
    async with Place() as place:
        await place.ready(scaling=scaling())
        generation = place.seen(AUTOSCALER)["spec"]
        place.edit_group({"scaling": {"schedule": [dated(3, 0, 1000)]}})
        await asyncio.sleep(1)
        assert least(place) == 3
        place.edit_group({"scaling": {"schedule": []}})
        await asyncio.sleep(1)
        assert place.seen(AUTOSCALER)["spec"] == generation
        assert place.status()["scaling"] == {"minReplicas": 1, "why": "MinReplicas"}


@in_virtual_time
async def test_a_schedule_that_is_gone_leaves_nothing_in_the_status() -> None:
    async with Place() as place:
        await place.ready(scaling=scaling(dated(3, 0, 10_000)))
        assert place.status()["scaling"]["minReplicas"] == 3
        place.cluster.edit(GROUP, *ORDERS, {"spec": {"scaling": {"schedule": None}}})
        await asyncio.sleep(SETTLED_S)
        assert "scaling" not in place.status()
        assert least(place) == 1


@in_virtual_time
async def test_an_entry_in_no_known_time_zone_is_told_and_all_else_goes_on() -> None:
    wrong = {
        "minReplicas": 5,
        "weekly": {"days": ["Mon"], "from": "00:00", "until": "00:00", "timeZone": "X"},
    }
    async with Place() as place:
        await place.ready(scaling=scaling(wrong, minReplicas=2))
        assert least(place) == 2
        assert place.conditions()["Accepted"] == ("True", "Accepted")
        assert place.conditions()["Ready"] == ("True", "Served")
        assert place.conditions()["Degraded"] == ("True", "ScheduleInvalid")
        assert place.message("Degraded").startswith(
            "spec.scaling.schedule[0].weekly.timeZone: 'X' is not a known time zone"
        )
        place.edit_group({"scaling": {"schedule": [dated(3, 0, 1000)]}})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Degraded"] == ("False", "AsExpected")


@in_virtual_time
async def test_kedas_object_has_it_too() -> None:
    async with Place() as place:
        place.cluster.served.add("keda.sh/v1alpha1")
        place.cluster.put(
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
                "spec": {"service": {"namespace": "keda", "name": "keda-operator-metrics-apiserver"}},
                "status": {"conditions": [{"type": "Available", "status": "True"}]},
            }
        )
        await place.ready(scaling=scaling(dated(4, 100, 200)))
        assert place.operator is not None
        await place.operator.world.autoscaling.try_refresh()
        assert place.seen(SCALED_OBJECT)["spec"]["minReplicaCount"] == 1
        await until(100.2)
        assert place.seen(SCALED_OBJECT)["spec"]["minReplicaCount"] == 4
        await until(200.2 + REFRESH_INTERVAL_S)
        assert place.seen(SCALED_OBJECT)["spec"]["minReplicaCount"] == 1


@in_virtual_time
async def test_without_a_target_the_consumers_follow_the_schedule_alone() -> None:
    async with Place() as place:
        await place.ready(scaling=scheduling(dated(4, 100, 200)), replicas=1)
        assert (consumers(place), place.has(AUTOSCALER)) == (1, False)
        assert place.conditions()["ScalingActive"] == ("True", "Scheduled")
        await until(102)
        assert (consumers(place), len(place.pods.of("orders"))) == (4, 4)
        assert place.status()["replicas"] == 4
        await until(210)
        assert len(place.pods.of("orders")) == 1


@in_virtual_time
async def test_without_a_target_more_consumers_than_the_schedule_asks_for_stay() -> None:
    async with Place() as place:
        await place.ready(scaling=scheduling(dated(4, 100, 200)), replicas=3)
        assert consumers(place) == 3
        await until(110)
        assert consumers(place) == 4
        await until(210)
        assert consumers(place) == 3


@in_virtual_time
async def test_a_group_that_was_told_to_stand_still_does() -> None:
    async with Place() as place:
        await place.ready(scaling=scheduling(dated(4, 100, 200)), replicas=0)
        await until(110)
        assert consumers(place) == 0
        place.edit_group({"replicas": 1})
        await asyncio.sleep(1)
        assert consumers(place) == 4


@in_virtual_time
async def test_the_operator_never_writes_what_people_write() -> None:
    async with Place() as place:
        await place.ready(scaling=scheduling(dated(4, 20, 200)))
        generation = place.seen(DEPLOYMENT)["metadata"]["generation"]
        of_group = place.seen(GROUP)["metadata"]["generation"]
        await until(210)
        assert place.seen(DEPLOYMENT)["metadata"]["generation"] == generation + 2
        assert place.seen(GROUP)["metadata"]["generation"] == of_group


@pytest.mark.parametrize("works", [True, False])
def test_in_mode_sessions_the_end_of_an_entry_waits_for_the_sessions(works: bool) -> None:
    @in_virtual_time
    async def story() -> None:
        place, broker = sessions_place()
        async with place:
            told = scheduling(dated(3, 100, 400))
            await place.ready(**SESSIONS, replicas=1, scaling=told)
            await until(200)
            assert sorted(broker.sessions) == ["orders-lbg-0", "orders-lbg-1", "orders-lbg-2"]
            broker.works = works
            await until(500)
            there = place.seen(STATEFUL_SET, "orders-lbg")["spec"]["replicas"]
            assert there == (1 if works else 3)
            assert place.conditions()["Scaled"][1] == ("AsAsked" if works else "SessionsEnding")

    story()
