"""Objects of a group in a cluster with KEDA.
Field names and rules are those of KEDA 2.20's CRDs and webhooks."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from lbg_operator.crds import GroupManifest
from lbg_operator.resources.autoscaler import (
    authentication_of,
    autoscaler_name,
    autoscaler_of,
    scaled_object_of,
    token_secret_of,
)
from testing.kubernetes.manifests import consumer, group_manifest

URL = "https://lbg-operator.lbg.svc:6443"


def group_of(scaling: dict[str, Any] | None, *, name: str = "orders") -> GroupManifest:
    told = {"consumer": consumer(), **({} if scaling is None else {"scaling": scaling})}
    return GroupManifest.parse(group_manifest(told, name=name))


BOTH = {"minReplicas": 2, "maxReplicas": 6, "targetLag": 500, "targetCPUUtilizationPercentage": 70}


def test_a_scaled_object_is_on_the_groups_scale_subresource_with_its_limits() -> None:
    found = scaled_object_of(group_of(BOTH), url=URL)
    assert found is not None
    spec = found["spec"]
    assert (found["apiVersion"], found["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert found["metadata"]["name"] == "orders"
    assert spec["scaleTargetRef"] == {
        "apiVersion": "lbg.dev/v1alpha1",
        "kind": "LoadBalancedGroup",
        "name": "orders",
    }
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 6)
    assert "fallback" not in spec, "nothing is scaled by a lag that nobody knows"
    assert "idleReplicaCount" not in spec


def test_cpu_is_that_of_the_applications_container() -> None:
    found = scaled_object_of(group_of(BOTH), url=URL)
    assert found is not None
    cpu = found["spec"]["triggers"][0]
    assert cpu == {
        "type": "cpu",
        "metricType": "Utilization",
        "metadata": {"value": "70", "containerName": "app"},
    }


def test_lag_is_asked_of_the_operator_and_an_empty_answer_is_an_error() -> None:
    found = scaled_object_of(group_of({"maxReplicas": 6, "targetLag": 500}), url=URL)
    assert found is not None
    (lag,) = found["spec"]["triggers"]
    assert (lag["type"], lag["metricType"]) == ("prometheus", "AverageValue")
    assert lag["metadata"] == {
        "serverAddress": "https://lbg-operator.lbg.svc:6443/v1/metrics/shop/orders",
        "query": "lbg_group_lag",
        "threshold": "500",
        "ignoreNullValues": "false",
        "authModes": "bearer",
    }
    assert lag["authenticationRef"] == {"name": "orders-lbg-keda"}


def test_the_replicas_that_a_delay_needs_are_asked_in_the_same_way() -> None:
    found = scaled_object_of(group_of({"maxReplicas": 6, "targetDelay": "10s"}), url=URL)
    assert found is not None
    (wanted,) = found["spec"]["triggers"]
    assert (wanted["metricType"], wanted["metadata"]["query"], wanted["metadata"]["threshold"]) == (
        "AverageValue",
        "lbg_group_wanted_replicas",
        "1",
    )
    assert "tolerance" not in str(found), "KEDA's CRD may not have it"


def test_every_value_of_a_triggers_metadata_is_a_text() -> None:
    found = scaled_object_of(group_of(BOTH), url=URL)
    assert found is not None
    for trigger in found["spec"]["triggers"]:
        assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_both_autoscalers_have_the_same_limits_and_the_same_behaviour() -> None:
    group = group_of({**BOTH, "scaleDownStabilizationSeconds": 90})
    ours, kedas = autoscaler_of(group), scaled_object_of(group, url=URL)
    assert ours is not None
    assert kedas is not None
    config = kedas["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
    assert config["behavior"] == ours["spec"]["behavior"]
    assert kedas["spec"]["scaleTargetRef"] == ours["spec"]["scaleTargetRef"]
    assert kedas["spec"]["minReplicaCount"] == ours["spec"]["minReplicas"]
    assert kedas["spec"]["maxReplicaCount"] == ours["spec"]["maxReplicas"]


def test_the_authentication_reads_token_and_authority_from_the_secret() -> None:
    group = group_of(BOTH)
    secret, authentication = (
        token_secret_of(group, token="abc", ca_pem=b"PEM"),
        authentication_of(group),
    )
    assert {key: base64.b64decode(value) for key, value in secret["data"].items()} == {
        "token": b"abc",
        "ca.crt": b"PEM",
    }
    refs = authentication["spec"]["secretTargetRef"]
    assert {one["name"] for one in refs} == {secret["metadata"]["name"]}
    assert {one["parameter"]: one["key"] for one in refs} == {"bearerToken": "token", "ca": "ca.crt"}


def test_a_group_without_scaling_or_consumers_has_none() -> None:
    assert scaled_object_of(group_of(None), url=URL) is None
    alone = GroupManifest.parse(group_manifest({"scaling": {"maxReplicas": 2, "targetLag": 1}}))
    assert scaled_object_of(alone, url=URL) is None


@pytest.mark.parametrize("length", [1, 54, 55, 63])
def test_the_name_of_kedas_autoscaler_is_short_enough_for_a_label(length: int) -> None:
    name = autoscaler_name("g" * length)
    assert len(name) <= 63
    assert name.startswith("keda-hpa-g")


def test_long_groups_that_begin_alike_have_autoscalers_of_their_own() -> None:
    assert autoscaler_name("g" * 62 + "a") != autoscaler_name("g" * 62 + "b")
