"""Status of a group as one object, and the time when it has to be written."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, timedelta
from typing import Any

from lbg_core.admin.describe import Description
from lbg_core.admin.rows import ServiceRow
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.counted_nouns import counted
from lbg_core.group.sizing import Sizing
from lbg_operator.crds import Floor, GroupManifest
from lbg_operator.crds.group import INGRESS_OPEN, INGRESS_PAUSED
from lbg_operator.resources.names import GROUP_LABEL, attributes_name, credentials_name, publisher_name
from lbg_operator.status.condition_rules import Observation
from lbg_operator.status.conditions import Condition, merged
from lbg_operator.status.events import StatusEvent


def seen_of(description: Description) -> dict[str, Any]:
    """The fields of the status that one survey fills."""
    services = description.services
    fields: dict[str, Any] = {
        "rebalance": description.rebalance,
        "queues": [] if services is UNKNOWN else [_queue(one) for one in services],
    }
    if (sessions := description.sessions) is not None:
        fields["sessions"] = [
            {"session": one.session, "state": one.state, "messages": one.messages}
            for one in sorted(sessions.sessions, key=lambda one: one.session)
        ]
    if description.members is not UNKNOWN:
        fields["memberCount"] = len(description.members)
        fields["activeCount"] = description.active_count
        fields["members"] = [
            {"index": member.index, "name": member.name, "queues": description.served_by[member.index]}
            for member in description.members
        ]
    return fields


def _queue(row: ServiceRow) -> dict[str, Any]:
    fields: dict[str, Any] = {"queue": row.number, "status": row.status}
    if row.member is not None:
        fields["member"] = row.member.index
    for name, count in (("ready", row.ready), ("unacked", row.unacked)):
        if isinstance(count, int):
            fields[name] = count
    return fields


def demand_of(sizing: Sizing) -> dict[str, Any]:
    """Whole numbers: Kubernetes' API conventions have no floats. What is unknown is left out."""
    per_minute = {"arrivalsPerMinute": sizing.arrivals_hz, "memberCapacityPerMinute": sizing.capacity_hz}
    fields: dict[str, Any] = {name: round(60 * one) for name, one in per_minute.items() if one is not None}
    fields["lag"] = sizing.waiting
    if sizing.clears_in_s is not None:
        fields["clearsInSeconds"] = round(sizing.clears_in_s)
    if sizing.wanted is not None:
        fields["wantedReplicas"] = sizing.wanted
    if sizing.queue is not None:
        fields["queue"] = sizing.queue
    return {**fields, "why": sizing.why.value}


class Why(enum.StrEnum):
    MIN_REPLICAS = "MinReplicas"
    SCHEDULE = "Schedule"
    MAX_REPLICAS = "MaxReplicas"


REASON = "ScheduledReplicas"


def scheduled_of(floor: Floor) -> dict[str, Any]:
    scaling: dict[str, Any] = {"minReplicas": floor.min_replicas, "why": str(_why(floor))}
    if floor.entry is not None:
        scaling["entry"] = floor.entry
    if floor.until is not None:
        scaling["until"] = _second_after(floor)
    return scaling


