"""Upgrades under a running operator: of the CRDs, and of the operator itself."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace

from lbg_operator.kube.kinds import DEPLOYMENT, GROUP
from testing.operator.operated import ORDERS, SETTLED_S, Operator, Place
from testing.virtual_time import in_virtual_time

TEN_MINUTES_S = 600.0


def serve_by_another_crd(place: Place, *, without: str = "", **defaults: object) -> None:
    """As the API server reads stored objects with another schema: a field is pruned, another one has its default, and
    version and generation stay. It ends the watches, which begin again from a list."""
    served = copy.deepcopy(place.cluster.objects[GROUP, *ORDERS])
    served["spec"].pop(without, None)
    served["spec"].update(defaults)
    place.cluster.objects[GROUP, *ORDERS] = served
    for watcher in place.cluster.watchers:
        watcher(GROUP, copy.deepcopy(served), False)


@in_virtual_time
async def test_a_field_that_the_crd_gains_counts_for_stored_objects_and_one_that_it_loses_stops_nothing() -> (
    None
):
    async with Place() as place:
        await place.ready()
        drain_s = place.seen(GROUP)["spec"]["drainTimeoutSeconds"]
        running = place.running()
        serve_by_another_crd(place, without="drainTimeoutSeconds")
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Accepted"] == ("False", "Invalid")
        assert "CRDs are older than this operator" in place.message("Accepted")
        assert place.running() == running
        serve_by_another_crd(place, drainTimeoutSeconds=drain_s, ofALaterVersion=5)
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Ready"] == ("True", "Served")
        assert place.running() == running
        assert place.seen(GROUP)["metadata"]["generation"] == 1


@in_virtual_time
async def test_two_operators_do_the_work_of_one_for_ten_minutes() -> None:
    async with Place() as place:
        await place.ready()
        await asyncio.sleep(TEN_MINUTES_S)
        other = Operator(place)
        await other.start()
        try:
            await asyncio.sleep(SETTLED_S)
            before, events = len(place.cluster.changed), len(place.events)
            place.edit_group({"replicas": 3})
            place.cluster.take_away(DEPLOYMENT, *ORDERS)
            await asyncio.sleep(TEN_MINUTES_S)
            assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 3
            assert place.conditions()["Ready"] == ("True", "Served")
            assert len(place.cluster.changed) - before < 10
            assert [one.reason for one in place.events[events:] if one.type == "Warning"] == []
            place.delete_group()
            await asyncio.sleep(TEN_MINUTES_S)
            assert not place.has(GROUP)
            assert not any(queue.startswith("lbg.shop-orders") for queue in place.broker.queues)
            assert place.operator is not None
            assert (place.operator.failures, other.failures) == ([], [])
        finally:
            await other.close()


@in_virtual_time
async def test_two_operators_of_two_versions_revert_each_other_at_most_once_a_minute_and_say_so() -> None:
    async with Place() as place:
        await place.ready()
        place.settings = replace(place.settings, sidecar_image="lbg-sidecar:2")
        other = Operator(place)
        await other.start()
        try:
            await asyncio.sleep(TEN_MINUTES_S)
            assert place.cluster.changed.count(("apply", "Deployment", "orders")) < 60
            assert any("somebody else has changed it" in one.message for one in place.events)
        finally:
            await other.close()
        await asyncio.sleep(TEN_MINUTES_S)
        assert place.conditions()["Degraded"] == ("False", "AsExpected")
