"""Argo CD and Flux on our objects at each stage, without conflicts over a field."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lbg_operator.kube.api import Forbidden, Invalid
from lbg_operator.kube.kinds import BROKER, GROUP, POD, Kind
from testing.kubernetes.kstatus import argo_health, kstatus
from testing.kubernetes.manifests import broker_manifest
from testing.operator.operated import MAIN, SETTLED_S, Place
from testing.virtual_time import in_virtual_time

OTHER = {"spec": {"containers": [{"name": "app", "image": "example.org/app:2"}]}}


def judged(place: Place, kind: Kind = GROUP, name: str = "orders") -> tuple[str, str]:
    seen = place.seen(kind, name)
    return kstatus(seen), argo_health(seen)


def edit_template(place: Place, template: Any) -> None:
    place.edit_group({"consumer": {**place.seen(GROUP)["spec"]["consumer"], "template": template}})


@in_virtual_time
async def test_an_object_that_the_operator_has_not_seen_is_in_progress() -> None:
    async with Place() as place:
        place.apply_broker()
        place.apply_group()
        assert judged(place) == judged(place, BROKER, "main") == ("InProgress", "Progressing")


@in_virtual_time
async def test_a_group_and_its_broker_are_current_once_they_are_served() -> None:
    async with Place() as place:
        await place.ready()
        assert judged(place) == judged(place, BROKER, "main") == ("Current", "Healthy")


@in_virtual_time
async def test_a_group_without_members_yet_is_in_progress() -> None:
    async with Place() as place:
        place.pods.has_members = False
        await place.ready()
        assert judged(place) == ("InProgress", "Progressing")


@in_virtual_time
async def test_a_group_whose_broker_comes_later_is_in_progress() -> None:
    async with Place() as place:
        await place.start()
        place.apply_group()
        await asyncio.sleep(SETTLED_S)
        assert judged(place) == ("InProgress", "Progressing")
        place.apply_broker()
        await asyncio.sleep(SETTLED_S)
        assert judged(place) == ("Current", "Healthy")


@pytest.mark.parametrize("spec", [{"queues": {"size": "many"}}, {"queues": {"size": "2G"}}])
@in_virtual_time
async def test_what_needs_another_manifest_has_failed_until_there_is_one(spec: dict[str, Any]) -> None:
    async with Place() as place:
        await place.ready()
        before = place.seen(GROUP)["spec"]["queues"]
        place.edit_group(spec)
        assert judged(place) == ("InProgress", "Progressing")
        await asyncio.sleep(40)
        assert judged(place) == ("Failed", "Degraded")
        place.edit_group({"queues": before})
        await asyncio.sleep(SETTLED_S)
        assert judged(place) == ("Current", "Healthy")
        assert "Stalled" not in place.conditions()


@in_virtual_time
async def test_a_template_that_the_api_server_refuses_has_failed_and_a_quota_has_not() -> None:
    async with Place() as place:
        await place.ready()

        def refuse(verb: str, kind: Kind, name: str) -> None:
            if (verb, kind.kind) == ("apply", "Deployment"):
                raise error("patch Deployment shop/orders", "words", status=500)

        place.cluster.fail = refuse
        for error, expected in ((Invalid, ("Failed", "Degraded")), (Forbidden, ("InProgress", "Degraded"))):
            edit_template(place, {**OTHER, "metadata": {"annotations": {"try": error.__name__}}})
            await asyncio.sleep(SETTLED_S)
            assert judged(place) == expected


@in_virtual_time
async def test_pods_that_fail_are_degraded_for_argo() -> None:
    async with Place() as place:
        await place.ready()
        state = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
        pod = place.pods.of("orders")[0]["metadata"]["name"]
        place.cluster.edit(
            POD, "shop", pod, {"status": {"containerStatuses": [{"name": "app", "state": state}]}}
        )
        await asyncio.sleep(SETTLED_S)
        assert judged(place) == ("Current", "Degraded")


@in_virtual_time
async def test_a_group_without_consumers_by_its_manifest_is_suspended() -> None:
    async with Place() as place:
        await place.ready(replicas=0)
        assert judged(place) == ("InProgress", "Suspended")


@in_virtual_time
async def test_an_embedded_broker_that_starts_is_in_progress_and_a_wrong_one_has_failed() -> None:
    async with Place() as place:
        place.broker.password, place.broker.is_down = None, True
        place.cluster.put(broker_manifest({"embedded": {}}))
        await place.start()
        await asyncio.sleep(SETTLED_S)
        assert judged(place, BROKER, "main") == ("InProgress", "Progressing")
        place.cluster.edit(BROKER, *MAIN, {"spec": {"embedded": {"maxMessageSize": "1Ki"}}})
        await asyncio.sleep(SETTLED_S)
        assert judged(place, BROKER, "main") == ("Failed", "Degraded")


@in_virtual_time
async def test_a_group_that_is_deleted_is_terminating() -> None:
    async with Place() as place:
        await place.ready()
        place.delete_group()
        await asyncio.sleep(1)
        assert kstatus(place.seen(GROUP)) == "Terminating"


@in_virtual_time
async def test_the_operator_writes_nothing_of_what_people_write() -> None:
    """Finalizers and the status are all that it has of a group's or a Broker's fields, whatever happens to these."""
    async with Place() as place:
        written: list[Any] = []
        merge, apply = place.cluster.merge, place.cluster.apply

        async def noted(
            kind: Kind, namespace: str | None, name: str, patch: Any, *, subresource: str = ""
        ) -> Any:
            if kind in (GROUP, BROKER):
                metadata = set(patch.get("metadata", {})) - {"resourceVersion"}
                written.append((subresource, frozenset(patch) - {"metadata"}, frozenset(metadata)))
            return await merge(kind, namespace, name, patch, subresource=subresource)

        async def applied(wanted: Any) -> Any:
            assert wanted["kind"] not in (GROUP.kind, BROKER.kind)
            return await apply(wanted)

        place.cluster.merge, place.cluster.apply = noted, applied
        weekly = {"days": ["Mon"], "from": "00:00", "until": "23:00"}
        schedule = [{"minReplicas": 3, "weekly": weekly}]
        await place.ready(scaling={"minReplicas": 1, "maxReplicas": 4, "targetLag": 5, "schedule": schedule})
        place.edit_group({"replicas": 4})  # as an autoscaler does, by the scale subresource
        await asyncio.sleep(SETTLED_S)
        place.edit_group({"replicas": 1, "queues": {"count": 12}})
        await asyncio.sleep(60)
        edit_template(place, {"spec": {"containers": "x"}})
        await asyncio.sleep(SETTLED_S)
        place.delete_group()
        await asyncio.sleep(400)
        assert not place.has(GROUP)
        assert set(written) == {
            ("", frozenset(), frozenset({"finalizers"})),
            ("status", frozenset({"status"}), frozenset()),
        }
