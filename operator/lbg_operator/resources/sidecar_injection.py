"""Sidecar container in the pod of a group's consumers, and its environment (docs/sidecar.md).

Kubernetes ends an application's container before, or together with, its sidecar, while the sidecar still delivers to
it. But the preStop hooks of all containers begin at once, a native sidecar's too, before anybody gets SIGTERM
(Kubernetes: "Container Lifecycle Hooks"). So the sidecar's hook makes it drain, and the application's waits for that:
SIGTERM reaches the application when its member has handed everything over.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lbg_operator.crds import GroupManifest
from lbg_operator.errors import ManifestError
from lbg_operator.resources.names import credentials_name, publisher_name, selector_of
from lbg_operator.settings import OperatorSettings

CREDENTIALS = "/var/run/lbg/credentials"
"""Path at which the Secret of the group's user is mounted; its files change when the user's password does."""

PUBLISHER = "/var/run/lbg/publisher"
"""Path at which the Secret of the publishers' user is mounted, where the sidecar publishes."""

_PUBLISHER_LOGIN = {
    "LBG_PUBLISHER_USERNAME_FILE": f"{PUBLISHER}/username",
    "LBG_PUBLISHER_PASSWORD_FILE": f"{PUBLISHER}/password",
}

STATE = "/var/lib/lbg"
JOURNALS = "/var/lib/lbg-journals"
"""A folder for each group, as several may share the volume."""
LOCAL_PORT = 8750
OBSERVED_PORT = 8751

_WORD_ENDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_SETTINGS = frozenset({"channel", "container", "port", "path", "batch", "parking"})
"""Fields of `App` that are no settings of the sidecar by their names."""


def _setting(value: object) -> object:
    """`value` in the sidecar's words: HTTPBatch is http-batch."""
    is_word = isinstance(value, str) and value.isalpha()
    return _WORD_ENDS.sub("-", str(value)).lower() if is_word else value


def _variables(part: Any, *names: str, prefix: str = "") -> dict[str, object]:
    """The sidecar's variables of these fields, by default of all."""
    chosen = names or [one.name for one in fields(part) if one.name not in _NO_SETTINGS]
    return {f"LBG_{prefix}{name}".upper(): _setting(getattr(part, name)) for name in chosen}


def environment_of(
    group: GroupManifest, *, grace_s: int, has_ca: bool, prefetch: int | None = None
) -> list[dict[str, Any]]:
    """The sidecar's variables, as a container's `env`. `grace_s` is what its handing over may take, `prefetch` the
    window of groups that say none."""
    assert group.consumer is not None
    app = group.consumer.app
    values: dict[str, object] = {
        "LBG_GROUP": group.spec.name,
        "LBG_USERNAME_FILE": f"{CREDENTIALS}/username",
        "LBG_PASSWORD_FILE": f"{CREDENTIALS}/password",
        **(_PUBLISHER_LOGIN if publishes_apart(group) else {}),
        "LBG_CAFILE": f"{CREDENTIALS}/ca.crt" if has_ca else None,
        **_variables(group, "rebalance_delay_s", "max_handoff_s", "release_interval_s"),
        "LBG_SHUTDOWN_GRACE_S": grace_s,
        "LBG_COMMITS": f"{STATE}/commits" if keeps_state(group) else None,
        "LBG_JOURNAL": f"{JOURNALS}/{group.spec.name}" if group.consumer.sidecar.journal else None,
        "LBG_LOCAL": f"127.0.0.1:{LOCAL_PORT}",
        "LBG_OBSERVED": f"0.0.0.0:{OBSERVED_PORT}",
        "LBG_LOG_FORMAT": _setting(group.consumer.sidecar.log_format),
        "LBG_REPUBLISH": "true" if group.consumer.sidecar.republish else None,
        **_variables(app),
        **(_variables(app.parking, prefix="park_") if app.parking else {}),
        **(_variables(app.batch, prefix="batch_") if app.batch else {}),
        "LBG_APP": _setting(app.channel),
        "LBG_TARGET": None if app.channel == "Stream" else f"http://127.0.0.1:{app.port}{app.path}",
        "LBG_PREFETCH": prefetch if app.prefetch is None else app.prefetch,
        # How far a session is, is one number.
        "LBG_ORDER": "queue" if group.has_sessions else _setting(app.order),
    }
    pod_name = {"fieldRef": {"fieldPath": "metadata.name"}}
    address = {"secretKeyRef": {"name": credentials_name(group.metadata.name), "key": "uris"}}
    return [
        {"name": "LBG_BROKER", "valueFrom": address},
        {"name": "LBG_NAME", "valueFrom": pod_name},
        *({"name": name, "value": str(value)} for name, value in values.items() if value is not None),
        *map(dict, group.consumer.sidecar.env),
    ]


