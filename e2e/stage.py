"""The objects that the tests apply: a broker, groups with an application, publishers and validators."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

from e2e.kubectl import Kubectl, Object, until
from lbg_core.group import default_group_name

HERE = Path(__file__).parent
SAMPLE = HERE.parent / "examples" / "flights-sample.csv.gz"
REGISTRY = os.environ.get("LBG_E2E_REGISTRY", "")
TAG = os.environ.get("LBG_E2E_TAG", "0.1.0")
BROKER = "main"
CREDENTIALS, AUTHORITY, JOURNALS = "/credentials", "/authority", "/journals"
ENDED = ("Succeeded", "Failed")
RESTRICTED: Object = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def image(name: str) -> str:
    return f"{REGISTRY}/lbg-{name}:{TAG}" if REGISTRY else f"lbg-{name}:{TAG}"


def broker() -> Object:
    """It asks for little, so that several tests can run side by side on a small node."""
    resources = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
    embedded = {"storage": {"size": "1Gi"}, "resources": resources}
    return _object("lbg.dev/v1alpha1", "Broker", BROKER, spec={"embedded": embedded})


def files() -> Object:
    """The application's program and the sample of flights."""
    sample = base64.b64encode(SAMPLE.read_bytes()).decode()
    text = {"app.py": (HERE / "app.py").read_text()}
    return {**_object("v1", "ConfigMap", "files"), "data": text, "binaryData": {SAMPLE.name: sample}}


