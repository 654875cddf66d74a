"""Who tells autoscalers the lag in this cluster. No I/O here.

Kubernetes asks one server for all external metrics, whichever APIService v1beta1.external.metrics.k8s.io names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..children.autoscaler import LAG_METRIC

LAG_GAUGE = "lbg_operator_group_lag_messages"
"""Of the operator's /metrics: where another server of external metrics can take the lag from."""


PORT = 6443


class Service(NamedTuple):
    """Of the operator itself, or of whoever is registered."""

    namespace: str
    name: str

    @property
    def url(self) -> str:
        """Of our API, for KEDA."""
        return f"https://{self.name}.{self.namespace}.svc:{PORT}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Ours:
    """A HorizontalPodAutoscaler, and our API. `message`: what keeps it from working; empty: nothing."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class Keda:
    """A ScaledObject."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class Other:
    """Somebody else's API: a HorizontalPodAutoscaler as with ours, which gets the lag if `name` is taught it."""

    name: Service
    message: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Nobody: a HorizontalPodAutoscaler as with ours; it scales out on CPU, and not in while it lacks the lag."""

    message: str


Provider = Ours | Keda | Other | Missing


def provider_of(
    setting: str, *, ours: Service, api_service: Mapping[str, Any] | None, has_keda: bool
) -> Provider:
    """`setting` is OperatorSettings.metrics; `has_keda`: the cluster serves keda.sh/v1alpha1.

    `auto` goes by who is registered: with our API in KEDA's place, KEDA's own objects get no metrics either.
    """
    registered = service_of(api_service)
    match setting:
        case "none":
            return Missing("the operator is set to provide no metrics (LBG_OPERATOR_METRICS is none)")
        case "keda" if not has_keda:
            return Missing(
                "the operator is set to use KEDA (LBG_OPERATOR_METRICS is keda), and this cluster does not serve "
                "keda.sh/v1alpha1: install KEDA, or set it to auto"
            )
        case "keda" if registered == ours:
            return Missing(
                "the operator is set to use KEDA (LBG_OPERATOR_METRICS is keda), and the external metrics of this "
                "cluster are asked of the operator itself, so KEDA's never arrive: delete APIService "
                "v1beta1.external.metrics.k8s.io and let KEDA register its own"
            )
        case "keda":
            return Keda(_ailing(api_service, registered))
        case "auto" if has_keda and registered != ours:
            return Keda(_ailing(api_service, registered))
    if registered is None:
        return Missing(
            "this cluster has no API of external metrics: install the chart with its APIService, or KEDA"
        )
    if registered == ours:
        return Ours(_ailing(api_service, registered))
    return Other(
        registered,
        f"the external metrics of this cluster are served by {registered}, and there is one such API in a cluster: "
        f"let it serve {LAG_METRIC} by label group (the operator's {LAG_GAUGE} has it), or install KEDA in its place",
    )


def service_of(api_service: Mapping[str, Any] | None) -> Service | None:
    """Which Service the API server asks; None where it asks nobody, or itself."""
    told = ((api_service or {}).get("spec") or {}).get("service")
    return Service(told["namespace"], told["name"]) if told else None


def _ailing(api_service: Mapping[str, Any] | None, registered: Service | None) -> str:
    """What the API server says of the one that it asks, if that does not work."""
    if registered is None:
        return "the cluster has no API of external metrics: KEDA's APIService is missing"
    conditions = ((api_service or {}).get("status") or {}).get("conditions", ())
    available = next((one for one in conditions if one["type"] == "Available"), None)
    if available is None:
        return f"the API server has not asked {registered} yet"
    if available["status"] == "True":
        return ""
    return f"the API server gets no external metrics of {registered}: {available.get('message', '')}"
