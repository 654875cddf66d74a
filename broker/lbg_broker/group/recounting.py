"""A change of a group's number of queues, as its record shows it while it lasts.

The record stays the group's own, and has one key more: `RP`, the number of queues that there are to be. With `QC` as it
was, nothing is decided yet; with `QC` equal to it, all that is left is to let members settle and publishers in. Whoever
finds `RP` knows that the group takes no messages for now, on purpose (docs/adr/0033-repartitioning.md).
"""

from __future__ import annotations

import json

from .errors import SpecError
from .modes import UNCOUNTED_MODES
from .spec import REPARTITION_KEY, GroupSpec


def recounted(spec: GroupSpec, queue_count: int, *, max_clients: int | None = None) -> GroupSpec:
    """The same group with another number of queues; raises SpecError where it cannot have that many.

    A limit of its clients stays, or becomes `max_clients`, and has to fit: HC >= QC >= CC. Without one there may be as
    many as queues.
    """
    if spec.mode in UNCOUNTED_MODES:
        raise SpecError("mode", spec.mode, "has one queue for all members, and no partitions to count")
    limit = {} if max_clients is None else {"max_clients": max_clients}
    return spec.altered(queue_count=queue_count, **limit)


def marked(spec: GroupSpec, queue_count: int) -> str:
    """The record of a group whose number of queues is being changed to `queue_count`."""
    return json.dumps(
        {**json.loads(spec.to_record()), REPARTITION_KEY: queue_count},
        separators=(",", ":"),
        ensure_ascii=False,
    )


def repartition_in(record: str) -> int | None:
    """The number of queues that the group is being given, None when nobody changes it or the record is none."""
    try:
        found = json.loads(record)
    except (ValueError, RecursionError):
        return None
    wanted = found.get(REPARTITION_KEY) if isinstance(found, dict) else None
    return wanted if isinstance(wanted, int) else None
