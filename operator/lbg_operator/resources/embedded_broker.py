"""StatefulSet, Service, Secrets and volume of a broker that the operator runs.

It is written for the profile `restricted` (Kubernetes: "Pod Security Standards").
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Protocol

from lbg_operator.certificates import Certificate
from lbg_operator.crds import BrokerManifest, quantity_of
from lbg_operator.resources.names import (
    admin_name,
    broker_labels_of,
    broker_selector_of,
    kept_after_broker,
    owned_by_broker,
    tls_name,
    volume_name,
)
from lbg_operator.resources.network_policy import broker_policy_of
from lbg_operator.settings import OperatorSettings


class Login(Protocol):
    @property
    def username(self) -> str: ...

    @property
    def password(self) -> str: ...


def administrator_of(broker: BrokerManifest, login: Login) -> dict[str, Any]:
    return _secret(
        broker,
        admin_name(broker.metadata.name),
        "kubernetes.io/basic-auth",
        {"username": login.username.encode(), "password": login.password.encode()},
    )


def tls_of(broker: BrokerManifest, certificate: Certificate) -> dict[str, Any]:
    """With the authority's key: the next certificate is signed by it, and clients need not hear of that. The broker's
    pod is given the server's files only."""
    return _secret(
        broker,
        tls_name(broker.metadata.name),
        "kubernetes.io/tls",
        {
            "tls.crt": certificate.certificate_pem,
            "tls.key": certificate.key_pem,
            "ca.crt": certificate.ca_pem,
            "ca.key": certificate.ca_key_pem,
        },
    )


def certificate_in(secret: Mapping[str, Any]) -> Certificate | None:
    """Certificate in a Secret, from `tls_of` or cert-manager; None if something is missing or is no base64."""
    try:
        files = {name: b64decode(value, validate=True) for name, value in secret.get("data", {}).items()}
        return Certificate(files["tls.crt"], files["tls.key"], files["ca.crt"], files.get("ca.key", b""))
    except (KeyError, ValueError):
        return None


def _secret(broker: BrokerManifest, name: str, kind: str, data: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": owned_by_broker(broker.metadata, name),
        "type": kind,
        "data": {key: b64encode(value).decode() for key, value in data.items()},
    }


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
"""Seconds that recovery may take. Until then nothing listens, and nobody may end it for that."""

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
    context: dict[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if not settings.assigns_users:
        context |= {"fsGroup": GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def _container(
    broker: BrokerManifest, settings: OperatorSettings, amqps_port: int, https_port: int
) -> dict[str, Any]:
    engine = broker.embedded
    size = engine.max_message_bytes
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
        "startupProbe": {**_http_probe("/healthz"), "failureThreshold": START_S // _PROBE_S},
        "livenessProbe": {**_http_probe("/healthz"), "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**_http_probe("/readyz"), "failureThreshold": 3},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _http_probe(path: str) -> dict[str, Any]:
    """The kubelet does not check certificates. A busy broker answers late: that is no reason to end it."""
    return {
        "httpGet": {"path": path, "port": HTTPS, "scheme": "HTTPS"},
        "periodSeconds": _PROBE_S,
        "timeoutSeconds": 5,
    }


def _secret_volume(name: str, secret: str, *keys: str) -> dict[str, Any]:
    items = [{"key": key, "path": key} for key in keys]
    return {"name": name, "secret": {"secretName": secret, "defaultMode": _SECRET_MODE, "items": items}}


AMQPS_PORT, HTTPS_PORT = 5671, 15671
"""RabbitMQ's ports over TLS, and so what addresses without a port mean."""


def embedded_of(
    broker: BrokerManifest, settings: OperatorSettings, *, login: Login, certificate: Certificate | None
) -> list[dict[str, Any]]:
    """In the order in which they are to be applied. `certificate` is None where the manifest names a Secret.

    The volume comes last: a storage class may refuse to let it grow, and that is to hold nothing else up. A new pod
    waits for its volume by itself.
    """
    secrets = [administrator_of(broker, login)]
    if certificate is not None:
        secrets.append(tls_of(broker, certificate))
    return [
        *secrets,
        service_of(broker),
        broker_policy_of(broker, settings, amqps_port=AMQPS_PORT, https_port=HTTPS_PORT),
        stateful_set_of(broker, settings, amqps_port=AMQPS_PORT, https_port=HTTPS_PORT),
        volume_of(broker),
    ]


def hosts_of(broker: BrokerManifest) -> tuple[str, ...]:
    """Hosts that its certificate is for. localhost: an administrator comes by `kubectl port-forward`."""
    name, namespace = broker.metadata.name, broker.metadata.namespace
    return (f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local", "localhost")


def uris_of(broker: BrokerManifest) -> tuple[str, ...]:
    return (f"amqps://{hosts_of(broker)[0]}:{AMQPS_PORT}",)


def management_uris_of(broker: BrokerManifest) -> tuple[str, ...]:
    return (f"https://{hosts_of(broker)[0]}:{HTTPS_PORT}",)


def service_of(broker: BrokerManifest) -> dict[str, Any]:
    """With an address of its own, so that clients reach a pod that is new by the address they know, and are refused
    at once while there is none.

    A broker with a full disk is not ready, and its consumers must reach it nevertheless: they make room.
    """
    metadata = broker.metadata
    ports = [(AMQPS, AMQPS_PORT), (HTTPS, HTTPS_PORT)]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned_by_broker(metadata, metadata.name),
        "spec": {
            "type": "ClusterIP",
            "publishNotReadyAddresses": True,
            "selector": broker_selector_of(metadata.name),
            "ports": [
                {"name": name, "port": port, "targetPort": name, "protocol": "TCP"} for name, port in ports
            ],
        },
    }


def volume_of(broker: BrokerManifest) -> dict[str, Any]:
    """The claim of its volume, which stays when the Broker is deleted.

    No template of the StatefulSet: a template cannot be changed, and a volume has to grow
    (docs/adr/0022-the-volume-of-a-broker-is-a-claim-of-its-own.md).
    """
    engine = broker.embedded
    storage_class: Mapping[str, Any] = (
        {} if engine.storage_class is None else {"storageClassName": engine.storage_class}
    )
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": kept_after_broker(broker.metadata, volume_name(broker.metadata.name)),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": quantity_of(engine.storage_bytes)}},
            **storage_class,
        },
    }
