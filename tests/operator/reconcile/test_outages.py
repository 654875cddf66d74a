"""A broker that the operator cannot use: no consumer is touched for that. Manifests and Secrets alone say what a child
looks like."""

from __future__ import annotations

import asyncio
from typing import Any

from lbg_operator.kube.api import ClusterError
from lbg_operator.kube.kinds import (
    API_SERVICE,
    AUTOSCALER,
    BROKER,
    CONFIG_MAP,
    DEPLOYMENT,
    SCALED_OBJECT,
    SECRET,
    STATEFUL_SET,
    Kind,
)
from lbg_operator.resources.names import admin_name, credentials_name
from testing.kubernetes.child_history import ChildHistory
from testing.kubernetes.manifests import broker_manifest, consumer
from testing.operator.operated import MAIN, SETTLED_S, Place
from testing.operator.operated_sessions import SessionsBroker, sessions_place
from testing.virtual_time import in_virtual_time

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


def image_of(place: Place) -> str:
    return str(place.seen(DEPLOYMENT)["spec"]["template"]["spec"]["containers"][0]["image"])


def another_image(place: Place) -> None:
    pod = {"spec": {"containers": [{"name": "app", "image": "example.org/app:2"}]}}
    place.edit_group({"consumer": consumer(template=pod)})


def sidecar(place: Place, kind: Kind = DEPLOYMENT, name: str = "orders") -> dict[str, str]:
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


@in_virtual_time
async def test_a_changed_manifest_is_followed_while_the_broker_is_away_also_by_a_new_operator() -> None:
    for restarts in (False, True):
        async with Place() as place:
            history = await begun(place)
            the_broker_s_pod_is(place, ready=False)
            if restarts:
                await place.restart()
            await asyncio.sleep(60)
            another_image(place)
            await asyncio.sleep(SETTLED_S)
            assert image_of(place) == "example.org/app:2"
            assert CAFILE in sidecar(place)
            assert history.changed().keys() == {("Deployment", "shop", "orders")}


@in_virtual_time
async def test_what_has_no_trace_in_the_cluster_waits_until_its_broker_was_tried() -> None:
    async with Place() as place:
        await begun(place)
        await place.stop()
        another_image(place)
        place.cluster.take_away(CONFIG_MAP, "shop", "orders-lbg")
        place.broker.check_takes_s = 15.0
        await place.start()
        await asyncio.sleep(5)
        assert image_of(place) == "example.org/app:1", "nothing says that the group was ever on the broker"
        place.apply_group("payments")
        await asyncio.sleep(5)
        assert not place.has(DEPLOYMENT, "payments")
        await asyncio.sleep(20)
        assert image_of(place) == "example.org/app:2"
        assert place.has(DEPLOYMENT, "payments")


@in_virtual_time
async def test_a_group_that_is_not_on_its_broker_yet_has_no_consumer_whoever_is_restarted() -> None:
    async with Place() as place:
        await begun(place)
        the_broker_s_pod_is(place, ready=False)
        await asyncio.sleep(SETTLED_S)
        place.apply_group("payments")
        await asyncio.sleep(SETTLED_S)
        await place.restart()
        await asyncio.sleep(60)
        assert not place.has(DEPLOYMENT, "payments")
        assert not place.has(CONFIG_MAP, "payments-lbg")
        the_broker_s_pod_is(place, ready=True)
        await asyncio.sleep(SETTLED_S)
        assert CAFILE in sidecar(place, name="payments")


@in_virtual_time
async def test_a_group_that_is_made_again_during_an_outage_does_not_take_the_former_one_s_word() -> None:
    """The garbage collector is slower than the operator: the former group's objects are there still."""
    async with Place() as place:
        await begun(place, deletionPolicy="Retain")
        the_broker_s_pod_is(place, ready=False)
        await asyncio.sleep(SETTLED_S)
        left = [place.seen(CONFIG_MAP, "orders-lbg"), place.seen(SECRET, "orders-lbg")]
        place.delete_group()
        await asyncio.sleep(SETTLED_S)
        for one in left:
            place.cluster.put(one)
        place.apply_group()
        await asyncio.sleep(SETTLED_S)
        assert not place.has(DEPLOYMENT)


