"""A manifest that asks for another number of queues: said, with the command for it, and taken when it was run."""

from __future__ import annotations

import asyncio

from lbg_broker.admin.actions import DeclareQueue
from lbg_broker.group import GroupSpec, marked, recounted, topology_of
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
