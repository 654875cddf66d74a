"""Times of status writes and events, and changes that the watches missed."""

from __future__ import annotations

import asyncio
from typing import Any

from lbg_operator.kube.kinds import BUDGET, CONFIG_MAP, DEPLOYMENT, GROUP, NETWORK_POLICY, POD, SECRET, Kind
from lbg_operator.runtime.watches import missed, take
from testing.operator.operated import ORDERS, Place
from testing.virtual_time import in_virtual_time

LONG_S = 120.0


@in_virtual_time
async def test_transitions_are_written_at_once_and_numbers_at_most_every_two_seconds() -> None:
    async with Place() as place:
        await place.ready()
        await asyncio.sleep(LONG_S)
        statuses = place.cluster.changed.count(("merge", "LoadBalancedGroup", "orders"))
        for more in range(60):
            place.broker.waiting["lbg.shop-orders.q.0"] = more
            place.cluster.edit(DEPLOYMENT, "shop", "orders", {"status": {"observedGeneration": more}})
            await asyncio.sleep(1)
        assert place.cluster.changed.count(("merge", "LoadBalancedGroup", "orders")) - statuses <= 31
        place.pods.has_members = False
        place.cluster.edit(DEPLOYMENT, "shop", "orders", {"status": {"observedGeneration": 61}})
        await asyncio.sleep(4)
        assert place.conditions()["Ready"] == ("False", "NoMembers")
        assert place.status()["queues"][0]["status"] == "Unbound"


@in_virtual_time
async def test_events_are_for_news_only_however_late_the_watches_tell() -> None:
    async with Place(delay_s=3.0) as place:
        await place.ready()
        await asyncio.sleep(LONG_S)
        assert place.reasons() == ["Provisioned", "Served"]
        assert place.reasons("main") == ["Reachable"]


@in_virtual_time
async def test_no_conflict_comes_of_watches_that_tell_late() -> None:
    async with Place(delay_s=3.0) as place:
        conflicts: list[str] = []
        merge = place.cluster.merge

        async def noted(*args: Any, **kwargs: Any) -> Any:
            try:
                return await merge(*args, **kwargs)
            except Exception as error:
                conflicts.append(str(error))
                raise

        place.cluster.merge = noted
        await place.ready()
        await asyncio.sleep(LONG_S)
        place.delete_group()
        await asyncio.sleep(LONG_S)
        assert not place.has(GROUP)
        assert conflicts == []
        assert place.reasons().count("Deleted") == 1


@in_virtual_time
async def test_no_status_is_written_onto_an_object_that_changed_since_it_was_seen() -> None:
    async with Place() as place:
        await place.ready()
        await asyncio.sleep(LONG_S)
        place.is_mute = True
        place.edit_group({"replicas": 5})
        before = place.status()
        place.pods.has_members = False
        await asyncio.sleep(LONG_S)
        assert place.status() == before
        place.is_mute = False
        place.edit_group({"replicas": 6})
        await asyncio.sleep(LONG_S)
        assert place.status()["observedGeneration"] == place.seen(GROUP)["metadata"]["generation"] == 3


@in_virtual_time
async def test_a_group_that_went_unheard_is_forgotten_when_its_status_cannot_be_written() -> None:
    async with Place() as place:
        await place.ready()
        assert place.operator is not None
        place.is_mute = True
        place.cluster.edit(GROUP, *ORDERS, {"metadata": {"finalizers": None}})
        place.delete_group()
        await asyncio.sleep(LONG_S)
        assert place.operator.world.store.get(GROUP, ORDERS) is None
        assert place.operator.world.surveys.latest(ORDERS) is None
        assert not place.has(DEPLOYMENT)


@in_virtual_time
async def test_a_list_shows_what_the_watches_missed() -> None:
    async with Place() as place:
        await place.ready()
        assert place.operator is not None
        store = place.operator.world.store
        assert await missed(place.cluster, store, ()) == []
        place.is_mute = True
        pod = place.pods.of("orders")[0]["metadata"]["name"]
        place.cluster.take_away(POD, "shop", pod)
        place.cluster.edit(GROUP, *ORDERS, {"metadata": {"finalizers": None}})
        place.delete_group()
        found = await missed(place.cluster, store, ())
        assert {GROUP, POD, DEPLOYMENT, CONFIG_MAP, SECRET, BUDGET, NETWORK_POLICY} == {
            kind for kind, _ in found
        }
        for kind, seen in found:
            take(store, kind, seen, is_gone=True)
        assert store.get(GROUP, ORDERS) is None
        assert not store.pods(ORDERS)
        assert await missed(place.cluster, store, ("shop", "alley")) == []


@in_virtual_time
async def test_what_comes_while_everything_is_listed_is_not_missed() -> None:
    async with Place() as place:
        await place.ready()
        assert place.operator is not None
        store, select = place.operator.world.store, place.cluster.select

        async def slow(kind: Kind, namespace: str | None, selector: str) -> Any:
            found = await select(kind, namespace, selector)
            if kind is GROUP:
                place.apply_group("late")
            await asyncio.sleep(1)
            return found

        place.cluster.select = slow
        assert await missed(place.cluster, store, ()) == []
