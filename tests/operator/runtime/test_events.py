"""Kubernetes Events."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from lbg_operator.kube.api import Forbidden, Terminating
from lbg_operator.kube.kinds import EVENT, Kind
from lbg_operator.reconcile.ending_namespaces import EndingNamespaces
from lbg_operator.reconcile.object_cache import ObjectCache
from lbg_operator.runtime.events import MESSAGE_MAX, WAITING_MAX, EventRecorder, event_of
from testing.kubernetes.fake_cluster import FakeCluster
from testing.kubernetes.manifests import group_manifest
from testing.virtual_time import in_virtual_time


def events(cluster: FakeCluster) -> list[Any]:
    return [one for (kind, _, _), one in cluster.objects.items() if kind is EVENT]


def with_uid(name: str, life: str = "first") -> Any:
    manifest = group_manifest(name=name)
    return manifest | {"metadata": manifest["metadata"] | {"uid": f"{name}-{life}"}}


def test_an_event_is_about_its_object_and_fits() -> None:
    about = group_manifest(name="o" * 63)
    event = event_of(
        about, type="Warning", reason="Lost", message="m" * 5000, now=datetime(2026, 1, 1, tzinfo=UTC)
    )
    involved = event["involvedObject"]
    assert (involved["kind"], involved["name"], involved["uid"]) == (
        "LoadBalancedGroup",
        "o" * 63,
        about["metadata"]["uid"],
    )
    assert len(event["message"]) == MESSAGE_MAX
    assert event["message"].endswith("…")
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2026-01-01T00:00:00Z",) * 2
    assert event["metadata"]["namespace"] == involved["namespace"]


@in_virtual_time
async def test_events_are_sent_in_order_and_one_that_is_refused_holds_up_none() -> None:
    cluster = FakeCluster()
    refused = iter([True, False, True, False])

    def fail(verb: str, kind: Kind, name: str) -> None:
        if next(refused):
            raise Forbidden("create Event", "the namespace is being terminated", status=403)

    cluster.fail = fail
    announcing = EventRecorder(cluster, EndingNamespaces(ObjectCache()))
    running = asyncio.create_task(announcing.run())
    for number in range(4):
        announcing(group_manifest(), type="Normal", reason="R", message=str(number))
    await asyncio.sleep(1)
    assert [one["message"] for one in events(cluster)] == ["1", "3"]
    running.cancel()


@in_virtual_time
async def test_a_namespace_that_is_being_deleted_is_asked_once_for_each_object_that_nobody_has_seen() -> None:
    cluster = FakeCluster()
    asked: list[str] = []

    def fail(verb: str, kind: Kind, name: str) -> None:
        asked.append(verb)
        raise Terminating("create Event", "namespace shop is being terminated", status=403)

    cluster.fail = fail
    announcing = EventRecorder(cluster, EndingNamespaces(ObjectCache()))
    running = asyncio.create_task(announcing.run())
    for name in ("orders", "orders", "payments", "orders"):
        announcing(with_uid(name), type="Normal", reason="R", message="m")
    await asyncio.sleep(1)
    announcing(with_uid("orders"), type="Normal", reason="R", message="m")
    await asyncio.sleep(1)
    assert asked == ["create", "create"]
    cluster.fail = lambda verb, kind, name: None
    announcing(with_uid("orders", "made-anew"), type="Normal", reason="R", message="again")
    await asyncio.sleep(1)
    assert [one["message"] for one in events(cluster)] == ["again"], "the namespace was made anew"
    running.cancel()


@in_virtual_time
async def test_more_events_than_can_wait_are_dropped_and_nobody_waits() -> None:
    cluster = FakeCluster()
    announcing = EventRecorder(cluster, EndingNamespaces(ObjectCache()))
    for number in range(WAITING_MAX + 5):
        announcing(group_manifest(), type="Normal", reason="R", message=str(number))
    running = asyncio.create_task(announcing.run())
    await asyncio.sleep(1)
    assert len(events(cluster)) == WAITING_MAX
    running.cancel()
