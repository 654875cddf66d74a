"""Reasons why pods do not run, in the kubelet's words. No I/O.

A Deployment says nothing of pods that do not come up for ten minutes, and a StatefulSet never does, so the pods are
looked at themselves. What counts is what Kubernetes' own tools count (kstatus, Argo CD), and a container that ends
again and again counts between its ends too: otherwise the judgement would change with each of its starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lbg_core.counted_nouns import counted

UNSCHEDULED_AFTER_S = 20.0
"""A node or a volume may still be made for a pod. kstatus waits for 15 s."""
UNMOUNTED_AFTER_S = 20.0
"""A Secret or a ConfigMap is mounted at once if it is there."""
ATTACHED_AFTER_S = 60.0
"""The same for a claim, whose volume is attached to the node first."""
MISSING_AFTER_S = 20.0
"""A controller makes pods at once, unless it may not. A Deployment says so itself."""
STEADY_AFTER_S = 60.0
"""A container that has ended before its time counts as running after so long."""
BACK_OFF_ENDS_S = 600.0
"""One that ran for so long before it ended is started anew without a pause (Kubernetes: "Pod Lifecycle", restarts)."""
NAMED_MAX = 10
PODS_NAMED_MAX = 3
MESSAGE_MAX = 300
FOREVER = float("inf")
ENDED = ("Succeeded", "Failed")
"""Phases of a pod whose containers do not run and are not started again (Kubernetes: "Pod Lifecycle")."""

_LOOPING = "CrashLoopBackOff"
_COMPLETED = "Completed"
_REFUSED = frozenset({"InvalidImageName", "RegistryUnavailable"})
"""Reasons of a waiting container that are no errors by their names."""


@dataclass(frozen=True, slots=True)
class Mounts:
    """Volumes that a pod mounts before its containers start: `named`, for people, and whether claims are among them."""

    named: tuple[str, ...] = ()
    has_claims: bool = False


NO_MOUNTS = Mounts()


@dataclass(frozen=True, slots=True)
class _Trouble:
    """`text` holds from one moment until another, in seconds of the epoch."""

    text: str
    since_s: float = 0.0
    until_s: float = FOREVER
    is_completion: bool = False


def are_completed(pods: Sequence[Mapping[str, Any]], now_s: float) -> bool:
    """True if the only trouble of these pods is that applications end with exit code 0."""
    troubles = [
        one for pod in pods for one in _troubles_of(pod, NO_MOUNTS) if one.since_s <= now_s < one.until_s
    ]
    return bool(troubles) and all(one.is_completion for one in troubles)


def failing(pods: Sequence[Mapping[str, Any]], now_s: float, mounts: Mounts = NO_MOUNTS) -> str:
    """In one line, empty for nothing; pods of which the same is so are named together."""
    named: dict[str, list[str]] = {}
    for pod in sorted(pods, key=_name_of):
        for one in _troubles_of(pod, mounts):
            if one.since_s <= now_s < one.until_s:
                named.setdefault(one.text, []).append(_name_of(pod))
    return "; ".join(f"{_together(names)}: {text}" for text, names in list(named.items())[:NAMED_MAX])


def changes_in_s(pods: Sequence[Mapping[str, Any]], now_s: float, mounts: Mounts = NO_MOUNTS) -> float:
    """In how many seconds that becomes another by itself; infinity if it does not."""
    moments = [at for pod in pods for one in _troubles_of(pod, mounts) for at in (one.since_s, one.until_s)]
    return min((at - now_s for at in moments if at > now_s), default=FOREVER)


def missing(workload: Mapping[str, Any], since_s: float, now_s: float) -> str:
    """Shortage of a StatefulSet's pods, in one line, when it has lasted. `since_s`: since when it
    has been so. `workload`: with the `replicas` that were asked for, and its status."""
    existing, desired = workload["status"].get("replicas"), workload["replicas"]
    if not are_missing(workload) or now_s - since_s < MISSING_AFTER_S:
        return ""
    return (
        f"{existing} of {counted(desired, 'pod exists', 'pods exist')}: the events of the StatefulSet have the "
        "reason, for instance a quota"
    )


def are_missing(workload: Mapping[str, Any]) -> bool:
    existing, desired = workload["status"].get("replicas"), workload["replicas"]
    return existing is not None and desired is not None and existing < desired


def mounts_of(template: Mapping[str, Any]) -> Mounts:
    """Of a pod template of the right shape."""
    named, has_claims = [], False
    for volume in template["spec"].get("volumes", ()):
        for kind, key, name in (("secret", "secretName", "Secret"), ("configMap", "name", "ConfigMap")):
            source = volume.get(kind)
            if isinstance(source, Mapping) and key in source:
                named.append(f"{name} {source[key]}")
        claim = volume.get("persistentVolumeClaim")
        if isinstance(claim, Mapping):
            named.append(f"claim {claim.get('claimName')}")
        has_claims |= claim is not None or "csi" in volume or "ephemeral" in volume
    return Mounts(tuple(named), has_claims)


def _name_of(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def _together(names: Sequence[str]) -> str:
    more = len(names) - PODS_NAMED_MAX
    return ", ".join(names[:PODS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _troubles_of(pod: Mapping[str, Any], mounts: Mounts) -> Iterator[_Trouble]:
    status = pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"] or status.get("phase") in ENDED:
        return  # it goes, and another one comes in its place
    conditions = {one["type"]: one for one in status.get("conditions", ())}
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        text = f"{scheduled.get('reason', 'Unschedulable')}: {_cut(scheduled.get('message', ''))}"
        yield _Trouble(text, _moment(scheduled["lastTransitionTime"]) + UNSCHEDULED_AFTER_S)
    prepared = conditions.get("PodReadyToStartContainers", {})
    containers = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    if prepared.get("status") == "False" and scheduled.get("status") == "True" and not _have_run(containers):
        patience_s = ATTACHED_AFTER_S if mounts.has_claims else UNMOUNTED_AFTER_S
        what = f" ({', '.join(mounts.named)})" if mounts.named else ""
        yield _Trouble(
            f"ContainerCreating: its volumes{what} or its network are missing; its events have the details",
            _moment(scheduled["lastTransitionTime"]) + patience_s,
        )
    mains = status.get("containerStatuses", ())
    for one in containers:
        yield from _troubles_of_container(one, is_main=one in mains)


def _troubles_of_container(one: Mapping[str, Any], *, is_main: bool) -> Iterator[_Trouble]:
    """`is_main`: it is to run until its pod is deleted, so that no exit code is that of a success."""
    state, name = one.get("state", {}), one["name"]
    waiting, running = state.get("waiting"), state.get("running")
    ended = state.get("terminated") or one.get("lastState", {}).get("terminated")
    reason = (waiting or {}).get("reason", "")
    has_completed = is_main and ended is not None and ended.get("exitCode") == 0
    looping = (
        f"{name}: {_COMPLETED if has_completed else _LOOPING}: {'' if ended is None else _end_of(ended)}"
    )
    if waiting is not None and _is_failure(reason):
        if reason == _LOOPING and ended is not None:
            yield _Trouble(looping, is_completion=has_completed)
        else:
            yield _Trouble(f"{name}: {reason}: {_cut(waiting.get('message', ''))}")
    elif ended is None or not one.get("restartCount") or _ran_s(ended) >= BACK_OFF_ENDS_S:
        return
    elif running is not None and one["restartCount"] > 1 and "startedAt" in running:
        until_s = _moment(running["startedAt"]) + STEADY_AFTER_S
        yield _Trouble(looping, until_s=until_s, is_completion=has_completed)
    elif "terminated" in state and (ended.get("exitCode") or has_completed):
        yield _Trouble(looping, is_completion=has_completed)


def _is_failure(reason: str) -> bool:
    return reason in _REFUSED or reason.startswith("Err") or reason.endswith(("Error", "BackOff"))


def _end_of(ended: Mapping[str, Any]) -> str:
    description = f"it ended with exit code {ended.get('exitCode')} ({ended.get('reason', 'no reason')})"
    message = _cut(ended.get("message", ""))
    return f"{description}: {message}" if message else description


def _have_run(containers: Sequence[Mapping[str, Any]]) -> bool:
    return any("running" in one.get("state", {}) or one.get("restartCount") for one in containers)


def _ran_s(ended: Mapping[str, Any]) -> float:
    if not ended.get("startedAt") or not ended.get("finishedAt"):
        return 0.0
    return _moment(ended["finishedAt"]) - _moment(ended["startedAt"])


def _moment(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_MAX else f"{line[: MESSAGE_MAX - 1]}…"
