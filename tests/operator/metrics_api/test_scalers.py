"""Objects that scale a group, as the cluster changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from lbg_operator.crds import GroupManifest
from lbg_operator.kube.api import ClusterError
from lbg_operator.metrics_api import Keda, Other, Ours, Service, ServingConfig
from lbg_operator.metrics_api.tls import ensure_serving_config
from lbg_operator.reconcile.metrics_provider import MetricsProviders
from lbg_operator.reconcile.object_cache import Key, ObjectCache
from lbg_operator.settings import OperatorSettings
from testing.kubernetes.fake_cluster import FakeCluster
from testing.kubernetes.manifests import consumer, group_manifest

OURS, KEDAS = Service("lbg", "lbg-operator"), Service("keda", "keda-metrics")
SETTINGS = OperatorSettings(
    sidecar_image="s:1", broker_image="b:1", namespace=OURS.namespace, service=OURS.name
)
GROUP = GroupManifest.parse(
    group_manifest({"consumer": consumer(), "scaling": {"maxReplicas": 4, "targetLag": 100}})
)


class Place:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.standing: ServingConfig | None = None
        self.woken: list[Key] = []
        self.autoscaling = MetricsProviders(
            self.cluster,
            SETTINGS,
            ObjectCache(),
            serving_config=lambda: self.standing,
            wake_group=self.woken.append,
        )

    def register(self, service: Service) -> None:
        self.cluster.put(
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
                "spec": {"service": {"namespace": service.namespace, "name": service.name}},
                "status": {"conditions": [{"type": "Available", "status": "True"}]},
            }
        )

    @property
    def kinds(self) -> list[Any]:
        return [one["kind"] for one in self.autoscaling.scalers_of(GROUP)]


@pytest.fixture
def place() -> Place:
    return Place()


async def test_a_provider_that_changes_is_noticed_once(place: Place) -> None:
    place.register(OURS)
    assert await place.autoscaling.refresh()
    assert place.autoscaling.provider == Ours()
    assert not await place.autoscaling.refresh()
    place.register(Service("dd", "agent"))
    assert await place.autoscaling.refresh()
    assert isinstance(place.autoscaling.provider, Other)


async def test_a_look_that_fails_changes_nothing(place: Place) -> None:
    place.register(OURS)
    await place.autoscaling.refresh()
    place.cluster.failing = {"read"}
    assert not await place.autoscaling.try_refresh()
    assert place.autoscaling.provider == Ours()
    with pytest.raises(ClusterError):
        await place.autoscaling.refresh()


async def test_keda_has_its_objects_in_place_of_the_autoscaler(place: Place) -> None:
    place.register(OURS)
    await place.autoscaling.refresh()
    assert place.kinds == ["HorizontalPodAutoscaler"]
    place.cluster.served.add("keda.sh/v1alpha1")
    place.register(KEDAS)
    await place.autoscaling.refresh()
    place.standing = await ensure_serving_config(place.cluster, OURS, now=datetime(2026, 3, 1, tzinfo=UTC))
    assert place.autoscaling.provider == Keda()
    assert place.kinds == ["Secret", "TriggerAuthentication", "ScaledObject"]
    scaled = place.autoscaling.scalers_of(GROUP)[-1]
    address = scaled["spec"]["triggers"][0]["metadata"]["serverAddress"]
    assert address == "https://lbg-operator.lbg.svc:6443/v1/metrics/shop/orders"


async def test_a_restarted_operator_keeps_kedas_objects_before_it_has_its_certificate(place: Place) -> None:
    place.cluster.served.add("keda.sh/v1alpha1")
    place.register(KEDAS)
    await place.autoscaling.refresh()
    assert place.kinds == ["TriggerAuthentication", "ScaledObject"]
