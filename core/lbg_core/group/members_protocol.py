"""Protocol of members on `lbg.G.members`: the messages. Their JSON follows from them (`message_codec`).

Everything in here is a hint (docs/assignment.md, "Safety and balance"): a message that is lost, late or repeated
costs balance for a moment, or a repeat, never order and never a message.

Each has `lbg_core.group.MEMBERS_VERSION`. A message of a newer version is ignored, and reported in the log; a member
that joins and gets one stays out of the group.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from lbg_core.group.assignment import INDEX_MAX
from lbg_core.group.json_codec import at_most, capped_at, of_length
from lbg_core.group.sequences import MessageIdentity, StreamRuns
from lbg_core.group.spec import Assignment

REPORTED_STREAMS_MAX = 512
"""Streams that are reported of one queue, and as many messages with failed attempts."""

REPORTED_RUNS_MAX = 4096
"""Runs of sequence numbers that are reported of one queue."""

SUSPECTS_MAX = 512
"""Suspects that a member remembers, and reports at once: as many calls ran when a process with `concurrency` of that
died."""

HOLES_MAX = 512
"""Holes in streams that are reported of one queue."""

COUNT_MAX = 1_000_000

YEAR_9999_US = 253_402_300_799_000_000
"""No calendar reaches beyond it."""

ANSWER_PREFIX = "answer."
"""Of the routing keys of answers to administrators: no member receives them."""

ANSWER_MAX_CHARS = 64

ACTIVITY = "activity"
"""The routing key of `Activity`: only administrators who watch receive it."""

WATCH_MAX_S = 60.0

POSTPONED_FROM = 2
"""Handoffs postponed in a row: the first leaves the application the time of the group's setting."""


def _is_answer(answer: str) -> str:
    """It becomes a part of a routing key, which has 255 bytes at most."""
    if not (answer.isascii() and answer.isalnum() and len(answer) <= ANSWER_MAX_CHARS):
        raise ValueError("the request names no answer")
    return answer


def _is_time_to_watch(seconds: float) -> float:
    if not 0 < seconds <= WATCH_MAX_S:
        raise ValueError(f"{seconds:g} is not a number of seconds up to {WATCH_MAX_S:g}")
    return seconds


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


HELLO_ATTEMPTS_MAX = 16
"""By then 4^15 members answer: all."""

Index = Annotated[int, at_most(INDEX_MAX)]
Time = Annotated[int, capped_at(YEAR_9999_US)]
"""Microseconds since the epoch; 0 where there is none."""
Answer = Annotated[str, _is_answer]
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
    calls: Annotated[int, _is_positive]


@dataclass(frozen=True, slots=True)
class RetriedMessage:
    """A message that is retried because the application's reply is no verdict (`until_us` 0), or that waits for long
    because the application asked for it: until then, in microseconds since the epoch."""

    id: str
    key: str | None
    reason: str
    until_us: Time = 0


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
    are skipped now, in `gap_streams`, the first of them since then. `unknown_streams`: what came before
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
    unknown_streams: int = 0
    unknown_before_us: Time = 0
    out_of_order: int = 0
    out_of_order_id: str = ""
    order_unknown: int = 0
    repeated: int = 0
    repeats: tuple[Repeats, ...] = ()


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of this protocol."""

    sender: Identity


@dataclass(frozen=True, slots=True)
class Hello(Sent):
    """After the index was claimed: to index 0 (`attempt` 0), and to all as long as no directory arrives."""

    attempt: Annotated[int, capped_at(HELLO_ATTEMPTS_MAX)] = 0


@dataclass(frozen=True, slots=True)
class Directory(Sent):
    """To one: the live members, as the sender has them, and the last incarnations that ended. To a member that joins,
    and to one whose digest differs, which answers with its own if the two still differ (`is_answer`)."""

    members: tuple[Identity, ...]
    ended: tuple[str, ...] = ()
    is_answer: bool = False
    placements: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True)
class Changes(Sent):
    """Changes of the live set. To all by the coordinator; with a `target`, the coordinator's incarnation, to it alone,
    which sends them to all."""

    joined: tuple[Identity, ...] = ()
    lost: tuple[Identity, ...] = ()
    left: tuple[Identity, ...] = ()
    target: str = ""


@dataclass(frozen=True, slots=True)
class IndexRequest(Sent):
    """To one member, index 0 at first, by a member without an index: the lowest free one, and none of `refused`.
    `answer` is the routing key of its temporary queue."""

    answer: int
    refused: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexOffer(Sent):
    """The answer to an index request: an index that is offered to nobody else for a few seconds."""

    offered: Index


@dataclass(frozen=True, slots=True)
class QueueReport(Sent):
    """To the other consumers of these queues, on change: the state of the sender's bindings."""

    queues: tuple[QueueState, ...]


