"""A broker that the operator cannot use: no consumer is touched for that. Manifests and Secrets alone say what a child
looks like."""

from __future__ import annotations

import asyncio
from typing import Any

from lbg_operator.children.naming import admin_name
from lbg_operator.cluster.kinds import BROKER, DEPLOYMENT, SECRET, STATEFUL_SET
from support.child_history import ChildHistory
from support.manifests import broker_manifest
from support.operated import MAIN, Place
from support.operated_sessions import SessionsBroker, sessions_place
from support.virtual_time import in_virtual_time

SESSIONS = {"mode": "Sessions", "queues": {"count": 1}}
CAFILE = "LBG_CAFILE"


async def begun(place: Place, **spec: Any) -> ChildHistory:
    """An embedded broker and group orders, which has settled."""
    history = ChildHistory(place.cluster)
    place.broker.password = None
    place.cluster.put(broker_manifest())
    await place.start()
    await asyncio.sleep(2)
    place.apply_group(**spec)
    await asyncio.sleep(50)
    assert place.conditions()["Provisioned"] == ("True", "Provisioned")
    history.begin()
    return history


def the_broker_s_pod_is(place: Place, *, ready: bool) -> None:
    place.broker.is_down = not ready
    place.cluster.edit(STATEFUL_SET, *MAIN, {"status": {"readyReplicas": int(ready)}})


def sidecar(place: Place, kind: Any = DEPLOYMENT, name: str = "orders") -> dict[str, str]:
    """Its variables."""
    pod = place.seen(kind, name)["spec"]["template"]["spec"]
    (told,) = (one for one in pod["initContainers"] if one["name"] == "lbg-sidecar")
    return {one["name"]: one.get("value", "") for one in told["env"]}


@in_virtual_time
async def test_two_seconds_without_a_broker_replace_no_consumer_of_a_session() -> None:
    place, broker = sessions_place()
    async with place:
        history = await begun(place, **SESSIONS)
        assert CAFILE in sidecar(place, STATEFUL_SET, "orders-lbg")
        pods = broker.pods.all().keys()
        for _ in range(3):
            the_broker_s_pod_is(place, ready=False)
            await asyncio.sleep(2)
            the_broker_s_pod_is(place, ready=True)
            await asyncio.sleep(20)
        assert history.changed() == {}
        assert broker.pods.gone == history.deleted_pods == []
        assert broker.pods.all().keys() == pods


@in_virtual_time
async def test_a_wrong_administrator_s_password_deletes_no_consumer() -> None:
    place, broker = sessions_place()
    assert isinstance(broker, SessionsBroker)
    async with place:
        history = await begun(place, **SESSIONS)
        right = place.broker.accesses[-1].password
        broker.password = right
        secret = place.seen(SECRET, admin_name("main"))
        place.cluster.edit(SECRET, "shop", admin_name("main"), {"data": {"password": "d3Jvbmc="}})
        await asyncio.sleep(47)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("False", "LoginRefused")
        assert history.changed() == {}
        place.cluster.edit(SECRET, "shop", admin_name("main"), {"data": secret["data"]})
        await asyncio.sleep(47)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("True", "Reachable")
        assert history.changed() == {}
        assert history.deleted_pods == broker.pods.gone == []


@in_virtual_time
async def test_a_broker_that_restarts_makes_no_second_replica_set() -> None:
    async with Place() as place:
        history = await begun(place)
        generation = place.seen(DEPLOYMENT)["metadata"]["generation"]
        for _ in range(3):
            the_broker_s_pod_is(place, ready=False)
            await asyncio.sleep(15)
            the_broker_s_pod_is(place, ready=True)
            await asyncio.sleep(40)
        assert history.changed() == {}
        assert place.seen(DEPLOYMENT)["metadata"]["generation"] == generation
