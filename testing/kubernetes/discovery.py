"""Discovery documents of an API server (Kubernetes: "API discovery")."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from lbg_operator.kube.kinds import KINDS, Kind

EVERYWHERE = (
    Kind("v1", "Namespace", "namespaces", frozenset(), namespaced=False),
    Kind(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        frozenset(),
        namespaced=False,
    ),
)
"""Kinds without which kopf takes nothing for a cluster."""


def discovered(path: str, served: Container[str]) -> dict[str, Any] | None:
    kinds = [one for one in KINDS if "keda" not in one.api_version or one.api_version in served]
    if path == "version":
        return {"major": "1", "minor": "33"}
    if path == "api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "apis":
        versions = sorted({one.api_version for one in (*kinds, *EVERYWHERE) if one.api_group})
        groups = [
            {"name": one.split("/")[0], "preferredVersion": _version(one), "versions": [_version(one)]}
            for one in versions
        ]
        return {"kind": "APIGroupList", "groups": groups}
    version = path.removeprefix("apis/") if path.startswith("apis/") else path.removeprefix("api/")
    told = [
        resource
        for one in (*kinds, *EVERYWHERE)
        if one.api_version == version
        for resource in _resources(one)
    ]
    return (
        {"kind": "APIResourceList", "groupVersion": version, "resources": told}
        if told or version in served
        else None
    )


def _version(api_version: str) -> dict[str, str]:
    return {"groupVersion": api_version, "version": api_version.split("/")[1]}


def _resources(kind: Kind) -> Iterator[dict[str, Any]]:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    told = {
        "kind": kind.kind,
        "namespaced": kind.namespaced,
        "singularName": kind.kind.lower(),
        "verbs": verbs,
    }
    yield {"name": kind.plural, **told}
    yield {"name": f"{kind.plural}/status", **told}
