"""What members say to each other on `lbg.G.members`.

Everything in here is a hint (DESIGN.md section 1): a message that is lost, late or repeated costs balance for a
moment, or a repeat, never order and never a message.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ..consuming.positions import Positions


class Status(enum.StrEnum):
    """A queue as one member has it, in the words of Solace's partition status (see "Message Distribution With
    Partitioned Queues"): served by it; served, but held still for a handoff; waiting behind another consumer;
    without a consumer of this member."""

    READY = "Ready"
    PAUSED = "Paused"
    UNASSIGNED = "Unassigned"
    UNBOUND = "Unbound"


class Progress(enum.StrEnum):
    """What a queue's messages at one member wait for: nothing is there; the application; the retry of a key that
    holds up all that is held (a blocked key); the broker, which has messages and delivers none."""

    IDLE = "Idle"
    WORKING = "Working"
    BLOCKED = "Blocked"
    STALLED = "Stalled"


class Rebalance(enum.StrEnum):
    READY = "Ready"
    HOLD_DOWN = "HoldDown"
    REBALANCING = "Rebalancing"


@dataclass(frozen=True, slots=True)
class Identity:
    """A member as others know it. The incarnation is new with every connection, so that nothing said by or about
    an earlier life of the same index is taken for this one."""

    index: int
    name: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class QueueState:
    queue: int
    primary: bool
    active: bool
    status: Status
    in_flight: int = 0
    delivered: int = 0
    epoch: int = 0  # rises with every attachment: who attached later waits behind who attached earlier
    progress: Progress = Progress.IDLE
    poisoned: int = 0  # messages whose attempts are used up, and which are tried on
    poisoned_keys: tuple[str, ...] = ()  # of the oldest of them
    put_off: int = 0  # handoffs in a row that its calls did not end in time for
    next_drain_s: float = 0.0  # how long the next may wait for them, if one was put off


@dataclass(frozen=True, slots=True)
class BeatContent:
    queues: tuple[QueueState, ...] = ()
    rebalance: Rebalance = Rebalance.READY
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hello:
    """To all, once after the index was claimed."""

    sender: Identity


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a hello, to the one who said it."""

    sender: Identity
    content: BeatContent


@dataclass(frozen=True, slots=True)
class Beat:
    """To all, every second and on change."""

    sender: Identity
    content: BeatContent


@dataclass(frozen=True, slots=True)
class Leave:
    """To all: the sender hands its queues over and goes."""

    sender: Identity


@dataclass(frozen=True, slots=True)
class Gone:
    """To all: `dead` has no mailbox any more; `by` is the index that found it out."""

    dead: Identity
    by: int


@dataclass(frozen=True, slots=True)
class Ping:
    """To one, mandatory. It needs no answer: only its return says something."""

    sender: Identity
    target: str  # the incarnation that is meant


@dataclass(frozen=True, slots=True)
class Move:
    """To all: the sender is about to give `queue` to member `to`; everybody else gets behind that one."""

    sender: Identity
    queue: int
    to: int
    move: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reattached:
    """To the mover: the sender is out of the successor's way."""

    sender: Identity
    queue: int
    move: str


@dataclass(frozen=True, slots=True)
class Handover:
    """To the successor, just before the queue is let go: what was processed, and since when the queue stood still.

    `paused_s` is how long the sender had not started a call of the queue when it sent this. `waiting`: the queue had
    messages then; else nobody knows which part of the time until the next delivery it stood still.
    """

    sender: Identity
    queue: int
    move: str
    positions: Positions
    paused_s: float
    waiting: bool = True


@dataclass(frozen=True, slots=True)
class Repartition:
    """To all, from who changes the group's number of queues and is no member: there are to be `queues`, and nothing
    waits in any; or there are so many now, if `done`."""

    sender: Identity
    queues: int
    done: bool


@dataclass(frozen=True, slots=True)
class Knowledge:
    """To all, before queues change: what the sender processed of one, as its keys may go to anybody."""

    sender: Identity
    positions: Positions


Message = (
    Hello | Welcome | Beat | Leave | Gone | Ping | Move | Reattached | Handover | Repartition | Knowledge
)
