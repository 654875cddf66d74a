"""What a group's schedule comes to, in the words of the status, and what of that is worth an event. No I/O here."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from datetime import UTC, timedelta
from typing import Any

from ..manifests import Floor
from .news import News


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


def scheduling_news(former: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[News]:
    """From `status.scaling` as it was and is: the fewest consumers are others than before."""
    if not now or former.get("minReplicas") == now["minReplicas"]:
        return
    if not former and now["why"] == Why.MIN_REPLICAS:
        return
    until = f" until {now['until']}" if "until" in now else ""
    least = f"at least {now['minReplicas']} consumers{until}"
    match now["why"]:
        case Why.MIN_REPLICAS:
            yield News("Normal", REASON, f"{least}: no entry of the schedule asks for more than minReplicas")
        case Why.SCHEDULE:
            yield News("Normal", REASON, f"{least}: scaling.schedule[{now['entry']}] is in force")
        case _:
            why = f"scaling.schedule[{now['entry']}] asks for more than maxReplicas and the queues allow"
            yield News("Warning", REASON, f"{least}: {why}")


def _why(floor: Floor) -> Why:
    if floor.is_cut:
        return Why.MAX_REPLICAS
    return Why.MIN_REPLICAS if floor.entry is None else Why.SCHEDULE


def _second_after(floor: Floor) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes times: the change has come by then."""
    assert floor.until is not None
    moment = floor.until.astimezone(UTC) + timedelta(microseconds=999_999)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
