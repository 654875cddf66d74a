"""Manifests as the API server gives them: with the defaults of their schemas filled in."""

from __future__ import annotations

import copy
import functools
from typing import Any

import yaml

from testing import ROOT

CRDS = ROOT / "crds"
Manifest = dict[str, Any]


@functools.cache
def schema_of(plural: str) -> Manifest:
    (version,) = yaml.safe_load((CRDS / f"lbg.dev_{plural}.yaml").read_text())["spec"]["versions"]
    schema: Manifest = version["schema"]["openAPIV3Schema"]
    return schema


def group_manifest(
    spec: Manifest | None = None, *, name: str = "orders", namespace: str = "shop"
) -> Manifest:
    """`spec` beside the least that a group needs."""
    told = {"brokerRef": {"name": "main"}, "queues": {"count": 8}, **(spec or {})}
    return _object("LoadBalancedGroup", "loadbalancedgroups", told, name, namespace)


def broker_manifest(spec: Manifest | None = None, *, name: str = "main", namespace: str = "shop") -> Manifest:
    return _object("Broker", "brokers", {"embedded": {}} if spec is None else spec, name, namespace)


def _object(kind: str, plural: str, spec: Manifest, name: str, namespace: str) -> Manifest:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-of-{name}", "generation": 1}
    told = {"apiVersion": "lbg.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": copy.deepcopy(spec)}
    fill_in(told, schema_of(plural))
    return told


def fill_in(value: Any, schema: Manifest) -> None:
    """Defaulting as Kubernetes does it ("Custom Resource Definition: Defaulting"): fields of what is there."""
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name not in value and "default" in inner:
                value[name] = copy.deepcopy(inner["default"])
            if name in value:
                fill_in(value[name], inner)
    elif isinstance(value, list):
        for item in value:
            fill_in(item, schema.get("items", {}))


def consumer(channel: str = "HTTP", *, template: Manifest | None = None, **app: Any) -> Manifest:
    """A consumer with one container, `app`."""
    pod = {"spec": {"containers": [{"name": "app", "image": "example.org/app:1"}]}}
    port = {} if channel == "Stream" else {"port": 8080}
    return {"template": template or pod, "app": {"channel": channel, **port, **app}}
