"""Rendered charts are valid for Kubernetes with valid values; invalid ones are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from lbg_operator.crds import BrokerManifest, Embedded
from lbg_operator.settings import OperatorSettings
from lbgroup.cli import cli
from testing import ROOT
from testing.kubernetes.chart import CHART, LARGE, NAMESPACE, NONE, Object, named, of_kind, pods_of, rendered
from testing.kubernetes.manifests import CRDS, fill_in, schema_of


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global helm
    import helm_python as helm


KUBERNETES = ("1.29", kubernetes_validate.latest_version().removesuffix(".0"))
"""The oldest that the chart says it is for, and the newest that is known."""

VALUES = {"default": {}, "large": LARGE, "none": NONE}
with_values = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)


def test_helm_has_nothing_to_say_against_it() -> None:
    report = helm.lint(CHART, strict=True)
    assert report["errors"] == []
    assert [one["error"] for one in report["messages"]] == ["icon is recommended"]


def test_the_chart_has_the_version_of_what_it_installs() -> None:
    told = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{told["appVersion"]}"\n' in project
    assert told["version"] == told["appVersion"]
    assert told["kubeVersion"] == f">={KUBERNETES[0]}.0-0"


@pytest.mark.long
@pytest.mark.parametrize("version", KUBERNETES)
@with_values
def test_kubernetes_knows_every_field(values: Mapping[str, Any], version: str) -> None:
    for one in rendered(values):
        if one["apiVersion"].split("/")[0] not in ("lbg.dev", "monitoring.coreos.com"):
            kubernetes_validate.validate(one, version, strict=True)


@with_values
def test_nothing_is_rendered_twice_and_everything_says_whose_it_is(values: Mapping[str, Any]) -> None:
    objects = rendered(values)
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    assert len(set(names)) == len(names)
    for one in objects:
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "lbg"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


VOLUMES = {
    ("emptyDir", "Deployment"),
    ("emptyDir", "CronJob"),
    ("persistentVolumeClaim", "CronJob"),
    ("secret", "Deployment"),  # of the console
}


@with_values
def test_every_pod_is_restricted(values: Mapping[str, Any]) -> None:
    """Kubernetes: "Pod Security Standards", level restricted; and beyond it, a root that cannot be written to."""
    pods = list(pods_of(rendered(values)))
    assert len(pods) == (8 if values is LARGE else 3)
    for name, pod in pods:
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), name
        for volume in pod.get("volumes", ()):
            (kind,) = volume.keys() - {"name"}
            assert (kind, name.split()[0]) in VOLUMES, name
        beside = {"fsGroup", "fsGroupChangePolicy"} if "CronJob" in name else set()
        assert {one: told for one, told in pod["securityContext"].items() if one not in beside} == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }, name
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}, name


def test_the_operator_takes_the_settings_that_it_is_given() -> None:
    deployment = named(rendered(LARGE), "Deployment", "lbg-operator")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    told = {one["name"]: one.get("value", NAMESPACE) for one in container["env"]}
    settings = OperatorSettings.from_environment(told)
    assert settings == OperatorSettings(
        sidecar_image="registry.example/lbg/lbg-sidecar:0.1.0",
        broker_image="registry.example/lbg/lbg-broker:0.1.0",
        sidecar_resources={"requests": {"cpu": "50m"}},
        broker_resources={"limits": {"memory": "1Gi"}},
        sidecar_start_s=90,
        prefetch=64,
        broker_networks=("10.0.0.0/8", "fd12::/16"),
        namespace=NAMESPACE,
        service="lbg-operator",
        watched=("shop", "lbg-system"),
        metrics="external",
    )
    assert named(rendered(LARGE), "Service", settings.service)


def test_every_default_of_the_chart_is_one_of_the_operator() -> None:
    (deployment,) = of_kind(rendered(), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    told = {one["name"]: one.get("value", NAMESPACE) for one in container["env"]}
    assert OperatorSettings.from_environment(told) == OperatorSettings(
        sidecar_image="lbg-sidecar:0.1.0",
        broker_image="lbg-broker:0.1.0",
        sidecar_start_s=120,
        sidecar_tmp=True,
        namespace=NAMESPACE,
        service="lbg-operator",
    )


def test_an_image_can_be_named_whole() -> None:
    digest = f"registry.example/operator@sha256:{'0' * 64}"
    for _, pod in pods_of(rendered({"images": {"registry": "elsewhere", "operator": digest}})):
        assert [one["image"] for one in pod["containers"]] == [digest]


def test_services_and_probes_lead_to_ports_that_are_there() -> None:
    objects = rendered()
    (deployment,), (service,) = of_kind(objects, "Deployment"), of_kind(objects, "Service")
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"observed": 8080, "metrics-api": 6443}
    assert {one["port"]: one["targetPort"] for one in service["spec"]["ports"]} == {
        8080: "observed",
        6443: "metrics-api",
    }
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
        assert container[probe]["timeoutSeconds"] == 5
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 120, "a starved node starts it late"
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()


def test_only_the_operator_is_behind_its_service() -> None:
    """Pods of hooks bear labels of their own: they answer nothing, and the policy of the operator is not theirs."""
    objects = rendered(LARGE)
    service = named(objects, "Service", "lbg-operator")
    (job,), (pod,) = of_kind(objects, "Job"), of_kind(objects, "Pod")
    jobs = [one["spec"]["jobTemplate"]["spec"]["template"] for one in of_kind(objects, "CronJob")]
    console = named(objects, "Deployment", "lbg-console")["spec"]["template"]
    for one in (job["spec"]["template"], pod, console, *jobs):
        assert not service["spec"]["selector"].items() <= one["metadata"]["labels"].items()


def test_the_hook_that_releases_groups_stops_this_operator_and_looks_where_it_looked() -> None:
    objects = rendered(LARGE)
    (job,), deployment = of_kind(objects, "Job"), named(objects, "Deployment", "lbg-operator")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command = cli.get_command(None, "operator").get_command(None, container["args"][0])
    told = command.make_context("release", container["args"][1:]).params
    assert told["namespaces"] == tuple(LARGE["watchNamespaces"])
    labels = dict(label.split("=") for label in told["selector"].split(","))
    assert labels == deployment["spec"]["selector"]["matchLabels"]
    assert labels.items() <= deployment["metadata"]["labels"].items()
    assert (
        not labels.items() <= job["spec"]["template"]["metadata"]["labels"].items()
    )  # or it would wait for itself
    assert {one["name"] for one in container["env"]} == {"LBG_OPERATOR_NAMESPACE"}


@pytest.mark.parametrize("values", [LARGE, {"metrics": {"provider": "external"}}], ids=["large", "small"])
def test_no_hook_can_stop_an_uninstall_before_everything_is_deleted(values: Mapping[str, Any]) -> None:
    """Helm deletes nothing where a hook before it fails, as one does whose image is missing. An APIService that stayed
    and that nobody serves would hold up the deletion of every namespace."""
    objects = rendered(values)
    hooks = {
        one["metadata"]["name"]: one["metadata"]["annotations"].get("helm.sh/hook", "")
        for one in annotated(objects)
    }
    assert not [name for name, when in hooks.items() if "pre-delete" in when]
    (service,) = of_kind(objects, "APIService")
    assert not service["metadata"].get("annotations")  # neither a hook nor kept


def test_the_hook_after_the_deletion_brings_all_that_it_runs_with() -> None:
    """The release's own objects are gone by then."""
    objects = rendered(LARGE)
    hooks = [
        one
        for one in annotated(objects)
        if one["metadata"]["annotations"].get("helm.sh/hook") == "post-delete"
    ]
    (job,) = of_kind(hooks, "Job")
    pod = job["spec"]["template"]["spec"]
    (account,) = of_kind(hooks, "ServiceAccount")
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    for binding in of_kind(hooks, "RoleBinding") + of_kind(hooks, "ClusterRoleBinding"):
        of_hooks = [one["metadata"]["name"] for one in of_kind(hooks, binding["roleRef"]["kind"])]
        assert binding["roleRef"]["name"] in of_hooks
    assert "volumes" not in pod
    weight = {
        one["kind"]: int(one["metadata"]["annotations"].get("helm.sh/hook-weight", "0")) for one in hooks
    }
    assert max(value for kind, value in weight.items() if kind != "Job") < weight["Job"]
    for one in hooks:
        policies = one["metadata"]["annotations"]["helm.sh/hook-delete-policy"].split(",")
        assert {"before-hook-creation", "hook-succeeded"} <= set(policies)
        # A Job that failed stays for its log; what may do something does not.
        assert ("hook-failed" in policies) == (one["kind"] != "Job")


