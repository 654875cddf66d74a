"""The StatefulSet of a broker that the operator runs: one pod, never two on one volume.

It is written for the profile `restricted` (Kubernetes: "Pod Security Standards").
"""

from __future__ import annotations

from typing import Any

from ..manifests import BrokerManifest
from ..settings import OperatorSettings
from .naming import (
    admin_name,
    broker_labels_of,
    broker_selector_of,
    owned_by_broker,
    tls_name,
    volume_name,
)

AMQPS, HTTPS = "amqps", "https"
CONTAINER = "broker"
GROUP = 65532
"""Of the image, whose user it is too: `nonroot`."""

DATA = "/var/lib/lbg"
TLS = "/var/run/lbg/tls"
ADMINISTRATOR = "/var/run/lbg/administrator"

GRACE_S = 60
"""To close connections, write the last batch and bring the write-ahead log into the file, on a slow disk too."""

START_S = 1800
"""What recovery may take. Until then nothing listens, and nobody may end it for that."""

_PROBE_S = 2
_SECRET_MODE = 0o440


def stateful_set_of(
    broker: BrokerManifest, settings: OperatorSettings, *, amqps_port: int, https_port: int
) -> dict[str, Any]:
    """A changed certificate or password restarts nothing: the broker reads the files that it is given again.

    Parallel: otherwise a pod that cannot start is waited for and never replaced by a mended one (Kubernetes:
    "StatefulSets", forced rollback).
    """
    metadata = broker.metadata
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": owned_by_broker(metadata, metadata.name),
        "spec": {
            "replicas": 1,
            "serviceName": metadata.name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": broker_selector_of(metadata.name)},
            "template": {
                "metadata": {"labels": broker_labels_of(metadata.name)},
                "spec": _pod(broker, settings, amqps_port, https_port),
            },
        },
    }


def _pod(
    broker: BrokerManifest, settings: OperatorSettings, amqps_port: int, https_port: int
) -> dict[str, Any]:
    name, engine = broker.metadata.name, broker.embedded
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": _security(settings),
        "containers": [_container(broker, settings, amqps_port, https_port)],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": volume_name(name)}},
            _secret_volume("tls", engine.tls_secret or tls_name(name), "tls.crt", "tls.key"),
            _secret_volume("administrator", admin_name(name), "username", "password"),
        ],
    }


def _security(settings: OperatorSettings) -> dict[str, Any]:
    """The user is the image's. A cluster that gives pods a user and a group for their volumes refuses any other
    (OpenShift: "Managing security context constraints")."""
    told: dict[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if not settings.assigns_users:
        told |= {"fsGroup": GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
    return told


def _container(
    broker: BrokerManifest, settings: OperatorSettings, amqps_port: int, https_port: int
) -> dict[str, Any]:
    engine = broker.embedded
    size = engine.max_message_bytes  # an image of before this option knows nothing of it
    return {
        "name": CONTAINER,
        "image": engine.image or settings.broker_image,
        "args": [
            *("--data-dir", DATA),
            *("--listen", f"0.0.0.0:{amqps_port}"),
            *("--management", f"0.0.0.0:{https_port}"),
            *("--certfile", f"{TLS}/tls.crt", "--keyfile", f"{TLS}/tls.key"),
            *("--admin-username-file", f"{ADMINISTRATOR}/username"),
            *("--admin-password-file", f"{ADMINISTRATOR}/password"),
            *(() if size is None else ("--max-message-size", str(size))),
        ],
        "ports": [
            {"name": AMQPS, "containerPort": amqps_port, "protocol": "TCP"},
            {"name": HTTPS, "containerPort": https_port, "protocol": "TCP"},
        ],
        "resources": dict(engine.resources if engine.resources is not None else settings.broker_resources),
        "volumeMounts": [
            {"name": "data", "mountPath": DATA},
            {"name": "tls", "mountPath": TLS, "readOnly": True},
            {"name": "administrator", "mountPath": ADMINISTRATOR, "readOnly": True},
        ],
        "startupProbe": {**_asking("/healthz"), "failureThreshold": START_S // _PROBE_S},
        "livenessProbe": {**_asking("/healthz"), "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**_asking("/readyz"), "failureThreshold": 3},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _asking(path: str) -> dict[str, Any]:
    """The kubelet does not check certificates. A busy broker answers late: that is no reason to end it."""
    return {
        "httpGet": {"path": path, "port": HTTPS, "scheme": "HTTPS"},
        "periodSeconds": _PROBE_S,
        "timeoutSeconds": 5,
    }


def _secret_volume(name: str, secret: str, *keys: str) -> dict[str, Any]:
    items = [{"key": key, "path": key} for key in keys]
    return {"name": name, "secret": {"secretName": secret, "defaultMode": _SECRET_MODE, "items": items}}
