"""That a group takes no more messages for good, as its record says it.

The record stays the group's own, and has one key more: `CL`. The broker refuses what is published to a closed group
as it refuses for a full queue; whoever finds `CL` knows that there is nothing to wait for.
"""

from __future__ import annotations

import json

from .spec import CLOSED_KEY, GroupSpec


def closed_record(spec: GroupSpec) -> str:
    """The record of a group that is closed."""
    return json.dumps(
        {**json.loads(spec.to_record()), CLOSED_KEY: True}, separators=(",", ":"), ensure_ascii=False
    )


def is_closed_in(record: str) -> bool:
    """Whether the group was closed; False where the record is none."""
    try:
        found = json.loads(record)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get(CLOSED_KEY) is True
