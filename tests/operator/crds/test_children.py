"""Objects of a group in the cluster, each from the manifest alone."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from lbg_operator.crds import GroupManifest
from lbg_operator.errors import ManifestError
from lbg_operator.resources.autoscaler import LAG_METRIC, WANTED_METRIC, autoscaler_of
from lbg_operator.resources.credentials import Login, attributes_of, credentials_of
from lbg_operator.resources.sidecar_injection import SIDECAR, injected
from lbg_operator.resources.workload import budget_of, deployment_of
from lbg_operator.settings import OperatorSettings
from lbg_sidecar.process.settings import SidecarSettings, configure
from testing.kubernetes.manifests import consumer, group_manifest

SETTINGS = OperatorSettings(sidecar_image="lbg-sidecar:1", broker_image="lbg-broker:1")
PLAIN = OperatorSettings(sidecar_image="lbg-sidecar:1", broker_image="lbg-broker:1", native_sidecars=False)
LOGIN = Login("shop-orders", "a-password", ("amqps://one", "amqps://two"), ca="a-certificate")
KUBERNETES = "1.29"


def group_of(spec: dict[str, Any] | None = None, **app: Any) -> GroupManifest:
    return GroupManifest.parse(group_manifest({"consumer": consumer(**app), **(spec or {})}))


def sidecar_of(template: dict[str, Any]) -> dict[str, Any]:
    pod = template["spec"]
    (found,) = [one for one in [*pod["containers"], *pod.get("initContainers", [])] if one["name"] == SIDECAR]
    container: dict[str, Any] = found
    return container


EVERYTHING = {
    "assignment": "Static",
    "scaling": {
        "maxReplicas": 4,
        "targetDelay": "10s",
        "targetLag": 500,
        "targetCPUUtilizationPercentage": 70,
    },
}


@pytest.mark.long
@pytest.mark.parametrize("settings", [SETTINGS, PLAIN], ids=["native", "plain"])
@pytest.mark.parametrize("channel", ["HTTP", "HTTPBatch", "Stream"])
def test_every_object_is_what_kubernetes_takes(settings: OperatorSettings, channel: str) -> None:
    group = group_of(EVERYTHING, channel=channel)
    children = [
        deployment_of(group, settings, has_ca=True),
        budget_of(group),
        autoscaler_of(group),
        credentials_of(group, LOGIN),
        attributes_of(group),
    ]
    for child in children:
        assert child is not None
        kubernetes_validate.validate(child, KUBERNETES, strict=True)
        metadata = child["metadata"]
        assert metadata["namespace"] == "shop"
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == (
            "LoadBalancedGroup",
            "orders",
            "uid-of-orders",
        )
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "lbg-operator"


# The pod


def test_a_native_sidecar_starts_first_and_a_plain_one_stands_beside() -> None:
    template = {
        "spec": {
            "initContainers": [{"name": "migrate", "image": "m"}],
            "containers": [{"name": "app", "image": "a"}],
        }
    }
    group = group_of(template=template)
    native = injected(group, SETTINGS, has_ca=True)["spec"]
    assert [one["name"] for one in native["initContainers"]] == [SIDECAR, "migrate"]
    assert native["initContainers"][0]["restartPolicy"] == "Always"
    assert [one["name"] for one in native["containers"]] == ["app"]
    plain = injected(group, PLAIN, has_ca=True)["spec"]
    assert [one["name"] for one in plain["containers"]] == ["app", SIDECAR]
    assert "restartPolicy" not in plain["containers"][1]


def test_what_the_user_wrote_stays() -> None:
    template = {
        "metadata": {"labels": {"team": "blue", "lbg.dev/group": "another"}, "annotations": {"a": "b"}},
        "spec": {
            "serviceAccountName": "orders",
            "containers": [
                {
                    "name": "app",
                    "image": "a",
                    "env": [{"name": "X", "value": "1"}],
                    "lifecycle": {"postStart": {}},
                },
                {"name": "logs", "image": "l"},
            ],
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }
    group = group_of(template=template)
    made = injected(group, SETTINGS, has_ca=True)
    assert made["metadata"]["labels"] == {"team": "blue", "lbg.dev/group": "orders"}
    assert made["metadata"]["annotations"]["a"] == "b"
    assert made["spec"]["serviceAccountName"] == "orders"
    assert made["spec"]["containers"][0]["env"][0] == {"name": "X", "value": "1"}
    assert set(made["spec"]["containers"][0]["lifecycle"]) == {"postStart", "preStop"}
    assert made["spec"]["containers"][1] == {"name": "logs", "image": "l"}
    assert made["spec"]["volumes"][0]["name"] == "data"
    assert group.consumer is not None
    assert group.consumer.template == template, "the manifest itself is left alone"


@pytest.mark.parametrize(("grace_s", "drain_s"), [(None, 20), (60, 50), (15, 7), (1, 1)])
def test_the_application_is_held_until_its_sidecar_has_drained(grace_s: int | None, drain_s: int) -> None:
    pod: dict[str, Any] = {"containers": [{"name": "app", "image": "a"}]}
    if grace_s is not None:
        pod["terminationGracePeriodSeconds"] = grace_s
    made = injected(group_of(template={"spec": pod}), SETTINGS, has_ca=True)
    hook = made["spec"]["containers"][0]["lifecycle"]["preStop"]["httpGet"]
    assert hook["path"] == f"/drained?wait={drain_s + 4}"
    sidecar_hook = sidecar_of(made)["lifecycle"]["preStop"]["exec"]
    assert sidecar_hook["command"] == ["lbg", "drain", "--wait", str(drain_s + 4)]
    environment = {one["name"]: one.get("value") for one in sidecar_of(made)["env"]}
    assert environment["LBG_SHUTDOWN_GRACE_S"] == str(drain_s)


@pytest.mark.parametrize(
    ("template", "app", "message"),
    [
        ({"spec": {"containers": [{"name": SIDECAR}]}}, {}, "remove or rename it"),
        (
            {"spec": {"containers": [{"name": "a"}], "initContainers": [{"name": SIDECAR}]}},
            {},
            "remove or rename",
        ),
        (
            {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}},
            {"container": "c"},
            "'c' is not a container of the template: a, b",
        ),
        ({"spec": {"containers": [{"name": "a", "lifecycle": {"preStop": {}}}]}}, {}, "has a preStop hook"),
    ],
)
def test_a_template_that_cannot_take_the_sidecar_says_why(
    template: dict[str, Any], app: dict[str, Any], message: str
) -> None:
    group = GroupManifest.parse(group_manifest({"consumer": {**consumer(**app), "template": template}}))
    with pytest.raises(ManifestError, match=message):
        injected(group, SETTINGS, has_ca=True)


def test_the_sidecar_is_locked_down() -> None:
    sidecar = sidecar_of(injected(group_of(), SETTINGS, has_ca=True))
    assert sidecar["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_no_password_is_in_a_pod() -> None:
    deployment = deployment_of(group_of(), SETTINGS, has_ca=True)
    assert "a-password" not in str(deployment)


# What the sidecar is told


def settings_of(group: GroupManifest) -> SidecarSettings:
    """Settings that a sidecar reads from its container's environment, references resolved."""
    filled = {"LBG_BROKER": "amqp://one/,amqp://two/", "LBG_NAME": "orders-6d5f-x2x9z"}
    environment = sidecar_of(injected(group, SETTINGS, has_ca=False))["env"]
    return configure({one["name"]: one.get("value") or filled[one["name"]] for one in environment})


