"""What an embedded Broker is in the cluster, all of it: manifest, login and certificate in, objects out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..certificates import Certificate
from ..manifests import BrokerManifest, quantity_of
from ..settings import OperatorSettings
from .broker_pod import AMQPS, HTTPS, stateful_set_of
from .broker_secrets import Login, administrator_of, tls_of
from .naming import broker_selector_of, kept_after_broker, owned_by_broker, volume_name
from .network import broker_policy_of

AMQPS_PORT, HTTPS_PORT = 5671, 15671
"""What RabbitMQ uses over TLS, and so what addresses without a port mean."""


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
    """What its certificate is for. localhost: an administrator comes by `kubectl port-forward`."""
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
