"""The workloads that the operator makes of a range of manifests, to be held against those of a release.

`python -m testing.operator.recorded_workloads`, run in the tree of a release into which this file was copied,
prints what that release makes: tests/operator/reconcile/workloads_COMMIT.jsonl, one to a line.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

from lbg_operator.crds import BrokerManifest, GroupManifest
from lbg_operator.resources.embedded_broker import AMQPS_PORT, HTTPS_PORT, stateful_set_of
from lbg_operator.resources.workload import deployment_of, session_set_of
from lbg_operator.settings import OperatorSettings
from testing.kubernetes.manifests import broker_manifest, group_manifest

Spec = dict[str, Any]

SETTINGS = OperatorSettings(
    sidecar_image="lbg-sidecar:0", broker_image="lbg-broker:0", namespace="lbg-system"
)
CLUSTERS = {
    "Kubernetes": SETTINGS,
    "before 1.29": replace(SETTINGS, native_sidecars=False),
    "OpenShift": replace(SETTINGS, assigns_users=True),
}
APP = {"name": "app", "image": "example.org/app:1"}
RICH = {
    "metadata": {"labels": {"team": "blue"}, "annotations": {"example.org/a": "b"}},
    "spec": {
        "serviceAccountName": "orders",
        "terminationGracePeriodSeconds": 60,
        "securityContext": {"runAsNonRoot": True, "fsGroup": 1000},
        "initContainers": [{"name": "migrate", "image": "example.org/migrate:1"}],
        "containers": [
            {"name": "logs", "image": "example.org/logs:1"},
            {
                **APP,
                "env": [{"name": "X", "value": "1"}],
                "lifecycle": {"postStart": {"exec": {"command": ["a"]}}},
            },
        ],
        "volumes": [{"name": "journals", "emptyDir": {}}],
    },
}


def _consumer(*, template: Spec | None = None, sidecar: Spec | None = None, **more: Any) -> Spec:
    app = more.pop("app", {"channel": "HTTP", "port": 8080})
    told = {"template": template or {"spec": {"containers": [APP]}}, "app": app, **more}
    return told if sidecar is None else {**told, "sidecar": sidecar}


ONE_QUEUE = {"queues": {"count": 1}}
GROUPS: dict[str, Spec] = {
    "least": {"consumer": _consumer()},
    "partitioned": {"mode": "Partitioned", "rebalanceDelaySeconds": 7, "consumer": _consumer()},
    "message groups": {"mode": "MessageGroups", **ONE_QUEUE, "consumer": _consumer()},
    "sessions": {"mode": "Sessions", **ONE_QUEUE, "replicas": 3, "consumer": _consumer()},
    "sessions that are kept": {
        "mode": "Sessions",
        **ONE_QUEUE,
        "deletionPolicy": "Retain",
        "consumer": _consumer(template=RICH, app={"channel": "Stream", "container": "app"})
        | {"storage": {"size": "2Gi", "storageClassName": "fast"}},
    },
    "static": {
        "assignment": "Static",
        "scaling": {"maxReplicas": 4, "targetLag": 500},
        "consumer": _consumer(),
    },
    "times": {
        "maxHandoffSeconds": 9,
        "releasePeriodSeconds": 11,
        "rebalanceDelaySeconds": 4,
        "consumer": _consumer(),
    },
    "rich template": {"consumer": _consumer(template=RICH, app={"channel": "Stream", "container": "app"})},
    "batches": {
        "consumer": _consumer(
            app={
                "channel": "HTTPBatch",
                "port": 9000,
                "path": "/b",
                "batch": {"size": 50, "lingerMilliseconds": 20},
            }
        )
    },
    "every word of the app": {
        "consumer": _consumer(
            app={
                "channel": "HTTP",
                "port": 8080,
                "path": "/orders",
                "healthPath": "/health",
                "positionsPath": "/positions",
                "order": "Queue",
                "concurrency": 8,
                "callTimeoutSeconds": 17,
                "maxAttempts": 5,
                "whenExhausted": "DeadLetter",
            },
            guarantee="EffectivelyOnce",
        )
    },
    "sidecar of its own": {
        "consumer": _consumer(
            sidecar={
                "image": "example.org/sidecar:2",
                "resources": {"limits": {"memory": "512Mi"}},
                "logFormat": "Text",
                "republish": True,
            }
        )
    },
    "journal on a claim": {"consumer": _consumer(sidecar={"journal": {"volumeClaim": "journals"}})},
    "journal on a volume": {
        "groupName": "orders-of-the-shop",
        "consumer": _consumer(
            template=RICH,
            app={"channel": "Stream", "container": "app"},
            sidecar={"journal": {"volume": "journals"}},
        ),
    },
}
BROKERS: dict[str, Spec] = {
    "least": {"embedded": {}},
    "every word": {
        "embedded": {
            "image": "example.org/broker:2",
            "resources": {"requests": {"cpu": "2"}},
            "storage": {"size": "50Gi", "storageClassName": "fast"},
            "tlsSecretName": "certificate",
        },
        "allowedNamespaces": ["alley"],
    },
}


ELSEWHERE = ("least", "sessions", "rich template", "journal on a claim")
"""The groups that are looked at on other clusters too, and on a broker whose authority is the system's."""


def workloads() -> dict[str, Any]:
    """By what they are made for."""
    made: dict[str, Any] = {}
    for cluster, settings in CLUSTERS.items():
        for case, spec in GROUPS.items():
            if cluster == "Kubernetes" or case in ELSEWHERE:
                made[f"group: {case}; {cluster}"] = _of_group(spec, settings, has_ca=True)
        for case, spec in BROKERS.items():
            broker = BrokerManifest.parse(broker_manifest(copy.deepcopy(spec)))
            made[f"broker: {case}; {cluster}"] = stateful_set_of(
                broker, settings, amqps_port=AMQPS_PORT, https_port=HTTPS_PORT
            )
    for case in ELSEWHERE:
        made[f"group: {case}; no authority"] = _of_group(GROUPS[case], SETTINGS, has_ca=False)
    return made


def _of_group(spec: Spec, settings: OperatorSettings, *, has_ca: bool) -> Spec:
    manifest = group_manifest(copy.deepcopy(spec))
    manifest["status"] = {"groupName": spec.get("groupName", "shop-orders")}  # of a group that exists
    group = GroupManifest.parse(manifest)
    of = session_set_of if group.has_sessions else deployment_of
    return of(group, settings, has_ca=has_ca)


if __name__ == "__main__":
    for what, workload in workloads().items():
        print(json.dumps([what, workload], separators=(",", ":"), sort_keys=True))