def test_the_sidecar_understands_all_of_it() -> None:
    group = group_of(
        {**EVERYTHING, "rebalanceDelaySeconds": 7, "maxHandoffSeconds": 2, "releaseIntervalSeconds": 60},
        channel="HTTPBatch",
        path="/events",
        healthPath="/ready",
        positionsPath="/positions",
        order="Queue",
        prefetch=40,
        callTimeoutSeconds=9,
        maxAttempts=4,
        whenExhausted="DeadLetter",
        batch={"size": 50, "lingerMilliseconds": 1, "requests": 3},
    )
    settings = settings_of(group)
    member, process = settings.member, settings.process
    assert (member.group, member.name) == ("shop-orders-644f7b8c", "orders-6d5f-x2x9z")
    assert group.spec.max_clients == 4
    assert (member.rebalance_delay_s, member.max_handoff_s, member.release_interval_s) == (7, 2, 60)
    assert (member.order, member.prefetch, member.call_timeout_s) == ("queue", 40, 9)
    assert (member.max_attempts, member.when_exhausted) == (4, "dead-letter")
    assert (member.shutdown_grace_s, member.commits) == (20, None)
    assert (process.app, process.target) == ("http-batch", "http://127.0.0.1:8080/events")
    assert (process.health_path, process.positions_path) == ("/ready", "/positions")
    assert (process.batch_size, process.batch_linger_ms, process.batch_requests) == (50, 1, 3)
    assert process.log_format == "json"


