"""Moves of queues, as two looks one after the other show them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lbg_broker.provisioning.describing import Description
from lbg_broker.provisioning.observed import UNKNOWN

KEPT = 10


def moves(before: Description | None, after: Description, *, time: str) -> list[dict[str, Any]]:
    """The queues that another member serves now. What happened in between two moves is not seen.

    `why` is what the members show: `Join` where the new one was not there before, `Leave` where the old one is gone,
    else `Rebalance`.
    """
    if before is None or before.members is UNKNOWN or after.members is UNKNOWN or after.spec is None:
        return []
    then = {member.incarnation for member in before.members}
    now = {member.incarnation for member in after.members}
    found = []
    for queue in range(after.spec.queue_count):
        old, new = before.active_member(queue), after.active_member(queue)
        if old is None or new is None or old.incarnation == new.incarnation:
            continue
        why = (
            "Leave" if old.incarnation not in now else "Join" if new.incarnation not in then else "Rebalance"
        )
        found.append({"time": time, "queue": queue, "from": old.index, "to": new.index, "why": why})
    return found


def latest(new: Sequence[dict[str, Any]], former: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest first, as many as the status keeps."""
    return [*new, *former][:KEPT]
