"""How a group is shared out, in numbers; None where that is unknown, or nothing that the group's mode has."""

from __future__ import annotations

from lbg_broker.provisioning.describing import Description
from lbg_broker.provisioning.native import SessionsSeen
from lbg_broker.provisioning.observed import UNKNOWN
from lbg_broker.provisioning.statuses import STATUSES, UNKNOWN_STATUS, partitions_of


def partition_counts(description: Description) -> dict[str, int] | None:
    """How many partitions or queues have each status."""
    partitions = partitions_of(description)
    if partitions is UNKNOWN or not partitions:
        return None
    said = [one.status for one in partitions]
    return None if UNKNOWN_STATUS in said else {status: said.count(status) for status in STATUSES}


def stranded_sessions(description: Description) -> int | None:
    """Sessions without a consumer that have messages, which nobody else gets."""
    sessions = description.native
    return len(sessions.stranded) if isinstance(sessions, SessionsSeen) else None
