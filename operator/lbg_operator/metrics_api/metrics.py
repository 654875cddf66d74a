"""Metrics that are read for a request, their answers in JSON, and the provider of metrics. No I/O.

Kubernetes asks one server for all external metrics, whichever APIService v1beta1.external.metrics.k8s.io names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from lbg_operator.errors import GroupNotFound, MetricUnknown, SelectorError
from lbg_operator.metrics_api.selector import GROUP, groups_asked
from lbg_operator.resources.autoscaler import LAG_METRIC, METRICS, WANTED_METRIC

API_GROUP, API_VERSION = "external.metrics.k8s.io", "v1beta1"
GROUP_VERSION = f"{API_GROUP}/{API_VERSION}"
API_PATH = f"/apis/{GROUP_VERSION}"

_REASONS = {
    HTTPStatus.BAD_REQUEST: "BadRequest",
    HTTPStatus.UNAUTHORIZED: "Unauthorized",
    HTTPStatus.NOT_FOUND: "NotFound",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowed",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailable",
}
"""Kubernetes' words for them (meta/v1, "StatusReason")."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: HTTPStatus
    body: Mapping[str, Any] = field(hash=False)


_VERSION = {"groupVersion": GROUP_VERSION, "version": API_VERSION}
_GROUP = {"name": API_GROUP, "versions": [_VERSION], "preferredVersion": _VERSION}
_RESOURCES = [
    {
        "name": name,
        "singularName": "",
        "namespaced": True,
        "kind": "ExternalMetricValueList",
        "verbs": ["get"],
    }
    for name in METRICS
]
_ABOUT = {"title": "LBG", "version": API_VERSION}

DOCUMENTS: Mapping[str, Mapping[str, Any]] = {
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]},
    f"/apis/{API_GROUP}": {"kind": "APIGroup", "apiVersion": "v1", **_GROUP},
    API_PATH: {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": GROUP_VERSION,
        "resources": _RESOURCES,
    },
    "/openapi/v2": {"swagger": "2.0", "info": _ABOUT, "paths": {}},
    "/openapi/v3": {"paths": {}},
}
"""By path. The aggregator of the API server fetches both OpenAPI documents of every API behind it again and again, and
logs what it cannot fetch; there is nothing in ours that anybody would explain or validate."""


def values_of(metric: str, values: Mapping[str, float], now: datetime) -> Answer:
    """An ExternalMetricValueList with the value for each group, a Quantity to the thousandth."""
    at = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    items = [
        {"metricName": metric, "metricLabels": {GROUP: group}, "timestamp": at, "value": _quantity(value)}
        for group, value in values.items()
    ]
    return Answer(
        HTTPStatus.OK,
        {"kind": "ExternalMetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": items},
    )


def _quantity(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{round(value * 1000)}m"


def failed(status: HTTPStatus, message: str) -> Answer:
    """A Status object (Kubernetes API conventions, "Response Status Kind").

    It goes without Retry-After, at which Kubernetes' clients would ask again at once, several times.
    """
    status_body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS[status],
        "code": int(status),
    }
    return Answer(status, status_body)


def refused(error: SelectorError | GroupNotFound | MetricUnknown) -> Answer:
    match error:
        case SelectorError():
            return failed(HTTPStatus.BAD_REQUEST, str(error))
        case GroupNotFound():
            return failed(HTTPStatus.NOT_FOUND, str(error))
        case MetricUnknown():
            return failed(HTTPStatus.SERVICE_UNAVAILABLE, str(error))


MetricReader = Callable[[str, str, str], Awaitable[float]]
"""From one of METRICS, a namespace and a group to the value. Raises MetricUnknown, GroupNotFound."""

READ_WITHIN_S = 2.0
"""An autoscaler asks for one metric after the other: one broker that hangs must not hold up the rest."""


async def value_within(
    reader: MetricReader, metric: str, namespace: str, group: str, *, within_s: float
) -> float:
    """Raises MetricUnknown, GroupNotFound."""
    try:
        async with asyncio.timeout(within_s):
            return await reader(metric, namespace, group)
    except TimeoutError:
        raise MetricUnknown(
            f"the broker of group {namespace}/{group} has not returned the lag within {within_s:g} s"
        ) from None


async def metric_values(
    reader: MetricReader, namespace: str, metric: str, selector: str, *, now: datetime, within_s: float
) -> Answer:
    """Values of `metric` for the groups that `selector` names. Raises nothing that `reader` may raise.

    Whoever asks adds the values up (HorizontalPodAutoscaler, "External"), so a sum without the one that is unknown
    would scale in.
    """
    if metric not in METRICS:
        return failed(
            HTTPStatus.NOT_FOUND, f'there is no metric "{metric}" here, only {" and ".join(METRICS)}'
        )
    try:
        groups = groups_asked(selector)
    except SelectorError as error:
        return refused(error)
    if not groups:
        return failed(HTTPStatus.NOT_FOUND, f'no group can match labelSelector "{selector}" asks for')
    reads = (value_within(reader, metric, namespace, group, within_s=within_s) for group in groups)
    values = dict(zip(groups, await asyncio.gather(*reads, return_exceptions=True), strict=True))
    known: dict[str, float] = {}
    for group, value in values.items():
        if isinstance(value, GroupNotFound | MetricUnknown):
            return refused(value)
        if isinstance(value, BaseException):
            raise value
        known[group] = value
    return values_of(metric, known, now)


LAG_GAUGE = "lbg_operator_group_lag_messages"
WANTED_GAUGE = "lbg_operator_group_wanted_replicas"
"""Of the operator's /metrics: where another server of external metrics can take the values from."""


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
        f"the external metrics of this cluster are served by {registered}, and a cluster has one such API: "
        f"configure it to serve {LAG_METRIC} by label group (the operator's {LAG_GAUGE} has it; targetDelay needs "
        f"{WANTED_METRIC}, which {WANTED_GAUGE} has), or install KEDA in its place",
    )


def service_of(api_service: Mapping[str, Any] | None) -> Service | None:
    """Service to which the API server sends requests; None where there is none, or it is itself."""
    reference = ((api_service or {}).get("spec") or {}).get("service")
    return Service(reference["namespace"], reference["name"]) if reference else None


def _ailing(api_service: Mapping[str, Any] | None, registered: Service | None) -> str:
    """The API server's message about a provider that does not answer."""
    if registered is None:
        return "the cluster has no API of external metrics: KEDA's APIService is missing"
    conditions = ((api_service or {}).get("status") or {}).get("conditions", ())
    available = next((one for one in conditions if one["type"] == "Available"), None)
    if available is None:
        return f"the API server has not asked {registered} yet"
    if available["status"] == "True":
        return ""
    return f"the API server gets no external metrics of {registered}: {available.get('message', '')}"