def test_the_bounds_of_parked_messages_are_the_sidecars() -> None:
    parking = {"maxKeys": 5, "maxMessages": 50, "maxSize": "3M"}
    member = settings_of(group_of(whenExhausted="Park", parking=parking)).member
    assert member.when_exhausted == "park"
    assert (member.park_max_keys, member.park_max_messages, member.park_max_mb) == (5, 50, 3)


@pytest.mark.parametrize("native", [False, True])
def test_a_sidecar_has_the_time_to_start_that_the_settings_give_it(native: bool) -> None:
    """On a starved node the probe ended it while it started. The application waits for no probe of it."""
    settings = replace(SETTINGS, sidecar_start_s=120, native_sidecars=native)
    sidecar = sidecar_of(injected(group_of(), settings, has_ca=False))
    assert sidecar["livenessProbe"]["initialDelaySeconds"] == 120
    assert {sidecar[probe]["timeoutSeconds"] for probe in ("livenessProbe", "readinessProbe")} == {5}
    assert "startupProbe" not in sidecar
    probe = sidecar_of(injected(group_of(), SETTINGS, has_ca=False))["livenessProbe"]
    assert "initialDelaySeconds" not in probe


@pytest.mark.parametrize(("told", "window"), [({}, 64), ({"prefetch": 8}, 8)])
def test_a_group_that_says_no_window_gets_the_operators(told: dict[str, int], window: int) -> None:
    made = injected(group_of(**told), replace(SETTINGS, prefetch=64), has_ca=False)
    environment = {one["name"]: one.get("value") for one in sidecar_of(made)["env"]}
    assert environment["LBG_PREFETCH"] == str(window)


@pytest.mark.parametrize("has_ca", [True, False])
def test_authorities_are_named_where_there_are_any(has_ca: bool) -> None:
    environment = sidecar_of(injected(group_of(), SETTINGS, has_ca=has_ca))["env"]
    told = {one["name"]: one.get("value") for one in environment}
    assert told.get("LBG_CAFILE") == ("/var/run/lbg/credentials/ca.crt" if has_ca else None)


def test_a_log_of_commits_is_kept_where_it_is_asked_for() -> None:
    manifest = group_manifest({"consumer": {**consumer("Stream"), "guarantee": "EffectivelyOnce"}})
    group = GroupManifest.parse(manifest)
    assert str(settings_of(group).member.commits) == "/var/lib/lbg/commits"
    made = injected(group, SETTINGS, has_ca=True)
    assert {"name": "lbg-state", "mountPath": "/var/lib/lbg"} in sidecar_of(made)["volumeMounts"]
    assert {"name": "lbg-state", "emptyDir": {}} in made["spec"]["volumes"]


# Scaling


