"""What is wrong with the consumers and sessions of a group in mode Sessions, in one line; empty for nothing. No I/O
here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from lbg_broker.provisioning.describing import Description
from lbg_broker.provisioning.native import SessionsSeen

STRANDED_AFTER_S = 60.0
"""A session is away while its pod is replaced, in a rollout or after a crash: that is what it is kept for."""
UNSCHEDULED_AFTER_S = 60.0
"""A volume may still be made for a pod, or a node."""
NAMED_MAX = 10

_FAILURES = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""What a container that does not come up waits for (Kubernetes: "Pod Lifecycle", container states)."""


def stranded_of(description: Description, now_s: float) -> str:
    """The sessions that have had messages and no consumer for longer than a pod takes to be replaced."""
    native = description.native
    if not isinstance(native, SessionsSeen):
        return ""
    late = [
        one
        for one in native.stranded
        if one.away_since_s is not None and now_s - one.away_since_s > STRANDED_AFTER_S
    ]
    return "; ".join(
        f"session {one.session} has {one.messages} messages and no consumer" for one in late[:NAMED_MAX]
    )


def failing(pods: Sequence[Mapping[str, Any]], now_s: float) -> str:
    """A StatefulSet says nothing of pods that do not come up, so they are looked at themselves."""
    lines = [line for pod in pods for line in _failures_of(pod, now_s)]
    return "; ".join(lines[:NAMED_MAX])


def _failures_of(pod: Mapping[str, Any], now_s: float) -> Iterator[str]:
    status = pod.get("status", {})
    for one in status.get("conditions", ()):
        if one["type"] == "PodScheduled" and one["status"] == "False":
            since_s = datetime.fromisoformat(one["lastTransitionTime"]).timestamp()
            if now_s - since_s > UNSCHEDULED_AFTER_S:
                yield f"{pod['metadata']['name']}: {one.get('reason', '')}: {one.get('message', '')}"
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = one.get("state", {}).get("waiting", {})
        if waiting.get("reason") in _FAILURES:
            yield f"{pod['metadata']['name']}: {one['name']}: {waiting['reason']}: {waiting.get('message', '')}"