def annotated(objects: list[Object]) -> list[Object]:
    return [one for one in objects if one["metadata"].get("annotations")]


def test_the_test_pod_may_read_what_others_may_not() -> None:
    objects = rendered(LARGE)
    (pod,) = of_kind(objects, "Pod")
    policy = named(objects, "NetworkPolicy", "lbg-operator")
    selectors = [peer["podSelector"]["matchLabels"] for peer in policy["spec"]["ingress"][0]["from"][1:]]
    assert all(one.items() <= pod["metadata"]["labels"].items() for one in selectors)
    assert selectors


def test_the_crds_are_those_of_the_repository_and_stay_at_an_uninstall() -> None:
    crds = of_kind(rendered(), "CustomResourceDefinition")
    sources = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
    assert len(crds) == 2
    for crd, source in zip(crds, sources, strict=True):
        metadata = crd.pop("metadata")
        assert metadata["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert {**crd, "metadata": {"name": metadata["name"]}} == source


def test_the_packed_chart_holds_what_its_link_leads_to(tmp_path: Path) -> None:
    packed = helm.package(CHART, destination=tmp_path)
    with helm.Chart.load(packed) as chart, helm.Chart.load(CHART) as source:
        assert chart.render(name="lbg", namespace=NAMESPACE) == source.render(name="lbg", namespace=NAMESPACE)
        assert not any("__pycache__" in one["name"] for one in chart.files)


def test_the_broker_to_begin_with_is_one_that_the_operator_can_follow() -> None:
    (broker,) = of_kind(rendered(LARGE), "Broker")
    # A hook of this kind is made once, and deleted neither before the next one nor afterwards.
    assert broker["metadata"]["annotations"] == {
        "helm.sh/hook": "post-install,post-upgrade",
        "helm.sh/hook-delete-policy": "hook-failed",
    }
    fill_in(broker["spec"], schema_of("brokers")["properties"]["spec"])
    broker["metadata"]["namespace"] = NAMESPACE
    parsed = BrokerManifest.parse(broker)
    assert isinstance(parsed.engine, Embedded)
    assert parsed.engine.storage_bytes == 1 << 30
    assert parsed.engine.max_message_bytes == 32 << 20
    assert parsed.allows("shop")
    assert not parsed.allows("elsewhere")


@pytest.mark.parametrize(("provider", "ours"), [("auto", 0), ("external", 1), ("keda", 0), ("none", 0)])
def test_who_renders_without_a_cluster_takes_no_metrics_api_over(provider: str, ours: int) -> None:
    services = of_kind(rendered({"metrics": {"provider": provider}}), "APIService")
    assert len(services) == ours
    for one in services:
        # Not set: it is the operator's, and server-side apply leaves it alone.
        assert "caBundle" not in one["spec"]
        assert one["spec"]["service"] == {"name": "lbg-operator", "namespace": NAMESPACE, "port": 6443}


@pytest.mark.parametrize("release", ["x", "my-lbg", "lbg-operator", "a" * 53])
def test_names_fit_with_any_name_of_a_release(release: str) -> None:
    for one in rendered(LARGE, release=release):
        if one["kind"] != "CustomResourceDefinition":
            limits = {"Service": 63, "Job": 63, "Pod": 63, "CronJob": 52}
            assert len(one["metadata"]["name"]) <= limits.get(one["kind"], 253)
        if one["kind"] not in ("CustomResourceDefinition", "APIService", "Broker"):
            assert release[:30] in one["metadata"]["name"]