def scheduling_news(former: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[StatusEvent]:
    """From `status.scaling` as it was and is: the fewest consumers are others than before."""
    if not now or former.get("minReplicas") == now["minReplicas"]:
        return
    if not former and now["why"] == Why.MIN_REPLICAS:
        return
    until = f" until {now['until']}" if "until" in now else ""
    least = f"at least {counted(now['minReplicas'], 'consumer')}{until}"
    match now["why"]:
        case Why.MIN_REPLICAS:
            yield StatusEvent(
                "Normal", REASON, f"{least}: no entry of the schedule asks for more than minReplicas"
            )
        case Why.SCHEDULE:
            yield StatusEvent("Normal", REASON, f"{least}: scaling.schedule[{now['entry']}] is in force")
        case _:
            why = f"scaling.schedule[{now['entry']}] asks for more than maxReplicas or the queues allow"
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
"""Interval of writes of the times alone: an unchanged half minute is no reason to write hundreds of groups."""

_TIMES = ("observedTime", "lagTime")
_NUMBERS = frozenset({"lag", "demand", *_TIMES})
_QUEUE_NUMBERS = frozenset({"ready", "unacked"})
_SESSION_NUMBERS = frozenset({"messages"})


def status_of(
    group: GroupManifest | None,
    observation: Observation,
    conditions: Sequence[Condition],
    *,
    former: Mapping[str, Any],
    generation: int,
    now: str,
    observed: str | None = None,
    lag: tuple[int, str] | None = None,
    handoffs: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """`group` is None for a manifest that could not be parsed; `conditions`: those to show; `observed`: when the broker
    was last read, RFC 3339; `lag`: how far the group is behind, and when that was counted."""
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": merged(former.get("conditions", ()), conditions, generation=generation, now=now),
    }
    if group is None:
        return status
    status["groupName"] = group.spec.name
    status["secretName"] = credentials_name(group.metadata.name)
    if group.has_publisher_user:
        status["publisherSecretName"] = publisher_name(group.metadata.name)
    if observation.queue_count is not None:
        status["queueCount"] = observation.queue_count
    members = UNKNOWN if observation.description is None else observation.description.members
    if group.paused and members is not UNKNOWN:
        status["paused"] = all(one.paused for one in members)
    if observation.description is not None and observation.description.is_ingress_paused is not None:
        status["ingress"] = INGRESS_PAUSED if observation.description.is_ingress_paused else INGRESS_OPEN
    status["configMapName"] = attributes_name(group.metadata.name)
    workload = observation.workload or {}
    if group.consumer is not None:
        status["replicas"] = workload.get("replicas", 0)
        status["readyReplicas"] = workload.get("readyReplicas", 0)
        status["selector"] = f"{GROUP_LABEL}={group.metadata.name}"
    if observation.floor is not None:
        status["scaling"] = scheduled_of(observation.floor)
    if (
        observation.demand is not None
        and group.scaling is not None
        and group.scaling.target_delay_s is not None
    ):
        status["demand"] = demand_of(observation.demand)
    if observation.description is not None:
        status |= seen_of(observation.description)
        if observed is not None:
            status["observedTime"] = observed
        if lag is not None:
            status["lag"], status["lagTime"] = lag
    if handoffs:
        status["lastHandoffs"] = [dict(one) for one in handoffs]
    return status


def due_in_s(
    status: Mapping[str, Any], former: Mapping[str, Any], *, since_last_s: float, quiet_s: float
) -> float:
    """0: it is to be written now. Infinity: there is nothing to write.

    Numbers alone are written every `quiet_s` at most: a status that follows every message would be an event store.
    """
    if _without_numbers(status) != _without_numbers(former):
        return 0.0
    if status == former:
        return float("inf")
    timeless = dict.fromkeys(_TIMES)
    is_time_only = {**status, **timeless} == {**former, **timeless}
    return max((TIME_ALONE_S if is_time_only else quiet_s) - since_last_s, 0.0)


def patch_of(status: Mapping[str, Any], former: Mapping[str, Any]) -> dict[str, Any]:
    """As a merge patch: what is gone is null."""
    patch: dict[str, Any] = {**dict.fromkeys(former.keys() - status.keys()), **status}
    for name, value in status.items():
        if isinstance(value, Mapping):
            patch[name] = patch_of(value, former.get(name, {}))
    return patch


def _without_numbers(status: Mapping[str, Any]) -> dict[str, Any]:
    compared = {name: value for name, value in status.items() if name not in _NUMBERS}
    compared["queues"] = [
        {name: value for name, value in queue.items() if name not in _QUEUE_NUMBERS}
        for queue in status.get("queues", ())
    ]
    compared["sessions"] = [
        {name: value for name, value in session.items() if name not in _SESSION_NUMBERS}
        for session in status.get("sessions", ())
    ]
    return compared