def test_replicas_never_pass_the_queues() -> None:
    group = GroupManifest.parse(
        {**group_manifest({"queues": {"count": 2}, "replicas": 9, "consumer": consumer()})}
    )
    assert deployment_of(group, SETTINGS, has_ca=True)["spec"]["replicas"] == 2


def test_a_rollout_brings_a_pod_before_it_takes_one() -> None:
    strategy = deployment_of(group_of(), SETTINGS, has_ca=True)["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_the_autoscaler_scales_the_group_and_not_the_deployment() -> None:
    autoscaler = autoscaler_of(group_of(EVERYTHING))
    assert autoscaler is not None
    spec = autoscaler["spec"]
    assert spec["scaleTargetRef"]["kind"] == "LoadBalancedGroup"
    cpu, lag, wanted = spec["metrics"]
    assert cpu["containerResource"]["container"] == "app"
    assert cpu["containerResource"]["target"]["averageUtilization"] == 70
    assert lag["external"]["metric"] == {"name": LAG_METRIC, "selector": {"matchLabels": {"group": "orders"}}}
    assert lag["external"]["target"]["averageValue"] == "500"
    assert wanted["external"]["metric"]["name"] == WANTED_METRIC
    assert wanted["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}


def test_each_step_to_the_replicas_of_a_delay_counts_where_autoscalers_have_a_tolerance() -> None:
    delay = group_of({"scaling": {"maxReplicas": 4, "targetDelay": "10s"}})
    lag = group_of({"scaling": {"maxReplicas": 4, "targetLag": 500}})
    both = group_of({"scaling": {"maxReplicas": 4, "targetDelay": "10s", "targetLag": 500}})
    cases = ((delay, True, "0"), (delay, False, None), (lag, True, None), (both, True, None))
    for group, has_tolerance, tolerance in cases:
        found = autoscaler_of(group, has_tolerance=has_tolerance)
        assert found is not None
        behavior = found["spec"]["behavior"]
        assert behavior["scaleDown"].get("tolerance") == tolerance
        assert behavior.get("scaleUp", {}).get("tolerance") == tolerance


@pytest.mark.parametrize("spec", [{}, {"scaling": {"maxReplicas": 4, "targetLag": 1}}])
def test_without_scaling_or_consumers_there_is_no_autoscaler(spec: dict[str, Any]) -> None:
    assert autoscaler_of(GroupManifest.parse(group_manifest(spec))) is None


# What is shared


def test_the_secret_holds_the_login_and_the_addresses() -> None:
    data = credentials_of(group_of(), LOGIN)["data"]
    plain = {name: base64.b64decode(value).decode() for name, value in data.items()}
    assert plain == {
        "username": "shop-orders",
        "password": "a-password",
        "uris": "amqps://one,amqps://two",
        "ca.crt": "a-certificate",
    }
    assert "a-password" not in repr(LOGIN)


def test_the_configmap_is_enough_to_publish_by() -> None:
    assert attributes_of(group_of())["data"] == {
        "group": "shop-orders-644f7b8c",
        "hash-prefix": "shop-orders-644f7b8c",
        "hash-count": "128",
        "hash-function": "crc32",
        "queue-count": "8",
        "record.json": (
            '{"V":1,"HP":"shop-orders-644f7b8c","HC":128,"QC":8,"QS":1000,"CU":"shop-orders-644f7b8c"}'
        ),
    }


def test_further_variables_of_the_sidecar_are_those_of_the_manifest() -> None:
    endpoint = {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}
    headers = {
        "name": "OTEL_EXPORTER_OTLP_HEADERS",
        "valueFrom": {"secretKeyRef": {"name": "otel", "key": "headers"}},
    }
    group = group_of({"consumer": {**consumer(), "sidecar": {"env": [endpoint, headers]}}})
    environment = sidecar_of(injected(group, SETTINGS, has_ca=True))["env"]
    assert environment[-2:] == [endpoint, headers]
    assert {one["name"] for one in environment[:-2]} == {
        one["name"] for one in sidecar_of(injected(group_of(), SETTINGS, has_ca=True))["env"]
    }
