"""Providers of metrics in the cluster, which change replicas: one at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lbg_operator.crds import GroupManifest
from lbg_operator.kube.api import Forbidden
from lbg_operator.kube.kinds import (
    AUTOSCALER,
    KEDA_KINDS,
    SCALED_OBJECT,
    SECRET,
    TRIGGER_AUTHENTICATION,
    Kind,
)
from lbg_operator.metrics_api import Service
from lbg_operator.reconcile.metrics_provider import REFRESH_INTERVAL_S
from lbg_operator.resources.autoscaler import token_secret_of
from testing.kubernetes.manifests import consumer, group_manifest
from testing.operator.operated import SETTINGS, Place
from testing.virtual_time import in_virtual_time

OURS = Service(SETTINGS.namespace, SETTINGS.service)
KEDAS = Service("keda", "keda-operator-metrics-apiserver")
KEDA = "keda.sh/v1alpha1"
SCALING = {"minReplicas": 1, "maxReplicas": 4, "targetLag": 100}


def register(place: Place, service: Service) -> None:
    place.cluster.put(
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
            "spec": {"service": {"namespace": service.namespace, "name": service.name}},
            "status": {"conditions": [{"type": "Available", "status": "True"}]},
        }
    )


async def begun(place: Place) -> None:
    place.apply_broker()
    await place.start()
    place.apply_group(scaling=SCALING)
    await asyncio.sleep(10)


def says(place: Place, status: str, reason: str = "") -> None:
    """The autoscaler's controller."""
    one = {"type": "ScalingActive", "status": status, "reason": reason, "message": "m"}
    place.cluster.edit(AUTOSCALER, "shop", "orders", {"status": {"conditions": [one]}})


def writers(place: Place) -> set[Any]:
    return {kind for kind, _, _ in place.cluster.objects if kind in (AUTOSCALER, SCALED_OBJECT)}


@in_virtual_time
async def test_our_own_api_has_a_horizontal_pod_autoscaler() -> None:
    async with Place() as place:
        register(place, OURS)
        await begun(place)
        assert writers(place) == {AUTOSCALER}
        assert place.conditions()["ScalingActive"] == ("Unknown", "ScalingNotObserved")
        says(place, "True")
        await asyncio.sleep(5)
        assert place.conditions()["ScalingActive"] == ("True", "Scaling")
        says(place, "False", "FailedGetExternalMetric")
        await asyncio.sleep(5)
        assert place.conditions()["ScalingActive"] == ("False", "MetricsMissing")
        assert "FailedGetExternalMetric" in place.message("ScalingActive")
        says(place, "False", "ScalingDisabled")
        await asyncio.sleep(5)
        assert place.conditions()["ScalingActive"] == ("False", "AtZero")


@in_virtual_time
async def test_a_cluster_without_an_api_is_told_what_is_missing() -> None:
    async with Place() as place:
        await begun(place)
        says(place, "True")
        await asyncio.sleep(5)
        assert place.conditions()["ScalingActive"] == ("False", "MetricsMissing")
        assert "install the chart with its APIService, or KEDA" in place.message("ScalingActive")


@in_virtual_time
async def test_somebody_elses_api_is_named() -> None:
    async with Place() as place:
        register(place, Service("monitoring", "prometheus-adapter"))
        await begun(place)
        says(place, "True")
        await asyncio.sleep(5)
        assert place.conditions()["ScalingActive"] == ("False", "MetricsMissing")
        assert "monitoring/prometheus-adapter" in place.message("ScalingActive")


