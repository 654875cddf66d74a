"""`Cluster` on a real HTTP connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from kmock import RawHandler

from lbg_operator.kube.api import ClusterError, Forbidden, Invalid, Terminating
from lbg_operator.kube.kinds import CONFIG_MAP, EVENT, GROUP, NAMESPACE, POD, SECRET, Kind
from lbg_operator.settings import OperatorSettings
from testing.kubernetes.fake_cluster import FakeCluster
from testing.kubernetes.served_cluster import TOKEN, ServedCluster
from testing.ports import free_port
from testing.waiting import until


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global KubernetesCluster, live, Login, suited
    from lbg_operator.kube import client as live
    from lbg_operator.kube.client import KubernetesCluster
    from lbg_operator.kube.login import Login
    from lbg_operator.runtime.operator import suited


CONFIG = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "c", "namespace": "shop", "labels": {"a": "b"}},
    "data": {"x": "1"},
}


def client(url: str, *tokens: str) -> KubernetesCluster:
    """With the first of `tokens`, and each time that it logs in again with the next one."""
    logins = [Login(url, {"Authorization": f"Bearer {token}"}) for token in tokens or (TOKEN,)]

    async def log_in() -> Login:
        return logins.pop(0) if len(logins) > 1 else logins[0]

    return KubernetesCluster(logins[0] if len(logins) == 1 else logins.pop(0), log_in)


@pytest.fixture
async def served() -> AsyncIterator[ServedCluster]:
    async with ServedCluster(FakeCluster()) as served:
        served.cluster.grants_all = True
        yield served


@pytest.fixture
async def cluster(served: ServedCluster) -> AsyncIterator[KubernetesCluster]:
    cluster = client(served.url)
    yield cluster
    await cluster.close()


async def test_what_is_applied_can_be_read_selected_patched_and_deleted(cluster: KubernetesCluster) -> None:
    applied = await cluster.apply(CONFIG)
    assert applied["metadata"]["resourceVersion"]
    again = await cluster.apply(CONFIG)
    assert again["metadata"]["resourceVersion"] == applied["metadata"]["resourceVersion"]
    read = await cluster.read(CONFIG_MAP, "shop", "c")
    assert read == applied
    (selected,) = await cluster.select(CONFIG_MAP, None, "a=b")
    assert (selected["apiVersion"], selected["kind"], selected["data"]) == ("v1", "ConfigMap", {"x": "1"})
    assert await cluster.select(CONFIG_MAP, "shop", "a=c") == []
    assert await cluster.select(CONFIG_MAP, "alley", "") == []
    patched = await cluster.merge(CONFIG_MAP, "shop", "c", {"data": {"x": None, "y": "2"}})
    assert patched is not None
    assert patched["data"] == {"y": "2"}
    await cluster.delete(CONFIG_MAP, "shop", "c")
    assert await cluster.read(CONFIG_MAP, "shop", "c") is None


async def test_an_object_that_came_in_the_place_of_the_one_that_is_to_go_stays(
    cluster: KubernetesCluster,
) -> None:
    applied = await cluster.apply(CONFIG)
    await cluster.delete(CONFIG_MAP, "shop", "c", uid="another")
    assert await cluster.read(CONFIG_MAP, "shop", "c") == applied
    await cluster.delete(CONFIG_MAP, "shop", "c", uid=applied["metadata"]["uid"])
    assert await cluster.read(CONFIG_MAP, "shop", "c") is None


async def test_what_is_not_there_is_none_or_done(cluster: KubernetesCluster) -> None:
    assert await cluster.read(SECRET, "shop", "none") is None
    assert await cluster.merge(GROUP, "shop", "none", {"status": {}}, subresource="status") is None
    await cluster.delete(CONFIG_MAP, "shop", "none")


async def test_a_version_is_served_or_not(cluster: KubernetesCluster, served: ServedCluster) -> None:
    assert not await cluster.serves("keda.sh/v1alpha1")
    served.cluster.served.add("keda.sh/v1alpha1")
    assert await cluster.serves("keda.sh/v1alpha1")


async def test_the_operator_goes_by_what_the_cluster_can_do(
    cluster: KubernetesCluster, served: ServedCluster
) -> None:
    settings = OperatorSettings(sidecar_image="s:1", broker_image="b:1", native_sidecars=False)
    assert await suited(settings, cluster) == replace(settings, native_sidecars=True)
    served.cluster.served.add("security.openshift.io/v1")
    assert await suited(settings, cluster) == replace(settings, native_sidecars=True, assigns_users=True)


async def test_the_clusters_uid_is_that_of_kube_system_and_empty_where_it_may_not_be_read(
    cluster: KubernetesCluster, served: ServedCluster
) -> None:
    settings = OperatorSettings(sidecar_image="s:1", broker_image="b:1")
    metadata = {"name": "kube-system", "uid": "uid-of-the-cluster"}
    served.cluster.put({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    assert (await suited(settings, cluster)).cluster_uid == "uid-of-the-cluster"

    def forbid(verb: str, kind: Kind, name: str) -> None:
        if kind is NAMESPACE:
            raise Forbidden("read Namespace", "is forbidden", status=403)

    served.cluster.fail = forbid
    assert (await suited(settings, cluster)).cluster_uid == ""


async def test_an_event_is_created(cluster: KubernetesCluster, served: ServedCluster) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "orders.", "namespace": "shop"},
        "message": "m",
    }
    await cluster.create(event)
    assert [one["message"] for (kind, _, _), one in served.cluster.objects.items() if kind is EVENT] == ["m"]


async def test_a_conflict_says_what_it_was_about(cluster: KubernetesCluster) -> None:
    await cluster.apply(CONFIG)
    stale = {"metadata": {"resourceVersion": "0"}, "data": {}}
    with pytest.raises(ClusterError, match=r"shop/c.*modified") as error:
        await cluster.merge(CONFIG_MAP, "shop", "c", stale)
    assert error.value.status == 409


async def test_a_token_that_the_server_refuses_is_forbidden(served: ServedCluster) -> None:
    cluster = client(served.url, "wrong")
    with pytest.raises(Forbidden, match="get Secret shop/s: Unauthorized"):
        await cluster.read(SECRET, "shop", "s")
    await cluster.close()


async def test_a_token_that_has_run_out_is_read_anew(served: ServedCluster) -> None:
    cluster = client(served.url, "of the hour before", TOKEN)
    assert await cluster.read(SECRET, "shop", "s") is None
    assert len(served.asked) == 2
    assert await cluster.read(SECRET, "shop", "s") is None
    assert len(served.asked) == 3
    await cluster.close()


TYPED = (
    "failed to create typed patch object (shop/orders; apps/v1, Kind=Deployment): "
    '.spec.template.spec.containers[name="app"].imagee: field not declared in schema'
)
CONVERTED = (
    "failed to convert new object (shop/orders; apps/v1, Kind=Deployment) to proper version (apps/v1): "
    "unable to convert unstructured object to apps/v1, Kind=Deployment: quantities must match the regular expression"
)
DENIED = 'admission webhook "policy.example.org" denied the request: no image from there'
UNCALLED = 'Internal error occurred: failed calling webhook "policy.example.org": connection refused'


@pytest.mark.kmock(cls=RawHandler)
@pytest.mark.parametrize(
    ("status", "body", "error", "said"),
    [
        (500, {"message": TYPED}, Invalid, "imagee: field not declared in schema"),
        (500, {"message": CONVERTED}, Invalid, "quantities must match"),
        (413, {"message": "Request entity too large: limit is 3145728"}, Invalid, "too large"),
        (403, {"message": DENIED}, Forbidden, "no image from there"),
        (400, {"message": DENIED}, Forbidden, "no image from there"),
        (500, {"message": DENIED}, Forbidden, "no image from there"),
        (500, {"message": UNCALLED}, ClusterError, "failed calling webhook"),
        (504, {"message": "request did not complete within the allotted timeout"}, ClusterError, "allotted"),
        (403, {"message": "pods is forbidden"}, Forbidden, "pods is forbidden"),
        (
            403,
            {"message": "being terminated", "details": {"causes": [{"reason": "NamespaceTerminating"}]}},
            Terminating,
            "being terminated",
        ),
        (403, {"message": "no causes", "details": {"causes": None}}, Forbidden, "no causes"),
        (400, {"message": "bad request"}, Invalid, "bad request"),
        (422, {"message": "spec.x: Required"}, Invalid, "spec.x: Required"),
        (409, {"message": "modified"}, ClusterError, "modified"),
        (429, {"message": "slow down"}, ClusterError, "slow down"),
        (500, {"message": "etcd is away"}, ClusterError, "etcd is away"),
        (503, "no healthy upstream", ClusterError, "no healthy upstream"),
        (502, "", ClusterError, "HTTP 502"),
        (500, [1], ClusterError, r"\[1\]"),
        (200, "<html>", ClusterError, "not JSON: <html>"),
    ],
)
async def test_each_answer_becomes_its_error(
    kmock: RawHandler, status: int, body: Any, error: type[ClusterError], said: str
) -> None:
    kmock << status << (body if isinstance(body, str) else json.dumps(body)).encode()
    cluster = client(str(kmock.url))
    for request in (cluster.read(POD, "shop", "p"), cluster.apply(CONFIG), cluster.select(POD, None, "")):
        with pytest.raises(ClusterError, match=said) as raised:
            await request
        assert type(raised.value) is error
        assert raised.value.status in (status, None)
    assert (len(kmock["get"]), len(kmock["patch"])) == (2, 1)
    await cluster.close()


async def test_nobody_there_is_an_error_of_the_cluster() -> None:
    cluster = client(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ClusterError) as error:
        await cluster.apply(CONFIG)
    assert error.value.status is None
    assert str(error.value).startswith("patch ConfigMap shop/c: ")
    await cluster.close()


@asynccontextmanager
async def speaking(answer: bytes | None) -> AsyncIterator[str]:
    """A server that answers each request with just this and hangs up; None: that says nothing for ever."""
    talks: list[asyncio.Task[Any]] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*talks)
    server.close()
    await server.wait_closed()


@pytest.mark.long
@pytest.mark.parametrize(
    "answer", [None, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"hello\r\n", b""]
)
async def test_no_whole_answer_is_an_error_of_the_cluster(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "REQUEST_TIMEOUT_S", 0.2)
    async with speaking(answer) as url:
        cluster = client(url)
        with pytest.raises(ClusterError, match="get Secret shop/s") as error:
            await cluster.read(SECRET, "shop", "s")
        assert error.value.status in (None, 400)
        await cluster.close()


async def test_a_watch_of_one_object_shows_it_and_its_changes_and_nothing_of_others(
    cluster: KubernetesCluster, served: ServedCluster
) -> None:
    def put(name: str, value: str) -> None:
        metadata = {"name": name, "namespace": "shop"}
        served.cluster.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"x": value}})

    put("other", "0")
    async with aclosing(cluster.watch(SECRET, "shop", "s")) as watch:
        assert await anext(watch) is None
        following = asyncio.create_task(anext(watch))
        await until(lambda: served.watching[SECRET.plural], what="the watch")
        put("other", "1")
        put("s", "1")
        seen = await following
        assert seen is not None
        assert (seen["metadata"]["name"], seen["data"]) == ("s", {"x": "1"})
        put("s", "2")
        assert (await anext(watch) or {})["data"] == {"x": "2"}
        served.cluster.take_away(SECRET, "shop", "s")
        assert await anext(watch) is None
    await until(lambda: not served.watching[SECRET.plural], what="the watch is given up")


async def test_a_watch_that_is_cut_off_is_an_error_and_one_of_a_version_that_is_forgotten_ends(
    cluster: KubernetesCluster, served: ServedCluster
) -> None:
    async with aclosing(cluster.watch(SECRET, "shop", "s")) as watch:
        assert await anext(watch) is None
        following = asyncio.create_task(anext(watch))
        await until(lambda: served.watching[SECRET.plural], what="the watch")
        served.cut_watches()
        with pytest.raises(ClusterError, match="watch Secret shop/s"):
            await following
    served.forgets = True
    async with aclosing(cluster.watch(SECRET, "shop", "s")) as watch:
        assert await anext(watch) is None
        served.cluster.put(CONFIG)
        assert [one async for one in watch] == []


async def test_a_watch_that_is_refused_says_so(served: ServedCluster) -> None:
    cluster = client(served.url, "wrong")
    with pytest.raises(Forbidden, match="get Secret shop: Unauthorized"):
        await anext(cluster.watch(SECRET, "shop", "s"))
    await cluster.close()