def group(
    name: str,
    *,
    delay_ms: int = 0,
    busy_ms: int = 0,
    fails: str = "",
    queues: int = 8,
    concurrency: int = 8,
    republish: bool = True,
    **spec: Any,
) -> Object:
    """`fails`: the key whose messages the application refuses. `republish`: what is consumed goes to a validator, and
    waits for one where none runs."""
    container: Object = {
        "name": "app",
        "image": image("sidecar"),
        "command": ["python3", "/files/app.py"],
        "env": [
            {"name": "DELAY_MS", "value": str(delay_ms)},
            {"name": "BUSY_MS", "value": str(busy_ms)},
            {"name": "FAILS_KEY", "value": fails},
        ],
        "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}},
        "volumeMounts": [{"name": "files", "mountPath": "/files", "readOnly": True}],
        "securityContext": RESTRICTED,
    }
    told: Object = {
        "brokerRef": {"name": BROKER},
        "queues": {"count": queues, "size": "100M"},
        "hash": {"count": 64},
        "rebalanceDelaySeconds": 3,
        "consumer": {
            "app": {"channel": "HTTP", "port": 8080, "concurrency": concurrency},
            "sidecar": {"republish": republish, "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}}},
            "template": {
                "spec": {
                    "containers": [container],
                    "volumes": [{"name": "files", "configMap": {"name": "files"}}],
                }
            },
        },
        **spec,
    }
    return _object("lbg.dev/v1alpha1", "LoadBalancedGroup", name, spec=told)


def publisher(
    group: str,
    *,
    rows: int | None = None,
    rate_hz: int | None = None,
    journal: str = "",
    claim: str = "",
    apart: bool = False,
) -> Object:
    """A pod that publishes the sample, or its first rows, and says at its end what it did. `journal`: the folder on
    `claim` for its journal. `apart`: as the publishers' user, not the group's."""
    source = f"/files/{SAMPLE.name}"
    rate = f"--rate {rate_hz}" if rate_hz else ""
    keep = f"--journal {JOURNALS}/{journal}" if journal else ""
    take = f"zcat {source} | head -n {rows + 1}" if rows else f"zcat {source}"
    told = f"--key tailnum {rate} {keep} --cafile {AUTHORITY}/ca.crt --connect-timeout 60"
    publish = f"user=$(cat {CREDENTIALS}/username); {take} | lbg publish --group ${{user%.publisher}} {told}"
    login = f"{group}-lbg-publisher" if apart else f"{group}-lbg"
    return _client(group, "publisher", f"{publish} --format csv -", login=login, journals=claim)


def validator(namespace: str, group: str, *, idle_s: int) -> Object:
    """A pod that judges what is delivered, until nothing came for so long. It logs in as the broker's administrator: a
    group's own user may not read what is republished."""
    judge = f"lbg validate --group {default_group_name(namespace, group)} --json --no-shards --idle-timeout {idle_s}"
    return _client(group, "validator", f"{judge} --cafile {AUTHORITY}/ca.crt", login=f"{BROKER}-lbg-admin")


def release(namespace: str, group: str) -> Object:
    """A pod that gives all parked keys of a group back, as the broker's administrator."""
    command = f"lbg park release {default_group_name(namespace, group)} --all --cafile {AUTHORITY}/ca.crt"
    return _client(group, "release", command, login=f"{BROKER}-lbg-admin")


def verdict(kubectl: Kubectl, *, timeout_s: float) -> Object:
    """The validator's report, when it has ended."""
    until(lambda: _phase(kubectl, "validator") in ENDED, what="the verdict", timeout_s=timeout_s)
    lines = kubectl("logs", "validator").splitlines()  # its two outputs may come in any order
    reports: list[Object] = [json.loads(line) for line in lines if line.startswith('{"event": "report"')]
    assert len(reports) == 1, lines
    return reports[0]


def published(kubectl: Kubectl, *, timeout_s: float = 300) -> None:
    """Wait for a publisher's end, which must be a good one."""
    succeeded(kubectl, "publisher", timeout_s=timeout_s)


def succeeded(kubectl: Kubectl, pod: str, *, timeout_s: float = 300) -> None:
    """Wait for the end of a pod, which must be a good one."""
    until(lambda: _phase(kubectl, pod) in ENDED, what=f"the end of {pod}", timeout_s=timeout_s)
    assert _phase(kubectl, pod) == "Succeeded", kubectl("logs", pod)


def judging(kubectl: Kubectl, group: str, *, idle_s: int) -> None:
    """Start a validator, and wait until it hears what is delivered from now on."""
    kubectl.apply(validator(kubectl.namespace, group, idle_s=idle_s))
    until(lambda: _phase(kubectl, "validator") == "Running", what="the validator")


def waiting(kubectl: Kubectl, group: str) -> int:
    """The messages in a group's queues, as its broker counts them in this moment."""
    python = ("exec", f"{BROKER}-0", "--", "python3", "-c", (HERE / "broker_counts.py").read_text())
    return int(kubectl(*python, f"lbg.{default_group_name(kubectl.namespace, group)}.q."))


def condition(group: Object, type_: str) -> Object:
    return next((one for one in group.get("status", {}).get("conditions", ()) if one["type"] == type_), {})


def is_condition(kubectl: Kubectl, kind: str, name: str, type_: str, status: str = "True") -> bool:
    return bool(condition(kubectl.get(kind, name), type_).get("status") == status)


def _phase(kubectl: Kubectl, pod: str) -> str:
    return str(kubectl.get("pod", pod)["status"].get("phase"))


def shell(group: str, *, claim: str) -> Object:
    """A pod in which the journals on `claim` can be looked at and changed."""
    return _client(group, "shell", "exec sleep 3600", login=f"{group}-lbg", journals=claim)


def claim(name: str) -> Object:
    """For a cluster of one node, where pods share a volume of any kind."""
    size = {"requests": {"storage": "1Gi"}}
    return _object(
        "v1", "PersistentVolumeClaim", name, spec={"accessModes": ["ReadWriteOnce"], "resources": size}
    )


def _client(group: str, name: str, script: str, *, login: str, journals: str = "") -> Object:
    """A pod with the group's addresses and the login of a Secret, and a claim for journals."""
    uris = {"secretKeyRef": {"name": f"{group}-lbg", "key": "uris"}}
    secrets = {"credentials": (login, CREDENTIALS), "authority": (f"{group}-lbg", AUTHORITY)}
    container = {
        "name": "client",
        "image": image("sidecar"),
        "command": ["sh", "-c", script],
        "env": [
            {"name": "LBG_BROKER", "valueFrom": uris},
            {"name": "LBG_USERNAME_FILE", "value": f"{CREDENTIALS}/username"},
            {"name": "LBG_PASSWORD_FILE", "value": f"{CREDENTIALS}/password"},
        ],
        "volumeMounts": [
            *({"name": one, "mountPath": path, "readOnly": True} for one, (_, path) in secrets.items()),
            {"name": "files", "mountPath": "/files", "readOnly": True},
        ],
        "securityContext": RESTRICTED,
    }
    volumes = [
        *({"name": one, "secret": {"secretName": secret}} for one, (secret, _) in secrets.items()),
        {"name": "files", "configMap": {"name": "files"}},
    ]
    if journals:
        container["volumeMounts"].append({"name": "journals", "mountPath": JOURNALS})
        volumes.append({"name": "journals", "persistentVolumeClaim": {"claimName": journals}})
    spec = {
        "securityContext": {"fsGroup": 65532},
        "containers": [container],
        "volumes": volumes,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
    }
    return _object("v1", "Pod", name, spec=spec)


def _object(api_version: str, kind: str, name: str, **more: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **more}
