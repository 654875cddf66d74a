"""The jobs on journals that the chart brings, where somebody asks for them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from lbgroup.cli import PIPELINE_COMMANDS
from testing.kubernetes.chart import CHART, LARGE, Object, of_kind, rendered


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global helm
    import helm_python as helm


PLACES = {"enabled": True, "journals": {"claim": "journals"}, "out": {"claim": "reports"}}


def jobs(**more: Any) -> dict[str, Object]:
    """The CronJobs by step."""
    objects = rendered({"pipeline": {**PLACES, **more}})
    return {one["metadata"]["name"].rpartition("-")[2]: one for one in of_kind(objects, "CronJob")}


def pod_of(job: Object) -> Object:
    pod: Object = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return pod


def arguments(job: Object) -> list[str]:
    (container,) = pod_of(job)["containers"]
    return list(container["args"])


def test_there_is_nothing_of_it_by_default() -> None:
    assert not [one for one in rendered() if "pipeline" in one["metadata"]["name"]]


def test_each_step_is_a_job_of_its_own_that_runs_when_it_is_told_to() -> None:
    assert jobs().keys() == {"validate", "profile"}
    told = {"validate": {"schedule": "0 * * * *"}, "profile": {"enabled": False}, "plan": {"enabled": True}}
    found = jobs(steps=told, schedule="30 1 * * *", timeZone="Europe/Berlin")
    assert {step: one["spec"]["schedule"] for step, one in found.items()} == {
        "validate": "0 * * * *",
        "plan": "30 1 * * *",
    }
    assert {one["spec"]["timeZone"] for one in found.values()} == {"Europe/Berlin"}


def test_what_a_job_is_told_is_what_its_command_takes() -> None:
    found = jobs(steps={name: {"enabled": True} for name in ("validate", "profile", "plan", "forecast")})
    assert found.keys() == {"validate", "profile", "plan", "forecast"}
    for step, job in found.items():
        assert arguments(job) == [
            step,
            "--journal=/journals/*",
            f"--out=/out/$(JOB)/{step}",
            "--master=local[2]",
        ]
        if step in PIPELINE_COMMANDS:
            PIPELINE_COMMANDS[step].load().make_context(step, arguments(job)[1:])


def test_each_job_writes_to_a_folder_of_its_own() -> None:
    (container,) = pod_of(jobs()["validate"])["containers"]
    (name,) = (one for one in container["env"] if one["name"] == "JOB")
    label = name["valueFrom"]["fieldRef"]["fieldPath"]
    assert re.fullmatch(r"metadata\.labels\['batch\.kubernetes\.io/job-name'\]", label)


def test_two_of_a_kind_never_run_at_once_and_what_is_broken_is_not_tried_again() -> None:
    for step, job in jobs().items():
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        told = job["spec"]["jobTemplate"]["spec"]
        fails, ignores = told["podFailurePolicy"]["rules"]
        assert fails["onExitCodes"] == {"containerName": step, "operator": "In", "values": [1, 2, 4]}
        assert (fails["action"], ignores["action"]) == ("FailJob", "Ignore")
        assert pod_of(job)["restartPolicy"] == "Never"


def test_journals_are_read_only_and_urls_need_no_claim() -> None:
    (container,) = pod_of(jobs()["validate"])["containers"]
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    assert mounts.keys() == {"tmp", "journals", "out"}
    assert mounts["journals"]["readOnly"] is True
    urls = {"journals": {"paths": ["s3a://logs/shop/*"]}, "out": {"path": "s3a://reports/"}}
    (job,) = of_kind(
        rendered({"pipeline": {"enabled": True, "steps": {"profile": {"enabled": False}}, **urls}}), "CronJob"
    )
    assert [one["name"] for one in pod_of(job)["volumes"]] == ["tmp"]
    assert arguments(job)[1:3] == ["--journal=s3a://logs/shop/*", "--out=s3a://reports/$(JOB)/validate"]


@pytest.mark.parametrize("applies", [True, False])
def test_only_a_forecast_that_is_applied_may_do_anything_in_the_cluster(applies: bool) -> None:
    steps = {"forecast": {"enabled": True, "apply": applies}}
    objects = rendered({"pipeline": {**PLACES, "namespace": "shop", "steps": steps}})
    found = {one["metadata"]["name"]: one for one in of_kind(objects, "CronJob")}
    tokens = {name: pod_of(one)["automountServiceAccountToken"] for name, one in found.items()}
    assert tokens == {
        "lbg-pipeline-validate": False,
        "lbg-pipeline-profile": False,
        "lbg-pipeline-forecast": applies,
    }
    ours = [one for one in objects if one["metadata"]["name"] == "lbg-pipeline"]
    roles = [one for one in ours if one["kind"] in ("Role", "RoleBinding")]
    assert len(roles) == (2 if applies else 0)
    if applies:
        (rule,) = roles[0]["rules"]
        assert (rule["apiGroups"], rule["resources"]) == (["lbg.dev"], ["loadbalancedgroups"])
        assert set(rule["verbs"]) == {"list", "patch"}
        assert roles[1]["subjects"] == [
            {"kind": "ServiceAccount", "name": "lbg-pipeline", "namespace": "shop"}
        ]
        assert arguments(found["lbg-pipeline-forecast"])[-2:] == ["--apply", "--namespace=shop"]
    assert {one["metadata"]["namespace"] for one in [*ours, *found.values()]} == {"shop"}


def test_nobody_can_reach_a_job() -> None:
    (policy,) = (
        one for one in of_kind(rendered(LARGE), "NetworkPolicy") if "pipeline" in one["metadata"]["name"]
    )
    assert (policy["spec"]["policyTypes"], policy["spec"]["ingress"]) == (["Ingress"], [])
    for job in of_kind(rendered(LARGE), "CronJob"):
        labels = job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


def test_a_cluster_that_assigns_groups_can_be_told_so() -> None:
    pod = pod_of(jobs(podSecurityContext={"fsGroup": None, "fsGroupChangePolicy": None})["validate"])
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "pipeline.enabled needs journals: set pipeline.journals.claim"),
        ({"journals": {"claim": "x"}}, "pipeline.enabled needs a place for reports and tables"),
        (
            {**PLACES, "schedule": "3 o'clock"},
            "at '/pipeline/schedule': '3 o\\'clock' does not match pattern",
        ),
        ({**PLACES, "steps": {"count": {}}}, "additional properties 'count' not allowed"),
        ({**PLACES, "steps": {"plan": {"apply": True}}}, "additional properties 'apply' not allowed"),
    ],
)
def test_what_is_missing_or_wrong_is_one_clear_line(values: Object, says: str) -> None:
    with pytest.raises(helm.HelmError) as caught:
        rendered({"pipeline": {"enabled": True, **values}})
    assert says in str(caught.value)


@pytest.mark.long
def test_its_alerts_know_the_jobs_by_their_names() -> None:
    rules = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    (alerts,) = (one["rules"] for one in rules if one["name"] == "lbg.pipeline")
    patterns = [re.findall(r'job_name=~"([^"]+)"', one["expr"])[0] for one in alerts]
    for release in ("lbg", "my-release", "a" * 53):
        values = {"pipeline": {**PLACES, "steps": {"plan": {"enabled": True}, "forecast": {"enabled": True}}}}
        for job in of_kind(rendered(values, release=release), "CronJob"):
            name = f"{job['metadata']['name']}-29392830"
            assert [bool(re.fullmatch(one, name)) for one in patterns].count(True) == 1, name
