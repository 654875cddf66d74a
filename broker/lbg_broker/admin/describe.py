"""Description of a group: attributes, queues and members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lbg_broker.admin.errors import GroupUnfinished, RecordUnreadable, UnderWay
from lbg_broker.admin.plan import problems as found_problems
from lbg_broker.admin.protocol import Heartbeat
from lbg_broker.admin.record import spec_in
from lbg_broker.admin.snapshot import (
    UNKNOWN,
    Native,
    PartitionsStatus,
    PartitionStatus,
    QueueStatus,
    Snapshot,
    Unknown,
    native_json,
)
from lbg_broker.group import PARTITIONED, UNCOUNTED_MODES, GroupSpec, Names

HELD_BACK_FROM = 2
"""Handoffs in a row that were put off: the first leaves the application the time that the group's setting says."""


@dataclass(frozen=True, slots=True)
class MemberQueue:
    queue: int
    role: str
    active: bool
    status: str
    in_flight: int
    delivered: int
    progress: str = "Idle"
    poisoned: int = 0
    poisoned_keys: tuple[str, ...] = ()
    put_off: int = 0
    next_drain_s: float = 0.0

    @property
    def is_held_back(self) -> bool:
        """True if it should be another member's, and calls that do not end keep it here."""
        return self.put_off >= HELD_BACK_FROM


@dataclass(frozen=True, slots=True)
class MemberLine:
    """A member as its last beat described it."""

    index: int
    name: str
    incarnation: str
    rebalance: str
    queues: tuple[MemberQueue, ...]
    counts: Mapping[str, int]


def members_of(beats: Iterable[Heartbeat]) -> tuple[MemberLine, ...]:
    """The last beat of each member; what is no beat of this version is passed over."""
    last: dict[object, MemberLine] = {}
    for beat in reversed(tuple(beats)):
        if beat.get("index") in last:
            continue
        try:
            member = _member(beat)
        except (KeyError, TypeError, ValueError):
            continue
        last[member.index] = member
    return tuple(sorted(last.values(), key=lambda member: member.index))


def _member(beat: Heartbeat) -> MemberLine:
    return MemberLine(
        index=int(beat["index"]),
        name=str(beat["name"]),
        incarnation=str(beat["incarnation"]),
        rebalance=str(beat["rebalance"]),
        queues=tuple(
            MemberQueue(
                queue=int(one["queue"]),
                role=str(one["role"]),
                active=bool(one["active"]),
                status=str(one["status"]),
                in_flight=int(one["in_flight"]),
                delivered=int(one["delivered"]),
                progress=str(one.get("progress", "Idle")),
                poisoned=int(one.get("poisoned", 0)),
                poisoned_keys=tuple(map(str, one.get("poisoned_keys", ()))),
                put_off=int(one.get("put_off", 0)),
                next_drain_s=float(one.get("next_drain_s", 0.0)),
            )
            for one in beat["queues"]
        ),
        counts={str(name): int(value) for name, value in beat["counts"].items()},
    )


def member_json(member: MemberLine) -> dict[str, Any]:
    return {
        "index": member.index,
        "name": member.name,
        "incarnation": member.incarnation,
        "rebalance": member.rebalance,
        "queues": [{name: getattr(one, name) for name in MemberQueue.__slots__} for one in member.queues],
        "counts": dict(member.counts),
    }


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
    if isinstance(native, PartitionsStatus):
        return tuple(_of_broker(description, one) for one in native.partitions)
    spec = description.spec
    if native is UNKNOWN and spec is not None and spec.mode == PARTITIONED:
        return UNKNOWN
    lines = {line.number: line for line in description.queues}
    return tuple(_of_members(description, number, lines.get(number)) for number in _numbers(description))


def rebalance_of(description: Description) -> str:
    """Ready, HoldDown or Rebalancing: what the broker says where it is the one who moves partitions, or else what
    members say, the least settled first; Unknown when nobody could be asked or nobody is there."""
    if isinstance(description.native, PartitionsStatus):
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


def _of_broker(description: Description, seen: PartitionStatus) -> PartitionLine:
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


Count = int | Unknown


