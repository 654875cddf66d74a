"""The finalizer that keeps a deleted group until its broker side is gone (Kubernetes: "Finalizers"). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FINALIZER = "lbg.dev/finalizer"


def has_finalizer(manifest: Mapping[str, Any]) -> bool:
    return FINALIZER in manifest["metadata"].get("finalizers", ())


def with_finalizer(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A merge patch. It names the resourceVersion that it was made for: a list is replaced as a whole, and somebody
    else's finalizer that came in between must not get lost."""
    return _patch(manifest, [*manifest["metadata"].get("finalizers", ()), FINALIZER])


def without_finalizer(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return _patch(manifest, [one for one in manifest["metadata"].get("finalizers", ()) if one != FINALIZER])


def _patch(manifest: Mapping[str, Any], finalizers: list[str]) -> dict[str, Any]:
    version = manifest["metadata"]["resourceVersion"]
    return {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
