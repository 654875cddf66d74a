"""What a group's objects in the cluster are called, and how they are found."""

from __future__ import annotations

from typing import Any

from ..manifests import Metadata

API_VERSION, KIND = "lbg.dev/v1alpha1", "LoadBalancedGroup"
MANAGER = "lbg-operator"
"""The field manager of server-side apply, and the value of app.kubernetes.io/managed-by."""

GROUP_LABEL = "lbg.dev/group"


def credentials_name(group: str) -> str:
    """Of the Secret with the group's user."""
    return f"{group}-lbg"


def attributes_name(group: str) -> str:
    """Of the ConfigMap with the group's attributes."""
    return f"{group}-lbg"


def selector_of(group: str) -> dict[str, str]:
    """The labels of a group's consumer pods. A Deployment's selector cannot be changed: neither can these."""
    return {GROUP_LABEL: group}


def labels_of(group: str) -> dict[str, str]:
    """Of every object of a group (Kubernetes: "Recommended Labels")."""
    return {
        GROUP_LABEL: group,
        "app.kubernetes.io/name": "lbg",
        "app.kubernetes.io/instance": group,
        "app.kubernetes.io/managed-by": MANAGER,
    }


def owned(metadata: Metadata, name: str) -> dict[str, Any]:
    """The metadata of an object of a LoadBalancedGroup: the garbage collector deletes it with the group."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": metadata.name,
        "uid": metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": metadata.namespace,
        "labels": labels_of(metadata.name),
        "ownerReferences": [owner],
    }