@in_virtual_time
async def test_consumers_wait_for_the_secret_of_an_authority_that_their_broker_was_given() -> None:
    async with Place() as place:
        await place.ready()
        assert CAFILE not in sidecar(place)
        place.cluster.edit(BROKER, *MAIN, {"spec": {"rabbitmq": {"caSecretName": "authority"}}})
        await asyncio.sleep(60)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("False", "SecretMissing")
        assert CAFILE not in sidecar(place)
        place.broker.is_down = True
        place.give_secret("authority", **{"ca.crt": "PEM"})
        await asyncio.sleep(60)
        assert CAFILE not in sidecar(place), "the group's Secret has no ca.crt yet"
        place.broker.is_down = False
        await asyncio.sleep(60)
        assert CAFILE in sidecar(place)
        place.broker.is_down = True
        place.cluster.edit(BROKER, *MAIN, {"spec": {"rabbitmq": {"caSecretName": None}}})
        await asyncio.sleep(60)
        assert CAFILE in sidecar(place), "nobody has reached the broker without that authority"
        place.broker.is_down = False
        await asyncio.sleep(60)
        assert CAFILE not in sidecar(place)


@in_virtual_time
async def test_a_group_s_secret_that_is_deleted_or_changed_during_an_outage_touches_no_consumer() -> None:
    async with Place() as place:
        history = await begun(place)
        secret = ("Secret", "shop", "orders-lbg")
        the_broker_s_pod_is(place, ready=False)
        await asyncio.sleep(SETTLED_S)
        place.cluster.edit(SECRET, "shop", credentials_name("orders"), {"data": {"ca.crt": None}})
        await asyncio.sleep(60)
        place.cluster.take_away(SECRET, "shop", credentials_name("orders"))
        await asyncio.sleep(60)
        assert history.changed().keys() == {secret}
        the_broker_s_pod_is(place, ready=True)
        await asyncio.sleep(SETTLED_S)
        assert history.changed().keys() == {secret}
        assert "ca.crt" in place.seen(SECRET, "orders-lbg")["data"]


@in_virtual_time
async def test_what_is_deleted_during_an_outage_is_back_although_the_operator_is_a_new_one() -> None:
    async with Place() as place:
        await begun(place)
        the_broker_s_pod_is(place, ready=False)
        template = place.seen(DEPLOYMENT)["spec"]["template"]
        await place.restart()
        place.cluster.take_away(DEPLOYMENT, "shop", "orders")
        await asyncio.sleep(SETTLED_S)
        assert place.seen(DEPLOYMENT)["spec"]["template"] == template


@in_virtual_time
async def test_a_broker_s_certificate_that_is_missing_for_a_while_touches_no_consumer() -> None:
    async with Place() as place:
        history = await begun(place)
        made = place.seen(SECRET, "main-lbg-tls")
        place.cluster.put(made | {"metadata": {"name": "named", "namespace": "shop"}})
        place.cluster.edit(BROKER, *MAIN, {"spec": {"embedded": {"tlsSecretName": "named"}}})
        await asyncio.sleep(60)
        place.cluster.take_away(SECRET, "shop", "named")
        await asyncio.sleep(60)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("False", "SecretMissing")
        place.cluster.put(made | {"metadata": {"name": "named", "namespace": "shop"}})
        await asyncio.sleep(60)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("True", "Reachable")
        assert history.changed() == {}


@in_virtual_time
async def test_autoscalers_stay_as_they_are_while_nobody_knows_who_provides_metrics() -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 4, "targetLag": 100}
    for kind, served in ((AUTOSCALER, set[str]()), (SCALED_OBJECT, {"keda.sh/v1alpha1"})):
        async with Place() as place:
            place.cluster.served = served
            history = await begun(place, scaling=scaling)
            assert place.has(kind)

            def refuse(verb: str, about: Kind, name: str) -> None:
                if about is API_SERVICE:
                    raise ClusterError("get APIService", "connection refused")

            await place.stop()
            place.cluster.fail = refuse
            await place.start()
            await asyncio.sleep(60)
            assert history.changed() == {}
            place.cluster.fail = lambda verb, about, name: None
            assert place.operator is not None
            await place.operator.world.autoscaling.try_refresh()
            place.operator.wake_groups()
            await asyncio.sleep(SETTLED_S)
            assert history.changed() == {}
            assert place.conditions()["ScalingActive"][1] != "NotAsked"
