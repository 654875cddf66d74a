"""JSON of groups for the pages: a row of the overview, and a group whole. No I/O. None stands for what is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lbg_console.observed_group import SILENT_S, ObservedGroup
from lbg_console.timeline import milliseconds
from lbg_core.admin.describe import Description
from lbg_core.admin.pace_text import key_text, pace_cells, rounded, slow_text
from lbg_core.admin.problem_kinds import Severity
from lbg_core.admin.problems import text_of
from lbg_core.admin.record import is_of_kubernetes
from lbg_core.admin.rows import Count, ServiceRow
from lbg_core.admin.snapshot import UNKNOWN, MessageGroupsStatus, SessionsStatus
from lbg_core.group.members_protocol import Beat

CRASH_SHOWN_S = 300.0
SESSIONS_MAX = 200
_LETTERS = {"Ready": "R", "Paused": "P", "Unassigned": "A", "Unbound": "U"}


@dataclass(frozen=True, slots=True)
class SurveyState:
    """State of the survey. `at_s`: the last one that was complete. `error`: the reason why what is shown is old.
    `missing`: what the login of the console cannot see."""

    at_s: float | None
    error: str
    every_s: float
    missing: str

    def to_json(self) -> dict[str, Any]:
        return {
            "at": None if self.at_s is None else milliseconds(self.at_s),
            "error": self.error,
            "every_s": self.every_s,
            "is_partial": bool(self.missing),
            "missing": self.missing,
        }


def overview_row(group: ObservedGroup, now_s: float) -> dict[str, Any] | None:
    """None until it was described."""
    row = group.row
    if row is None:
        return None
    one = row.description
    services = one.reported_services
    crash = group.timeline.last("crashed", now_s - CRASH_SHOWN_S)
    return {
        "group": one.group,
        "mode": None if one.spec is None else one.spec.mode,
        "strip": "".join(_LETTERS.get(service.status, "?") for service in services),
        "servers": [None if service.member is None else service.member.index for service in services],
        "served": sum(service.is_served for service in services),
        "services": len(services),
        "members": None if one.members is UNKNOWN else len(one.members),
        "rate": round(row.rate, 1),
        "publish_rate": rounded(row.published_hz),
        "ready": known(one.ready),
        "unacked": known(one.unacked),
        "lag": one.lag,
        "oldest_s": _age(row.oldest_s),
        "clears_s": row.clears_json,
        "has_older": row.has_older,
        "dead_letters": known(one.dead_letters),
        "parked": known(one.parked),
        "parked_keys": None if one.parking is None else one.parking.keys,
        "paused": one.is_paused,
        "ingress_paused": one.is_ingress_paused,
        "problems": len(one.faults),
        "problem": text_of(one.faults[0]) if one.faults else "",
        "severity": one.severity.word,
        "silent": 0
        if one.members is UNKNOWN
        else sum(_silent_s(group, member, now_s) > 0 for member in one.members),
        "crashed_at": None if crash is None else milliseconds(crash.at_s),
    }


def group_document(group: ObservedGroup, now_s: float) -> dict[str, Any] | None:
    """None until it was described. Survey, acts and the time are added by who sends it."""
    row = group.row
    if row is None:
        return None
    one = row.description
    parking = one.parking
    return {
        "group": one.group,
        "mode": None if one.spec is None else one.spec.mode,
        "word": "partition" if one.has_partitions else "queue",
        "is_shared": one.is_shared,
        "owner": one.owner or None,
        "is_of_kubernetes": is_of_kubernetes(one.owner),
        "attributes": None if one.spec is None else one.spec.attributes(),
        "rate": round(row.rate, 1),
        "publish_rate": rounded(row.published_hz),
        "lag_trend": row.trend_text,
        "ready": known(one.ready),
        "unacked": known(one.unacked),
        "lag": one.lag,
        "oldest_s": _age(row.oldest_s),
        "clears_s": row.clears_json,
        "has_older": row.has_older,
        "dead_letters": known(one.dead_letters),
        "unrouted": known(one.unrouted),
        "parked": known(one.parked),
        "parked_keys": None if parking is None else parking.keys,
        "paused": one.is_paused,
        "ingress_paused": one.is_ingress_paused,
        "rebalance": one.rebalance,
        "repartition": one.queue_count_to_be,
        "sequences": one.sequences_text,
        "problems": [problem.to_json() for problem in one.problems],
        "members": None
        if one.members is UNKNOWN
        else [_member(group, one, member, now_s) for member in one.members],
        "services": None
        if one.services is UNKNOWN
        else [_service(group, one, service) for service in one.services],
        "message_groups": {"known": one.native.known, "busy": one.native.busy}
        if isinstance(one.native, MessageGroupsStatus)
        else None,
        "sessions": None if one.sessions is None else _sessions(one, one.sessions),
        "hot_keys": [
            {"key": one.key, "text": key_text(one)} for one in group.seen.hot_keys(group.name, now_s)
        ],
    }


def known(count: Count | None) -> int | None:
    return count if isinstance(count, int) else None


def _word(severity: Severity | None) -> str | None:
    return None if severity is None else severity.word


def _age(seconds: float | None) -> float | None:
    """In steps: each change is sent."""
    return None if seconds is None else round(seconds, 1) if seconds < 10 else round(seconds)


def _member(group: ObservedGroup, one: Description, member: Beat, now_s: float) -> dict[str, Any]:
    silent_s = _silent_s(group, member, now_s)
    return {
        "name": member.name,
        "index": member.index,
        "state": "silent" if silent_s else "live",
        "silent_s": round(silent_s),
        "rebalance": member.rebalance,
        "paused": member.paused,
        "serves": one.served_by[member.index],
        "in_flight": member.in_flight,
        "delivered": member.counts.get("delivered"),
        "rate": round(group.seen.member_rate(one.group, member), 1),
        "oldest_s": None if not member.oldest_us else round(max(0.0, now_s - member.oldest_us / 1e6), 1),
        "is_standing_by": member.name in one.standing_by,
        "pace": dict(zip(("p50", "p99", "busy"), pace_cells(member.pace), strict=True)),
        "slow": None if (slow := one.slow_members.get(member.name)) is None else slow_text(slow),
        "severity": _word(one.severity_of(member.name)),
        "keys": [[key, count] for key, count in group.keys_of(member.name, now_s)],
    }


def _silent_s(group: ObservedGroup, member: Beat, now_s: float) -> float:
    """Seconds since its last report; 0 for a member that reports."""
    sighting = group.sightings.get(member.index)
    silent_s = 0.0 if sighting is None else now_s - sighting.at_s
    return silent_s if silent_s > SILENT_S else 0.0


def _service(group: ObservedGroup, described: Description, row: ServiceRow) -> dict[str, Any]:
    queue = next((one for one in described.queues if one.number == row.number), None)
    return {
        "number": row.number,
        "status": row.status,
        "member": None if row.member is None else row.member.name,
        "ready": known(row.ready),
        "unacked": known(row.unacked),
        "full_percent": None if queue is None else queue.full_percent,
        "rate": round(group.seen.queue_rates.get(row.number, 0.0), 1),
        "handoff_s": row.handoff_s,
        "severity": _word(described.severity_of(row.number)),
        "bindings": [
            {
                "member": member.name,
                "role": one.role,
                "active": one.active,
                "status": one.status,
                "in_flight": one.in_flight,
                "progress": one.progress,
            }
            for member, one in row.bindings
        ],
    }


def _sessions(described: Description, status: SessionsStatus) -> Mapping[str, Any]:
    return {
        "closed": status.closed,
        "pool": status.pool,
        "count": len(status.sessions),
        "rows": [
            {
                "session": one.session,
                "state": one.state,
                "server": described.server_of(one.consumer_tag),
                "messages": one.messages,
                "assigned": one.last_sequence,
                "acknowledged": one.acknowledged,
            }
            for one in status.stranded_first[:SESSIONS_MAX]
        ],
    }
