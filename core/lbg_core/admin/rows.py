"""Rows of a description: members, queues, partitions and sessions, with who serves each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from lbg_core.admin.protocol import StatusReport
from lbg_core.admin.snapshot import UNKNOWN, QueueStatus, SessionStatus, Unknown

Count = int | Unknown

READY, PAUSED, UNASSIGNED, UNBOUND = "Ready", "Paused", "Unassigned", "Unbound"
STATUSES = (READY, PAUSED, UNASSIGNED, UNBOUND)
UNKNOWN_STATUS = "Unknown"
IDLE = "Idle"

YEAR_9999_US = 253_402_300_799_000_000
"""No calendar reaches beyond it."""

MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Errors of reading what somebody put in place of a member's message. 1e999 is infinite in JSON, and no integer."""

POSTPONED_FROM = 2
"""Handoffs postponed in a row: the first leaves the application the time of the group's setting."""


@dataclass(frozen=True, slots=True)
class RetriedMessage:
    """A message that is retried because the application's reply is no verdict (`until_us` 0), or that waits until then
    because the application asked for it."""

    id: str
    key: str | None
    reason: str
    until_us: int = 0


@dataclass(frozen=True, slots=True)
class MemberSuspect:
    """A message in flight that was called when the process of `died` ended. `attempts`: those that failed."""

    id: str
    key: str | None
    attempts: int
    died: str


@dataclass(frozen=True, slots=True)
class MemberQueue:
    """A queue, as a member reports it. `delivered` counts since the member subscribed."""

    queue: int
    role: str
    active: bool
    status: str
    in_flight: int
    delivered: int
    progress: str = IDLE
    poisoned: int = 0
    poisoned_keys: tuple[str, ...] = ()
    poisoned_ids: tuple[str, ...] = ()
    put_off: int = 0
    next_drain_s: float = 0.0
    retried_messages: tuple[RetriedMessage, ...] = ()
    suspects: tuple[MemberSuspect, ...] = ()

    @property
    def is_primary(self) -> bool:
        return self.role == "primary"

    @property
    def is_consumed(self) -> bool:
        """True if the member has a consumer on it, or messages of one that is being closed."""
        return self.active or self.status != UNBOUND or self.in_flight > 0

    @property
    def is_news(self) -> bool:
        """True unless the member would be described the same without it."""
        return self.is_consumed or self.is_primary or self.progress != IDLE

    @property
    def is_postponed(self) -> bool:
        """True if it should be another member's, and calls that do not end keep it here."""
        return self.put_off >= POSTPONED_FROM


