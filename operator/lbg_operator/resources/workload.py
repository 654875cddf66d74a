"""Deployment or StatefulSet of a group's consumers, and their disruption budget."""

from __future__ import annotations

from typing import Any

from lbg_operator.crds import GroupManifest, quantity_of
from lbg_operator.errors import ManifestError
from lbg_operator.resources.names import labels_of, owned, selector_of, sessions_name
from lbg_operator.resources.sidecar_injection import STATE_VOLUME, injected
from lbg_operator.settings import OperatorSettings

NAME_MAX = 48
"""Of the group. Kubernetes labels pods with the StatefulSet's name and eleven characters of a revision: 63 together."""


def session_set_of(group: GroupManifest, settings: OperatorSettings, *, has_ca: bool) -> dict[str, Any]:
    """Raises ManifestError.

    Parallel: sessions do not wait for each other, and a pod that cannot start is replaced by a mended one. A rollout
    takes one pod after the other; its session's messages wait for it meanwhile, as they would for nobody else.
    """
    assert group.consumer is not None
    name = group.metadata.name
    if len(name) > NAME_MAX:
        raise ManifestError(
            "metadata.name",
            f"{name!r} has {len(name)} characters, and in mode Sessions, where pods are named by number, it may have "
            f"{NAME_MAX}: make the group with a shorter name, and set groupName for the broker if need be",
        )
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": owned(group.metadata, sessions_name(name)),
        "spec": {
            "replicas": group.pods_wanted,
            "serviceName": sessions_name(name),  # there is none: nobody calls these pods by name
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": selector_of(name)},
            "template": injected(group, settings, has_ca=has_ca),
            "volumeClaimTemplates": [_claim_of(group)],
            "persistentVolumeClaimRetentionPolicy": {
                # A pod goes when its session is over: its position is worth nothing any more.
                "whenScaled": "Delete",
                # The sessions go with the queue, and stay where that does.
                "whenDeleted": "Retain" if group.deletion_policy == "Retain" else "Delete",
            },
        },
    }


def _claim_of(group: GroupManifest) -> dict[str, Any]:
    assert group.consumer is not None
    storage = group.consumer.storage
    chosen = {} if storage.storage_class is None else {"storageClassName": storage.storage_class}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": STATE_VOLUME, "labels": labels_of(group.metadata.name)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": quantity_of(storage.size_bytes)}},
            **chosen,
        },
    }


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
