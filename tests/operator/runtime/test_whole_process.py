"""`lbg operator run` as it is started in a pod: kopf's watches on an API server, a broker, and SIGTERM."""

from __future__ import annotations

import asyncio
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lbg_operator.kube.api import ClusterError
from lbg_operator.kube.kinds import BROKER, DEPLOYMENT, GROUP, SECRET, Kind
from lbg_operator.runtime.watches import SELECTORS
from support.broker.embedded import PASSWORD, USER, EmbeddedBroker
from support.kubernetes.fake_cluster import FakeCluster
from support.kubernetes.manifests import broker_manifest
from support.kubernetes.served_cluster import ServedCluster
from support.operator.process import OperatorProcess

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
        timeout=20,
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