@dataclass(frozen=True, slots=True)
class ParkingRow:
    """The group's parked keys, as a member reports them. `is_read`: it has read all that was recorded when it
    connected. `is_full`: a bound is reached, and it parks no further key."""

    keys: int
    messages: int
    is_read: bool
    is_full: bool


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member, as its last status report describes it. `queues`: those that it consumes or should serve."""

    index: int
    name: str
    incarnation: str
    rebalance: str
    queues: tuple[MemberQueue, ...]
    counts: Mapping[str, int]
    paused: bool = False
    oldest_us: int = 0
    """Publishing time of the oldest message that it has not settled; 0: none, or unknown."""
    parking: ParkingRow | None = None
    """None for a member that does not follow parked keys."""

    @property
    def in_flight(self) -> int:
        return sum(one.in_flight for one in self.queues)

    @property
    def delivered(self) -> Count:
        return self.counts.get("delivered", UNKNOWN)

    @property
    def primaries(self) -> list[MemberQueue]:
        return [one for one in self.queues if one.is_primary]

    @property
    def secondaries(self) -> list[MemberQueue]:
        return [one for one in self.queues if not one.is_primary]

    def to_json(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "name": self.name,
            "incarnation": self.incarnation,
            "rebalance": self.rebalance,
            "queues": [asdict(one) for one in self.queues],
            "counts": dict(self.counts),
            "paused": self.paused,
            "oldest_published_at_us": self.oldest_us or None,
        }


def members_of(beats: Iterable[StatusReport]) -> tuple[MemberRow, ...]:
    """The last status report of each member; what is no report is passed over."""
    last: dict[object, MemberRow] = {}
    for beat in reversed(tuple(beats)):
        try:
            if beat.get("index") not in last:
                member = _member(beat)
                last[member.index] = member
        except MALFORMED:
            continue
    return tuple(sorted(last.values(), key=lambda member: member.index))


def _member(beat: StatusReport) -> MemberRow:
    return MemberRow(
        index=int(beat["index"]),
        name=str(beat["name"]),
        incarnation=str(beat["incarnation"]),
        rebalance=str(beat["rebalance"]),
        queues=tuple(one for one in map(_queue, beat["queues"]) if one.is_news),
        counts={str(name): int(value) for name, value in beat["counts"].items()},
        paused=beat.get("paused") is True,
        oldest_us=int(beat.get("oldest_us", 0)),
        parking=None if (parking := beat.get("parking")) is None else _parking(parking),
    )


def _parking(fields: Mapping[str, Any]) -> ParkingRow:
    return ParkingRow(
        keys=int(fields["keys"]),
        messages=int(fields["messages"]),
        is_read=fields["is_read"] is True,
        is_full=fields["is_full"] is True,
    )


def _queue(fields: Mapping[str, Any]) -> MemberQueue:
    return MemberQueue(
        queue=int(fields["queue"]),
        role=str(fields["role"]),
        active=bool(fields["active"]),
        status=str(fields["status"]),
        in_flight=int(fields["in_flight"]),
        delivered=int(fields["delivered"]),
        progress=str(fields["progress"]),
        poisoned=int(fields["poisoned"]),
        poisoned_keys=tuple(map(str, fields["poisoned_keys"])),
        poisoned_ids=tuple(map(str, fields.get("poisoned_ids", ()))),
        retried_messages=tuple(map(_retried, fields.get("retried_messages", ()))),
        put_off=int(fields["put_off"]),
        next_drain_s=float(fields.get("next_drain_s", 0.0)),
        suspects=tuple(map(_suspect, fields.get("suspects", ()))),
    )


def _suspect(fields: Mapping[str, Any]) -> MemberSuspect:
    key = fields["key"]
    return MemberSuspect(
        str(fields["id"]), None if key is None else str(key), int(fields["attempts"]), str(fields["member"])
    )


def _retried(fields: Mapping[str, Any]) -> RetriedMessage:
    key = fields["key"]
    return RetriedMessage(
        str(fields["id"]),
        None if key is None else str(key),
        str(fields["reason"]),
        min(max(0, int(fields["until_us"])), YEAR_9999_US),
    )


@dataclass(frozen=True, slots=True)
class QueueBinding:
    """A queue or partition at a member that consumes it, or should serve it."""

    member: MemberRow
    is_primary: bool
    is_active: bool
    status: str
    in_flight: int
    progress: str = IDLE
    """As the member reports it: Idle, Working, Blocked or Stalled."""

    @property
    def state(self) -> str:
        """For people: the member is active on it, waits to be, or has no consumer on it."""
        if self.is_active:
            return "active"
        return "unbound" if self.status == UNBOUND else "waits"


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """A queue or partition, who serves it, and its messages.

    - `status`: Ready, Paused, Unassigned, Unbound or Unknown.
    - `member`: the one that serves it, where it is known; `consumer`: the tag of the active consumer, where the broker
      reports it.
    - `bindings`: of all members that report to consume it, or that should serve it.
    - `ready`, `unacked`: None for a queue that is missing.
    """

    number: int
    status: str
    member: MemberRow | None
    consumer: str | None
    ready: Count | None
    unacked: Count | None
    bindings: tuple[QueueBinding, ...] = ()
    handoff_s: float | None = None
    """Of a partition that the broker moves: seconds that its last handoff took."""

    settled: int | None = None
    """Of a partition that the broker moves: messages that have left it since the broker's start."""

    @property
    def is_served(self) -> bool:
        return self.status in (READY, PAUSED)

    @property
    def server(self) -> str | None:
        """The name of the member that serves it, or else the tag of the consumer that does."""
        return self.consumer if self.member is None else self.member.name

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.number,
            "status": self.status,
            "member": None if self.member is None else self.member.name,
            "consumer_tag": self.consumer,
            "ready": plain(self.ready),
            "unacked": plain(self.unacked),
        }


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session, and the member that has it."""

    status: SessionStatus
    member: MemberRow | None

    @property
    def server(self) -> str | None:
        """The name of the member that has it, or else the tag of the consumer that does."""
        return self.status.consumer_tag if self.member is None else self.member.name


@dataclass(frozen=True, slots=True)
class SessionRows:
    """The sessions of a group. `pool`: messages that no session has yet."""

    is_closed: bool
    pool: int
    rows: tuple[SessionRow, ...]

    @property
    def stranded(self) -> list[SessionStatus]:
        """Those with messages and no consumer, closing ones too: no other session gets these messages."""
        return [one.status for one in self.rows if one.status.is_stranded]

    @property
    def stranded_first(self) -> list[SessionRow]:
        return sorted(self.rows, key=lambda one: not one.status.is_stranded)

    def undrained(self, session: str | None = None) -> SessionRows:
        """Those that have messages, or the one of this name if it has."""
        rows = tuple(
            one for one in self.rows if one.status.messages and session in (None, one.status.session)
        )
        return SessionRows(self.is_closed, self.pool, rows)

    @property
    def messages(self) -> int:
        return sum(one.status.messages for one in self.rows)


@dataclass(frozen=True, slots=True)
class ObservedQueue:
    """A queue on the broker. `number` is None for the one that all members consume; `status` is None for a queue that
    should be there and is not."""

    name: str
    number: int | None
    status: QueueStatus | Unknown | None

    @property
    def full_percent(self) -> int | None:
        """Share of its size that waiting messages have; None where one of the two is unknown."""
        if self.status is None or self.status is UNKNOWN or self.status.bytes_ready is UNKNOWN:
            return None
        arguments = {} if self.status.arguments is UNKNOWN else self.status.arguments
        limit = arguments.get("x-max-length-bytes")
        return 100 * self.status.bytes_ready // limit if isinstance(limit, int) and limit else None

    @property
    def active_tag(self) -> str | Unknown | None:
        """The active consumer's tag; None where there is none."""
        if self.status is None or self.status is UNKNOWN:
            return self.status
        return self.status.active_consumer

    def count(self, field: str) -> Count | None:
        if self.status is None or self.status is UNKNOWN:
            return self.status
        count: Count | None = getattr(self.status, field)
        return count


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue on the broker, and who serves it.

    `server` is the name of the active member, or else the tag of the active consumer: None where there is none, and
    where all members consume the one queue. `progress`: `Stalled` or `Blocked` if one of its members reports it, or
    else what the active one reports; None without a report.
    """

    queue: ObservedQueue
    member: MemberRow | None
    server: str | Unknown | None
    progress: str | None

    @property
    def is_missing(self) -> bool:
        return self.queue.status is None

    def to_json(self) -> dict[str, Any]:
        counts = ("ready", "unacked", "consumers")
        return {
            "name": self.queue.name,
            "exists": "unknown" if self.queue.status is UNKNOWN else not self.is_missing,
            **{name: plain(self.queue.count(name)) for name in counts},
            "active_consumer": plain(self.queue.active_tag),
            "active_member": None if self.member is None else self.member.name,
        }


def plain(value: Any) -> Any:
    """For `--json`."""
    return "unknown" if value is UNKNOWN else value
