"""Everything that can be set about the operator, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SIDECAR_RESOURCES: Mapping[str, Any] = {
    "requests": {"cpu": "100m", "memory": "96Mi"},
    "limits": {"memory": "256Mi"},
}
"""No CPU limit: a throttled sidecar misses heartbeats and loses its queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """- `sidecar_image`, `broker_image`: for whoever names none.
    - `sidecar_resources`: a ResourceRequirements, for whoever gives none.
    - `native_sidecars`: the cluster has containers that start before and end after the others (initContainers with
      restartPolicy Always, Kubernetes 1.29).
    """

    sidecar_image: str
    broker_image: str
    sidecar_resources: Mapping[str, Any] = field(default_factory=lambda: SIDECAR_RESOURCES)
    native_sidecars: bool = True