@dataclass(frozen=True, slots=True)
class Beat(Sent):
    """To observers: the status report, with the queues that the sender serves or backs up (`ReportSchedule`).

    `counts`: messages since the member started, by what became of them; ended calls, and their time in microseconds.
    `paused`: it starts no new call, as the group's record states. `oldest_us`: publishing time of the oldest message
    that it has not settled, 0 also where it is unknown. `parking` is None if it does not follow parked keys.
    `queue_count`: the group's, as the sender has it. `concurrency`: calls at a time, at most. `prefetch`: window of
    each of its consumers, if all members need the same; else 0. `behind_s`: in which it could do what waits for it, if
    that is much and it has been busy for a while; else 0. `sequences` is None in modes without the audit.
    """

    queues: tuple[QueueState, ...] = ()
    rebalance: Rebalance = Rebalance.READY
    counts: dict[str, int] = field(default_factory=dict)
    paused: bool = False
    oldest_us: Time = 0
    parking: ParkingState | None = None
    queue_count: int = 0
    concurrency: int = 0
    prefetch: int = 0
    behind_s: Amount = 0.0
    sequences: SequenceReport | None = None

    @property
    def index(self) -> int:
        return self.sender.index

    @property
    def name(self) -> str:
        return self.sender.name

    @property
    def incarnation(self) -> str:
        return self.sender.incarnation

    @property
    def in_flight(self) -> int:
        return sum(one.in_flight for one in self.queues)

    @property
    def primaries(self) -> list[QueueState]:
        return [one for one in self.queues if one.is_primary]

    @property
    def secondaries(self) -> list[QueueState]:
        return [one for one in self.queues if not one.is_primary]

    @property
    def served(self) -> list[QueueState]:
        return [one for one in self.queues if one.active]


@dataclass(frozen=True, slots=True)
class Leave(Sent):
    """To the coordinator: the sender hands its queues over and leaves. To all where there is none."""


@dataclass(frozen=True, slots=True)
class Gone(Sent):
    """To `dead`, which counts as gone and is not."""

    dead: Identity


@dataclass(frozen=True, slots=True)
class Ping(Sent):
    """To one, mandatory: its return proves that the mailbox is gone. With the digest and number of the live set, and
    for how long it has not changed; 0 members: none is sent."""

    target: str  # the incarnation that is meant
    members: int = 0
    digest: int = 0
    quiet_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Move(Sent):
    """To member `to`, to which the sender is about to hand over `queue`, and which answers when it is attached. Then to
    the other consumers, with the epoch of its binding: they attach behind that."""

    queue: int
    to: int
    move: str
    why: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Reattached(Sent):
    """To the mover: the sender is out of the successor's way, or is the successor and attached. Of the successor:
    `proof`, a secret that the handover has to return (docs/adr/0075-handovers-are-proved.md), and the epoch of its
    binding."""

    queue: int
    move: str
    proof: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Handover(Sent):
    """To the successor, just before the queue is released: what was processed, and since when the queue is paused.

    `paused_s` is how long the sender had not started a call of the queue when it sent this. `waiting`: the queue had
    messages then; else the pause until the next delivery is unknown. `proof`: as the successor's answer has it.
    `is_clean`: nothing behind the positions was settled, and `holes` are all that the sender knows of, if it
    `has_holes`.
    """

    queue: int
    move: str
    positions: Positions
    paused_s: float
    waiting: bool = True
    proof: str = ""
    is_clean: bool = False
    has_holes: bool = False
    holes: Annotated[tuple[Hole, ...], of_length(HOLES_MAX)] = ()


@dataclass(frozen=True, slots=True)
class Repartition(Sent):
    """To all, from who changes the group's number of queues and is no member: there are to be `queues`, and nothing
    waits in any; or there are so many now, if `done`."""

    queues: int
    done: bool


@dataclass(frozen=True, slots=True)
class KeysMove(Sent):
    """To all, from who changes the group's number of queues online and is no member: read the stream of the change with
    this id (`lbg_core.group.key_moves`)."""

    move: str