def publishes_apart(group: GroupManifest) -> bool:
    """True if the sidecar publishes as the user of the group's publishers."""
    assert group.consumer is not None
    return group.consumer.sidecar.publishes and group.has_publisher_user


def keeps_state(group: GroupManifest) -> bool:
    """True if the sidecar keeps what was processed: in its session, or of every stream."""
    assert group.consumer is not None
    return group.has_sessions or group.consumer.guarantee == "EffectivelyOnce"


SIDECAR = "lbg-sidecar"
GRACE_S = 30
"""Kubernetes' default for a pod without one."""

AFTER_DRAIN_S = 10
"""Rest of the grace period for the application's own end, once its member has drained."""

CLOSING_S = 4
"""A member's own margin after its grace, in which it closes (docs/sidecar.md, "Leaving"): hooks wait for that too."""

_TEMPLATE = "spec.consumer.template"
_CREDENTIALS_VOLUME = "lbg-credentials"
_PUBLISHER_VOLUME = "lbg-publisher"
_JOURNALS_VOLUME = "lbg-journals"
_TMP_VOLUME = "lbg-tmp"
STATE_VOLUME = "lbg-state"
"""In mode Sessions a claim of the pod's own, by a template of the StatefulSet."""

GROUP = 65532
"""Of the sidecar's image: who may write to a volume that outlives the pod. The application's containers are in it
too."""


def injected(group: GroupManifest, settings: OperatorSettings, *, has_ca: bool) -> dict[str, Any]:
    """The PodTemplateSpec of the group's consumers, with the sidecar in it. Raises ManifestError."""
    assert group.consumer is not None
    template: dict[str, Any] = copy.deepcopy(dict(group.consumer.template))
    pod: dict[str, Any] = template["spec"]
    grace_s = _drain_s(pod.get("terminationGracePeriodSeconds", GRACE_S))
    app = _app_container(pod, group.consumer.app.container)
    if "preStop" in app.get("lifecycle", {}):
        raise ManifestError(
            f"{_TEMPLATE}: container {app['name']}",
            "has a preStop hook, which is where the pod waits for its sidecar to drain: let the application do it at "
            "SIGTERM, which comes after that",
        )
    app.setdefault("lifecycle", {})["preStop"] = _drained_hook(grace_s + CLOSING_S)
    app.setdefault("env", []).append({"name": "LBG_SIDECAR_URL", "value": f"http://127.0.0.1:{LOCAL_PORT}"})
    sidecar = _sidecar(group, settings, grace_s, has_ca=has_ca)
    if settings.native_sidecars:
        pod.setdefault("initContainers", []).insert(0, {**sidecar, "restartPolicy": "Always"})
    else:
        pod["containers"].append(sidecar)
    _require_journal_volume(group, pod)
    pod.setdefault("volumes", []).extend(_volumes(group, settings))
    has_volume = group.has_sessions or group.consumer.sidecar.journal is not None
    if has_volume and not settings.assigns_users:
        security = pod.setdefault("securityContext", {})
        security.setdefault("fsGroup", GROUP)
        security.setdefault("fsGroupChangePolicy", "OnRootMismatch")
    metadata = template.setdefault("metadata", {})
    metadata["labels"] = {**metadata.get("labels", {}), **selector_of(group.metadata.name)}
    metadata["annotations"] = {
        "kubectl.kubernetes.io/default-container": app["name"],
        **metadata.get("annotations", {}),
    }
    return template