@dataclass(frozen=True, slots=True)
class QueueLine:
    """One queue; None stands for a queue that should be there and is not."""

    name: str
    number: int | None
    seen: QueueStatus | Unknown | None

    @property
    def active_tag(self) -> str | None:
        """The active consumer's tag; None when nobody knows of one."""
        if self.seen is None or self.seen is UNKNOWN or self.seen.active_consumer is UNKNOWN:
            return None
        return self.seen.active_consumer

    def count(self, field: str) -> Count | None:
        if self.seen is None:
            return None
        return UNKNOWN if self.seen is UNKNOWN else getattr(self.seen, field)


@dataclass(frozen=True, slots=True)
class Description:
    """A group as it is. `spec` is None when its record is missing or unreadable: `problems` says which.

    `queues` are in the order of their numbers; one without a number, which all members consume, comes first. `members`
    is UNKNOWN when nobody could be asked, and empty when nobody answered.
    """

    group: str
    spec: GroupSpec | None
    queues: tuple[QueueLine, ...]
    dead_letters: Count | None
    unrouted: Count | None
    members: tuple[MemberLine, ...] | Unknown
    problems: tuple[str, ...]
    queue_count_to_be: int | None = None
    """Number of queues that it is being changed to; None when nobody is known to change it."""

    @property
    def ready(self) -> Count:
        """Messages that wait for members."""
        return _sum(line.count("ready") for line in self.queues)

    @property
    def unacked(self) -> Count:
        return _sum(line.count("unacked") for line in self.queues)

    @property
    def is_one_queue(self) -> bool:
        """True if all members consume one queue, which the broker shares out."""
        return bool(self.queues) and self.queues[0].number is None

    @property
    def native(self) -> Native | Unknown | None:
        """Fields of a group that is one queue of a type that only the embedded broker has; None where it is not,
        UNKNOWN where it could not be asked."""
        seen = self.queues[0].seen if self.is_one_queue else None
        return seen.native if isinstance(seen, QueueStatus) else seen

    def member_of(self, tag: str | None) -> MemberLine | None:
        """The member whose consumer has this tag."""
        names = Names(self.group)
        members = () if self.members is UNKNOWN else self.members
        return next((member for member in members if tag == names.mailbox(member.index)), None)

    def active_member(self, number: int) -> MemberLine | None:
        """The member that says it is active on queue `number`, or whose consumer the broker says has it.

        A member knows from the first delivery, the broker from the beginning, though RabbitMQ says it 5 s later.
        """
        if self.is_one_queue:
            partitions = self.native.partitions if isinstance(self.native, PartitionsStatus) else ()
            served = (one for one in partitions if one.partition == number and one.is_served)
            return next((self.member_of(one.consumer_tag) for one in served), None)
        for member in () if self.members is UNKNOWN else self.members:
            if any(one.queue == number and one.active for one in member.queues):
                return member
        return self.member_of(next((line.active_tag for line in self.queues if line.number == number), None))

    def progress(self, number: int) -> str | None:
        """Progress of queue `number`: `Stalled` or `Blocked` if one of them says so, or else what the
        active one says; None when nobody is known to serve it."""
        if self.members is UNKNOWN:
            return None
        said = [one for member in self.members for one in member.queues if one.queue == number]
        for trouble in ("Stalled", "Blocked"):
            if any(one.progress == trouble for one in said):
                return trouble
        return next((one.progress for one in said if one.active), None)

    def to_json(self) -> dict[str, Any]:
        """For `--json`: counts are numbers, `"unknown"`, or null for what is not there."""
        return {
            "group": self.group,
            "attributes": _attributes(self.spec),
            "queues": [self._queue_json(line) for line in self.queues],
            **self._sharing_json(),
            "members": (
                "unknown" if self.members is UNKNOWN else [member_json(member) for member in self.members]
            ),
            "ready": _plain(self.ready),
            "unacked": _plain(self.unacked),
            "dead_letters": _plain(self.dead_letters),
            "unrouted": _plain(self.unrouted),
            "repartition": self.queue_count_to_be,
            "problems": list(self.problems),
        }

    def _sharing_json(self) -> dict[str, Any]:
        """State of the sharing of queues, in modes that have one."""
        told: dict[str, Any] = {}
        if self.spec is not None and self.spec.mode == PARTITIONED:
            told["rebalance_status"] = rebalance_of(self)
            partitions = partitions_of(self)
            told["partitions"] = "unknown" if partitions is UNKNOWN else [one.to_json() for one in partitions]
        if self.native is not UNKNOWN and self.native is not None:
            told |= native_json(self.native)
        return told

    def _queue_json(self, line: QueueLine) -> dict[str, Any]:
        active = self.active_member(line.number) if line.number is not None else None
        counts = ("ready", "unacked", "consumers", "active_consumer")
        return {
            "name": line.name,
            "exists": "unknown" if line.seen is UNKNOWN else line.seen is not None,
            **{name: _plain(line.count(name)) for name in counts},
            "active_member": None if active is None else active.name,
        }


