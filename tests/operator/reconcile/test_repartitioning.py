"""A manifest that asks for another number of queues: said, with the command for it, and taken when it was run. Another
number of partitions is begun."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from lbg_broker.admin.actions import ActOnQueue, DeclareQueue
from lbg_broker.admin.snapshot import MovingKeys, PartitionsStatus
from lbg_broker.group import GroupSpec, Names, marked, recounted, topology_of
from support.operator.operated import SETTLED_S, Place
from support.virtual_time import in_virtual_time

GROUP = "shop-orders"
LATER_S = 700.0
"""A time by which a failed step was retried."""


def recorded(place: Place) -> GroupSpec:
    return GroupSpec.from_record(place.broker.records[GROUP], name=GROUP)


async def repartition(place: Place, count: int) -> None:
    """State that `lbg group repartition` leaves."""
    spec = recounted(recorded(place), count)
    topology = topology_of(spec, place.broker.engine)
    for queue in topology.queues:
        if queue.name not in place.broker.queues:
            await place.broker.perform(DeclareQueue(queue))
    place.broker.bindings = set(topology.bindings)
    place.broker.records[GROUP] = spec.to_record()


@in_virtual_time
async def test_another_number_of_queues_is_said_with_the_command_and_taken_once_it_was_run() -> None:
    async with Place() as place:
        await place.ready()
        spec = recorded(place)
        place.edit_group({"queues": {"count": 12}})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Provisioned"] == ("False", "GroupDiffers")
        said = place.message("Provisioned")
        assert f"queue_count: {spec.queue_count} -> 12" in said
        assert f"`lbg group repartition {GROUP} --queues 12`" in said
        place.broker.records[GROUP] = marked(spec, 12)  # under way
        await asyncio.sleep(LATER_S)
        assert place.conditions()["Provisioned"] == ("False", "GroupDiffers")
        assert recorded(place) == spec
        await repartition(place, 12)
        await asyncio.sleep(LATER_S)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert f"lbg.{GROUP}.q.11" in place.broker.queues


@in_virtual_time
async def test_a_number_that_was_changed_on_the_broker_alone_is_said_and_not_changed_back() -> None:
    async with Place() as place:
        await place.ready()
        await repartition(place, 12)
        await asyncio.sleep(LATER_S)
        assert place.conditions()["Provisioned"] == ("False", "GroupDiffers")
        assert recorded(place).queue_count == 12
        place.edit_group({"queues": {"count": 12}})
        await asyncio.sleep(LATER_S)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")


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
