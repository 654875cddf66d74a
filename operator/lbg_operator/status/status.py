"""Status of a group as one object, and the time when it has to be written."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, timedelta
from typing import Any

from lbg_broker.admin.describe import (
    STATUSES,
    UNKNOWN_STATUS,
    Description,
    PartitionLine,
    partitions_of,
    rebalance_of,
)
from lbg_broker.admin.snapshot import UNKNOWN, SessionsStatus
from lbg_broker.group import UNCOUNTED_MODES
from lbg_operator.crds import Floor, GroupManifest
from lbg_operator.resources.names import GROUP_LABEL, attributes_name, credentials_name
from lbg_operator.status.condition_rules import Observation, conditions_of
from lbg_operator.status.conditions import merged
from lbg_operator.status.events import StatusEvent


def partition_counts(description: Description) -> dict[str, int] | None:
    """Number of partitions or queues in each status."""
    partitions = partitions_of(description)
    if partitions is UNKNOWN or not partitions:
        return None
    said = [one.status for one in partitions]
    return None if UNKNOWN_STATUS in said else {status: said.count(status) for status in STATUSES}


def stranded_sessions(description: Description) -> int | None:
    """Sessions without a consumer that have messages, which nobody else gets."""
    sessions = description.native
    return len(sessions.stranded) if isinstance(sessions, SessionsStatus) else None


def seen_of(description: Description) -> dict[str, Any]:
    """The fields of the status that one look fills."""
    seen: dict[str, Any] = {
        "rebalance": rebalance_of(description),
        "queues": [_queue(one) for one in _partitions(description)],
    }
    if isinstance(description.native, SessionsStatus):
        seen["sessions"] = [
            {"session": one.session, "state": one.state, "messages": one.messages}
            for one in sorted(description.native.sessions, key=lambda one: one.session)
        ]
    if description.members is not UNKNOWN:
        served = queues_served(description)
        seen["memberCount"] = len(description.members)
        seen["activeCount"] = _active_count(description, served)
        seen["members"] = [
            {"index": member.index, "name": member.name, "queues": served[member.index]}
            for member in description.members
        ]
    return seen


def lag_of(description: Description) -> int | None:
    """Messages ready or not acknowledged yet; None when a single queue could not be counted.

    Counting what is known only would scale in a group for the queues that nobody could see.
    """
    ready, unacked = description.ready, description.unacked
    return None if ready is UNKNOWN or unacked is UNKNOWN else ready + unacked


def _active_count(description: Description, served: Mapping[int, list[int]]) -> int:
    """All members, where they consume one queue together."""
    if description.spec is not None and description.spec.mode in UNCOUNTED_MODES:
        return len(served)
    return sum(map(bool, served.values()))


def _partitions(description: Description) -> tuple[PartitionLine, ...]:
    partitions = partitions_of(description)
    return () if partitions is UNKNOWN else partitions


def _queue(line: PartitionLine) -> dict[str, Any]:
    told: dict[str, Any] = {"queue": line.number, "status": line.status}
    if line.member is not None:
        told["member"] = line.member.index
    for name, count in (("ready", line.ready), ("unacked", line.unacked)):
        if isinstance(count, int):
            told[name] = count
    return told


def queues_served(description: Description) -> dict[int, list[int]]:
    """By the index of each member that is known."""
    served: dict[int, list[int]] = {}
    for member in () if description.members is UNKNOWN else description.members:
        served[member.index] = []
    for one in _partitions(description):
        if one.member is not None:
            served[one.member.index].append(one.number)
    return served


class Why(enum.StrEnum):
    MIN_REPLICAS = "MinReplicas"
    SCHEDULE = "Schedule"
    MAX_REPLICAS = "MaxReplicas"


REASON = "ScheduledReplicas"


def scheduled_of(floor: Floor) -> dict[str, Any]:
    told: dict[str, Any] = {"minReplicas": floor.min_replicas, "why": str(_why(floor))}
    if floor.entry is not None:
        told["entry"] = floor.entry
    if floor.until is not None:
        told["until"] = _second_after(floor)
    return told


def scheduling_news(former: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[StatusEvent]:
    """From `status.scaling` as it was and is: the fewest consumers are others than before."""
    if not now or former.get("minReplicas") == now["minReplicas"]:
        return
    if not former and now["why"] == Why.MIN_REPLICAS:
        return
    until = f" until {now['until']}" if "until" in now else ""
    least = f"at least {now['minReplicas']} consumers{until}"
    match now["why"]:
        case Why.MIN_REPLICAS:
            yield StatusEvent(
                "Normal", REASON, f"{least}: no entry of the schedule asks for more than minReplicas"
            )
        case Why.SCHEDULE:
            yield StatusEvent("Normal", REASON, f"{least}: scaling.schedule[{now['entry']}] is in force")
        case _:
            why = f"scaling.schedule[{now['entry']}] asks for more than maxReplicas and the queues allow"
            yield StatusEvent("Warning", REASON, f"{least}: {why}")


def _why(floor: Floor) -> Why:
    if floor.is_cut:
        return Why.MAX_REPLICAS
    return Why.MIN_REPLICAS if floor.entry is None else Why.SCHEDULE


def _second_after(floor: Floor) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes times: the change has come by then."""
    assert floor.until is not None
    moment = floor.until.astimezone(UTC) + timedelta(microseconds=999_999)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


TIME_ALONE_S = 300.0
"""That nothing changed for another half minute is not worth a write for each of hundreds of groups."""

_TIMES = ("observedTime", "lagTime")
_NUMBERS = frozenset({"lag", *_TIMES})
_QUEUE_NUMBERS = frozenset({"ready", "unacked"})
_SESSION_NUMBERS = frozenset({"messages"})


def status_of(
    group: GroupManifest | None,
    facts: Observation,
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
