"""`spec.queues.max`: more queues where more consumers are wanted than there are queues, and nobody writes the spec."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lbg_core.admin.actions import Action, ActOnQueue, PutFence
from lbg_core.admin.errors import Refused
from lbg_core.admin.snapshot import MovingKeys, PartitionsStatus
from lbg_core.group import Engine, GroupSpec, Names, recounted, topology_of
from lbg_operator.kube.kinds import AUTOSCALER, CONFIG_MAP, DEPLOYMENT, GROUP, POD
from testing.admin.fake_admin import EMBEDDED_ENGINE
from testing.operator.operated import BEGAN, MOVING_S, ORDERS, SETTLED_S, Place
from testing.virtual_time import in_virtual_time

BROKER_GROUP = "shop-orders"
PARENT = Names(BROKER_GROUP).parent
LATER_S = 700.0
"""A time by which a failed step was retried, and a survey has seen what changed."""
ELASTIC: dict[str, Any] = {
    "mode": "Partitioned",
    "queues": {"count": 8, "max": 32},
    "scaling": {"maxReplicas": 24, "targetLag": 100},
}
SEPARATE = [("Exclusive", EMBEDDED_ENGINE), ("Partitioned", Engine.parse("RabbitMQ", "4.1.0"))]


def partitions(place: Place) -> int:
    arguments = place.broker.queues[PARENT].arguments
    assert isinstance(arguments, Mapping)
    return int(str(arguments["x-partition-count"]))


def recorded(place: Place) -> GroupSpec:
    return GroupSpec.from_record(place.broker.records[BROKER_GROUP], name=BROKER_GROUP)


def changes(place: Place) -> list[int]:
    """Numbers of partitions to which the queue was changed, in order."""
    return [
        int(str(action.arguments["count"]))
        for action in place.broker.performed
        if isinstance(action, ActOnQueue) and action.action == "repartition"
    ]


def consumers(place: Place) -> int:
    return int(place.seen(DEPLOYMENT)["spec"]["replicas"])


def queues(place: Place) -> tuple[int, int, int, int]:
    """In the broker's queue, its record, the status and the publishers' ConfigMap."""
    shared = place.seen(CONFIG_MAP, "orders-lbg")["data"]["queue-count"]
    return partitions(place), recorded(place).queue_count, place.status()["queueCount"], int(shared)


def separate_queues(place: Place) -> tuple[int, int, int]:
    """In the group's record, the status and the publishers' ConfigMap."""
    shared = place.seen(CONFIG_MAP, "orders-lbg")["data"]["queue-count"]
    return recorded(place).queue_count, place.status()["queueCount"], int(shared)


def is_numbered(queue: str) -> bool:
    return Names(BROKER_GROUP).number_of(queue) is not None


async def fences_are_passed(place: Place) -> None:
    """Those that are in the queues, and later ones at once."""
    place.broker.passes_fences = True
    for fence in [one for one in place.broker.performed if isinstance(one, PutFence)]:
        await place.broker.perform(fence)


def keys_move(place: Place, *, to: int | None) -> None:
    """The broker moves keys to so many partitions; None: no more."""
    moving = None if to is None else MovingKeys(to, 24, 5, 0)
    place.broker.moving_keys = moving
    status = place.broker.queues[PARENT]
    assert isinstance(status.native, PartitionsStatus)
    place.broker.queues[PARENT] = replace(status, native=replace(status.native, moving_keys=moving))


async def autoscaler_wants(place: Place, replicas: int, *, after_s: float = SETTLED_S) -> None:
    """It writes `replicas` by the subresource scale."""
    place.edit_group({"replicas": replicas})
    await asyncio.sleep(after_s)


@in_virtual_time
async def test_more_consumers_than_queues_double_the_queues_and_the_spec_stays() -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        assert place.seen(AUTOSCALER)["spec"]["maxReplicas"] == 24
        assert place.message("QueuesScaled") == (
            "8 queues for 2 consumers; the number may rise to 32 (queues.max)"
        )
        template = place.seen(DEPLOYMENT)["spec"]["template"]
        await autoscaler_wants(place, 9)
        assert queues(place) == (16, 16, 16, 16)
        assert consumers(place) == 9
        assert len(place.pods.of("orders")) == 9
        assert place.seen(GROUP)["spec"]["queues"]["count"] == 8
        assert place.operator is not None
        assert place.operator.world.group(place.seen(GROUP)).spec.queue_count == 16, (
            "of which the lag is counted"
        )
        assert place.seen(DEPLOYMENT)["spec"]["template"] == template, "no pod is replaced for it"
        (told,) = (one for one in place.events if one.reason == "QueuesRaised")
        assert (told.type, told.message) == (
            "Normal",
            "the number of queues is raised from 8 to 16, as 9 consumers are wanted; it may be 32 (queues.max)",
        )
        assert place.conditions()["QueuesScaled"] == ("True", "QueuesRaised")
        assert place.message("QueuesScaled").startswith(
            "16 queues instead of 8 (queues.count), as more consumers"
        )
        (change,) = (one for one in place.broker.performed if isinstance(one, ActOnQueue))
        assert change.arguments["max_length_bytes"] == 16 * 1_000_000_000, (
            "the limit of all partitions rises with them"
        )


@pytest.mark.parametrize(
    ("count", "most", "wanted", "there"), [(8, 12, 12, 12), (3, 24, 13, 24), (8, 32, 8, 8)]
)
@in_virtual_time
async def test_the_number_is_doubled_as_often_as_needed_and_never_beyond_max(
    count: int, most: int, wanted: int, there: int
) -> None:
    async with Place() as place:
        await place.ready(mode="Partitioned", queues={"count": count, "max": most})
        await autoscaler_wants(place, wanted)
        assert queues(place) == (there,) * 4
        assert consumers(place) == wanted
        assert len(changes(place)) == (there != count)


@in_virtual_time
async def test_a_group_without_max_keeps_its_number() -> None:
    async with Place() as place:
        await place.ready(mode="Partitioned")
        await autoscaler_wants(place, 12)
        assert (queues(place), consumers(place)) == ((8,) * 4, 8)
        assert "QueuesScaled" not in place.conditions()


@in_virtual_time
async def test_the_next_change_waits_until_no_key_moves() -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        place.broker.moving_keys = MovingKeys(16, 24, 5, 0)
        await autoscaler_wants(place, 12)
        assert queues(place) == (16,) * 4
        assert place.conditions()["Provisioned"] == ("True", "Repartitioning")
        await autoscaler_wants(place, 20, after_s=LATER_S)
        assert (queues(place), consumers(place)) == ((16,) * 4, 16)
        assert place.conditions()["QueuesScaled"] == ("Unknown", "QueuesRaising")
        assert place.message("QueuesScaled").startswith(
            "20 consumers are wanted, and there are 16 queues; they become 32 when the keys of the previous change"
        )
        keys_move(place, to=None)
        await asyncio.sleep(LATER_S)
        assert (queues(place), consumers(place), changes(place)) == ((32,) * 4, 20, [16, 32])
        assert place.conditions()["QueuesScaled"] == ("True", "QueuesRaised")


@in_virtual_time
async def test_a_change_that_no_survey_has_shown_yet_is_not_followed_by_another() -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        place.broker.is_deaf = True  # surveys fail from now on
        place.broker.moving_keys = MovingKeys(16, 24, 5, 0)
        await autoscaler_wants(place, 12)
        await autoscaler_wants(place, 20)
        assert changes(place) == [16]


@in_virtual_time
async def test_fewer_consumers_leave_the_number_and_a_lower_max_lowers_it() -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        await autoscaler_wants(place, 12)
        await autoscaler_wants(place, 1, after_s=LATER_S)
        assert (queues(place), consumers(place)) == ((16,) * 4, 1)
        place.edit_group({"scaling": {"maxReplicas": 12}, "queues": {"max": 12}})
        await asyncio.sleep(SETTLED_S)
        assert queues(place) == (12,) * 4
        without_max = {"scaling": {"maxReplicas": 8}, "queues": {"max": None}}
        place.cluster.edit(GROUP, *ORDERS, {"spec": without_max})
        await asyncio.sleep(SETTLED_S)
        assert queues(place) == (8,) * 4
        assert changes(place) == [16, 12, 8]


@in_virtual_time
async def test_the_user_s_number_is_the_least_and_does_not_wait() -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        place.broker.moving_keys = MovingKeys(16, 24, 5, 0)
        await autoscaler_wants(place, 12)
        place.edit_group({"queues": {"count": 12}})
        await asyncio.sleep(SETTLED_S)
        assert queues(place) == (16,) * 4, "the present number is enough"
        place.edit_group({"queues": {"count": 20}})
        await asyncio.sleep(SETTLED_S)
        assert queues(place) == (20,) * 4
        assert place.reasons().count("QueuesRaised") == 1
        assert place.message("QueuesScaled").startswith("20 queues for 12 consumers")


@in_virtual_time
async def test_an_operator_that_starts_again_finds_the_raised_number_in_the_record() -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        await autoscaler_wants(place, 12)
        await place.restart()
        await asyncio.sleep(LATER_S)
        assert (queues(place), changes(place)) == ((16,) * 4, [16])
        await place.stop()
        place.cluster.edit(GROUP, *ORDERS, {"status": {"queueCount": None}})  # from a backup
        await place.start()
        await asyncio.sleep(LATER_S)
        assert (queues(place), consumers(place), changes(place)) == ((16,) * 4, 12, [16])
        assert place.reasons().count("QueuesRaised") == 1


@in_virtual_time
async def test_no_consumer_goes_while_an_operator_that_starts_again_has_no_broker() -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        await autoscaler_wants(place, 12)
        await place.stop()
        place.broker.is_down = True
        await place.start()
        await asyncio.sleep(LATER_S)
        assert (consumers(place), place.status()["queueCount"]) == (12, 16)
        assert len(place.pods.of("orders")) == 12


@in_virtual_time
async def test_a_raise_that_was_cut_off_before_the_record_is_made_again() -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        await place.stop()
        place.edit_group({"replicas": 12})
        asked = {"count": 16, "discard": False, "max_length_bytes": 16_000_000_000}
        await place.broker.perform(ActOnQueue(PARENT, "repartition", asked))
        await place.start()
        await asyncio.sleep(LATER_S)
        assert (queues(place), consumers(place)) == ((16,) * 4, 12)


@in_virtual_time
async def test_a_raise_that_was_cut_off_before_the_status_is_taken_from_the_record() -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        await autoscaler_wants(place, 12)
        await place.stop()
        place.cluster.edit(GROUP, *ORDERS, {"status": {"queueCount": 8}})
        await autoscaler_wants(place, 2)
        await place.start()
        await asyncio.sleep(LATER_S)
        assert (queues(place), changes(place)) == ((16,) * 4, [16])


@pytest.mark.parametrize("is_status_old", [True, False])
@in_virtual_time
async def test_a_group_with_a_raised_number_is_deleted_completely(is_status_old: bool) -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        await autoscaler_wants(place, 12)
        await place.stop()
        if is_status_old:
            place.cluster.edit(GROUP, *ORDERS, {"status": {"queueCount": 8}})
        place.delete_group()
        await place.start()
        await asyncio.sleep(LATER_S)
        assert place.broker.holds_nothing()
        assert place.last_words().startswith("queues and user of shop-orders are deleted")


@in_virtual_time
async def test_a_group_is_created_with_as_many_queues_as_its_consumers_need() -> None:
    async with Place() as place:
        await place.ready(mode="Partitioned", queues={"count": 8, "max": 32}, replicas=12)
        assert (queues(place), consumers(place)) == ((16,) * 4, 12)
        assert max(place.pods.replicas_seen) == 12
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@pytest.mark.long
@in_virtual_time
async def test_a_schedule_alone_raises_the_number_ahead_of_the_load() -> None:
    async with Place() as place:
        begins, ends = (
            (BEGAN + timedelta(seconds=one)).strftime("%Y-%m-%dT%H:%M:%SZ") for one in (100, 5000)
        )
        entry = {"minReplicas": 12, "from": begins, "until": ends}
        await place.ready(
            **{**ELASTIC, "scaling": {"minReplicas": 2, "maxReplicas": 24, "schedule": [entry]}}
        )
        assert queues(place) == (8,) * 4
        await asyncio.sleep(110)
        assert (queues(place), consumers(place)) == ((16,) * 4, 12)
        await asyncio.sleep(6000)
        assert (queues(place), consumers(place)) == ((16,) * 4, 2)


@pytest.mark.long
@pytest.mark.parametrize(("mode", "engine"), SEPARATE)
@in_virtual_time
async def test_separate_queues_are_raised_and_consumers_follow_when_the_keys_have_moved(
    mode: str, engine: Engine
) -> None:
    async with Place() as place:
        place.broker.engine = engine
        await place.ready(**{**ELASTIC, "mode": mode})
        place.broker.passes_fences = False
        await autoscaler_wants(place, 12, after_s=MOVING_S)
        assert separate_queues(place) == (8, 8, 8)
        assert consumers(place) == 8
        assert place.conditions()["Provisioned"] == ("True", "Repartitioning")
        assert place.conditions()["QueuesScaled"] == ("Unknown", "QueuesRaising")
        assert place.message("QueuesScaled").startswith(
            "12 consumers are wanted, and there are 8 queues; they become 16: 64 hashes move"
        )
        await fences_are_passed(place)
        await asyncio.sleep(LATER_S)
        assert separate_queues(place) == (16, 16, 16)
        assert consumers(place) == 12
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert place.conditions()["QueuesScaled"] == ("True", "QueuesRaised")
        assert place.seen(GROUP)["spec"]["queues"]["count"] == 8
        assert [one.message.split(",")[0] for one in place.events if one.reason == "QueuesRaised"] == [
            "the number of queues is raised from 8 to 16",
            "QueuesScaled is True: 16 queues instead of 8 (queues.count)",
        ]
        topology = topology_of(recorded(place), engine, place.broker.publishers[BROKER_GROUP])
        assert {one.name for one in topology.queues} == set(place.broker.queues)
        assert set(topology.bindings) == place.broker.bindings


@pytest.mark.parametrize("limits", [{"count": 8, "max": 32}, {"count": 8}])
@in_virtual_time
async def test_what_a_change_has_left_is_removed_and_never_asks_for_a_repair(limits: dict[str, int]) -> None:
    """Also by a new operator, after one that was killed before its last step."""
    async with Place() as place:
        await place.ready(mode="Exclusive", queues=limits)
        await place.stop()
        names = Names(BROKER_GROUP)
        place.broker.queues[names.moves] = place.broker.queues[names.queue(0)]
        await place.start()
        await asyncio.sleep(LATER_S)
        assert names.moves not in place.broker.queues
        assert "RepairNeeded" not in place.reasons()
        assert place.conditions()["Degraded"] == ("False", "AsExpected")
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert recorded(place).queue_count == 8


@pytest.mark.long
@pytest.mark.parametrize("then", [1, 24])
@in_virtual_time
async def test_a_new_operator_ends_a_raise_of_separate_queues_before_the_next_one(then: int) -> None:
    async with Place() as place:
        await place.ready(**{**ELASTIC, "mode": "Exclusive"})
        place.broker.passes_fences = False
        await autoscaler_wants(place, 12, after_s=MOVING_S)
        await place.stop()
        moves = [place.broker.key_move[BROKER_GROUP]]
        await autoscaler_wants(place, then)
        await place.start()
        await asyncio.sleep(MOVING_S)
        assert [place.broker.key_move[BROKER_GROUP]] == moves
        await fences_are_passed(place)
        await asyncio.sleep(LATER_S)
        there = 16 if then == 1 else 32
        assert separate_queues(place) == (there,) * 3
        assert consumers(place) == then
        assert not place.broker.key_move[BROKER_GROUP]
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@pytest.mark.long
@in_virtual_time
async def test_a_lower_max_is_followed_when_the_raise_of_separate_queues_is_over() -> None:
    async with Place() as place:
        await place.ready(**{**ELASTIC, "mode": "Exclusive"})
        place.broker.passes_fences = False
        await autoscaler_wants(place, 12, after_s=MOVING_S)
        place.edit_group({"scaling": {"maxReplicas": 8}, "replicas": 8, "queues": {"max": 10}})
        await fences_are_passed(place)
        await asyncio.sleep(LATER_S)
        assert separate_queues(place) == (10, 10, 10)
        assert len([one for one in place.broker.queues if is_numbered(one)]) == 10


@in_virtual_time
async def test_another_owner_s_separate_queues_keep_their_number() -> None:
    async with Place() as place:
        await place.ready(**{**ELASTIC, "mode": "Exclusive"})
        place.broker.owners[BROKER_GROUP] = "by-hand"
        await autoscaler_wants(place, 12)
        assert recorded(place).queue_count == 8
        assert not place.broker.key_move[BROKER_GROUP]
        assert place.conditions()["Provisioned"] == ("False", "NotOwned")


@pytest.mark.parametrize(("by_hand", "there"), [(12, 12), (40, 32)])
@in_virtual_time
async def test_a_number_by_hand_stays_within_the_limits(by_hand: int, there: int) -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        spec = recounted(recorded(place), by_hand)
        asked = {"count": by_hand, "discard": False, "max_length_bytes": spec.queue_size_bytes * by_hand}
        await place.broker.perform(ActOnQueue(PARENT, "repartition", asked))
        place.broker.records[BROKER_GROUP] = spec.to_record()
        await asyncio.sleep(LATER_S)
        assert queues(place) == (there,) * 4


@in_virtual_time
async def test_a_broker_that_is_away_is_waited_for_and_consumers_stay_within_the_queues() -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        place.broker.is_down = True
        await asyncio.sleep(100)
        await autoscaler_wants(place, 12)
        assert consumers(place) == 8
        assert place.conditions()["QueuesScaled"] == ("Unknown", "QueuesRaising")
        assert place.message("QueuesScaled").endswith("they become 16 when this is possible, see Provisioned")
        place.broker.is_down = False
        await asyncio.sleep(LATER_S)
        assert (queues(place), consumers(place)) == ((16,) * 4, 12)


@in_virtual_time
async def test_a_broker_that_refuses_the_change_is_reported_and_the_group_goes_on() -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)

        def refuse(action: Action) -> Exception | None:
            is_change = isinstance(action, ActOnQueue) and action.action == "repartition"
            return Refused("not permitted", status=403) if is_change else None

        place.broker.fail_on = refuse
        await autoscaler_wants(place, 12)
        assert place.conditions()["Provisioned"] == ("False", "BrokerDenies")
        assert "not permitted" in place.message("Provisioned")
        assert (queues(place), consumers(place)) == ((8,) * 4, 8)
        place.broker.fail_on = lambda action: None
        await asyncio.sleep(LATER_S)
        assert (queues(place), consumers(place)) == ((16,) * 4, 12)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@in_virtual_time
async def test_another_owner_s_group_keeps_its_number() -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        place.broker.owners[BROKER_GROUP] = "by-hand"
        await autoscaler_wants(place, 12)
        assert (partitions(place), recorded(place).queue_count) == (8, 8)
        assert place.conditions()["Provisioned"] == ("False", "NotOwned")


@in_virtual_time
async def test_at_rest_a_group_with_a_raised_number_costs_no_request() -> None:
    async with Place() as place:
        await place.ready(**ELASTIC)
        await autoscaler_wants(place, 12)
        await asyncio.sleep(100)
        place.cluster.changed.clear()
        performed = copy.copy(place.broker.performed)
        await asyncio.sleep(200)
        assert place.broker.performed == performed
        assert [one for one in place.cluster.changed if one[1] not in (POD.kind, GROUP.kind)] == []
