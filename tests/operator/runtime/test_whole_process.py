"""`lbg operator run` as it is started in a pod: kopf's watches on an API server, a broker, and SIGTERM."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lbg_core.admin.parked_messages import open_parked_stream, release_parked
from lbg_core.client import ConnectionSettings
from lbg_core.publisher import GroupPublisher
from lbg_operator.kube.api import ClusterError
from lbg_operator.kube.kinds import BROKER, DEPLOYMENT, GROUP, SECRET, Kind
from lbg_operator.resources.sidecar_injection import CREDENTIALS, SIDECAR
from lbg_operator.runtime.watches import SELECTORS
from lbg_sidecar import Member, Message, Verdict, retry
from lbg_sidecar.process.settings import configure
from testing.broker.embedded import PASSWORD, USER, EmbeddedBroker
from testing.kubernetes.fake_cluster import FakeCluster
from testing.kubernetes.manifests import broker_manifest, consumer, group_manifest
from testing.kubernetes.served_cluster import ServedCluster
from testing.operator.process import OperatorProcess
from testing.waiting import GUARD_S

KUBERNETES_S = 30.0
"""terminationGracePeriodSeconds, where a pod says nothing else (kubernetes.io, "Pod Lifecycle")."""


@pytest.fixture
async def place(process: None, tmp_path: Path) -> AsyncIterator[OperatorProcess]:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        async with ServedCluster(FakeCluster()) as served:
            place = OperatorProcess(served, broker, tmp_path)
            manifest = broker_manifest(
                {
                    "rabbitmq": {
                        "uris": [f"amqp://127.0.0.1:{broker.port}"],
                        "managementURIs": [f"http://127.0.0.1:{broker.management_port}"],
                        "adminSecretName": "admin",
                    }
                }
            )
            place.cluster.put(manifest)
            place.cluster.put(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": "admin", "namespace": "shop"},
                    "data": {
                        "username": b64encode(USER.encode()).decode(),
                        "password": b64encode(PASSWORD.encode()).decode(),
                    },
                }
            )
            try:
                yield place
            finally:
                place.kill()


async def test_the_operator_lists_watches_follows_and_ends(place: OperatorProcess) -> None:
    place.apply_group("first")
    held = place.served.withheld[SECRET.plural] = asyncio.Event()
    place.start()
    await place.until(lambda: place.condition("first", "Provisioned") == "True", "the group that was there")
    assert place.has_children("first")
    await place.until(
        lambda: all(place.served.watching[kind.plural] for kind in SELECTORS if kind is not SECRET),
        "all kinds but one are watched",
    )
    assert (await place.get("/healthz"))[0] == 200
    status, why = await place.get("/readyz")
    assert (status, "/api/v1/secrets" in why) == (503, True), why
    held.set()
    await place.watches()
    await place.ready()

    place.apply_group("second")
    await place.until(lambda: place.condition("second", "Provisioned") == "True", "the group that came")
    place.cluster.take_away(DEPLOYMENT, "shop", "second")
    await place.until(lambda: (DEPLOYMENT, "shop", "second") in place.cluster.objects, "drift is repaired")
    place.cluster.take_away(GROUP, "shop", "second")
    await place.until(lambda: (GROUP, "shop", "second") not in place.cluster.objects, "the group that went")

    place.served.cut_watches()
    place.apply_group("third")
    await place.until(lambda: place.condition("third", "Provisioned") == "True", "after broken watches")
    await place.watches()

    place.served.forgets = True
    place.served.cut_watches()
    place.apply_group("fourth")
    await place.until(lambda: place.condition("fourth", "Provisioned") == "True", "after watches from anew")

    status, text = await place.get("/metrics")
    judged = await asyncio.to_thread(
        subprocess.run,
        ["promtool", "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        timeout=GUARD_S,
    )
    assert (status, judged.returncode, judged.stdout, judged.stderr) == (200, 0, "", "")
    samples = {
        (one.name, *sorted(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    about = (("group", "third"), ("namespace", "shop"))
    assert (
        samples[
            "lbg_operator_group_condition", about[0], about[1], ("status", "True"), ("type", "Provisioned")
        ]
        == 1
    )
    assert samples["lbg_operator_reconciles_total", ("kind", "LoadBalancedGroup"), ("outcome", "ok")] > 0
    assert samples["lbg_operator_reconciles_total", ("kind", "LoadBalancedGroup"), ("outcome", "error")] == 0
    assert samples["lbg_operator_watch_silence_seconds", ("kind", "LoadBalancedGroup")] < 30
    assert not any(("group", "second") in one for one in samples), "nothing is told of what is gone"

    status, seconds = await place.end()
    assert status == 0
    assert seconds < KUBERNETES_S
    for trouble in ("Warning", "Traceback", "never awaited", "never retrieved", "was destroyed", "Unclosed"):
        assert trouble not in place.log, place.log


async def test_a_poisoned_key_is_parked_reported_and_released(place: OperatorProcess, tmp_path: Path) -> None:
    told = {"replicas": 1, "consumer": consumer(whenExhausted="Park", maxAttempts=1)}
    place.cluster.put(group_manifest(told, name="first"))
    place.start()
    await place.until(lambda: (DEPLOYMENT, "shop", "first") in place.cluster.objects, "the consumers")
    failing, done = {b"a0"}, list[bytes]()

    async def handle(message: Message) -> Verdict | None:
        data = bytes(message.data)
        if data in failing:
            return retry("no such account")
        done.append(data)
        return None

    settings = configure(sidecar_environment(place, "first", tmp_path)).member
    administrator = f"amqp://{USER}:{PASSWORD}@127.0.0.1:{place.broker.port}"
    looks = itertools.count()

    def is_reported(status: str) -> bool:
        """Each change of a pod has the operator read the group again."""
        labels = {"lbg.dev/group": "first"}
        pod = {
            "name": "first-0",
            "namespace": "shop",
            "labels": labels,
            "annotations": {"x": str(next(looks))},
        }
        place.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": pod})
        return place.condition("first", "KeysParked") == status

    async with Member(settings, handle) as member:
        await place.until(lambda: is_reported("False"), "no key is parked")
        async with GroupPublisher(administrator, group=settings.group) as publisher:
            for key, body in (("a", b"a0"), ("a", b"a1"), ("b", b"b0")):
                await publisher.publish(key=key, body=body, topic="t")
        await place.until(lambda: member.state()["counts"]["parked"] == 2, "the key is parked")
        await place.until(lambda: is_reported("True"), "the parked key is reported")
        message = place.message("first", "KeysParked")
        assert message.startswith("1 parked key with 2 messages: "), message
        assert f"`lbg park list {settings.group}`" in message
        failing.clear()
        async with open_parked_stream([ConnectionSettings.parse(administrator)], settings.group) as stream:
            assert (await release_parked(stream, None, timeout_s=GUARD_S)).done == {"a"}
        await place.until(lambda: is_reported("False"), "nothing is parked any more")
    assert sorted(done) == [b"a0", b"a1", b"b0"]
    assert done.index(b"a0") < done.index(b"a1")


async def test_an_autoscaler_s_wish_raises_the_partitions_while_messages_are_in_flight(
    place: OperatorProcess, tmp_path: Path
) -> None:
    told = {"mode": "Partitioned", "queues": {"count": 2, "max": 8}, "hash": {"count": 16}, "replicas": 1}
    place.cluster.put(group_manifest({**told, "consumer": consumer()}, name="first"))
    place.start()
    await place.until(lambda: (DEPLOYMENT, "shop", "first") in place.cluster.objects, "the consumers")
    keys = [f"k{number}" for number in range(12)]
    goes_on = asyncio.Event()
    done: dict[str, list[bytes]] = {key: [] for key in keys}
    running, overtaken = set[str](), set[str]()

    async def handle(message: Message) -> None:
        key = message.key
        assert key is not None
        if key in running:
            overtaken.add(key)
        running.add(key)
        try:
            await goes_on.wait()
            done[key].append(bytes(message.data))
        finally:
            running.discard(key)

    settings = configure(sidecar_environment(place, "first", tmp_path)).member
    administrator = f"amqp://{USER}:{PASSWORD}@127.0.0.1:{place.broker.port}"
    async with Member(settings, handle), GroupPublisher(administrator, group=settings.group) as publisher:
        for key in keys:
            await publisher.publish(key=key, body=b"0", topic="t")
        await place.until(lambda: running == set(keys), "the first message of each key is in flight")
        place.cluster.edit(GROUP, "shop", "first", {"spec": {"replicas": 3}})
        await place.until(lambda: place.status("first").get("queueCount") == 4, "the raised number")
        await place.until(
            lambda: place.cluster.objects[DEPLOYMENT, "shop", "first"]["spec"]["replicas"] == 3, "the pods"
        )
        assert place.condition("first", "QueuesScaled") == "True"
        assert place.message("first", "QueuesScaled").startswith("4 queues instead of 2 (queues.count)")
        await place.until(lambda: "hashes move" in place.message("first", "Provisioned"), "keys move")
        async with Member(replace(settings, name="first-1"), handle):
            for key in keys:
                await publisher.publish(key=key, body=b"1", topic="t")
            goes_on.set()
            await place.until(lambda: all(len(one) == 2 for one in done.values()), "every message is handled")
    assert overtaken == set()
    assert set(map(tuple, done.values())) == {(b"0", b"1")}


def sidecar_environment(place: OperatorProcess, name: str, directory: Path) -> dict[str, str]:
    """Environment of the sidecar in the group's Deployment, with its Secret in `directory`."""
    secret = place.cluster.objects[SECRET, "shop", f"{name}-lbg"]["data"]
    plain = {field: b64decode(value).decode() for field, value in secret.items()}
    for field, value in plain.items():
        (directory / field).write_text(value)
    pod = place.cluster.objects[DEPLOYMENT, "shop", name]["spec"]["template"]["spec"]
    (sidecar,) = (one for one in pod["initContainers"] if one["name"] == SIDECAR)
    filled = {"LBG_BROKER": plain["uris"], "LBG_NAME": f"{name}-0"}
    return {
        one["name"]: (one.get("value") or filled[one["name"]]).replace(CREDENTIALS, str(directory))
        for one in sidecar["env"]
    }


