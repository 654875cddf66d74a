"""NetworkPolicies of a broker's pod and of a group's consumers.

The kubelet's probes come from the node and are let in by every network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lbg_operator.crds import BrokerManifest, GroupManifest
from lbg_operator.crds.broker import ANY_NAMESPACE
from lbg_operator.resources.names import (
    broker_policy_name,
    broker_selector_of,
    owned,
    owned_by_broker,
    selector_of,
)
from lbg_operator.resources.sidecar_injection import OBSERVED_PORT
from lbg_operator.settings import OperatorSettings

NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""The API server gives every namespace its name as a label."""


def broker_policy_of(
    broker: BrokerManifest, settings: OperatorSettings, *, amqps_port: int, https_port: int
) -> dict[str, Any]:
    """AMQP from the namespaces whose groups may use it, and from the operator's; the management API from the
    operator's alone. The broker itself calls nobody, which is Egress without a rule: an empty list of rules is stored
    as none, and so would be another generation of the object at each apply."""
    allowed = {*broker.allowed_namespaces, broker.metadata.namespace}
    ingress = []
    if settings.namespace:
        allowed.add(settings.namespace)
        ingress.append({"from": [_namespaces({settings.namespace})], "ports": [_port(https_port)]})
    ingress.insert(0, {"from": [_namespaces(allowed)], "ports": [_port(amqps_port)]})
    return _policy(
        owned_by_broker(broker.metadata, broker_policy_name(broker.metadata.name)),
        {
            "podSelector": {"matchLabels": broker_selector_of(broker.metadata.name)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
        },
    )


def network_policy_of(group: GroupManifest) -> dict[str, Any] | None:
    """Of a group's consumers, None without any: what the sidecar shows and what the template's containers declare may
    be connected to, and the port that the sidecar calls the application at may not, as that call is a local one."""
    consumer = group.consumer
    if consumer is None:
        return None
    pod = consumer.template.get("spec", {})
    declared = _declared([*pod.get("containers", []), *pod.get("initContainers", [])])
    ports = (declared | {(OBSERVED_PORT, "TCP")}) - {(consumer.app.port, "TCP")}
    return _policy(
        owned(group.metadata, group.metadata.name),
        {
            "podSelector": {"matchLabels": selector_of(group.metadata.name)},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [_port(*one) for one in sorted(ports)]}],
        },
    )


def _declared(containers: Iterable[Mapping[str, Any]]) -> set[tuple[int | None, str]]:
    ports = [port for one in containers for port in one.get("ports", [])]
    return {(port["containerPort"], port.get("protocol", "TCP")) for port in ports}


def _namespaces(names: set[str]) -> dict[str, Any]:
    if ANY_NAMESPACE in names:
        return {"namespaceSelector": {}}
    one_of = {"key": NAMESPACE_NAME, "operator": "In", "values": sorted(names)}
    return {"namespaceSelector": {"matchExpressions": [one_of]}}


def _port(number: int | None, protocol: str = "TCP") -> dict[str, Any]:
    return {"port": number, "protocol": protocol}


def _policy(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": dict(metadata),
        "spec": dict(spec),
    }
