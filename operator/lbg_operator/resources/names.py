"""Names, labels and selectors of the objects of a group or a broker."""

from __future__ import annotations

from typing import Any

from lbg_operator.crds import Metadata

API_VERSION, KIND = "lbg.dev/v1alpha1", "LoadBalancedGroup"
BROKER_KIND = "Broker"
MANAGER = "lbg-operator"
"""The field manager of server-side apply, and the value of app.kubernetes.io/managed-by."""
OURS = f"app.kubernetes.io/managed-by={MANAGER}"
"""The selector of what the operator made."""

GROUP_LABEL = "lbg.dev/group"
BROKER_LABEL = "lbg.dev/broker"


def credentials_name(group: str) -> str:
    """Of the Secret with the group's user."""
    return f"{group}-lbg"


def publisher_name(group: str) -> str:
    """Of the Secret with the user of the group's publishers."""
    return f"{group}-lbg-publisher"


def attributes_name(group: str) -> str:
    """Of the ConfigMap with the group's attributes."""
    return f"{group}-lbg"


def sessions_name(group: str) -> str:
    """Of the StatefulSet of a group's consumers in mode Sessions: a Broker of the group's name has one too. With a dash
    and a number it names pods, and so sessions."""
    return f"{group}-lbg"


def admin_name(broker: str) -> str:
    """Of the Secret with the first administrator of a broker that the operator runs."""
    return f"{broker}-lbg-admin"


def tls_name(broker: str) -> str:
    """Of the Secret with the certificate that the operator makes for a broker."""
    return f"{broker}-lbg-tls"


def volume_name(broker: str) -> str:
    """Of the PersistentVolumeClaim that a broker's messages are kept on."""
    return f"{broker}-lbg-data"


def broker_policy_name(broker: str) -> str:
    """Of its NetworkPolicy. A group of the same name has one too, called as the group."""
    return f"{broker}-lbg-broker"


def broker_selector_of(broker: str) -> dict[str, str]:
    """The labels of a broker's pod, which cannot be changed either."""
    return {BROKER_LABEL: broker}


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


def broker_labels_of(broker: str) -> dict[str, str]:
    """Of every object of a broker."""
    return {
        BROKER_LABEL: broker,
        "app.kubernetes.io/name": "lbg-broker",
        "app.kubernetes.io/instance": broker,
        "app.kubernetes.io/managed-by": MANAGER,
    }


def owned(metadata: Metadata, name: str) -> dict[str, Any]:
    """The metadata of an object of a LoadBalancedGroup: the garbage collector deletes it with the group."""
    return {
        "name": name,
        "namespace": metadata.namespace,
        "labels": labels_of(metadata.name),
        "ownerReferences": [_owner(KIND, metadata)],
    }


def owned_by_broker(metadata: Metadata, name: str) -> dict[str, Any]:
    """The metadata of an object of a Broker, deleted with it."""
    return {**kept_after_broker(metadata, name), "ownerReferences": [_owner(BROKER_KIND, metadata)]}


def kept_after_broker(metadata: Metadata, name: str) -> dict[str, Any]:
    """The metadata of an object of a Broker that stays when the Broker is deleted."""
    return {"name": name, "namespace": metadata.namespace, "labels": broker_labels_of(metadata.name)}


def _owner(kind: str, metadata: Metadata) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": metadata.name,
        "uid": metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
