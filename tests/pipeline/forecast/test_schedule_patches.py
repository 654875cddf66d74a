"""Schedules applied to a cluster: requests to the API server, and messages when it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from lbg_operator.kube.api import ClusterError
from lbg_operator.kube.kinds import GROUP, Kind
from lbg_pipeline.errors import ClusterRefused
from testing.kubernetes.fake_cluster import FakeCluster
from testing.kubernetes.served_cluster import ServedCluster


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Cluster, ORDERS, Target, applying
    from lbg_pipeline.forecast import apply as applying
    from lbg_pipeline.forecast.apply import Cluster, Target

    ORDERS = Target("shop", "orders", 10)


T = TypeVar("T")
ENTRY = {"minReplicas": 6, "from": "2026-11-27T16:55:00Z", "until": "2026-11-27T19:00:00Z"}


def group(name: str, *, namespace: str = "shop", **spec: object) -> dict:
    told = {"brokerRef": {"name": "b"}, "queues": {"count": 12}, **spec}
    return {
        "apiVersion": "lbg.dev/v1alpha1",
        "kind": "LoadBalancedGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": told,
    }


@pytest_asyncio.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServedCluster]:
    cluster = FakeCluster()
    scaling = {"minReplicas": 2, "maxReplicas": 10, "targetLag": 100}
    cluster.put(group("orders", scaling=dict(scaling)))
    cluster.put(group("mails", groupName="letters", scaling=dict(scaling)))
    cluster.put(group("fixed", replicas=3))
    cluster.put(group("elsewhere", namespace="other", scaling=dict(scaling)))
    async with ServedCluster(cluster) as place:
        monkeypatch.setenv("KUBECONFIG", str(place.kubeconfig(tmp_path)))
        # What the client has read of an earlier KUBECONFIG.
        monkeypatch.setattr(
            applying.config.kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig")
        )
        yield place


async def with_cluster(do: Callable[[Cluster], T], namespace: str | None = "shop") -> T:
    """The client is not asynchronous."""
    return await asyncio.to_thread(lambda: do(Cluster(namespace)))


async def refusal(do: Callable[[Cluster], object]) -> str:
    with pytest.raises(ClusterRefused) as refused:
        await with_cluster(do)
    assert "\n" not in str(refused.value)
    return str(refused.value)


async def test_only_the_schedule_is_applied_and_only_that_is_forced(served: ServedCluster) -> None:
    await with_cluster(lambda cluster: cluster.apply(ORDERS, [ENTRY]))
    place = {"name": "orders", "namespace": "shop"}
    body = {
        "apiVersion": "lbg.dev/v1alpha1",
        "kind": "LoadBalancedGroup",
        "metadata": place,
        "spec": {"scaling": {"schedule": [ENTRY]}},
    }
    assert served.applied == [("lbg-forecast", True, body)]
    there = served.cluster.objects[GROUP, "shop", "orders"]["spec"]
    assert there["scaling"] == {"minReplicas": 2, "maxReplicas": 10, "targetLag": 100, "schedule": [ENTRY]}
    assert there["brokerRef"] == {"name": "b"}


async def test_a_later_schedule_replaces_the_former_whole(served: ServedCluster) -> None:
    await with_cluster(lambda cluster: cluster.apply(ORDERS, [ENTRY, ENTRY]))
    await with_cluster(lambda cluster: cluster.apply(ORDERS, []))
    assert served.cluster.objects[GROUP, "shop", "orders"]["spec"]["scaling"]["schedule"] == []


async def test_groups_are_found_by_their_name_on_the_broker_and_by_their_own(served: ServedCluster) -> None:
    asked = ["shop-orders-644f7b8c", "orders", "letters", "mails", "fixed", "shop-elsewhere"]
    targets, unfit = await with_cluster(lambda cluster: cluster.find(asked))
    mails = Target("shop", "mails", 10)
    assert targets == {"shop-orders-644f7b8c": ORDERS, "orders": ORDERS, "letters": mails, "mails": mails}
    assert unfit == {
        "fixed": "LoadBalancedGroup shop/fixed has no spec.scaling, so there is no minimum to raise",
        "shop-elsewhere": "there is no LoadBalancedGroup for group shop-elsewhere in namespace shop",
    }


async def test_the_namespace_is_the_contexts_unless_it_is_said(served: ServedCluster) -> None:
    assert await with_cluster(lambda cluster: cluster.namespace, None) == "default"
    assert await with_cluster(lambda cluster: cluster.namespace, "other") == "other"


@pytest.mark.parametrize(
    ("status", "why", "told"),
    [
        (
            403,
            'User "system:serviceaccount:shop:x" cannot patch resource',
            "cannot patch resource: allow list and patch on loadbalancedgroups.lbg.dev in namespace shop",
        ),
        (404, "loadbalancedgroups.lbg.dev not found", "install LBG's chart"),
        (422, "spec.scaling.schedule: Too many: 600", "spec.scaling.schedule: Too many: 600"),
    ],
)
async def test_what_the_api_server_refuses_is_told_with_what_to_do(
    served: ServedCluster, status: int, why: str, told: str
) -> None:
    def fail(verb: str, kind: Kind, name: str) -> None:
        raise ClusterError("", why, status=status)

    served.cluster.fail = fail
    said = await refusal(lambda cluster: cluster.apply(ORDERS, [ENTRY]))
    assert said.startswith("apply the schedule to LoadBalancedGroup shop/orders: ")
    assert said.endswith(told)
    listed = await refusal(lambda cluster: cluster.find(["orders"]))
    assert listed.startswith("list LoadBalancedGroups in namespace shop: ")


async def test_an_api_server_that_does_not_answer_is_named(served: ServedCluster) -> None:
    await served.__aexit__()
    said = await refusal(lambda cluster: cluster.find(["orders"]))
    assert f"the API server at {served.url} does not answer" in said


async def test_without_a_kubeconfig_it_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying.config.kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    said = await refusal(lambda cluster: cluster.find(["orders"]))
    assert said.endswith("run in a pod with a service account, or set KUBECONFIG to a file")