@dataclass(frozen=True, slots=True)
class KnowledgeRequest(Sent):
    """To all, before queues change: each member answers with what it processed. `proof`: a secret that the answers have
    to return."""

    proof: str


@dataclass(frozen=True, slots=True)
class Knowledge(Sent):
    """The answer to a knowledge request: what the sender processed of one queue that it serves, as keys of it may go to
    any member."""

    positions: Positions
    proof: str = ""


@dataclass(frozen=True, slots=True)
class SuspectReport(Sent):
    """To all by a member that joins and has suspects of a former process, and before it calls one. To one member that
    joins, or reported what the sender knows better."""

    suspects: Annotated[tuple[Suspected, ...], of_length(SUSPECTS_MAX)]


@dataclass(frozen=True, slots=True)
class Peek(Sent):
    """To all, from an administrator: each member answers with the messages that it holds of this queue and id (None: of
    all), at most `limit`, with `body_bytes` of each body. `answer.{answer}` is the answer's routing key."""

    answer: Answer
    queue: int | None
    id: str | None
    limit: int
    body_bytes: int


class HeldState(enum.StrEnum):
    """State of a message: no member holds it, and it is to be delivered, parked, a dead letter, or unrouted. At a
    member: its turn has not come; the application has it; it failed and is to be called again; its attempts are used
    up, and it is called again; it goes to the dead letters, to the parking queue, or to the queue to which its key
    moves; it is processed, and that is not confirmed."""

    READY = "ready"
    PARKED = "parked"
    DEAD = "dead"
    UNROUTED = "unrouted"
    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    POISONED = "poisoned"
    REFUSED = "refused"
    PARKING = "parking"
    MOVING = "moving"
    PROCESSED = "processed"


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message of a group where it is. `attempts` and `reason` are of its calls at the member that holds it. Its body
    is text or in base64, perhaps not all of it; `body_bytes` is the size of all of it. `member` and `member_index` are
    of the sender of the answer, for who receives it; None: it waits at the broker. `identity`: None without a stamp.
    `received_us`, `first_call_us` and `last_call_us` are of that member, in microseconds since the epoch; 0 where there
    is none."""

    id: str
    key: str | None
    queue: int
    state: HeldState
    attempts: int
    reason: str
    redelivered: bool
    published_at_us: int
    routing_key: str
    content_type: str | None
    body: str | None
    body_base64: str | None
    body_bytes: int
    member: str | None = None
    member_index: int | None = None
    identity: tuple[str, int, int] | None = None
    received_us: Time = 0
    first_call_us: Time = 0
    last_call_us: Time = 0

    def age_s(self, now_us: int) -> float | None:
        """Age since it was published; None without that time."""
        return None if not self.published_at_us else max(0, now_us - self.published_at_us) / 1e6


@dataclass(frozen=True, slots=True)
class Peeked(Sent):
    """To an administrator: the messages of a peek, of each queue in the order of delivery. `held`: how many there are,
    shown or not."""

    held: int
    messages: tuple[PeekedMessage, ...]


@dataclass(frozen=True, slots=True)
class KeyRequest(Sent):
    """To all, from an administrator: each member answers with the messages of this key that it holds, as to a peek, and
    with those that it was done with lately, at most `records`."""

    answer: Answer
    key: str
    limit: int
    body_bytes: int
    records: int


class Ending(enum.StrEnum):
    """End of a message at a member: processed; refused, and a dead letter; dropped, as it was processed before; in the
    parking queue; in the queue to which its key moved; given back to its queue after a call."""

    ACK = "ack"
    DEAD = "dead"
    REPEAT = "repeat"
    PARKED = "parked"
    FORWARDED = "forwarded"
    RELEASED = "released"


class Handled(NamedTuple):
    """A message of a key that a member was done with. `publisher`, `hash` and `seq` are None without a stamp. Times are
    microseconds since the epoch, 0 where there is none. `acknowledged` False: it is delivered again."""

    publisher: str | None
    hash: int | None
    seq: int | None
    queue: int
    published_at_us: Time
    received_us: Time
    first_call_us: Time
    last_call_us: Time
    last_end_us: Time
    done_us: Time
    attempts: int
    ending: Ending
    redelivered: bool
    acknowledged: bool


@dataclass(frozen=True, slots=True)
class KeyAnswer(Sent):
    """To an administrator: the messages of a key. `held` and `messages` as in `Peeked`. `handled`: in the order in
    which the member was done with them; `left` earlier ones are not sent. The member remembers `kept` messages of all
    keys, which are all since `since_us`. `numbers`: those that it has or had of the same publishers and hash, of any
    key."""

    held: int
    messages: tuple[PeekedMessage, ...]
    handled: tuple[Handled, ...]
    left: int
    kept: int
    since_us: Time
    numbers: tuple[StreamRuns, ...] = ()


@dataclass(frozen=True, slots=True)
class Skip(Sent):
    """To one member, from an administrator: the poisoned message of this id is to become a dead letter."""

    answer: Answer
    id: str


@dataclass(frozen=True, slots=True)
class Pause(Sent):
    """To all, from an administrator: members start no new call if `consumption`, and go on otherwise, as the group's
    record states."""

    consumption: bool


@dataclass(frozen=True, slots=True)
class Assign(Sent):
    """To all, from an administrator: the group's queues are assigned to so many members at most by this rule, as its
    record states."""

    assignment: Assignment
    max_clients: Annotated[int, _is_positive]
    rebalance_threshold_percent: Annotated[int, _is_positive] = 10


@dataclass(frozen=True, slots=True)
class Load(Sent):
    """To the coordinator, by a member that has much to do, and by each that it requests it from: what the sender had to
    do in its last interval. `is_steady`: by many calls, or it has fallen behind; else it gives no queue away."""

    concurrency: Annotated[int, _is_positive]
    queues: tuple[QueueLoad, ...]
    is_steady: bool = True

    @property
    def share(self) -> float:
        """Demand for each call that the sender makes at a time: above 1 it falls behind."""
        return sum(one.demand for one in self.queues) / self.concurrency


@dataclass(frozen=True, slots=True)
class LoadRequest(Sent):
    """To all, from the coordinator, which needs the loads of all to compare them."""


@dataclass(frozen=True, slots=True)
class Place(Sent):
    """To the member `target`, which serves these queues, from the coordinator: a proposal to hand them over. Numbers
    are those of the registers as the sender has them: a register that changed since is not written."""

    target: str
    moves: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Placed(Sent):
    """To all, from the member that serves these queues: their registers from now on."""

    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Watch(Sent):
    """To all, from an observer: members send their status report soon, and every second for so many seconds. With
    `keys` they report their activity for the same time."""

    seconds: Annotated[float, _is_time_to_watch]
    keys: bool = True


@dataclass(frozen=True, slots=True)
class Takeover:
    """A queue that the sender serves from now on. `why` is the former member's, if it handed the queue over; else see
    `Roster.last_server` of `lbg_sidecar`. `pause_s` is None without a handoff, and when the queue was empty then: its
    pause is unknown."""

    queue: int
    former: int | None
    why: str
    planned: bool
    pause_s: float | None


@dataclass(frozen=True, slots=True)
class Activity(Sent):
    """To administrators who watch: the keys of which the sender has processed most messages since its last report, with
    their counts, each second as long as it was requested; and a queue that it took over, without a request."""

    keys: tuple[tuple[str, int], ...] = ()
    takeover: Takeover | None = None


class SkipOutcome(enum.StrEnum):
    """The broker has the dead letter; the message is called now, and becomes a dead letter unless this call succeeds;
    that call succeeded; the message is on its way to the parking queue, or to the queue to which its key moves; it is
    not poisoned; this member does not hold it, or not any more."""

    DEAD_LETTER = "dead-letter"
    RUNNING = "running"
    PROCESSED = "processed"
    PARKING = "parking"
    MOVING = "moving"
    NOT_POISONED = "not-poisoned"
    NOT_HELD = "not-held"


@dataclass(frozen=True, slots=True)
class Skipped(Sent):
    """To an administrator: the outcome of a skip. `RUNNING` is followed by another one."""

    outcome: SkipOutcome


Message = (
    Hello
    | Directory
    | Changes
    | IndexRequest
    | IndexOffer
    | QueueReport
    | Beat
    | Leave
    | Gone
    | Ping
    | Move
    | Reattached
    | Handover
    | Repartition
    | KeysMove
    | KnowledgeRequest
    | Knowledge
    | SuspectReport
    | Peek
    | Peeked
    | KeyRequest
    | KeyAnswer
    | Skip
    | Skipped
    | Pause
    | Assign
    | Load
    | LoadRequest
    | Place
    | Placed
    | Watch
    | Activity
)

Request = Peek | KeyRequest | Skip | Pause | Watch
"""Of administrators."""
