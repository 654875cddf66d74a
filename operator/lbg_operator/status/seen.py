"""A group as the broker and its members describe it, in the words of the status. What is unknown is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbg_broker.group import UNCOUNTED_MODES
from lbg_broker.provisioning.describing import Description
from lbg_broker.provisioning.native import SessionsSeen
from lbg_broker.provisioning.observed import UNKNOWN
from lbg_broker.provisioning.statuses import PartitionLine, partitions_of, rebalance_of


def seen_of(description: Description) -> dict[str, Any]:
    """The fields of the status that one look fills."""
    seen: dict[str, Any] = {
        "rebalance": rebalance_of(description),
        "queues": [_queue(one) for one in _partitions(description)],
    }
    if isinstance(description.native, SessionsSeen):
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
    """Where all members consume one queue, all of them."""
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