def _drain_s(termination_grace_s: int) -> int:
    return max(termination_grace_s - AFTER_DRAIN_S, termination_grace_s // 2, 1)


def _app_container(pod: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    containers: list[dict[str, Any]] = pod["containers"]
    if any(one.get("name") == SIDECAR for one in [*containers, *pod.get("initContainers", [])]):
        raise ManifestError(
            f"{_TEMPLATE}: container {SIDECAR}", "is added by the operator: remove or rename it"
        )
    if name is None:
        return containers[0]
    for one in containers:
        if one.get("name") == name:
            return one
    names = ", ".join(str(one.get("name")) for one in containers)
    raise ManifestError(
        "spec.consumer.app.container", f"{name!r} is not a container of the template: {names}"
    )


def _drained_hook(wait_s: int) -> dict[str, Any]:
    return {"httpGet": {"path": f"/drained?wait={wait_s}", "port": OBSERVED_PORT}}


def _sidecar(
    group: GroupManifest, settings: OperatorSettings, grace_s: int, *, has_ca: bool
) -> dict[str, Any]:
    assert group.consumer is not None
    spec = group.consumer.sidecar
    mounts: list[dict[str, Any]] = [
        {"name": _CREDENTIALS_VOLUME, "mountPath": CREDENTIALS, "readOnly": True},
    ]
    if publishes_apart(group):
        mounts.append({"name": _PUBLISHER_VOLUME, "mountPath": PUBLISHER, "readOnly": True})
    if keeps_state(group):
        mounts.append({"name": STATE_VOLUME, "mountPath": STATE})
    if settings.sidecar_tmp:
        mounts.append({"name": _TMP_VOLUME, "mountPath": "/tmp"})
    if spec.journal is not None:
        mounts.append({"name": spec.journal.volume or _JOURNALS_VOLUME, "mountPath": JOURNALS})
    liveness = {**_probe("/healthz"), "periodSeconds": 10}
    if settings.sidecar_start_s is not None:
        # No startupProbe: the application would wait for it to succeed (Kubernetes: "Sidecar Containers").
        liveness["initialDelaySeconds"] = settings.sidecar_start_s
    return {
        "name": SIDECAR,
        "image": spec.image or settings.sidecar_image,
        "env": environment_of(group, grace_s=grace_s, has_ca=has_ca, prefetch=settings.prefetch),
        "ports": [{"name": "lbg-observed", "containerPort": OBSERVED_PORT, "protocol": "TCP"}],
        "resources": dict(spec.resources if spec.resources is not None else settings.sidecar_resources),
        "volumeMounts": mounts,
        "lifecycle": {"preStop": {"exec": {"command": ["lbg", "drain", "--wait", str(grace_s + CLOSING_S)]}}},
        "livenessProbe": liveness,
        "readinessProbe": {**_probe("/readyz"), "periodSeconds": 2},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _probe(path: str) -> dict[str, Any]:
    """On a starved node a healthy sidecar answers late: that is no reason to end it."""
    return {"httpGet": {"path": path, "port": OBSERVED_PORT}, "timeoutSeconds": 5}


def _require_journal_volume(group: GroupManifest, pod: Mapping[str, Any]) -> None:
    assert group.consumer is not None
    journal = group.consumer.sidecar.journal
    names = [one.get("name") for one in pod.get("volumes", ())]
    if journal is not None and journal.volume is not None and journal.volume not in names:
        raise ManifestError(
            "spec.consumer.sidecar.journal.volume",
            f"{journal.volume!r} is not a volume of the template: {', '.join(map(str, names)) or 'it has none'}",
        )


def _volumes(group: GroupManifest, settings: OperatorSettings) -> list[dict[str, Any]]:
    assert group.consumer is not None
    secret = {"secretName": credentials_name(group.metadata.name)}
    volumes: list[dict[str, Any]] = [{"name": _CREDENTIALS_VOLUME, "secret": secret}]
    if publishes_apart(group):
        publisher = {"secretName": publisher_name(group.metadata.name)}
        volumes.append({"name": _PUBLISHER_VOLUME, "secret": publisher})
    if keeps_state(group) and not group.has_sessions:
        volumes.append({"name": STATE_VOLUME, "emptyDir": {}})
    if settings.sidecar_tmp:
        volumes.append({"name": _TMP_VOLUME, "emptyDir": {}})
    journal = group.consumer.sidecar.journal
    if journal is not None and journal.volume_claim is not None:
        claim = {"claimName": journal.volume_claim}
        volumes.append({"name": _JOURNALS_VOLUME, "persistentVolumeClaim": claim})
    return volumes
