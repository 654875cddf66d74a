"""`whenExhausted: Park`: the operator gives a group its parking queue, and reports parked keys."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lbg_core.admin.actions import Announce, WriteRecord
from lbg_core.admin.errors import Unreachable
from lbg_core.admin.groups import plan_parking
from lbg_core.admin.record import Claim
from lbg_core.group import EMBEDDED, RABBITMQ, Engine, Names
from lbg_operator.kube.kinds import DEPLOYMENT, GROUP
from lbg_operator.resources.sidecar_injection import SIDECAR
from testing.kubernetes.manifests import consumer
from testing.operator.operated import SETTLED_S, Place
from testing.virtual_time import in_virtual_time

NAME = "shop-orders"
NAMES = Names(NAME)
SURVEYED_S = 40.0
LATER_S = 700.0
"""A time by which the operator has compared the group with the broker again."""


def park(**app: Any) -> dict[str, Any]:
    return consumer(whenExhausted="Park", **app)


def edit_app(place: Place, **app: Any) -> None:
    place.edit_group({"consumer": {"app": app}})


def environment(place: Place) -> dict[str, str]:
    pod = place.seen(DEPLOYMENT)["spec"]["template"]["spec"]
    (sidecar,) = (one for one in pod["initContainers"] if one["name"] == SIDECAR)
    return {one["name"]: one.get("value", "") for one in sidecar["env"]}


def exhausted(place: Place) -> str:
    return environment(place)["LBG_WHEN_EXHAUSTED"]


def has_parking(place: Place) -> bool:
    return (
        place.broker.parking.get(NAME, False) and {NAMES.parking, NAMES.parked} <= place.broker.queues.keys()
    )


def park_messages(place: Place, count: int) -> None:
    queue = place.broker.queues[NAMES.parking]
    place.broker.queues[NAMES.parking] = replace(queue, ready=count)


def report(place: Place, **parking: Any) -> None:
    """Members report parked keys, as those do that joined a group with a parking queue."""
    joined = place.broker.members_of
    told = {"is_read": True, "keys": 0, "messages": 0, "size_bytes": 0, "is_full": False, **parking}

    def members(group: str) -> Sequence[Mapping[str, Any]]:
        return [{**beat, "parking": told} for beat in joined(group)]

    place.broker.members_of = members


# The parking queue


@in_virtual_time
async def test_a_new_group_gets_its_parking_queue_before_its_consumers() -> None:
    async with Place() as place:
        seen: list[str] = []
        place.cluster.watchers.append(
            lambda kind, one, is_gone: seen.append(exhausted(place)) if kind is DEPLOYMENT else None
        )
        report(place)
        await place.ready(consumer=park(parking={"maxKeys": 7, "maxSize": "2.5M"}))
        assert has_parking(place)
        assert set(seen) == {"park"}
        bounds = {name: value for name, value in environment(place).items() if name.startswith("LBG_PARK_")}
        assert bounds == {
            "LBG_PARK_MAX_KEYS": "7",
            "LBG_PARK_MAX_MESSAGES": "100000",
            "LBG_PARK_MAX_MB": "2",
        }
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert place.conditions()["Degraded"] == ("False", "AsExpected")
        assert place.conditions()["KeysParked"] == ("False", "NoKeysParked")
        performed = len(place.broker.performed)
        await place.restart()
        await asyncio.sleep(LATER_S)
        assert all(isinstance(one, Announce) for one in place.broker.performed[performed:]), (
            "nothing is changed"
        )


@in_virtual_time
async def test_a_group_without_parking_has_no_condition_of_it() -> None:
    async with Place() as place:
        await place.ready()
        assert "KeysParked" not in place.conditions()


@pytest.mark.parametrize("former", ["Block", "DeadLetter"])
@in_virtual_time
async def test_a_running_group_gets_it_while_it_has_no_replicas(former: str) -> None:
    async with Place() as place:
        await place.ready(consumer=consumer(whenExhausted=former))
        edit_app(place, whenExhausted="Park")
        await asyncio.sleep(LATER_S)
        assert place.conditions()["Provisioned"] == ("False", "MembersRunning")
        assert "set replicas to 0" in place.message("Provisioned")
        assert place.conditions()["Stalled"] == ("True", "NeedsAChange")
        assert place.conditions()["KeysParked"] == ("False", "NoParkingQueue")
        assert place.conditions()["Ready"] == ("Unknown", "NotApplied")
        assert NAMES.parking not in place.broker.queues
        assert exhausted(place) == "block"
        assert len(place.pods.of("orders")) == 2

        place.pods.has_members = True
        place.edit_group({"replicas": 0})
        await asyncio.sleep(SURVEYED_S)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert "Stalled" not in place.conditions()
        assert has_parking(place)
        assert exhausted(place) == "park"

        report(place)
        place.edit_group({"replicas": 2})
        await asyncio.sleep(SURVEYED_S)
        assert len(place.pods.of("orders")) == 2
        assert place.conditions()["KeysParked"] == ("False", "NoKeysParked")
        assert place.conditions()["Ready"][0] == "True"


@in_virtual_time
async def test_consumers_that_nobody_scales_are_waited_for() -> None:
    async with Place() as place:
        await place.ready(replicas=0)
        place.broker.members_of = lambda group: [{"index": 0}]
        edit_app(place, whenExhausted="Park")
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Provisioned"] == ("False", "MembersEnding")
        assert "also those that this object does not run" in place.message("Provisioned")
        assert "Stalled" not in place.conditions()
        place.broker.members_of = lambda group: ()
        await asyncio.sleep(SURVEYED_S)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert has_parking(place)


@in_virtual_time
async def test_pods_that_have_not_joined_yet_are_waited_for() -> None:
    async with Place() as place:
        place.pods.has_members = False
        await place.ready()
        edit_app(place, whenExhausted="Park")
        await asyncio.sleep(SURVEYED_S)
        assert place.conditions()["Provisioned"] == ("False", "MembersRunning")
        assert not has_parking(place)


@in_virtual_time
async def test_a_pod_that_was_evicted_is_not_waited_for() -> None:
    async with Place() as place:
        await place.ready()
        (pod, _) = place.pods.of("orders")
        place.pods.has_members = False
        place.edit_group({"replicas": 0})
        await asyncio.sleep(SETTLED_S)
        place.cluster.put({**pod, "status": {"phase": "Failed", "reason": "Evicted"}})
        edit_app(place, whenExhausted="Park")
        await asyncio.sleep(SURVEYED_S)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert "ParkingEnabled" in place.reasons()


@in_virtual_time
async def test_an_operator_that_was_killed_while_it_made_the_queue_completes_it() -> None:
    async with Place() as place:
        await place.ready(replicas=0)
        await place.stop()
        claim = Claim(place.broker.owners[NAME])
        *made, last = plan_parking(NAME, await place.broker.observe(NAME), claim=claim)
        assert isinstance(last, WriteRecord)
        for action in made:
            await place.broker.perform(action)
        await place.start()
        await asyncio.sleep(SURVEYED_S)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned"), "the manifest has no Park"
        edit_app(place, whenExhausted="Park")
        await asyncio.sleep(SETTLED_S)
        assert has_parking(place)
        assert exhausted(place) == "park"


@in_virtual_time
async def test_a_failed_record_leaves_the_group_as_it_was_and_is_written_again() -> None:
    async with Place() as place:
        await place.ready(replicas=0)
        place.broker.fail_on = lambda action: (
            Unreachable("the connection was lost")
            if isinstance(action, WriteRecord) and action.record.has_parking
            else None
        )
        edit_app(place, whenExhausted="Park")
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Provisioned"] == ("False", "ProvisioningFailed")
        assert NAMES.parking not in place.broker.queues
        assert exhausted(place) == "block"
        place.broker.fail_on = lambda action: None
        await asyncio.sleep(LATER_S)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert has_parking(place)


@in_virtual_time
async def test_an_operator_that_starts_while_the_broker_is_away_changes_no_pod() -> None:
    async with Place() as place:
        await place.ready(consumer=park())
        before = place.running()
        place.broker.is_down = True
        await place.restart()
        await asyncio.sleep(SURVEYED_S)
        assert place.running() == before
        assert place.conditions()["KeysParked"] == ("Unknown", "ParkedKeysUnknown")


@in_virtual_time
async def test_a_group_whose_record_is_lost_gets_its_parking_queue_again() -> None:
    async with Place() as place:
        await place.ready(consumer=park())
        place.broker.members_of = lambda group: ()  # consumers that park do not run without the queue
        for objects in (
            place.broker.queues,
            place.broker.exchanges,
            place.broker.records,
            place.broker.parking,
        ):
            objects.clear()
        place.broker.bindings.clear()
        await asyncio.sleep(SURVEYED_S)
        assert has_parking(place)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@in_virtual_time
async def test_the_queue_stays_when_keys_are_not_to_be_parked_any_more() -> None:
    async with Place() as place:
        report(place)
        await place.ready(consumer=park())
        edit_app(place, whenExhausted="Block")
        await asyncio.sleep(SURVEYED_S)
        assert exhausted(place) == "block"
        assert has_parking(place)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert place.conditions()["KeysParked"] == ("False", "NoKeysParked")
        assert "keeps its parking queue" in place.message("KeysParked")
        await place.restart()
        edit_app(place, whenExhausted="Park")
        await asyncio.sleep(SURVEYED_S)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert exhausted(place) == "park"


@pytest.mark.parametrize("field", ["order", "republish"])
@in_virtual_time
async def test_what_members_with_a_parking_queue_cannot_do_is_refused_while_they_run(field: str) -> None:
    async with Place() as place:
        await place.ready(consumer=park())
        edit_app(place, whenExhausted="Block")
        await asyncio.sleep(SETTLED_S)
        template = place.seen(DEPLOYMENT)["spec"]["template"]
        change = {"app": {"order": "Queue"}} if field == "order" else {"sidecar": {"republish": True}}
        place.edit_group({"consumer": change})
        await place.restart()
        await asyncio.sleep(SURVEYED_S)
        assert place.conditions()["Accepted"] == ("False", "Invalid")
        assert field in place.message("Accepted")
        assert place.seen(DEPLOYMENT)["spec"]["template"] == template


@pytest.mark.parametrize(
    ("engine", "outcome"),
    [
        (Engine(EMBEDDED, (0, 1, 0)), ("False", "Unsupported")),
        (Engine(RABBITMQ, (4, 0, 5)), ("True", "Provisioned")),
    ],
    ids=str,
)
@in_virtual_time
async def test_a_mode_without_parking_is_refused_with_the_reason(
    engine: Engine, outcome: tuple[str, str]
) -> None:
    async with Place() as place:
        place.broker.engine = engine
        await place.ready(mode="Partitioned", consumer=park())
        assert place.conditions()["Provisioned"] == outcome
        assert has_parking(place) == place.has(DEPLOYMENT) == (outcome[0] == "True")
        if outcome[0] == "False":
            assert "moves a partition to a consumer that is active already" in place.message("Provisioned")
            assert place.conditions()["Stalled"] == ("True", "NeedsAChange")
            assert "Unsupported" in place.reasons()
            edit_app(place, whenExhausted="Block")
            await asyncio.sleep(SETTLED_S)
            assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@in_virtual_time
async def test_a_running_group_of_such_a_mode_is_not_asked_to_stop() -> None:
    async with Place() as place:
        await place.ready(mode="Partitioned")
        edit_app(place, whenExhausted="Park")
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Provisioned"] == ("False", "Unsupported")
        assert exhausted(place) == "block"


@in_virtual_time
async def test_a_deleted_group_waits_for_its_parked_messages() -> None:
    async with Place() as place:
        await place.ready(consumer=park(), drainTimeoutSeconds=100)
        park_messages(place, 3)
        place.delete_group()
        await asyncio.sleep(50)
        (waits,) = (one for one in place.events if one.reason == "DeletionWaits")
        assert f"{NAMES.parking} has 3 messages" in waits.message
        assert place.has(GROUP)
        await asyncio.sleep(100)
        assert not place.has(GROUP)
        assert NAMES.parking not in place.broker.queues


# The condition


@in_virtual_time
async def test_parked_keys_are_a_condition_and_an_event_until_they_are_released() -> None:
    async with Place() as place:
        await place.ready(consumer=park())
        joined = place.broker.members_of
        park_messages(place, 12)
        report(place, keys=2, messages=12)
        await asyncio.sleep(SURVEYED_S)
        assert place.conditions()["KeysParked"] == ("True", "AwaitingRelease")
        message = place.message("KeysParked")
        assert message.startswith("2 parked keys with 12 messages: ")
        assert f"`lbg park list {NAME}`" in message
        assert place.conditions()["Degraded"] == ("False", "AsExpected")

        place.broker.members_of = joined
        report(place, keys=1000, messages=5000, is_full=True)
        await asyncio.sleep(SURVEYED_S)
        assert place.conditions()["KeysParked"] == ("True", "ParkingFull")
        assert "consumer.app.parking" in place.message("KeysParked")

        place.broker.members_of = joined
        report(place)
        park_messages(place, 1)  # of a crash: no key is parked for it
        await asyncio.sleep(SURVEYED_S)
        assert place.conditions()["KeysParked"] == ("False", "NoKeysParked")
        events = [(one.type, one.reason) for one in place.events if one.message.startswith("KeysParked")]
        assert events == [
            ("Warning", "AwaitingRelease"),
            ("Warning", "ParkingFull"),
            ("Normal", "NoKeysParked"),
        ]


@in_virtual_time
async def test_without_members_the_parking_queue_shows_that_keys_are_parked() -> None:
    async with Place() as place:
        await place.ready(consumer=park(), replicas=0)
        park_messages(place, 12)
        await asyncio.sleep(SURVEYED_S)
        assert place.conditions()["KeysParked"] == ("True", "AwaitingRelease")
        assert place.message("KeysParked").startswith("12 messages in the parking queue")


@in_virtual_time
async def test_members_that_do_not_follow_parked_keys_are_named() -> None:
    async with Place() as place:
        await place.ready(consumer=park())
        await asyncio.sleep(SURVEYED_S)
        assert place.conditions()["Degraded"] == ("True", "RepairNeeded")
        assert "would deliver messages of parked keys" in place.message("Degraded")
        (pod, _) = place.pods.of("orders")
        assert pod["metadata"]["name"] in place.message("Degraded")
