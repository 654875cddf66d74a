"""A group as the broker and its members describe it, in the words of the status. What is unknown is left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lbg_broker.provisioning.describing import Description
from lbg_broker.provisioning.members import MemberLine
from lbg_broker.provisioning.observed import UNKNOWN

PAUSED, READY = "Paused", "Ready"
UNASSIGNED, UNBOUND, UNKNOWN_STATUS = "Unassigned", "Unbound", "Unknown"
_WORST_FIRST = ("Rebalancing", "HoldDown", "Ready")


def seen_of(description: Description) -> dict[str, Any]:
    """The fields of the status that one look fills."""
    seen: dict[str, Any] = {
        "rebalance": rebalance_of(description),
        "queues": [_queue(description, number) for number in _numbers(description)],
    }
    if (lag := lag_of(description)) is not None:
        seen["lag"] = lag
    if description.members is not UNKNOWN:
        served = queues_served(description)
        seen["memberCount"] = len(description.members)
        seen["activeCount"] = sum(map(bool, served.values()))
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


def rebalance_of(description: Description) -> str:
    """What the members say, the least settled first; Unknown when nobody could be asked or nobody is there."""
    if description.members is UNKNOWN or not description.members:
        return UNKNOWN_STATUS
    said = {member.rebalance for member in description.members}
    return next((word for word in _WORST_FIRST if word in said), UNKNOWN_STATUS)


def unserved(description: Description) -> list[int]:
    """The queues that no member says it serves, as far as members are known."""
    return [number for number in _numbers(description) if description.active_member(number) is None]


def _numbers(description: Description) -> Iterable[int]:
    if description.spec is not None:
        return range(description.spec.queue_count)
    return [line.number for line in description.queues if line.number is not None]


def _queue(description: Description, number: int) -> dict[str, Any]:
    line = next((one for one in description.queues if one.number == number), None)
    active = description.active_member(number)
    told: dict[str, Any] = {"queue": number, "status": _status(description, number, active)}
    if active is not None:
        told["member"] = active.index
    for name in ("ready", "unacked"):
        count = line.count(name) if line is not None else None
        if isinstance(count, int):
            told[name] = count
    return told


def _status(description: Description, number: int, active: MemberLine | None) -> str:
    """In the document's words: served, standing still for a handoff, not served though members are there, without a
    consumer."""
    if active is not None:
        is_paused = any(one.queue == number and one.status == PAUSED for one in active.queues)
        return PAUSED if is_paused else READY
    if description.members is UNKNOWN:
        return UNKNOWN_STATUS
    return UNASSIGNED if description.members else UNBOUND


def queues_served(description: Description) -> dict[int, list[int]]:
    """By the index of each member that is known."""
    served: dict[int, list[int]] = {}
    for member in () if description.members is UNKNOWN else description.members:
        served[member.index] = []
    for number in _numbers(description):
        if (active := description.active_member(number)) is not None:
            served[active.index].append(number)
    return served
