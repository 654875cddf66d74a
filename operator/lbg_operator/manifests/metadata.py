"""What every object says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ManifestError


@dataclass(frozen=True, slots=True)
class Metadata:
    """`created` is the API server's text (RFC 3339), which sorts as time does. `deleting`: somebody has asked for its
    deletion, and a finalizer keeps it."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: str = ""
    deleting: bool = False

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Metadata:
        told = manifest["metadata"]
        return cls(
            namespace=told["namespace"],
            name=told["name"],
            uid=told.get("uid", ""),
            generation=told.get("generation", 0),
            created=told.get("creationTimestamp", ""),
            deleting="deletionTimestamp" in told,
        )


def old_crds(missing: KeyError) -> ManifestError:
    """The error of a field that is missing although the API server fills in what its CRD knows."""
    return ManifestError(
        "spec", f"{missing} is not there: the cluster's CRDs are older than this operator, upgrade them"
    )
