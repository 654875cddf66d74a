"""Protocol of members on `lbg.G.members`: the messages. Their JSON follows from them (`message_codec`).

Everything in here is a hint (docs/internals/assignment.md, "Safety and balance"): a message that is lost, late or
repeated costs balance for a moment, or a repeat, never order and never a message.

Each has `lbg_core.group.MEMBERS_VERSION`. A message of a newer version is ignored, and reported in the log; a member
that joins and gets one stays out of the group.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated

from lbg_core.group.held_messages import Handled, PeekedMessage
from lbg_core.group.json_codec import capped_at, of_length
from lbg_core.group.member_state import (
    HELD_REASON_MAX_CHARS,
    HOLES_MAX,
    REPORTED_STREAMS_MAX,
    Amount,
    HeldCalls,
    Hole,
    Identity,
    Index,
    ParkingState,
    Placement,
    Positions,
    Positive,
    QueueLoad,
    QueueState,
    Rebalance,
    SequenceReport,
    Suspected,
    Time,
)
from lbg_core.group.pace import Pace
from lbg_core.group.sequences import StreamRuns
from lbg_core.group.spec import Assignment

SUSPECTS_MAX = 512
"""Suspects that a member remembers, and reports at once: as many calls ran when a process with `concurrency` of that
died."""


ANSWER_PREFIX = "answer."
"""Of the routing keys of answers to administrators: no member receives them."""

ANSWER_MAX_CHARS = 64

ACTIVITY = "activity"
"""The routing key of `Activity`: only administrators who watch receive it."""

WATCH_MAX_S = 60.0


def _is_answer(answer: str) -> str:
    """It becomes a part of a routing key, which has 255 bytes at most."""
    if not (answer.isascii() and answer.isalnum() and len(answer) <= ANSWER_MAX_CHARS):
        raise ValueError("the request names no answer")
    return answer


def _is_time_to_watch(seconds: float) -> float:
    if not 0 < seconds <= WATCH_MAX_S:
        raise ValueError(f"{seconds:g} is not a number of seconds up to {WATCH_MAX_S:g}")
    return seconds


HELLO_ATTEMPTS_MAX = 16
"""By then 4^15 members answer: all."""

Answer = Annotated[str, _is_answer]


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
    that is much and it has been busy for a while; else 0. `sequences` is None in modes without the audit. `pace` is
    None before it was measured, and of older versions. `held`: the group's calls are; else None.
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
    pace: Pace | None = None
    held: HeldCalls | None = None

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
class GivenBack(Sent):
    """To all, from a member that gives messages back to a queue which the broker shares out: these have failed so
    often, and the next call of each is one more attempt. Publisher, hash, sequence and attempts."""

    attempts: Annotated[tuple[tuple[str, int, int, int], ...], of_length(REPORTED_STREAMS_MAX)]


@dataclass(frozen=True, slots=True)
class CallsHeld(Sent):
    """To all: the application reported that no call can succeed, and the sender will try one in so many seconds, or has
    so many for the one that it tries now. 0: it has succeeded."""

    seconds: Amount
    reason: Annotated[str, of_length(HELD_REASON_MAX_CHARS)]


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


@dataclass(frozen=True, slots=True)
class KeyAnswer(Sent):
    """To an administrator: the messages of a key. `held` and `messages` as in `Peeked`, without the key. `handled`: in
    the order in which the member was done with them; `left` earlier ones are not sent. The member remembers `kept`
    messages of all keys, which are all since `since_us`. `numbers`: those that it has or had of the same publishers and
    hash, of any key."""

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
    max_clients: Positive
    rebalance_threshold_percent: Positive = 10


@dataclass(frozen=True, slots=True)
class Load(Sent):
    """To the coordinator, by a member that has much to do, and by each that it requests it from: what the sender had to
    do in its last interval. `is_steady`: by many calls, or it has fallen behind; else it gives no queue away."""

    concurrency: Positive
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
    | GivenBack
    | CallsHeld
    | Place
    | Placed
    | Watch
    | Activity
)

Request = Peek | KeyRequest | Skip | Pause | Watch
"""Of administrators."""