async def test_a_broker_that_fell_silent_does_not_keep_the_operator_from_ending(
    place: OperatorProcess,
) -> None:
    place.apply_group("first")
    place.start()
    await place.until(lambda: place.condition("first", "Provisioned") == "True", "the group that was there")
    place.broker.freeze()
    place.cluster.edit(BROKER, "shop", "main", {"spec": {"allowedNamespaces": ["alley"]}})  # wakes a check
    await asyncio.sleep(1)
    status, seconds = await place.end()
    place.broker.thaw()
    assert (status, seconds < KUBERNETES_S) == (0, True), seconds


async def test_crds_that_are_not_served_yet_are_waited_for(place: OperatorProcess) -> None:
    refused: list[str] = []

    def not_yet(verb: str, kind: Kind, name: str) -> None:
        if kind is GROUP and len(refused) < 2:
            refused.append(verb)
            raise ClusterError("list", "storage is (re)initializing", status=429)

    place.cluster.fail = not_yet
    place.apply_group("first")
    place.start()
    await place.until(lambda: place.condition("first", "Provisioned") == "True", "the group that was there")
    assert len(refused) == 2


async def test_a_restored_cluster_ends_the_operator_with_one_line(place: OperatorProcess) -> None:
    place.apply_group("first")
    place.start()
    await place.watches()
    snapshot = place.cluster.snapshot()
    await place.until(lambda: place.condition("first", "Provisioned") == "True", "the group that was there")
    place.served.restore(snapshot, bump=1_000_000)
    assert await place.ended() == 1
    last = place.log.splitlines()[-1]
    assert last.startswith("lbg: error: the cluster was restored to an earlier state (")
    assert "Traceback" not in place.log
    place.start()
    await place.until(lambda: place.condition("first", "Provisioned") == "True", "the group as it is now")
    assert (await place.end())[0] == 0


async def test_a_token_that_the_api_server_refuses_is_one_line(place: OperatorProcess) -> None:
    place.start(token="wrong")
    assert await place.ended() == 1
    (line,) = place.log.splitlines()
    assert line.startswith("lbg: error: ")
    assert line.endswith(": Unauthorized")


async def test_a_port_that_is_taken_is_one_line(place: OperatorProcess) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", place.port):
        place.start()
        assert await place.ended() == 1
    assert str(place.port) in place.log.splitlines()[-1]
    assert place.log.splitlines()[-1].startswith("lbg: error: ")
