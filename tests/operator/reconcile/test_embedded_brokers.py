"""A broker that the operator runs: its objects, its administrator, its certificate."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from datetime import timedelta
from typing import Any

import pytest

from lbg_operator.kube.api import ClusterError, Forbidden, Invalid
from lbg_operator.kube.kinds import BROKER, GROUP, SECRET, SERVICE, STATEFUL_SET, VOLUME_CLAIM, Kind
from lbg_operator.reconcile.broker import CERTIFICATE_DAYS
from lbg_operator.resources.names import admin_name, tls_name, volume_name
from testing.kubernetes.manifests import broker_manifest
from testing.operator.operated import MAIN, SETTLED_S, Place
from testing.virtual_time import in_virtual_time


async def begun(place: Place, **embedded: Any) -> None:
    place.broker.password = None
    place.cluster.put(broker_manifest({"embedded": embedded}))
    await place.start()
    await asyncio.sleep(SETTLED_S)


def secret(place: Place, name: str, key: str) -> str:
    return b64decode(place.seen(SECRET, name)["data"][key]).decode()


@in_virtual_time
async def test_a_broker_comes_with_a_volume_a_service_a_login_and_a_certificate() -> None:
    async with Place() as place:
        await begun(place)
        assert place.has(STATEFUL_SET, "main")
        assert place.has(SERVICE, "main")
        assert place.has(VOLUME_CLAIM, volume_name("main"))
        (access, *_) = place.broker.accesses
        assert access.password == secret(place, admin_name("main"), "password")
        assert access.ca == secret(place, tls_name("main"), "ca.crt")
        assert all(uri.startswith("amqps://") for uri in access.uris)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("True", "Reachable")
        order = [kind for verb, kind, _ in place.cluster.written if verb == "apply"]
        assert order.index("Secret") < order.index("StatefulSet")


@in_virtual_time
async def test_a_restart_of_the_operator_changes_nothing() -> None:
    async with Place() as place:
        await begun(place)
        changed, events = len(place.cluster.changed), len(place.events)
        await place.restart()
        await asyncio.sleep(120)
        assert place.cluster.changed[changed:] == []
        assert place.events[events:] == []
        assert len(set(place.broker.accesses)) == 1


@in_virtual_time
async def test_a_certificate_is_renewed_before_it_ends_and_its_authority_stays() -> None:
    async with Place() as place:
        await begun(place)
        certificate = secret(place, tls_name("main"), "tls.crt")
        authority = secret(place, tls_name("main"), "ca.crt")
        await place.stop()
        await asyncio.sleep(timedelta(days=CERTIFICATE_DAYS - 5).total_seconds())
        await place.start()
        await asyncio.sleep(SETTLED_S)
        assert secret(place, tls_name("main"), "tls.crt") != certificate
        assert secret(place, tls_name("main"), "ca.crt") == authority


@in_virtual_time
async def test_a_pod_that_is_not_ready_yet_is_starting_and_one_that_was_ready_is_not_reached() -> None:
    async with Place() as place:
        place.broker.is_down = True
        await begun(place)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("False", "Starting")
        place.cluster.edit(STATEFUL_SET, *MAIN, {"status": {"readyReplicas": 1}})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("Unknown", "NotReached")
        place.broker.is_down = False
        await asyncio.sleep(SETTLED_S)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("True", "Reachable")


@in_virtual_time
async def test_a_certificate_of_the_people_has_to_be_there() -> None:
    async with Place() as place:
        await begun(place, tlsSecretName="ours")
        assert place.conditions(MAIN, BROKER)["Ready"] == ("False", "SecretMissing")
        assert not place.has(SECRET, tls_name("main"))


@in_virtual_time
async def test_drift_of_a_broker_is_repaired() -> None:
    async with Place() as place:
        await begun(place)
        place.cluster.edit(STATEFUL_SET, *MAIN, {"spec": {"replicas": 3}})
        place.cluster.take_away(SERVICE, "shop", "main")
        await asyncio.sleep(SETTLED_S)
        assert place.seen(STATEFUL_SET, "main")["spec"]["replicas"] == 1
        assert place.has(SERVICE, "main")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (SECRET, admin_name("main")),
        (SECRET, tls_name("main")),
        (VOLUME_CLAIM, volume_name("main")),
        (SERVICE, "main"),
        (STATEFUL_SET, "main"),
    ],
)
@in_virtual_time
async def test_what_somebody_deletes_of_a_broker_is_back_at_once(kind: Kind, name: str) -> None:
    async with Place() as place:
        await begun(place)
        place.cluster.take_away(kind, "shop", name)
        await asyncio.sleep(1)
        assert place.has(kind, name)


@pytest.mark.parametrize(
    ("kind", "error", "condition", "expected"),
    [
        (STATEFUL_SET, Invalid, "Accepted", ("False", "Invalid")),
        (STATEFUL_SET, Forbidden, "Degraded", ("True", "ClusterRefuses")),
        (SECRET, Forbidden, "Degraded", ("True", "ClusterRefuses")),
        (VOLUME_CLAIM, Forbidden, "Degraded", ("True", "VolumeRefused")),
    ],
)
@in_virtual_time
async def test_what_the_cluster_refuses_is_shown(
    kind: Kind, error: type[ClusterError], condition: str, expected: tuple[str, str]
) -> None:
    async with Place() as place:

        def refuse(verb: str, about: Kind, name: str) -> None:
            if (verb, about) == ("apply", kind):
                raise error(f"patch {kind.kind}", "exceeded quota", status=403)

        place.cluster.fail = refuse
        await begun(place)
        assert place.conditions(MAIN, BROKER)[condition] == expected
        place.cluster.fail = lambda verb, about, name: None
        await asyncio.sleep(90)
        assert place.conditions(MAIN, BROKER)["Degraded"] == ("False", "AsExpected")
        assert place.conditions(MAIN, BROKER)["Ready"] == ("True", "Reachable")


@in_virtual_time
async def test_a_broker_that_is_deleted_leaves_its_volume_and_takes_what_runs() -> None:
    async with Place() as place:
        await begun(place)
        place.apply_group()
        await asyncio.sleep(SETTLED_S)
        place.cluster.take_away(BROKER, *MAIN)
        await asyncio.sleep(SETTLED_S)
        assert not place.has(STATEFUL_SET, "main")
        assert place.has(VOLUME_CLAIM, volume_name("main"))
        assert place.conditions()["Accepted"] == ("False", "BrokerNotFound")
        assert place.has(GROUP)


@in_virtual_time
async def test_a_broker_whose_manifest_was_spoilt_is_not_ready_and_its_groups_run_on() -> None:
    async with Place() as place:
        await begun(place)
        place.apply_group()
        await asyncio.sleep(SETTLED_S)
        pods = place.pods.of("orders")
        place.cluster.edit(BROKER, *MAIN, {"spec": {"embedded": {"storage": {"size": "many"}}}})
        await asyncio.sleep(60)
        assert place.conditions(MAIN, BROKER)["Accepted"] == ("False", "Invalid")
        assert place.conditions()["Accepted"] == ("True", "Accepted")
        assert place.conditions()["Provisioned"] == ("Unknown", "BrokerNotReady")
        assert place.pods.of("orders") == pods
        place.cluster.edit(BROKER, *MAIN, {"spec": {"embedded": {"storage": {"size": "10Gi"}}}})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Ready"] == ("True", "Served")
