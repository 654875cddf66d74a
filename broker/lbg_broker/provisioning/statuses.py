"""How the queues of a group are served, in the words of Solace's "Message Distribution With Partitioned Queues": said
by the embedded broker of the partitions of a queue, and by the members of the queues that they share among themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lbg_broker.group import PARTITIONED, UNCOUNTED_MODES

from .members import MemberLine
from .native import PartitionSeen, PartitionsSeen
from .observed import UNKNOWN, Unknown

if TYPE_CHECKING:
    from .describing import Description, QueueLine

READY, PAUSED, UNASSIGNED, UNBOUND = "Ready", "Paused", "Unassigned", "Unbound"
STATUSES = (READY, PAUSED, UNASSIGNED, UNBOUND)
UNKNOWN_STATUS = "Unknown"

_LEAST_SETTLED_FIRST = ("Rebalancing", "HoldDown", "Ready")


@dataclass(frozen=True, slots=True)
class PartitionLine:
    """A partition of a queue, or a queue that members share as one. `consumer` is the tag of who has it where the
    broker says so, `member` that member where it is known. None for counts of a queue that is missing."""

    number: int
    status: str
    member: MemberLine | None
    consumer: str | None
    ready: int | Unknown | None
    unacked: int | Unknown | None

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.number,
            "status": self.status,
            "member": None if self.member is None else self.member.name,
            "consumer_tag": self.consumer,
            "ready": "unknown" if self.ready is UNKNOWN else self.ready,
            "unacked": "unknown" if self.unacked is UNKNOWN else self.unacked,
        }


def partitions_of(description: Description) -> tuple[PartitionLine, ...] | Unknown:
    """In the order of their numbers; of modes Exclusive and Partitioned, and empty in the others. UNKNOWN where there
    is one queue and nobody could be asked for its partitions."""
    native = description.native
    if isinstance(native, PartitionsSeen):
        return tuple(_of_broker(description, one) for one in native.partitions)
    spec = description.spec
    if native is UNKNOWN and spec is not None and spec.mode == PARTITIONED:
        return UNKNOWN
    lines = {line.number: line for line in description.queues}
    return tuple(_of_members(description, number, lines.get(number)) for number in _numbers(description))


def rebalance_of(description: Description) -> str:
    """Ready, HoldDown or Rebalancing: what the broker says where it is the one who moves partitions, or else what
    members say, the least settled first; Unknown when nobody could be asked or nobody is there."""
    if isinstance(description.native, PartitionsSeen):
        return description.native.rebalance
    if description.members is UNKNOWN or not description.members:
        return UNKNOWN_STATUS
    said = {member.rebalance for member in description.members}
    return next((word for word in _LEAST_SETTLED_FIRST if word in said), UNKNOWN_STATUS)


def unserved(description: Description) -> list[int]:
    """The partitions or queues that no member is known to serve; where all members consume one queue, that one unless
    it has a consumer."""
    if description.spec is not None and description.spec.mode in UNCOUNTED_MODES:
        consumers = [line.count("consumers") for line in description.queues]
        return [] if any(count is UNKNOWN or count for count in consumers) else [0]
    partitions = partitions_of(description)
    return (
        []
        if partitions is UNKNOWN
        else [one.number for one in partitions if one.status not in (READY, PAUSED)]
    )


def _of_broker(description: Description, seen: PartitionSeen) -> PartitionLine:
    consumer = seen.consumer_tag if seen.is_served else None
    member = description.member_of(consumer)
    return PartitionLine(seen.partition, seen.status, member, consumer, seen.ready, seen.unacked)


def _of_members(description: Description, number: int, line: QueueLine | None) -> PartitionLine:
    active = description.active_member(number)
    return PartitionLine(
        number,
        _status(description, number, active),
        active,
        None if line is None else line.active_tag,
        None if line is None else line.count("ready"),
        None if line is None else line.count("unacked"),
    )


def _numbers(description: Description) -> Iterable[int]:
    spec = description.spec
    if spec is None:
        return [line.number for line in description.queues if line.number is not None]
    return () if spec.mode in UNCOUNTED_MODES else range(spec.queue_count)


def _status(description: Description, number: int, active: MemberLine | None) -> str:
    """Served, standing still for a handoff, not served though members are there, without a consumer."""
    if active is not None:
        is_paused = any(one.queue == number and one.status == PAUSED for one in active.queues)
        return PAUSED if is_paused else READY
    if description.members is UNKNOWN:
        return UNKNOWN_STATUS
    return UNASSIGNED if description.members else UNBOUND
