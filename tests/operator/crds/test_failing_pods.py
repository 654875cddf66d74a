"""Reasons why pods do not run, by kubelet and scheduler, and the time from which they count."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from lbg_operator.status.pods import FOREVER, Mounts, are_completed, changes_in_s, failing, mounts_of

Status = dict[str, Any]
BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEGAN_S = BEGAN.timestamp()
AT = "2026-01-01T12:00:00Z"
ENDED = {
    "exitCode": 1,
    "reason": "Error",
    "startedAt": "2026-01-01T11:59:50Z",
    "finishedAt": AT,
}
SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": AT}


def pod(name: str = "orders-0", *, deleting: bool = False, **status: Any) -> Status:
    metadata = {"name": name, **({"deletionTimestamp": AT} if deleting else {})}
    return {"metadata": metadata, "status": status}


def container(state: Status, *, restarts: int = 0, last: Status | None = None) -> Status:
    told: Status = {"name": "app", "state": state, "restartCount": restarts}
    return told if last is None else told | {"lastState": {"terminated": last}}


def waiting(reason: str, message: str = "why") -> Status:
    return {"waiting": {"reason": reason, "message": message}}


def running(since: str = AT) -> Status:
    return {"running": {"startedAt": since}}


@pytest.mark.parametrize(
    "reason",
    [
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "PostStartHookError",
        "CrashLoopBackOff",
    ],
)
@pytest.mark.parametrize("which", ["initContainerStatuses", "containerStatuses"])
def test_a_container_that_cannot_be_started_counts_at_once_with_its_reason(which: str, reason: str) -> None:
    seen = pod(**{which: [container(waiting(reason, "no such thing"))]})
    assert failing([seen], BEGAN_S) == f"orders-0: app: {reason}: no such thing"


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", ""])
def test_one_that_is_being_started_does_not(reason: str) -> None:
    assert failing([pod(containerStatuses=[container(waiting(reason))])], BEGAN_S) == ""


def test_a_container_that_ends_again_and_again_counts_between_its_ends_with_the_same_words() -> None:
    said = "orders-0: app: CrashLoopBackOff: it ended with exit code 1 (Error)"
    states = [
        container({"terminated": ENDED}, restarts=1),
        container(waiting("CrashLoopBackOff", "back-off 10s restarting"), restarts=1, last=ENDED),
        container(running(), restarts=2, last=ENDED),
        container(waiting("CrashLoopBackOff", "back-off 20s restarting"), restarts=2, last=ENDED),
    ]
    assert [failing([pod(containerStatuses=[one])], BEGAN_S + 5) for one in states] == [said] * 4


def test_an_application_that_completes_again_and_again_counts_between_its_ends_too() -> None:
    """It is to run until its pod is deleted: in a Deployment there is no success."""
    completed = {**ENDED, "exitCode": 0, "reason": "Completed"}
    said = "orders-0: app: Completed: it ended with exit code 0 (Completed)"
    states = [
        container({"terminated": completed}, restarts=1),
        container(waiting("CrashLoopBackOff", "back-off 10s restarting"), restarts=1, last=completed),
        container(running(), restarts=2, last=completed),
        container({"terminated": completed}, restarts=2, last=completed),
    ]
    pods = [pod(containerStatuses=[one]) for one in states]
    assert [failing([one], BEGAN_S + 5) for one in pods] == [said] * 4
    assert all(are_completed([one], BEGAN_S + 5) for one in pods)
    crashed = pod("orders-1", containerStatuses=[container({"terminated": ENDED}, restarts=1)])
    assert not are_completed([*pods, crashed], BEGAN_S + 5)
    assert not are_completed([], BEGAN_S + 5)


def test_an_init_container_that_completes_after_a_failure_is_well() -> None:
    completed = container({"terminated": {**ENDED, "exitCode": 0}}, restarts=1, last=ENDED)
    assert failing([pod(initContainerStatuses=[completed])], BEGAN_S + 5) == ""


def test_it_counts_as_running_after_a_minute() -> None:
    seen = pod(containerStatuses=[container(running(), restarts=2, last=ENDED)])
    assert failing([seen], BEGAN_S + 59) != ""
    assert changes_in_s([seen], BEGAN_S + 59) == 1
    assert failing([seen], BEGAN_S + 60) == ""
    assert changes_in_s([seen], BEGAN_S + 60) == FOREVER


@pytest.mark.parametrize(
    "one",
    [
        container({"terminated": {"exitCode": 0, "reason": "Completed"}}),
        container({"terminated": ENDED}),
        container(running(), restarts=1, last=ENDED),
        container(running(), restarts=7, last={**ENDED, "startedAt": "2026-01-01T10:00:00Z"}),
    ],
    ids=["an init container's end", "a first end", "a second start", "an end after hours"],
)
def test_a_single_end_is_no_failure(one: Status) -> None:
    assert failing([pod(containerStatuses=[one])], BEGAN_S + 1) == ""


def test_the_message_of_an_end_is_told_in_one_line_and_cut() -> None:
    ended = {**ENDED, "exitCode": 137, "reason": "OOMKilled", "message": "line\n" * 500}
    seen = pod(containerStatuses=[container(waiting("CrashLoopBackOff"), restarts=1, last=ended)])
    said = failing([seen], BEGAN_S)
    assert said.startswith(
        "orders-0: app: CrashLoopBackOff: it ended with exit code 137 (OOMKilled): line line"
    )
    assert len(said) < 400


def test_a_pod_without_a_node_counts_when_that_lasts() -> None:
    seen = pod(
        conditions=[
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/1 nodes are available: 1 Insufficient cpu.",
                "lastTransitionTime": AT,
            }
        ]
    )
    assert failing([seen], BEGAN_S + 19) == ""
    assert changes_in_s([seen], BEGAN_S + 19) == 1
    said = "orders-0: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."
    assert failing([seen], BEGAN_S + 20) == said


@pytest.mark.parametrize(
    ("mounts", "after_s", "named"),
    [
        (Mounts(), 20, "its volumes or its network"),
        (Mounts(("ConfigMap files",)), 20, "its volumes (ConfigMap files) or its network"),
        (
            Mounts(("Secret s", "claim c"), has_claims=True),
            60,
            "its volumes (Secret s, claim c) or its network",
        ),
    ],
)
def test_a_pod_whose_volumes_are_not_mounted_counts_when_that_lasts(
    mounts: Mounts, after_s: int, named: str
) -> None:
    prepared = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": AT}
    creating = [container(waiting("ContainerCreating"))]
    seen = pod(conditions=[SCHEDULED, prepared], containerStatuses=creating)
    assert failing([seen], BEGAN_S + after_s - 1, mounts) == ""
    assert f"orders-0: ContainerCreating: {named} are missing" in failing([seen], BEGAN_S + after_s, mounts)
    pulling = pod(conditions=[SCHEDULED, {**prepared, "status": "True"}], containerStatuses=creating)
    assert failing([pulling], BEGAN_S + 3600, mounts) == "", "an image may be large"


def test_the_mounts_of_a_template_are_named() -> None:
    volumes = [
        {"name": "a", "secret": {"secretName": "s"}},
        {"name": "b", "configMap": {"name": "files"}},
        {"name": "c", "emptyDir": {}},
    ]
    assert mounts_of({"spec": {"volumes": volumes}}) == Mounts(("Secret s", "ConfigMap files"))
    volumes.append({"name": "d", "persistentVolumeClaim": {"claimName": "journals"}})
    assert mounts_of({"spec": {"volumes": volumes}}).has_claims
    assert mounts_of({"spec": {"volumes": [{"name": "e", "secret": "s"}]}}) == Mounts()
    assert mounts_of({"spec": {}}) == Mounts()


def test_pods_of_which_the_same_is_so_are_named_together() -> None:
    broken = {"containerStatuses": [container(waiting("ErrImagePull", "not found"))]}
    pods = [pod(f"orders-{number}", **broken) for number in range(6)]
    assert failing(pods, BEGAN_S) == "orders-0, orders-1, orders-2 and 3 more: app: ErrImagePull: not found"


@pytest.mark.parametrize("gone", [{"deleting": True}, {"phase": "Failed"}, {"phase": "Succeeded"}])
def test_a_pod_that_is_replaced_does_not_count(gone: dict[str, Any]) -> None:
    assert failing([pod(containerStatuses=[container(waiting("ErrImagePull"))], **gone)], BEGAN_S) == ""