def describe(group: str, observed: Snapshot, *, beats: Iterable[Heartbeat] | Unknown) -> Description:
    names = Names(group)
    problems = [f"{what}: unknown ({why})" for what, why in observed.why.items()]
    spec = None
    if observed.record is None:
        problems.append("the group's record is missing: `lbg group create` with its attributes repairs it")
    elif observed.record is not UNKNOWN:
        try:
            spec = spec_in(observed.record, group)
        except GroupUnfinished as error:
            problems.append(str(error))
        except RecordUnreadable as error:
            problems.append(f"the group's record is not one: {error.__cause__}")
    if spec is not None:
        if observed.queue_count_to_be is None:
            problems += found_problems(spec, observed)
        else:  # half of it is as it was, and half as it is to be
            problems.append(str(UnderWay(group, spec.queue_count, observed.queue_count_to_be)))
    missing = [name for name, seen in (*observed.exchanges.items(), *observed.queues.items()) if seen is None]
    problems += [
        f"{name} is missing" for name in missing if name != names.config or observed.record is not None
    ]
    lines = [
        QueueLine(name, names.number_of(name), seen)
        for name, seen in observed.queues.items()
        if names.is_served(name)
    ]
    lines.sort(key=lambda line: -1 if line.number is None else line.number)
    members = UNKNOWN if beats is UNKNOWN else members_of(beats)
    problems += _poisoned(names, members, is_one_queue=bool(lines) and lines[0].number is None)
    problems += _held_back(names, members)
    return Description(
        group=group,
        spec=spec,
        queues=tuple(lines),
        dead_letters=QueueLine(names.dead, None, observed.queues.get(names.dead)).count("ready"),
        unrouted=QueueLine(names.unrouted, None, observed.queues.get(names.unrouted)).count("ready"),
        members=members,
        problems=tuple(problems),
        queue_count_to_be=observed.queue_count_to_be,
    )


def _poisoned(
    names: Names, members: tuple[MemberLine, ...] | Unknown, *, is_one_queue: bool
) -> Iterator[str]:
    for member in () if members is UNKNOWN else members:
        for one in member.queues:
            if one.poisoned:
                queue = names.parent if is_one_queue else names.queue(one.queue)
                keys = ", ".join(map(repr, one.poisoned_keys)) or "none"
                more = " and others" if one.poisoned > len(one.poisoned_keys) else ""
                yield (
                    f"{queue} has {one.poisoned} poisoned messages at {member.name}, which fail again and again and "
                    f"hold up what follows; keys: {keys}{more}"
                )


def _held_back(names: Names, members: tuple[MemberLine, ...] | Unknown) -> Iterator[str]:
    for member in () if members is UNKNOWN else members:
        for one in member.queues:
            if one.is_held_back:
                yield (
                    f"{names.queue(one.queue)} should move and stays at {member.name}: {one.put_off} handoffs in a row "
                    f"were put off because calls of the application did not end; the next waits for up to "
                    f"{one.next_drain_s:g} s"
                )


def _attributes(spec: GroupSpec | None) -> dict[str, Any] | None:
    return None if spec is None else spec.attributes()


def _plain(value: Any) -> Any:
    return "unknown" if value is UNKNOWN else value


def _sum(counts: Iterable[Count | None]) -> Count:
    """Unknown as soon as one part is: half a sum would read as a small one."""
    total = 0
    for count in counts:
        if count is None:
            continue
        if count is UNKNOWN:
            return UNKNOWN
        total += count
    return total
