"""A namespace that is being deleted: nothing is created there, one request tells so, and all that is in it goes."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from lbg_operator.kube.api import Terminating
from lbg_operator.kube.kinds import BROKER, EVENT, GROUP, STATEFUL_SET, VOLUME_CLAIM, Kind
from lbg_operator.reconcile.ending_namespaces import OBJECTS_MAX, EndingNamespaces
from lbg_operator.reconcile.object_cache import Key, ObjectCache
from testing.kubernetes.manifests import broker_manifest, group_manifest
from testing.operator.operated import MAIN, ORDERS, SETTLED_S, Place
from testing.virtual_time import in_virtual_time

PAYMENTS = Key("shop", "payments")


def end_namespace(place: Place, refused: list[str]) -> None:
    """From now on the API server creates nothing there. `refused`: what was tried all the same."""

    def fail(verb: str, kind: Kind, name: str) -> None:
        is_new = verb == "create" or (verb == "apply" and (kind, "shop", name) not in place.cluster.objects)
        if is_new and kind is not EVENT:
            refused.append(f"{kind.kind} {name}")
            raise Terminating(f"{verb} {kind.kind} {name}", "namespace shop is being terminated", status=403)

    place.cluster.fail = fail


def take_contents(place: Place, *left: Kind) -> None:
    """As the namespace's controller does: everything, in any order, and at last its custom resources."""
    for kind, namespace, name in list(place.cluster.objects):
        if kind not in left and (kind, namespace, name) in place.cluster.objects:
            place.cluster.take_away(kind, namespace, name)


async def begun(place: Place) -> None:
    """An embedded broker, and two groups on it."""
    place.broker.password = None
    place.cluster.put(broker_manifest({"embedded": {}}))
    await place.start()
    await asyncio.sleep(SETTLED_S)
    place.apply_group()
    place.apply_group("payments")
    await asyncio.sleep(SETTLED_S)
    assert place.conditions()["Ready"] == ("True", "Served")


@in_virtual_time
async def test_one_request_is_refused_and_no_condition_is_about_the_cluster() -> None:
    async with Place() as place:
        await begun(place)
        refused: list[str] = []
        events = len(place.events)
        end_namespace(place, refused)
        take_contents(place, GROUP, BROKER)
        await asyncio.sleep(300)
        assert len(refused) <= 1, refused
        for key, kind in ((MAIN, BROKER), (ORDERS, GROUP), (PAYMENTS, GROUP)):
            status, reason = place.conditions(key, kind)["Degraded"]
            assert (status, reason) not in {("True", "VolumeRefused"), ("True", "ClusterRefuses")}
        assert [one.message for one in place.events[events:] if "terminated" in one.message] == []


@pytest.mark.parametrize("is_begun_anew", [False, True])
@in_virtual_time
async def test_groups_and_brokers_of_a_namespace_that_ends_are_deleted(is_begun_anew: bool) -> None:
    async with Place() as place:
        await begun(place)
        refused: list[str] = []
        end_namespace(place, refused)
        take_contents(place, GROUP, BROKER)
        await asyncio.sleep(SETTLED_S)
        if is_begun_anew:
            await place.restart()
            await asyncio.sleep(SETTLED_S)
        take_contents(place)
        await asyncio.sleep(60)
        assert not any(place.has(GROUP, name) for name in ("orders", "payments"))
        assert len(refused) <= 1 + is_begun_anew


@in_virtual_time
async def test_a_namespace_that_is_made_anew_is_served_at_once() -> None:
    async with Place() as place:
        await begun(place)
        refused: list[str] = []
        end_namespace(place, refused)
        take_contents(place, GROUP, BROKER)
        await asyncio.sleep(SETTLED_S)
        take_contents(place, BROKER)
        await asyncio.sleep(60)
        take_contents(place)
        place.cluster.fail = lambda verb, kind, name: None
        broker = broker_manifest({"embedded": {}})
        place.cluster.put(broker | {"metadata": broker["metadata"] | {"uid": "made-anew"}})
        place.apply_group()
        await asyncio.sleep(2 * SETTLED_S)
        assert place.has(STATEFUL_SET, "main")
        assert place.has(VOLUME_CLAIM, "main-lbg-data")
        assert place.conditions()["Ready"] == ("True", "Served")


def test_what_is_known_of_namespaces_that_ended_is_bounded() -> None:
    ending = EndingNamespaces(ObjectCache())
    for number in range(OBJECTS_MAX + 1):
        ending.add("shop", f"uid-{number}")
    assert not ending.has("uid-0")
    assert ending.has(f"uid-{OBJECTS_MAX}")


def test_one_refusal_covers_the_groups_and_brokers_of_its_namespace_alone() -> None:
    store, uids = ObjectCache(), itertools.count()
    for kind, manifest in ((GROUP, group_manifest), (BROKER, broker_manifest)):
        for namespace in ("shop", "alley"):
            one = manifest(name="orders", namespace=namespace)
            store.put(kind, one | {"metadata": one["metadata"] | {"uid": f"uid-{next(uids)}"}})
    ending = EndingNamespaces(store)
    ending.add("shop")
    assert ending.covers(ORDERS)
    assert not ending.covers(Key("alley", "orders"))
    assert not ending.covers(Key("shop", "nothing"))
