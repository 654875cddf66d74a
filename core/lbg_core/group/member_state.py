"""State of members, of their queues and of what they processed, as their messages have it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from lbg_core.group.assignment import INDEX_MAX
from lbg_core.group.json_codec import at_most, capped_at, of_length
from lbg_core.group.sequences import MessageIdentity, StreamRuns

REPORTED_STREAMS_MAX = 512
"""Streams that are reported of one queue, and as many messages with failed attempts."""


REPORTED_RUNS_MAX = 4096
"""Runs of sequence numbers that are reported of one queue."""


HOLES_MAX = 512
"""Holes in streams that are reported of one queue."""


COUNT_MAX = 1_000_000


YEAR_9999_US = 253_402_300_799_000_000
"""No calendar reaches beyond it."""


POSTPONED_FROM = 2
"""Handoffs postponed in a row: the first leaves the application the time of the group's setting."""


def _is_amount(value: float) -> float:
    if not 0 <= value <= COUNT_MAX:
        raise ValueError(f"{value:g} is not a number from 0 to {COUNT_MAX}")
    return value


def _is_positive(value: int) -> int:
    if value < 1:
        raise ValueError(f"{value} is not a number from 1 on")
    return value


def _has_few_runs(streams: tuple[StreamRuns, ...]) -> tuple[StreamRuns, ...]:
    count = sum(len(runs) for _, _, runs in streams)
    if count > REPORTED_RUNS_MAX:
        raise ValueError(f"{count} runs where at most {REPORTED_RUNS_MAX} are allowed")
    return streams


Index = Annotated[int, at_most(INDEX_MAX)]

Positive = Annotated[int, _is_positive]


Time = Annotated[int, capped_at(YEAR_9999_US)]
"""Microseconds since the epoch; 0 where there is none."""


Amount = Annotated[float, _is_amount]


class Status(enum.StrEnum):
    """A queue as one member has it, in the words of Solace's partition status (see "Message Distribution With
    Partitioned Queues"): served by it; served, but paused for a handoff; waiting behind another consumer;
    without a consumer of this member."""

    READY = "Ready"
    PAUSED = "Paused"
    UNASSIGNED = "Unassigned"
    UNBOUND = "Unbound"


class Progress(enum.StrEnum):
    """Cause for which a queue's messages wait at a member: nothing is there; the application; the retry of a key
    behind which everything in flight waits (a blocked key); the broker, which has messages and delivers none."""

    IDLE = "Idle"
    WORKING = "Working"
    BLOCKED = "Blocked"
    STALLED = "Stalled"


class Role(enum.StrEnum):
    """A member's role for a queue, by the assignment: who should serve it, or stand by."""

    PRIMARY = "primary"
    SECONDARY = "secondary"


class Rebalance(enum.StrEnum):
    READY = "Ready"
    HOLD_DOWN = "HoldDown"
    REBALANCING = "Rebalancing"


class Identity(NamedTuple):
    """Identity of a member. The incarnation is new with every connection, so that messages by or about an earlier one
    of the same index do not count for this one."""

    index: Index  # type: ignore[assignment]  # in place of tuple.index
    name: str
    incarnation: str


class Placement(NamedTuple):
    """Register of one queue in a group that is assigned by load: the incarnation of the member that serves it in place
    of its balanced primary; empty: none does. The highest number of a queue counts, and of equal ones the highest
    incarnation. Only the active member of the queue writes it, with a higher number."""

    queue: int
    holder: str
    number: Annotated[int, capped_at(COUNT_MAX)]


class QueueLoad(NamedTuple):
    """A queue that a member serves. `demand`: calls that run at a time on average, if the member keeps up with what
    comes in, and what waits is gone within a stated time. `service_s`: of a call on average, 0 without one."""

    queue: int
    demand: Amount
    service_s: Amount


@dataclass(frozen=True, slots=True)
class Overload:
    """Messages that have come faster for a while than they can be processed where they are: those of a `key`, or all of
    a queue. `demand`: calls at a time that they need, where `calls` run at most."""

    key: str | None
    demand: Amount
    calls: Positive


@dataclass(frozen=True, slots=True)
class RetriedMessage:
    """A message that is retried because the application's reply is no verdict (`until_us` 0), or that waits for long
    because the application asked for it: until then, in microseconds since the epoch."""

    id: str
    key: str | None
    reason: str
    until_us: Time = 0


@dataclass(frozen=True, slots=True)
class ExtendedCall:
    """A call that its application has extended, beyond the time that others have. `progress`: as it reported last.
    Times in microseconds since the epoch."""

    id: str
    key: str | None
    progress: str
    since_us: Time
    until_us: Time


HELD_REASON_MAX_CHARS = 200


class HeldCalls(NamedTuple):
    """The application reported that no call of the group can succeed: none starts since then, until the next try, or,
    with `until_us` 0, all but a few."""

    reason: str
    since_us: Time
    until_us: Time


@dataclass(frozen=True, slots=True)
class HeldSuspect:
    """A message in flight that was called when the process of `died` ended. `attempts`: those that failed."""

    id: str
    key: str | None
    attempts: int
    died: str


