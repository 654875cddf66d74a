"""The lag of groups for autoscalers: external.metrics.k8s.io, and an endpoint for KEDA (ADR 24).

A request is answered by pure functions (`selecting`, `answers`, `callers`, `tokens`) around one read of the lag
(`reading`); `doors` and `serving` are HTTPS, `keeping` the certificate and its trust, `running` all of it together.
`providing` says who in this cluster tells autoscalers the lag.
"""

from ..errors import GroupNotFound, LagUnknown
from .doors import Standing
from .providing import PORT, Keda, Missing, Other, Ours, Provider, Service, provider_of
from .reading import LagReader
from .running import MetricsApi, serve
from .tokens import token_for

__all__ = [
    "PORT",
    "GroupNotFound",
    "Keda",
    "LagReader",
    "LagUnknown",
    "MetricsApi",
    "Missing",
    "Other",
    "Ours",
    "Provider",
    "Service",
    "Standing",
    "provider_of",
    "serve",
    "token_for",
]
