"""The Deployment of a group's consumers, and the budget that keeps an eviction from taking several at once."""

from __future__ import annotations

from typing import Any

from ..manifests import GroupManifest
from ..settings import OperatorSettings
from .injecting import injected
from .naming import owned, selector_of


def deployment_of(group: GroupManifest, settings: OperatorSettings, *, has_ca: bool) -> dict[str, Any]:
    """Raises ManifestError.

    A rollout brings one new pod before it takes an old one away: the new member stands by while the rebalance delay
    runs, and gets the old one's queues when that leaves, so that each queue moves once.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": owned(group.metadata, group.metadata.name),
        "spec": {
            "replicas": group.pods_wanted,
            "selector": {"matchLabels": selector_of(group.metadata.name)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": injected(group, settings, has_ca=has_ca),
        },
    }


def budget_of(group: GroupManifest) -> dict[str, Any]:
    """A PodDisruptionBudget: one consumer at a time. One that is not ready may always go."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owned(group.metadata, group.metadata.name),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector_of(group.metadata.name)},
        },
    }
