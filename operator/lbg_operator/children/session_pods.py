"""The StatefulSet of a group's consumers in mode Sessions: a pod that comes back under its name takes its session up
where it was, with the volume on which its sidecar keeps how far that is.
"""

from __future__ import annotations

from typing import Any

from ..errors import ManifestError
from ..manifests import GroupManifest, quantity_of
from ..settings import OperatorSettings
from .injecting import STATE_VOLUME, injected
from .naming import labels_of, owned, selector_of, sessions_name

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
