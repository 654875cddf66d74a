"""A manifest that asks for another number of queues or partitions: the change is begun, and gone on with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from lbg_core.admin.actions import ActOnQueue, DeleteQueue, PutFence, Unbind
from lbg_core.admin.errors import Refused
from lbg_core.admin.snapshot import MovingKeys, PartitionsStatus
from lbg_core.group import GroupSpec, Names, marked, topology_of
from lbg_operator.kube.kinds import GROUP as GROUP_KIND
from testing.operator.operated import MOVING_S, ORDERS, SETTLED_S, Place
from testing.virtual_time import in_virtual_time

GROUP = "shop-orders"
LATER_S = 700.0
"""A time by which a failed step was retried."""


def recorded(place: Place) -> GroupSpec:
    return GroupSpec.from_record(place.broker.records[GROUP], name=GROUP)


@in_virtual_time
async def test_members_that_do_not_take_part_are_named_by_a_reason_of_its_own_and_nothing_is_changed() -> (
    None
):
    async with Place() as place:
        await place.ready()
        before = recorded(place).queue_count
        about = {
            "index": 0,
            "name": "m0",
            "incarnation": "a",
            "rebalance": "Ready",
            "counts": {},
            "queues": [],
        }
        place.broker.joins, place.broker.beats = False, [about]
        place.edit_group({"queues": {"count": 12}})
        for _ in range(100):
            await asyncio.sleep(1.0)
            if place.conditions()["Provisioned"] == ("False", "MembersNotJoined"):
                break
        assert place.conditions()["Provisioned"] == ("False", "MembersNotJoined")
        assert "nothing is changed: m0" in place.message("Provisioned")
        assert recorded(place).queue_count == before
        place.broker.joins, place.broker.beats = True, []
        await asyncio.sleep(LATER_S)
        require_nothing_left(place, queues=12)


def is_forwarding(action: Unbind) -> bool:
    return any(one.exchange == Names(GROUP).members for one in action.bindings)


async def fences_are_passed(place: Place) -> None:
    """Those that are in the queues, and later ones at once."""
    place.broker.passes_fences = True
    for fence in [one for one in place.broker.performed if isinstance(one, PutFence)]:
        await place.broker.perform(fence)


def require_nothing_left(place: Place, *, queues: int) -> None:
    assert (recorded(place).queue_count, place.broker.key_move[GROUP]) == (queues, "")
    topology = topology_of(recorded(place), place.broker.engine, place.broker.publishers[GROUP])
    assert {one.name for one in topology.queues} == set(place.broker.queues)
    assert set(topology.bindings) == place.broker.bindings
    assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@in_virtual_time
async def test_another_number_of_queues_is_begun_and_gone_on_with_until_it_is_there() -> None:
    async with Place() as place:
        await place.ready()
        before = recorded(place).queue_count
        place.edit_group({"queues": {"count": 12}})
        await asyncio.sleep(LATER_S)
        assert before != 12
        assert recorded(place).queue_count == 12
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert "Repartitioning" in place.reasons()
        topology = topology_of(recorded(place), place.broker.engine, place.broker.publishers[GROUP])
        assert {one.name for one in topology.queues} == set(place.broker.queues)
        assert set(topology.bindings) == place.broker.bindings


@pytest.mark.long
@in_virtual_time
async def test_a_new_operator_goes_on_with_a_change_that_is_shown_meanwhile() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.passes_fences = False
        place.edit_group({"queues": {"count": 12}})
        await asyncio.sleep(MOVING_S)
        assert recorded(place).queue_count != 12
        assert place.broker.key_move[GROUP]
        assert place.conditions()["Provisioned"] == ("True", "Repartitioning")
        place.broker.passes_fences = True
        await place.restart()
        await asyncio.sleep(LATER_S)
        assert recorded(place).queue_count == 12
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@in_virtual_time
async def test_a_new_operator_removes_what_a_change_has_left_that_is_recorded_already() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.fail_on = lambda action: (
            Refused("killed before", status=0)
            if action == DeleteQueue(Names(GROUP).moves)
            or (isinstance(action, Unbind) and is_forwarding(action))
            else None
        )
        place.edit_group({"queues": {"count": 12}})
        await asyncio.sleep(SETTLED_S)
        assert (recorded(place).queue_count, place.broker.key_move[GROUP]) == (12, "")
        assert Names(GROUP).moves in place.broker.queues
        await place.stop()
        place.broker.fail_on = lambda action: None
        await place.start()
        await asyncio.sleep(LATER_S)
        require_nothing_left(place, queues=12)


@pytest.mark.parametrize("restarts", [False, True])
@in_virtual_time
async def test_a_group_that_is_deleted_while_its_keys_move_leaves_nothing(restarts: bool) -> None:
    """Its record has the former number, and its manifest the new one."""
    async with Place() as place:
        await place.ready()
        place.broker.passes_fences = False
        place.edit_group({"queues": {"count": 12}})
        await asyncio.sleep(MOVING_S)
        assert place.broker.key_move[GROUP]
        if restarts:
            await place.stop()
        place.delete_group()
        if restarts:
            await place.start()
        await asyncio.sleep(LATER_S)
        assert place.broker.holds_nothing()
        assert place.last_words().startswith("queues and user of shop-orders are deleted")


@pytest.mark.long
@pytest.mark.parametrize("restarts", [False, True])
@in_virtual_time
async def test_a_change_is_finished_and_reverted_when_the_number_is_set_back_meanwhile(
    restarts: bool,
) -> None:
    async with Place() as place:
        await place.ready()
        before = recorded(place).queue_count
        place.broker.passes_fences = False
        place.edit_group({"queues": {"count": 12}})
        await asyncio.sleep(MOVING_S)
        assert place.broker.key_move[GROUP]
        place.edit_group({"queues": {"count": before}})
        if restarts:
            await place.restart()
        await asyncio.sleep(MOVING_S)
        assert place.broker.key_move[GROUP]
        await fences_are_passed(place)
        await asyncio.sleep(LATER_S)
        require_nothing_left(place, queues=before)


@pytest.mark.long
@pytest.mark.parametrize("restarts", [False, True])
@in_virtual_time
async def test_a_raise_is_finished_and_reverted_when_its_permission_goes_meanwhile(restarts: bool) -> None:
    async with Place() as place:
        await place.ready(queues={"count": 8, "max": 32}, scaling={"maxReplicas": 24, "targetLag": 100})
        place.broker.passes_fences = False
        place.edit_group({"replicas": 12})
        await asyncio.sleep(MOVING_S)
        assert place.broker.key_move[GROUP].startswith("8-16-")
        without_max = {"replicas": 8, "scaling": {"maxReplicas": 8}, "queues": {"max": None}}
        place.cluster.edit(GROUP_KIND, *ORDERS, {"spec": without_max})
        if restarts:
            await place.restart()
        await asyncio.sleep(MOVING_S)
        await fences_are_passed(place)
        await asyncio.sleep(LATER_S)
        require_nothing_left(place, queues=8)


@in_virtual_time
async def test_a_manifest_that_changed_while_no_operator_ran_does_not_unsettle_the_group() -> None:
    """The broker can be read: it was not read yet."""
    async with Place() as place:
        await place.ready()
        await place.stop()
        place.edit_group({"queues": {"count": 12}})
        await place.start()
        await asyncio.sleep(LATER_S)
        assert recorded(place).queue_count == 12
        assert "NotObserved" not in place.reasons()
        assert place.status()["observedGeneration"] == place.seen(GROUP_KIND)["metadata"]["generation"]


@in_virtual_time
async def test_a_change_with_publishers_locked_out_is_left_to_the_command() -> None:
    async with Place() as place:
        await place.ready()
        spec = recorded(place)
        place.broker.records[GROUP] = marked(spec, 12)
        place.edit_group({"queues": {"count": 12}})
        await asyncio.sleep(LATER_S)
        assert place.conditions()["Provisioned"] == ("False", "GroupDiffers")
        assert recorded(place) == spec


def partitions(place: Place) -> object:
    arguments = place.broker.queues[Names(GROUP).parent].arguments
    assert isinstance(arguments, Mapping)
    return arguments["x-partition-count"]


@in_virtual_time
async def test_another_number_of_partitions_is_begun_and_shown_until_no_key_moves() -> None:
    async with Place() as place:
        await place.ready(mode="Partitioned")
        place.broker.moving_keys = MovingKeys(12, 24, 5, 0)
        place.edit_group({"queues": {"count": 12}})
        await asyncio.sleep(SETTLED_S)
        assert partitions(place) == recorded(place).queue_count == 12
        assert place.conditions()["Provisioned"] == ("True", "Repartitioning")
        assert place.message("Provisioned").startswith(
            "24 hashes move when their earlier messages are processed"
        )
        assert "Repartitioning" in place.reasons()
        parent = Names(GROUP).parent
        status = place.broker.queues[parent]
        assert isinstance(status.native, PartitionsStatus)
        place.broker.queues[parent] = replace(status, native=replace(status.native, moving_keys=None))
        await asyncio.sleep(LATER_S)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@in_virtual_time
async def test_a_change_of_partitions_that_was_cut_off_before_the_record_is_finished() -> None:
    async with Place() as place:
        await place.ready(mode="Partitioned")
        told = {"count": 12, "discard": False, "max_length_bytes": 12_000_000_000}
        await place.broker.perform(ActOnQueue(Names(GROUP).parent, "repartition", told))
        place.edit_group({"queues": {"count": 12}})
        await asyncio.sleep(SETTLED_S)
        assert recorded(place).queue_count == 12
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@in_virtual_time
async def test_partitions_do_not_change_with_another_attribute() -> None:
    async with Place() as place:
        await place.ready(mode="Partitioned")
        before = partitions(place)
        place.broker.records[GROUP] = recorded(place).altered(hash_count=240).to_record()
        place.edit_group({"queues": {"count": 12}})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Provisioned"] == ("False", "GroupDiffers")
        assert partitions(place) == before
