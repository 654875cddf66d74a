"""Fewer consumers: who goes first, and when nobody goes."""

from __future__ import annotations

import asyncio
from typing import Any

from lbg_operator.kube.api import ClusterError
from lbg_operator.kube.kinds import DEPLOYMENT, POD, Kind
from lbg_operator.reconcile.object_cache import Key
from testing.operator.operated import SETTLED_S, Place
from testing.virtual_time import in_virtual_time

COPY = Key("shop", "copy")


@in_virtual_time
async def test_pods_that_serve_the_fewest_queues_go_first() -> None:
    async with Place() as place:
        await place.ready(queues={"count": 3}, replicas=3)
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
        await place.ready(queues={"count": 4}, replicas=4)
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
        await place.ready(replicas=3)
        place.broker.is_deaf = True
        place.edit_group({"replicas": 1})
        await asyncio.sleep(50)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 3
        await asyncio.sleep(60)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 1


@in_virtual_time
async def test_scaling_out_asks_nobody() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.is_deaf = True
        place.edit_group({"replicas": 5})
        await asyncio.sleep(1)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 5


@in_virtual_time
async def test_replicas_never_pass_the_queues() -> None:
    async with Place() as place:
        await place.ready(queues={"count": 4})
        place.edit_group({"replicas": 40})
        await asyncio.sleep(SETTLED_S)
        assert max(place.pods.replicas_seen) == 4


@in_virtual_time
async def test_costs_that_cannot_be_written_are_tried_again_before_anybody_goes() -> None:
    async with Place() as place:
        await place.ready(replicas=3)

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
        await place.ready()
        for most in (4, 2, 8):
            place.edit_group({"scaling": {"maxReplicas": most, "targetLag": 100}, "replicas": 8})
            await asyncio.sleep(SETTLED_S)
            assert place.seen(DEPLOYMENT)["spec"]["replicas"] == most
            await place.restart()
            await asyncio.sleep(SETTLED_S)
            assert place.conditions()["Provisioned"] == ("True", "Provisioned")
