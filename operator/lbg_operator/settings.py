"""Settings of the operator, read once from the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from lbg_operator.errors import SettingError

SIDECAR_RESOURCES: Mapping[str, Any] = {
    "requests": {"cpu": "100m", "memory": "96Mi"},
    "limits": {"memory": "256Mi"},
}
"""No CPU limit: a throttled sidecar misses heartbeats and loses its queues."""

BROKER_RESOURCES: Mapping[str, Any] = {
    "requests": {"cpu": "250m", "memory": "256Mi"},
    "limits": {"memory": "2Gi"},
}
PREFETCH_MAX = 65_535
"""AMQP 0-9-1, basic.qos: a short."""
START_MAX_S = 3600
METRICS = ("auto", "external", "keda", "none")
BOOLEANS = ("true", "false")
LOG_FORMATS = ("json", "text")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """- `sidecar_image`, `broker_image`: for whoever names none.
    - `sidecar_resources`, `broker_resources`: a ResourceRequirements, for whoever gives none.
    - `sidecar_start_s`: the time that a sidecar has to start before its liveness probe counts, in seconds; None: what
      three failures of the probe take. Another value replaces the consumers' pods.
    - `prefetch`: the window of consumers whose group says none, in messages; None: each derives its own.
    - `sidecar_tmp`: sidecars have a volume for temporary files, an emptyDir at /tmp. Another value replaces the
      consumers' pods.
    - `broker_networks`: networks of the brokers whose addresses a manifest names, as 10.0.0.0/8; empty: all but
      link-local ones.
    - `namespace`, `service`: where the operator itself is, and its Service there; empty outside a cluster, and then
      there is no metrics API.
    - `watched`: the namespaces whose objects it looks after; empty: all.
    - `metrics`: who reports the lag to autoscalers. `auto`: KEDA where it is, or else our API where it is registered.
    - `native_sidecars`: the cluster has containers that start before and end after the others (initContainers with
      restartPolicy Always, Kubernetes 1.29).
    - `has_tolerance`: HorizontalPodAutoscalers have a tolerance of their own (Kubernetes 1.35).
    - `assigns_users`: the cluster gives pods the user that they run as and the group of their volumes (OpenShift).
    - `cluster_uid`: the UID of namespace kube-system, by which brokers know the cluster; empty if it may not be read.
    """

    sidecar_image: str
    broker_image: str
    sidecar_resources: Mapping[str, Any] = field(default_factory=lambda: SIDECAR_RESOURCES, hash=False)
    broker_resources: Mapping[str, Any] = field(default_factory=lambda: BROKER_RESOURCES, hash=False)
    sidecar_start_s: int | None = None
    prefetch: int | None = None
    sidecar_tmp: bool = False
    broker_networks: tuple[str, ...] = ()
    namespace: str = ""
    service: str = ""
    watched: tuple[str, ...] = ()
    metrics: str = "auto"
    log_format: str = "json"
    log_level: str = "INFO"
    native_sidecars: bool = True
    has_tolerance: bool = False
    assigns_users: bool = False
    cluster_uid: str = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> OperatorSettings:
        """Raises SettingError."""
        return cls(
            sidecar_image=_needed(environ, "LBG_OPERATOR_SIDECAR_IMAGE"),
            broker_image=_needed(environ, "LBG_OPERATOR_BROKER_IMAGE"),
            sidecar_resources=_resources(environ, "LBG_OPERATOR_SIDECAR_RESOURCES", SIDECAR_RESOURCES),
            broker_resources=_resources(environ, "LBG_OPERATOR_BROKER_RESOURCES", BROKER_RESOURCES),
            sidecar_start_s=_number(environ, "LBG_OPERATOR_SIDECAR_START_S", START_MAX_S),
            prefetch=_number(environ, "LBG_OPERATOR_PREFETCH", PREFETCH_MAX),
            sidecar_tmp=_one_of(environ, "LBG_OPERATOR_SIDECAR_TMP", BOOLEANS, default="false") == "true",
            namespace=environ.get("LBG_OPERATOR_NAMESPACE", ""),
            service=environ.get("LBG_OPERATOR_SERVICE", ""),
            broker_networks=_networks(environ, "LBG_OPERATOR_BROKER_NETWORKS"),
            watched=_list(environ, "LBG_OPERATOR_WATCH_NAMESPACES"),
            metrics=_one_of(environ, "LBG_OPERATOR_METRICS", METRICS, default="auto"),
            log_format=_one_of(environ, "LBG_OPERATOR_LOG_FORMAT", LOG_FORMATS, default="json"),
            log_level=_one_of(environ, "LBG_OPERATOR_LOG_LEVEL", LOG_LEVELS, default="INFO"),
        )


def _needed(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "").strip()
    if not value:
        raise SettingError(name, "is not set: name the image, as registry/name:version")
    return value


def _one_of(environ: Mapping[str, str], name: str, allowed: tuple[str, ...], *, default: str) -> str:
    value = environ.get(name) or default
    if value not in allowed:
        raise SettingError(name, f"{value!r} must be one of {', '.join(allowed)}")
    return value


def _list(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in environ.get(name, "").split(",") if one.strip())


def _networks(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    found = _list(environ, name)
    for one in found:
        try:
            ip_network(one)
        except ValueError as error:
            raise SettingError(name, f"{error}: write a network as 10.0.0.0/8") from None
    return found


def _number(environ: Mapping[str, str], name: str, maximum: int) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= maximum:
        raise SettingError(name, f"{text!r} is not a number from 1 to {maximum}")
    return int(text)


def _resources(environ: Mapping[str, str], name: str, default: Mapping[str, Any]) -> Mapping[str, Any]:
    if not environ.get(name):
        return default
    try:
        value = json.loads(environ[name])
    except ValueError as error:
        raise SettingError(name, f"is not JSON ({error}): set a ResourceRequirements") from None
    if not isinstance(value, dict):
        raise SettingError(name, "is not a JSON object: set a ResourceRequirements")
    return value
