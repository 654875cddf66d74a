"""The HorizontalPodAutoscaler of a group, on the group's own scale subresource: replicas have one owner."""

from __future__ import annotations

from typing import Any

from ..manifests import GroupManifest
from .naming import API_VERSION, KIND, owned

LAG_METRIC = "lbg_group_lag"
"""Of external.metrics.k8s.io: messages ready or not acknowledged yet, by group."""


def autoscaler_of(group: GroupManifest) -> dict[str, Any] | None:
    """None for a group without consumers of ours, or without a target: one without metrics would go by the CPU."""
    scaling, consumer = group.scaling, group.consumer
    if scaling is None or consumer is None or not scaling.has_target:
        return None
    metrics: list[dict[str, Any]] = []
    if scaling.target_cpu_percent is not None:
        container = consumer.app.container or consumer.template["spec"]["containers"][0]["name"]
        target = {"type": "Utilization", "averageUtilization": scaling.target_cpu_percent}
        resource = {"name": "cpu", "container": container, "target": target}
        metrics.append({"type": "ContainerResource", "containerResource": resource})
    if scaling.target_lag is not None:
        name = {"name": LAG_METRIC, "selector": {"matchLabels": {"group": group.metadata.name}}}
        target = {"type": "AverageValue", "averageValue": str(scaling.target_lag)}
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
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": scaling.scale_down_stabilization_s}},
        },
    }
