"""The status of a group as one object, and when it is worth writing. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..children.naming import GROUP_LABEL, attributes_name, credentials_name
from ..manifests import GroupManifest
from .conditions import merged
from .judging import Facts, conditions_of
from .scheduled import scheduled_of
from .seen import seen_of

TIME_ALONE_S = 300.0
"""That nothing changed for another half minute is not worth a write for each of hundreds of groups."""

_TIMES = ("observedTime", "lagTime")
_NUMBERS = frozenset({"lag", *_TIMES})
_QUEUE_NUMBERS = frozenset({"ready", "unacked"})
_SESSION_NUMBERS = frozenset({"messages"})


def status_of(
    group: GroupManifest | None,
    facts: Facts,
    *,
    former: Mapping[str, Any],
    generation: int,
    now: str,
    observed: str | None = None,
    lag: tuple[int, str] | None = None,
    handoffs: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """`group` is None for a manifest that could not be parsed; `observed`: when the broker was last read, RFC 3339;
    `lag`: how far the group is behind, and when that was counted."""
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": merged(
            former.get("conditions", ()), conditions_of(group, facts), generation=generation, now=now
        ),
    }
    if group is None:
        return status
    status["groupName"] = group.spec.name
    status["secretName"] = credentials_name(group.metadata.name)
    status["configMapName"] = attributes_name(group.metadata.name)
    workload = facts.workload or {}
    if group.consumer is not None:
        status["replicas"] = workload.get("replicas", 0)
        status["readyReplicas"] = workload.get("readyReplicas", 0)
        status["selector"] = f"{GROUP_LABEL}={group.metadata.name}"
    if facts.floor is not None:
        status["scaling"] = scheduled_of(facts.floor)
    if facts.description is not None:
        status |= seen_of(facts.description)
        if observed is not None:
            status["observedTime"] = observed
        if lag is not None:
            status["lag"], status["lagTime"] = lag
    if handoffs:
        status["lastHandoffs"] = [dict(one) for one in handoffs]
    return status


def due_in_s(
    wanted: Mapping[str, Any], former: Mapping[str, Any], *, since_last_s: float, quiet_s: float
) -> float:
    """0: it is to be written now. Infinity: there is nothing to write.

    Numbers alone are written every `quiet_s` at most: a status that follows every message would be an event store.
    """
    if _without_numbers(wanted) != _without_numbers(former):
        return 0.0
    if wanted == former:
        return float("inf")
    timeless = dict.fromkeys(_TIMES)
    is_time_only = {**wanted, **timeless} == {**former, **timeless}
    return max((TIME_ALONE_S if is_time_only else quiet_s) - since_last_s, 0.0)


def patch_of(wanted: Mapping[str, Any], former: Mapping[str, Any]) -> dict[str, Any]:
    """As a merge patch: what is gone is null."""
    return {"status": _patch(wanted, former)}


def _patch(wanted: Mapping[str, Any], former: Mapping[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {**dict.fromkeys(former.keys() - wanted.keys()), **wanted}
    for name, value in wanted.items():
        if isinstance(value, Mapping):
            patch[name] = _patch(value, former.get(name, {}))
    return patch


def _without_numbers(status: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in status.items() if name not in _NUMBERS}
    told["queues"] = [
        {name: value for name, value in queue.items() if name not in _QUEUE_NUMBERS}
        for queue in status.get("queues", ())
    ]
    told["sessions"] = [
        {name: value for name, value in session.items() if name not in _SESSION_NUMBERS}
        for session in status.get("sessions", ())
    ]
    return told