@in_virtual_time
async def test_keda_takes_over_and_hands_back_with_one_writer_of_replicas_at_a_time() -> None:
    async with Place() as place:
        register(place, OURS)
        await begun(place)
        both: list[object] = []
        place.cluster.watchers.append(
            lambda kind, seen, is_gone: both.append(kind) if len(writers(place)) > 1 else None
        )
        assert place.operator is not None

        async def looked() -> None:
            await asyncio.sleep(REFRESH_INTERVAL_S)
            assert place.operator is not None
            assert await place.operator.world.autoscaling.try_refresh()
            place.operator.wake_groups()
            await asyncio.sleep(5)

        place.cluster.served.add(KEDA)
        register(place, KEDAS)
        await looked()
        assert writers(place) == {SCALED_OBJECT}
        assert place.has(TRIGGER_AUTHENTICATION, "orders-lbg") or any(
            kind is TRIGGER_AUTHENTICATION for kind, _, _ in place.cluster.objects
        )
        said = {"conditions": [{"type": "Ready", "status": "True"}]}
        place.cluster.edit(SCALED_OBJECT, "shop", "orders", {"status": said})
        await place.operator.world.autoscaling.try_refresh()
        await asyncio.sleep(5)
        assert place.conditions()["ScalingActive"] == ("True", "Scaling")

        register(place, OURS)
        await looked()
        assert writers(place) == {AUTOSCALER}
        deleted = [kind for verb, kind, _ in place.cluster.written if verb == "delete"]
        # KEDA asks its triggers until their ScaledObject is gone, and for that it needs to be let in.
        assert deleted == ["HorizontalPodAutoscaler", "ScaledObject", "TriggerAuthentication"]
        assert both == []


@pytest.mark.parametrize(
    ("kind", "name", "field"),
    [
        (SCALED_OBJECT, "orders", "triggers"),
        (TRIGGER_AUTHENTICATION, "orders-lbg-keda", "secretTargetRef"),
    ],
)
@in_virtual_time
async def test_an_object_of_kedas_that_somebody_deletes_or_changes_is_back_after_a_look(
    kind: Kind, name: str, field: str
) -> None:
    async with Place() as place:
        place.cluster.served.add(KEDA)
        register(place, KEDAS)
        await begun(place)
        assert place.operator is not None
        before = place.seen(kind, name)
        for spoil in (
            lambda: place.cluster.take_away(kind, "shop", name),
            lambda: place.cluster.edit(kind, "shop", name, {"spec": {field: []}}),
        ):
            spoil()
            await place.operator.world.autoscaling.try_refresh()
            await asyncio.sleep(1)
            assert place.seen(kind, name)["spec"] == before["spec"]


@in_virtual_time
async def test_the_looks_at_keda_are_lists_however_many_groups_there_are() -> None:
    async with Place() as place:
        place.cluster.served.add(KEDA)
        register(place, KEDAS)
        await begun(place)
        place.apply_group("payments", scaling=SCALING)
        await asyncio.sleep(60)
        asked: list[str] = []
        place.cluster.fail = lambda verb, kind, name: asked.append(f"{verb} {kind.kind}")
        assert place.operator is not None
        await place.operator.world.autoscaling.refresh()
        place.operator.wake_groups()
        await asyncio.sleep(5)
        assert asked == [
            "read APIService",
            "read APIService",
            "select ScaledObject",
            "select TriggerAuthentication",
        ]


@in_virtual_time
async def test_keda_that_came_after_the_chart_is_named_until_its_objects_are_granted() -> None:
    async with Place() as place:
        place.cluster.served.add(KEDA)
        register(place, KEDAS)

        place.cluster.fail = ungranted
        await begun(place)
        assert writers(place) == {AUTOSCALER}
        says(place, "True")
        await asyncio.sleep(5)
        assert place.conditions()["ScalingActive"] == ("False", "MetricsMissing")
        assert "helm upgrade" in place.message("ScalingActive")
        assert place.conditions()["Degraded"] == ("False", "AsExpected")
        place.cluster.fail = lambda verb, kind, name: None
        assert place.operator is not None
        assert await place.operator.world.autoscaling.try_refresh()
        place.operator.wake_groups()
        await asyncio.sleep(5)
        assert writers(place) == {SCALED_OBJECT}


def ungranted(verb: str, kind: Kind, name: str) -> None:
    if kind in KEDA_KINDS:
        raise Forbidden(f"{verb} {kind.kind}", "not granted", status=403)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("registered", [KEDAS, OURS])
