"""`lbg operator run` as it is started in a pod: kopf's watches on an API server, a broker, and SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lbg_operator.cluster.kinds import BROKER, CONFIG_MAP, DEPLOYMENT, GROUP, SECRET, Kind
from lbg_operator.cluster.seam import ClusterError
from lbg_operator.process.watching import SELECTORS
from support.command_line import clean_environment
from support.embedded import PASSWORD, USER, EmbeddedBroker
from support.fake_cluster import FakeCluster
from support.manifests import broker_manifest, consumer, group_manifest
from support.ports import free_port
from support.served_cluster import TOKEN, ServedCluster
from support.waiting import until

SETTINGS = {
    "LBG_OPERATOR_SIDECAR_IMAGE": "s:1",
    "LBG_OPERATOR_BROKER_IMAGE": "b:1",
    "LBG_OPERATOR_LOG_FORMAT": "text",
}


class Place:
    """An API server in this process, and an operator in its own."""

    def __init__(self, served: ServedCluster, broker: EmbeddedBroker, directory: Path) -> None:
        self.broker = broker
        self.served = served
        self.cluster = served.cluster
        self.port = free_port()
        self._directory = directory
        self._log = directory / "operator.log"
        self._process: subprocess.Popen[str] | None = None

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self, *, token: str = TOKEN) -> None:
        environment = {
            **clean_environment(),
            **SETTINGS,
            "KUBECONFIG": str(self.served.kubeconfig(self._directory, token=token)),
            "PYTHONWARNINGS": "default",
        }
        command = [
            sys.executable,
            "-m",
            "lbg",
            "operator",
            "run",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, env=environment, stderr=log, stdout=log, text=True)

    async def ended(self) -> int:
        """Its status, by itself."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, 40)

    async def end(self) -> tuple[int, float]:
        """Status and seconds after SIGTERM."""
        assert self._process is not None
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(self._process.wait, 20)
        self._process = None
        return status, time.monotonic() - began

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"http://127.0.0.1:{self.port}{path}") as response:
                    return response.status, await response.text()
            except aiohttp.ClientConnectionError:
                return 0, ""

    async def until(self, condition: Callable[[], object], what: str) -> None:
        try:
            await until(condition, timeout_s=40, every_s=0.05, what=what)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.log[-3000:]}") from None

    async def watches(self) -> None:
        await self.until(
            lambda: all(self.served.watching[kind.plural] for kind in SELECTORS), "all kinds are watched"
        )

    async def ready(self) -> None:
        for _ in range(800):
            status, why = await self.get("/readyz")
            if status == 200:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(why)

    def condition(self, name: str, kind: str) -> str:
        one = self.cluster.objects.get((GROUP, "shop", name), {})
        told = one.get("status", {}).get("conditions", ())
        return next((each["status"] for each in told if each["type"] == kind), "")

    def has_children(self, name: str) -> bool:
        wanted = ((SECRET, f"{name}-lbg"), (CONFIG_MAP, f"{name}-lbg"), (DEPLOYMENT, name))
        return all((kind, "shop", called) in self.cluster.objects for kind, called in wanted)

    def apply_group(self, name: str) -> None:
        self.cluster.put(group_manifest({"replicas": 1, "consumer": consumer()}, name=name))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        async with ServedCluster(FakeCluster()) as served:
            place = Place(served, broker, tmp_path)
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


async def test_the_operator_lists_watches_follows_and_ends(place: Place) -> None:
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
    assert seconds < 5
    for trouble in ("Warning", "Traceback", "never awaited", "never retrieved", "was destroyed", "Unclosed"):
        assert trouble not in place.log, place.log


async def test_a_broker_that_fell_silent_does_not_keep_the_operator_from_ending(place: Place) -> None:
    place.apply_group("first")
    place.start()
    await place.until(lambda: place.condition("first", "Provisioned") == "True", "the group that was there")
    place.broker.freeze()
    place.cluster.edit(BROKER, "shop", "main", {"spec": {"allowedNamespaces": ["alley"]}})  # wakes a check
    await asyncio.sleep(1)
    status, seconds = await place.end()
    place.broker.thaw()
    assert (status, seconds < 5) == (0, True), seconds


async def test_crds_that_are_not_served_yet_are_waited_for(place: Place) -> None:
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


async def test_a_token_that_the_api_server_refuses_is_one_line(place: Place) -> None:
    place.start(token="wrong")
    assert await place.ended() == 1
    (line,) = place.log.splitlines()
    assert line.startswith("lbg: error: ")
    assert line.endswith(": Unauthorized")


async def test_a_port_that_is_taken_is_one_line(place: Place) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", place.port):
        place.start()
        assert await place.ended() == 1
    assert str(place.port) in place.log.splitlines()[-1]
    assert place.log.splitlines()[-1].startswith("lbg: error: ")
