"""A cluster that is restored from a snapshot while the operator runs: versions, or generations alone, go backwards."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lbg_operator.errors import ClusterSetBack
from lbg_operator.kube.api import ClusterError
from lbg_operator.kube.kinds import BROKER, GROUP, Kind
from lbg_operator.settings import OperatorSettings
from testing.kubernetes.fake_cluster import FakeCluster
from testing.kubernetes.manifests import group_manifest
from testing.kubernetes.served_cluster import ServedCluster
from testing.ports import free_port
from testing.waiting import until


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global running
    from lbg_operator.runtime import operator as running


SETTINGS = OperatorSettings(sidecar_image="s:1", broker_image="b:1")


class Place:
    """An operator that is started again whenever it ends, as Kubernetes does it. `ends`: what it ended with."""

    def __init__(self, served: ServedCluster) -> None:
        self.served = served
        self.cluster = served.cluster
        self.ends: list[Exception] = []
        self.port = free_port()

    async def run(self) -> None:
        while True:
            try:
                await running.run(SETTINGS, host="127.0.0.1", port=self.port)
            except (ClusterError, ClusterSetBack) as error:
                self.ends.append(error)

    def apply(self, name: str, broker: str) -> None:
        self.cluster.put(group_manifest({"brokerRef": {"name": broker}}, name=name))

    def edit(self, name: str, broker: str) -> None:
        self.cluster.edit(GROUP, "shop", name, {"spec": {"brokerRef": {"name": broker}}})

    def generation(self, name: str) -> int:
        return int(self.cluster.objects[GROUP, "shop", name]["metadata"]["generation"])

    async def reconciled(self, name: str, broker: str) -> None:
        """The status of `name` is about the Broker that its manifest names now, which is not there."""

        def is_reconciled() -> bool:
            status = self.cluster.objects[GROUP, "shop", name].get("status", {})
            messages = " ".join(one["message"] for one in status.get("conditions", ()))
            return f"no Broker {broker} in" in messages and status["observedGeneration"] == self.generation(
                name
            )

        await until(is_reconciled, what=f"the status of {name} with Broker {broker}")

    async def watches(self) -> None:
        await until(lambda: self.served.watching[GROUP.plural], what="the groups are watched")

    async def listed(self) -> None:
        """The operator has asked for the cluster's revision once more."""
        looks = self.served.asked.count(("GET", GROUP.path()))
        await until(lambda: self.served.asked.count(("GET", GROUP.path())) > looks + 1, what="another list")

    async def shows(self, name: str) -> bool:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}/metrics") as response,
        ):
            return f'group="{name}"' in await response.text()


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(running, "REVISION_EVERY_S", 0.2)
    monkeypatch.setattr(running, "RELIST_S", 0.1)
    async with ServedCluster(FakeCluster()) as served:
        monkeypatch.setenv("KUBECONFIG", str(served.kubeconfig(tmp_path)))
        place = Place(served)
        operator = asyncio.create_task(place.run())
        yield place
        operator.cancel()
        with suppress(asyncio.CancelledError):
            await operator
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)


BUMP = 1_000_000


@pytest.mark.parametrize(
    ("bump", "evidence"), [(0, "its revision is"), (BUMP, "LoadBalancedGroup shop/quiet")]
)
async def test_a_restored_cluster_is_followed_from_its_lists(place: Place, bump: int, evidence: str) -> None:
    await place.watches()
    for name in ("orders", "quiet"):
        place.apply(name, "first")
        await place.reconciled(name, "first")
    snapshot = place.cluster.snapshot()
    for name in ("orders", "quiet"):
        place.edit(name, "lost")
        await place.reconciled(name, "lost")
    place.apply("late", "lost")
    await place.reconciled("late", "lost")
    place.cluster.version += 1_000  # the rest of the cluster writes too
    await place.listed()

    stale: list[Any] = []

    def is_stale(kind: Kind, seen: Any, is_gone: bool) -> None:
        if kind is GROUP and "no Broker lost in" in str(seen.get("status")):
            stale.append(seen)

    place.cluster.watchers.append(is_stale)
    place.served.restore(snapshot, bump=bump)
    place.apply("new", "here")
    place.edit("orders", "second")
    assert place.generation("orders") == 2, "another second generation than the one that is lost"
    await place.reconciled("orders", "second")
    await place.reconciled("new", "here")
    await until(lambda: place.ends, what="the end of the operator that knew what is lost")
    place.edit("quiet", "third")
    await place.reconciled("quiet", "third")
    assert stale == []
    (end,) = map(str, place.ends)
    assert "was restored to an earlier state" in end
    assert evidence in end


async def test_an_api_server_that_starts_again_is_no_restored_cluster_and_what_went_meanwhile_is_noticed(
    place: Place,
) -> None:
    await place.watches()
    for name in ("orders", "payments"):
        place.apply(name, "first")
        await place.reconciled(name, "first")
    assert await place.shows("payments")
    watchers, place.cluster.watchers[:] = place.cluster.watchers[:], []
    place.cluster.take_away(GROUP, "shop", "payments")
    place.cluster.watchers[:] = watchers
    place.served.restore(place.cluster.snapshot())
    place.edit("orders", "second")
    await place.reconciled("orders", "second")
    for _ in range(100):
        if not await place.shows("payments"):
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("the group that is gone is shown until the next regular list")
    await place.listed()
    assert place.ends == []


async def test_an_operator_whose_watch_ends_for_good_ends_too(place: Place) -> None:
    await place.watches()
    place.apply("orders", "first")
    await place.reconciled("orders", "first")
    assert await place.shows("orders")
    place.served.refused[BROKER.plural] = 404
    place.served.cut_watches()
    await until(lambda: place.ends, timeout_s=60, what="the end of the operator that is deaf")
    assert str(place.ends[0]) == "watch the cluster: refused"
    place.served.refused.clear()
    place.edit("orders", "second")
    await place.reconciled("orders", "second")
