"""What the API answers, as Kubernetes would say it. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from ..children.autoscaler import LAG_METRIC
from ..errors import GroupNotFound, LagUnknown, SelectorError
from .selecting import GROUP

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
_RESOURCE = {
    "name": LAG_METRIC,
    "singularName": "",
    "namespaced": True,
    "kind": "ExternalMetricValueList",
    "verbs": ["get"],
}
_ABOUT = {"title": "LBG", "version": API_VERSION}

DOCUMENTS: Mapping[str, Mapping[str, Any]] = {
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]},
    f"/apis/{API_GROUP}": {"kind": "APIGroup", "apiVersion": "v1", **_GROUP},
    API_PATH: {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": GROUP_VERSION,
        "resources": [_RESOURCE],
    },
    "/openapi/v2": {"swagger": "2.0", "info": _ABOUT, "paths": {}},
    "/openapi/v3": {"paths": {}},
}
"""By path. The aggregator of the API server fetches both OpenAPI documents of every API behind it again and again, and
logs what it cannot fetch; there is nothing in ours that anybody would explain or validate."""


def values_of(lags: Mapping[str, int], now: datetime) -> Answer:
    """An ExternalMetricValueList with the lag of each group."""
    at = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    items = [
        {"metricName": LAG_METRIC, "metricLabels": {GROUP: group}, "timestamp": at, "value": str(lag)}
        for group, lag in lags.items()
    ]
    return Answer(
        HTTPStatus.OK,
        {"kind": "ExternalMetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": items},
    )


def failed(status: HTTPStatus, message: str) -> Answer:
    """A Status object (Kubernetes API conventions, "Response Status Kind").

    It goes without Retry-After, at which Kubernetes' clients would ask again at once, several times.
    """
    told = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS[status],
        "code": int(status),
    }
    return Answer(status, told)


def refused(error: SelectorError | GroupNotFound | LagUnknown) -> Answer:
    match error:
        case SelectorError():
            return failed(HTTPStatus.BAD_REQUEST, str(error))
        case GroupNotFound():
            return failed(HTTPStatus.NOT_FOUND, str(error))
        case LagUnknown():
            return failed(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
