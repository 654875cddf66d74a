"""What the sidecar of a group is told: the environment variables of docs/sidecar.md."""

from __future__ import annotations

from typing import Any

from ..manifests import App, GroupManifest
from .naming import credentials_name

CREDENTIALS = "/var/run/lbg/credentials"
"""Where the Secret of the group's user is mounted; its files change when the user's password does."""

STATE = "/var/lib/lbg"
JOURNALS = "/var/lib/lbg-journals"
"""A folder for each group, as several may share the volume."""
LOCAL_PORT = 8750
OBSERVED_PORT = 8751

_CHANNELS = {"HTTP": "http", "HTTPBatch": "http-batch", "Stream": "stream"}
_ORDERS = {"Key": "key", "Queue": "queue"}
_WHEN_EXHAUSTED = {"Block": "block", "DeadLetter": "dead-letter"}


def environment_of(
    group: GroupManifest, *, grace_s: int, has_ca: bool, prefetch: int | None = None
) -> list[dict[str, Any]]:
    """The sidecar's variables, as a container's `env`. `grace_s` is what its handing over may take, `prefetch` the
    window of groups that say none."""
    assert group.consumer is not None
    app = group.consumer.app
    told: dict[str, object] = {
        "LBG_GROUP": group.spec.name,
        "LBG_USERNAME_FILE": f"{CREDENTIALS}/username",
        "LBG_PASSWORD_FILE": f"{CREDENTIALS}/password",
        "LBG_CAFILE": f"{CREDENTIALS}/ca.crt" if has_ca else None,
        "LBG_ASSIGNMENT": group.assignment.lower(),
        "LBG_CLIENTS": group.replicas_max if group.assignment == "Static" else None,
        "LBG_REBALANCE_DELAY_S": group.rebalance_delay_s,
        "LBG_MAX_HANDOFF_S": group.max_handoff_s,
        "LBG_RELEASE_INTERVAL_S": group.release_period_s,
        "LBG_SHUTDOWN_GRACE_S": grace_s,
        "LBG_COMMITS": f"{STATE}/commits" if keeps_state(group) else None,
        "LBG_JOURNAL": f"{JOURNALS}/{group.spec.name}" if group.consumer.sidecar.journal else None,
        "LBG_LOCAL": f"127.0.0.1:{LOCAL_PORT}",
        "LBG_OBSERVED": f"0.0.0.0:{OBSERVED_PORT}",
        "LBG_LOG_FORMAT": group.consumer.sidecar.log_format.lower(),
        "LBG_REPUBLISH": "true" if group.consumer.sidecar.republish else None,
        **_of_app(app),
        "LBG_PREFETCH": prefetch if app.prefetch is None else app.prefetch,
        # How far a session is, is one number.
        "LBG_ORDER": "queue" if group.has_sessions else _ORDERS[app.order],
    }
    pod_name = {"fieldRef": {"fieldPath": "metadata.name"}}
    address = {"secretKeyRef": {"name": credentials_name(group.metadata.name), "key": "uris"}}
    return [
        {"name": "LBG_BROKER", "valueFrom": address},
        {"name": "LBG_NAME", "valueFrom": pod_name},
        *({"name": name, "value": str(value)} for name, value in told.items() if value is not None),
    ]


def keeps_state(group: GroupManifest) -> bool:
    """Whether the sidecar keeps what was processed: in its session, or of every stream."""
    assert group.consumer is not None
    return group.has_sessions or group.consumer.guarantee == "EffectivelyOnce"


def _of_app(app: App) -> dict[str, object]:
    told: dict[str, object] = {
        "LBG_APP": _CHANNELS[app.channel],
        "LBG_CONCURRENCY": app.concurrency,
        "LBG_CALL_TIMEOUT_S": app.call_timeout_s,
        "LBG_MAX_ATTEMPTS": app.max_attempts,
        "LBG_WHEN_EXHAUSTED": _WHEN_EXHAUSTED[app.when_exhausted],
    }
    if app.channel != "Stream":
        told["LBG_TARGET"] = f"http://127.0.0.1:{app.port}{app.path}"
        told["LBG_HEALTH_PATH"] = app.health_path
        told["LBG_POSITIONS_PATH"] = app.positions_path
    if app.batch is not None:
        told["LBG_BATCH_SIZE"] = app.batch.size
        told["LBG_BATCH_LINGER_MS"] = app.batch.linger_ms
        told["LBG_BATCH_REQUESTS"] = app.batch.requests
    return told
