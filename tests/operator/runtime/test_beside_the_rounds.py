"""Tasks of the operator beside reconciles and watches, and the end of one of these."""

from __future__ import annotations

import asyncio
import contextvars
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lbg_operator.kube.kinds import GROUP, Kind
from lbg_operator.reconcile.object_cache import ObjectCache
from lbg_operator.runtime.watches import SELECTORS
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
    def __init__(self, served: ServedCluster, port: int) -> None:
        self.served = served
        self.cluster = served.cluster
        self.port = port

    async def get(self, path: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}{path}") as response,
        ):
            return response.status, await response.text()

    async def watches(self) -> None:
        await until(lambda: all(self.served.watching[kind.plural] for kind in SELECTORS))


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(running, "LIST_EVERY_S", 0.3)
    async with ServedCluster(FakeCluster()) as served:
        monkeypatch.setenv("KUBECONFIG", str(served.kubeconfig(tmp_path)))
        port = free_port()
        operator = asyncio.create_task(running.run(SETTINGS, host="127.0.0.1", port=port))
        place = Place(served, port)
        await place.watches()
        yield place
        operator.cancel()
        with suppress(asyncio.CancelledError):
            await operator
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)


async def test_a_list_now_and_then_shows_what_no_watch_has_told(place: Place) -> None:
    place.cluster.put(group_manifest({"replicas": 1}))
    await until(lambda: "status" in place.cluster.objects[GROUP, "shop", "orders"], what="the group is known")
    watchers, place.cluster.watchers[:] = place.cluster.watchers[:], []
    place.cluster.edit(GROUP, "shop", "orders", {"metadata": {"finalizers": None}})
    place.cluster.take_away(GROUP, "shop", "orders")
    place.cluster.watchers[:] = watchers
    for _ in range(100):
        if 'group="orders"' not in (await place.get("/metrics"))[1]:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the group that is gone is shown for ever")


@pytest.mark.parametrize("name", ["events", "lists", "provider of metrics"])
async def test_an_operator_one_of_whose_tasks_has_ended_is_dead(place: Place, name: str) -> None:
    assert await place.get("/healthz") == (200, "ok")
    (task,) = (one for one in asyncio.all_tasks() if one.get_name() == name)
    task.cancel()
    await asyncio.wait([task])
    assert await place.get("/healthz") == (503, f"the task of {name} has ended")


async def test_nothing_that_an_event_begins_keeps_the_event(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task and a timer keep their context, and kopf's has the object, whole: 50 MB of five hundred groups."""
    contexts: list[dict[Any, Any]] = []
    put = ObjectCache.put

    def noted(store: ObjectCache, kind: Kind, seen: Any) -> None:
        contexts.append(dict(contextvars.copy_context()))
        put(store, kind, seen)

    monkeypatch.setattr(ObjectCache, "put", noted)
    place.cluster.put(group_manifest({"replicas": 1}))
    await until(lambda: contexts, what="the group is seen")
    assert contexts[0] == {}