@in_virtual_time
async def test_rights_on_keda_that_are_taken_away_bring_no_second_autoscaler(
    registered: Service, restarts: bool
) -> None:
    async with Place() as place:
        place.cluster.served.add(KEDA)
        register(place, KEDAS)
        await begun(place)
        assert writers(place) == {SCALED_OBJECT}
        place.cluster.put(token_secret())
        place.cluster.fail = ungranted
        register(place, registered)
        if restarts:
            await place.restart()
        assert place.operator is not None
        await place.operator.world.autoscaling.try_refresh()
        place.operator.wake_groups()
        await asyncio.sleep(60)
        assert writers(place) == {SCALED_OBJECT}
        assert place.conditions()["ScalingActive"] == ("Unknown", "ScalingNotObserved")
        assert place.conditions()["Degraded"] == ("False", "AsExpected")
        place.apply_group("payments", scaling=SCALING)
        await asyncio.sleep(10)
        assert place.has(AUTOSCALER, "payments")

        place.cluster.fail = lambda verb, kind, name: None
        register(place, KEDAS)
        assert await place.operator.world.autoscaling.try_refresh()
        place.operator.wake_groups()
        await asyncio.sleep(10)
        assert not place.has(AUTOSCALER, "payments")
        assert place.has(SCALED_OBJECT, "payments")


@pytest.mark.parametrize("registered", [KEDAS, OURS])
@in_virtual_time
async def test_an_operator_that_never_saw_a_scaled_object_puts_no_autoscaler_beside_it(
    registered: Service,
) -> None:
    """Neither it nor the Secret that KEDA reads: only that something was made for the group once."""
    async with Place() as place:
        place.cluster.served.add(KEDA)
        register(place, KEDAS)
        await begun(place)
        assert writers(place) == {SCALED_OBJECT}
        place.cluster.fail = ungranted
        register(place, registered)
        await place.restart()
        await asyncio.sleep(60)
        place.edit_group({"scaling": {**SCALING, "maxReplicas": 3}})
        await asyncio.sleep(60)
        assert writers(place) == {SCALED_OBJECT}
        assert not place.has(SECRET, "orders-lbg-keda")
        assert place.conditions()["ScalingActive"] == ("Unknown", "ScalingNotObserved")
        assert "helm upgrade" in place.message("ScalingActive")


@in_virtual_time
async def test_an_autoscaler_that_is_there_stays_while_kedas_objects_cannot_be_listed() -> None:
    async with Place() as place:
        register(place, OURS)
        await begun(place)
        assert writers(place) == {AUTOSCALER}
        place.cluster.served.add(KEDA)
        place.cluster.fail = ungranted
        await place.restart()
        place.edit_group({"scaling": {**SCALING, "maxReplicas": 3}})
        await asyncio.sleep(60)
        assert writers(place) == {AUTOSCALER}
        assert place.seen(AUTOSCALER)["spec"]["maxReplicas"] == 3


def token_secret() -> dict[str, Any]:
    """Secret of the operator for KEDA, which it makes if it has a certificate."""
    group = GroupManifest.parse(group_manifest({"scaling": SCALING, "consumer": consumer()}))
    return token_secret_of(group, token="t", ca_pem=b"")


@in_virtual_time
async def test_a_provider_that_cannot_be_looked_at_stays_what_it_was() -> None:
    async with Place() as place:
        register(place, OURS)
        await begun(place)
        assert place.operator is not None
        place.cluster.failing = {"read"}
        assert not await place.operator.world.autoscaling.try_refresh()
        place.operator.wake_groups()
        await asyncio.sleep(5)
        assert writers(place) == {AUTOSCALER}


@in_virtual_time
async def test_scaling_that_is_taken_out_of_the_manifest_takes_the_autoscaler_along() -> None:
    async with Place() as place:
        register(place, OURS)
        await begun(place)
        place.edit_group({"scaling": None, "replicas": 3})
        await asyncio.sleep(5)
        assert writers(place) == set()
        assert place.conditions()["ScalingActive"] == ("False", "NotAsked")
