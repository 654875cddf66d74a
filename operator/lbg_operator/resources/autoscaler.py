"""HorizontalPodAutoscaler of a group, or ScaledObject where KEDA is.

Metrics are asked of the operator by KEDA's `prometheus` trigger, which checks a server against an authority of our own
and bears a token; `metrics-api` does the first only with a client certificate as well (ADR 24). There is no fallback:
KEDA scales nothing while a trigger fails.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

from lbg_operator.crds import GroupManifest, Scaling
from lbg_operator.resources.names import API_VERSION, KIND, owned

LAG_METRIC = "lbg_group_lag"
"""Of external.metrics.k8s.io: messages ready or not acknowledged yet, by group."""

WANTED_METRIC = "lbg_group_wanted_replicas"
"""The same: consumers that `targetDelay` needs."""

METRICS = (LAG_METRIC, WANTED_METRIC)


def autoscaler_of(group: GroupManifest, *, has_tolerance: bool = False) -> dict[str, Any] | None:
    """None for a group without consumers of ours, or without a target: one without metrics would go by the CPU.

    `has_tolerance`: the cluster's autoscalers have a tolerance of their own (Kubernetes 1.35).
    """
    scaling, consumer = group.scaling, group.consumer
    if scaling is None or consumer is None or not scaling.has_target:
        return None
    metrics: list[dict[str, Any]] = []
    if scaling.target_cpu_percent is not None:
        container = consumer.app.container or consumer.template["spec"]["containers"][0]["name"]
        target = {"type": "Utilization", "averageUtilization": scaling.target_cpu_percent}
        resource = {"name": "cpu", "container": container, "target": target}
        metrics.append({"type": "ContainerResource", "containerResource": resource})
    for metric, average in _external_targets(scaling):
        name = {"name": metric, "selector": {"matchLabels": {"group": group.metadata.name}}}
        target = {"type": "AverageValue", "averageValue": average}
        metrics.append({"type": "External", "external": {"metric": name, "target": target}})
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": owned(group.metadata, group.metadata.name),
        "spec": {
            "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": group.metadata.name},
            "minReplicas": scaling.min_replicas,
            "maxReplicas": group.replicas_max,
            "metrics": metrics,
            "behavior": _behavior(group, scaling, has_tolerance=has_tolerance),
        },
    }


def _external_targets(scaling: Scaling) -> Iterator[tuple[str, str]]:
    """Metrics of the operator, each with its target for the average of a replica."""
    if scaling.target_lag is not None:
        yield LAG_METRIC, str(scaling.target_lag)
    if scaling.target_delay_s is not None:
        yield WANTED_METRIC, "1"


def _behavior(group: GroupManifest, scaling: Scaling, *, has_tolerance: bool = False) -> dict[str, Any]:
    """The lag of a paused group grows, and more consumers would not process it. The number of consumers that a delay
    needs is exact, and by default an autoscaler ignores a step of less than a tenth. Other targets need that."""
    up: dict[str, Any] = {"selectPolicy": "Disabled"} if group.paused else {}
    down: dict[str, Any] = {"stabilizationWindowSeconds": scaling.scale_down_stabilization_s}
    if has_tolerance and scaling.is_by_delay_alone:
        up["tolerance"] = down["tolerance"] = "0"
    return {"scaleDown": down, **({"scaleUp": up} if up else {})}


KEDA_API_VERSION = "keda.sh/v1alpha1"
NAME_MAX = 63
"""Of an autoscaler of KEDA's: it is a label too."""


def authentication_name(group: str) -> str:
    """Of the TriggerAuthentication, and of the Secret that it reads."""
    return f"{group}-lbg-keda"


def autoscaler_name(group: str) -> str:
    """Of the HorizontalPodAutoscaler that KEDA makes: its own default, where that is short enough for it."""
    name = f"keda-hpa-{group}"
    if len(name) <= NAME_MAX:
        return name
    digest = hashlib.sha256(group.encode()).hexdigest()[:8]
    return f"{name[: NAME_MAX - len(digest) - 1]}-{digest}"


def scaled_object_of(group: GroupManifest, *, url: str) -> dict[str, Any] | None:
    """`url` is the operator's external metrics API. None for a group without a target, or without consumers of
    ours."""
    scaling, consumer = group.scaling, group.consumer
    if scaling is None or consumer is None or not scaling.has_target:
        return None
    triggers: list[dict[str, Any]] = []
    if scaling.target_cpu_percent is not None:
        container = consumer.app.container or consumer.template["spec"]["containers"][0]["name"]
        metadata = {"value": str(scaling.target_cpu_percent), "containerName": container}
        triggers.append({"type": "cpu", "metricType": "Utilization", "metadata": metadata})
    triggers += [_trigger(group, url, *one) for one in _external_targets(scaling)]
    autoscaler = {"name": autoscaler_name(group.metadata.name), "behavior": _behavior(group, scaling)}
    return {
        "apiVersion": KEDA_API_VERSION,
        "kind": "ScaledObject",
        "metadata": owned(group.metadata, group.metadata.name),
        "spec": {
            "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": group.metadata.name},
            "minReplicaCount": scaling.min_replicas,
            "maxReplicaCount": group.replicas_max,
            "triggers": triggers,
            "advanced": {"horizontalPodAutoscalerConfig": autoscaler},
        },
    }


def _trigger(group: GroupManifest, url: str, metric: str, average: str) -> dict[str, Any]:
    metadata = group.metadata
    return {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": f"{url}/v1/metrics/{metadata.namespace}/{metadata.name}",
            "query": metric,
            "threshold": average,
            "ignoreNullValues": "false",
            "authModes": "bearer",
        },
        "authenticationRef": {"name": authentication_name(metadata.name)},
    }


def authentication_of(group: GroupManifest) -> dict[str, Any]:
    """The TriggerAuthentication by which KEDA finds the token, and the authority to know the operator by."""
    name = authentication_name(group.metadata.name)
    keys = {"bearerToken": "token", "ca": "ca.crt"}
    refs = [{"parameter": parameter, "name": name, "key": key} for parameter, key in keys.items()]
    return {
        "apiVersion": KEDA_API_VERSION,
        "kind": "TriggerAuthentication",
        "metadata": owned(group.metadata, name),
        "spec": {"secretTargetRef": refs},
    }


def token_secret_of(group: GroupManifest, *, token: str, ca_pem: bytes) -> dict[str, Any]:
    data = {"token": token.encode(), "ca.crt": ca_pem}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": owned(group.metadata, authentication_name(group.metadata.name)),
        "type": "Opaque",
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }
