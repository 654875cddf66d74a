"""The lag of groups for autoscalers: external.metrics.k8s.io, and an endpoint for KEDA (ADR 24).

A request is answered by pure functions (`selector`) around one read of the lag (`lag`, which also detects who else in
this cluster serves the lag to autoscalers); `tls` has the certificate and its trust, `server` is HTTPS and all of it
together.
"""

from __future__ import annotations

from lbg_operator.errors import GroupNotFound, MetricUnknown
from lbg_operator.metrics_api.metrics import (
    PORT,
    Keda,
    MetricReader,
    Missing,
    Other,
    Ours,
    Provider,
    Service,
    provider_of,
)
from lbg_operator.metrics_api.server import MetricsApi, serve, token_for
from lbg_operator.metrics_api.tls import ServingConfig

__all__ = [
    "PORT",
    "GroupNotFound",
    "Keda",
    "MetricReader",
    "MetricUnknown",
    "MetricsApi",
    "Missing",
    "Other",
    "Ours",
    "Provider",
    "Service",
    "ServingConfig",
    "provider_of",
    "serve",
    "token_for",
]
