"""The Helm chart, rendered by Helm's own library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml

from testing import ROOT

CHART = ROOT / "charts" / "lbg"
RELEASE, NAMESPACE = "lbg", "lbg-system"
Object = dict[str, Any]

LARGE: Mapping[str, Any] = {
    "images": {"registry": "registry.example/lbg", "pullSecrets": [{"name": "registry-login"}]},
    "watchNamespaces": ["shop", "lbg-system"],
    "brokerNetworks": ["10.0.0.0/8", "fd12::/16"],
    "operator": {
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
    },
    "defaults": {
        "sidecarResources": {"requests": {"cpu": "50m"}},
        "brokerResources": {"limits": {"memory": "1Gi"}},
        "sidecarStartSeconds": 90,
        "prefetch": 64,
        "sidecarTmp": False,
    },
    "broker": {
        "create": True,
        "storage": "1Gi",
        "maxMessageSize": "32Mi",
        "allowedNamespaces": ["shop"],
    },
    "metrics": {"provider": "external"},
    "monitoring": {"objects": "always", "labels": {"release": "prometheus"}},
    "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}]},
    "console": {
        "enabled": True,
        "readOnly": False,
        "uris": ["amqps://rabbit-0.messaging.svc", "amqps://rabbit-1.messaging.svc"],
        "managementURIs": ["https://rabbit.messaging.svc:15671"],
        "loginSecretName": "console-login",
        "caSecretName": "rabbitmq-ca",
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"nginx.ingress.kubernetes.io/whitelist-source-range": "10.0.0.0/8"},
            "host": "lbg.example.com",
            "tlsSecretName": "lbg-tls",
        },
    },
    "pipeline": {
        "enabled": True,
        "namespace": "shop",
        "timeZone": "Europe/Berlin",
        "journals": {"claim": "journals"},
        "out": {"claim": "reports"},
        "steps": {
            "validate": {"schedule": "@hourly", "args": ["--settle", "60"]},
            "plan": {"enabled": True},
            "forecast": {"enabled": True, "apply": True},
        },
        "env": [{"name": "SPARK_CONF_DIR", "value": "/tmp"}],
        "envFrom": [{"secretRef": {"name": "object-store"}}],
        "nodeSelector": {"pool": "batch"},
        "tolerations": [{"key": "batch", "operator": "Exists"}],
    },
}
"""Values that bring out everything that the chart can render."""

NONE: Mapping[str, Any] = {
    "crds": {"install": False},
    "metrics": {"provider": "none"},
    "monitoring": {"objects": "never", "dashboards": {"create": False}},
    "networkPolicy": {"create": False},
}
"""Values that leave out all that can be left out."""


def rendered(
    values: Mapping[str, Any] | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE
) -> list[Object]:
    """Every object that an install would send, hooks and tests too. Raises helm.HelmError."""
    texts = _rendered_texts(json.dumps(dict(values or {})), release, namespace)
    return [one for text in texts for one in documents(text)]


@cache
def _rendered_texts(values: str, release: str, namespace: str) -> list[str]:
    import helm_python as helm  # takes long to load: not when the tests are collected

    with helm.Chart.load(CHART) as chart:
        texts = chart.render(json.loads(values), name=release, namespace=namespace)
    return [text for path, text in sorted(texts.items()) if "NOTES" not in path]


def documents(text: str) -> Iterator[Object]:
    yield from filter(None, yaml.load_all(text, yaml.CSafeLoader))


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [one for one in objects if one["kind"] == kind]


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = (one for one in of_kind(objects, kind) if one["metadata"]["name"] == name)
    return found


def pods_of(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Every pod there will be, as its kind and name and its PodSpec."""
    for one in objects:
        name = f"{one['kind']} {one['metadata']['name']}"
        if one["kind"] == "Pod":
            yield name, one["spec"]
        elif one["kind"] == "CronJob":
            yield name, one["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        elif "template" in one.get("spec", {}):
            yield name, one["spec"]["template"]["spec"]