@dataclass(frozen=True, slots=True)
class Positions:
    """A queue's recent positions in a form that can be sent: what was processed, and failed attempts so far."""

    streams: Annotated[tuple[StreamRuns, ...], of_length(REPORTED_STREAMS_MAX), _has_few_runs] = ()
    attempts: Annotated[tuple[tuple[str, int, int, int], ...], of_length(REPORTED_STREAMS_MAX)] = ()
    """Publisher, hash, sequence and attempts."""


@dataclass(frozen=True, slots=True)
class Suspected:
    """A suspect as members report it. `attempts`: those that failed, a call that ended with its process included, if it
    ran alone. `calls`: those since it is a suspect, with the one that made it one. `parked`: how often it was parked
    since then; both others are counted anew from there. `member`: the name of the one that died."""

    identity: MessageIdentity
    attempts: Annotated[int, capped_at(COUNT_MAX)]
    calls: Annotated[int, capped_at(COUNT_MAX)]
    parked: Annotated[int, capped_at(COUNT_MAX)]
    member: str

    @property
    def is_called_alone(self) -> bool:
        return self.calls > 1 or self.attempts > 0

    @property
    def calls_at_death(self) -> int:
        """`calls` if the process dies in the call that has begun."""
        return self.calls if self.is_called_alone else self.calls + 1

    @property
    def order(self) -> tuple[int, int, int]:
        """Of two reports of a suspect the higher one is later."""
        return self.parked, self.calls, self.attempts


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue, as a member reports it. `delivered` counts since the member subscribed. `put_off`: handoffs in a row
    that its calls did not end in time for, and `next_drain_s`: how long the next may wait for them. `demand`: calls at
    a time for what comes in, and `service_s` that one takes on average, as its active member measured them last; 0
    without one."""

    queue: int
    role: Role
    active: bool
    status: Status
    in_flight: int = 0
    delivered: int = 0
    epoch: int = 0  # rises with every attachment: who attached later waits behind who attached earlier
    progress: Progress = Progress.IDLE
    poisoned: int = 0  # messages whose attempts are used up, and which are retried
    poisoned_keys: tuple[str, ...] = ()  # of the oldest of them
    poisoned_ids: tuple[str, ...] = ()  # of the oldest of them
    put_off: int = 0
    next_drain_s: float = 0.0
    retried_messages: tuple[RetriedMessage, ...] = ()  # the first of them
    suspects: tuple[HeldSuspect, ...] = ()  # some of those in flight
    extended_calls: tuple[ExtendedCall, ...] = ()  # the first of them
    demand: Amount = 0.0
    service_s: Amount = 0.0
    overload: Overload | None = None

    @property
    def is_primary(self) -> bool:
        return self.role is Role.PRIMARY

    @property
    def is_consumed(self) -> bool:
        """True if the member has a consumer on it, or messages of one that is being closed."""
        return self.active or self.status is not Status.UNBOUND or self.in_flight > 0

    @property
    def is_news(self) -> bool:
        """True unless the member would be described the same without it."""
        return self.is_consumed or self.is_primary or self.progress is not Progress.IDLE

    @property
    def is_postponed(self) -> bool:
        """True if it should be another member's, and calls that do not end keep it here."""
        return self.put_off >= POSTPONED_FROM


@dataclass(frozen=True, slots=True)
class ParkingState:
    """The group's parked keys as a member has read them. `is_read`: all that was recorded when it connected is in it.
    `is_full`: a bound of this member is reached, and it parks no further key. `oldest_us`: publishing time of the
    oldest of these messages."""

    is_read: bool
    keys: int
    messages: int
    size_bytes: int
    is_full: bool
    oldest_us: Time = 0


class Hole(NamedTuple):
    """Numbers of a stream, from `first` to `last`, that were skipped: a gap, or it is unknown whether another member
    had them."""

    publisher: str
    hash: int
    first: int
    last: int
    since_us: Time
    is_gap: bool


class Repeats(NamedTuple):
    """Messages called again since then, after the member of this name was gone; empty: its name is unknown."""

    member: str
    since_us: Time
    messages: int


@dataclass(frozen=True, slots=True)
class SequenceReport:
    """Sequence numbers that a member was delivered. Counts are since it started, and all else is of the queues that it
    serves now. A stream is what one publisher sent of one hash.

    `missed`: messages that were skipped, of which `late` came later, or are known as processed. `missing`: those that
    are skipped now, in `gap_streams`, the first of them since then; `overdue`: those that have been for more than a
    day, which are not among these. `unknown_streams`: what came before
    `unknown_before_us` may have gaps. `out_of_order`: messages processed for the first time after a later one of their
    key; `order_unknown`: those of which that is unknown. `repeated`: messages called again that a member which is gone
    may have processed, in `repeats` by the last of these members.
    """

    streams: int = 0
    missed: int = 0
    late: int = 0
    missing: int = 0
    gap_streams: int = 0
    gap_since_us: Time = 0
    first_missing: str = ""
    overdue: int = 0
    overdue_since_us: Time = 0
    unknown_streams: int = 0
    unknown_before_us: Time = 0
    out_of_order: int = 0
    out_of_order_id: str = ""
    order_unknown: int = 0
    repeated: int = 0
    repeats: tuple[Repeats, ...] = ()
