"""Effects of a member's core. The executor runs them in order and reports what came of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from lbg_core.group.held_messages import HeldState
from lbg_core.group.key_moves import Entry as KeyMoveEntry
from lbg_core.group.members_protocol import KeyRequest, Message, Peek, Takeover
from lbg_core.group.parked_keys import Entry
from lbg_core.group.sequences import MessageIdentity, StreamRuns
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.finished import Found
from lbg_sidecar.errors import MemberError


class BaseEffect:
    """Request of a core to its shell."""

    __slots__ = ()


class LogEffect(BaseEffect):
    """Report for the log."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Post(BaseEffect):
    """A message to publish: to one index or several (mandatory: its return proves that mailbox gone), to all (None), or
    by a routing key, as the answer to an administrator."""

    message: Message
    to: int | tuple[int, ...] | str | None = None


@dataclass(frozen=True, slots=True)
class Attach(BaseEffect):
    """Open a channel and consume. Report `attached`, or `closed`; deliveries may come before that."""

    attachment: Attachment
    arguments: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Detach(BaseEffect):
    """Acknowledge up to `ack_tag` (one cumulative frame, None: nothing) and `single_tags`, close the channel, report
    `closed`."""

    attachment: Attachment
    ack_tag: int | None
    single_tags: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ack(BaseEffect):
    attachment: Attachment
    tag: int
    multiple: bool = True


@dataclass(frozen=True, slots=True)
class Refuse(BaseEffect):
    """Settles the delivery of a session as one that a committed position need not count."""

    attachment: Attachment
    tag: int


@dataclass(frozen=True, slots=True)
class Limit(BaseEffect):
    """Sets the attachment's prefetch window to so many of the messages that it was attached with."""

    attachment: Attachment
    prefetch: int


@dataclass(frozen=True, slots=True)
class Capacity(BaseEffect):
    """Reports to the broker how many keys the application works on at a time, as of now."""

    attachment: Attachment
    keys: int


@dataclass(frozen=True, slots=True)
class Requeue(BaseEffect):
    """Requeues these deliveries in their places, for other members."""

    attachment: Attachment
    tags: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Withdraw(BaseEffect):
    """Withdraws calls whose messages the broker recalls: those that have not reached the application end now.
    `reassigned`: another member has the messages, so the other calls are stopped, too."""

    calls: tuple[InFlight, ...]
    reassigned: bool


@dataclass(frozen=True, slots=True)
class Abort(BaseEffect):
    """Stop these calls; each still has to be reported as ended, once it has."""

    calls: tuple[InFlight, ...]


@dataclass(frozen=True, slots=True)
class Done(BaseEffect):
    """Deliveries that are over, with their `outcome`: for the journal, in this order. `settled`: an ack was written."""

    deliveries: tuple[InFlight, ...]
    settled: bool


@dataclass(frozen=True, slots=True)
class CountReady(BaseEffect):
    """Count the messages that wait in this queue and its consumers, and report `ready_counted`: None when the count
    failed."""

    queue: int


@dataclass(frozen=True, slots=True)
class AwaitWill(BaseEffect):
    """Report `willed` when the broker delivers the last will of this member, and of no other from now on; None: of
    nobody."""

    index: int | None


@dataclass(frozen=True, slots=True)
class DeadLetter(BaseEffect):
    """Publish it to the dead letters, and report `confirmed` when the broker has it."""

    in_flight: InFlight


@dataclass(frozen=True, slots=True)
class Republish(BaseEffect):
    """Publish it for the validator, in the order of these effects, and report `confirmed` when the broker has it."""

    in_flight: InFlight


@dataclass(frozen=True, slots=True)
class ParkCopy(BaseEffect):
    """Publish it to the parking queue, in the order of these effects, and report `confirmed` when the broker has it.
    `copy`: id of the copy."""

    in_flight: InFlight
    copy: str


@dataclass(frozen=True, slots=True)
class RecordEntry(BaseEffect):
    """Write the entry to the stream of parked keys, in the order of these effects. With `in_flight`, report `recorded`
    when the broker has it; one without a message may get lost."""

    entry: Entry
    in_flight: InFlight | None = None


@dataclass(frozen=True, slots=True)
class Forward(BaseEffect):
    """Publish it to this queue of the group, in the order of these effects, and report `confirmed` when the broker has
    it."""

    in_flight: InFlight
    queue: int


@dataclass(frozen=True, slots=True)
class FollowKeyMove(BaseEffect):
    """Read the stream of the change of the number of queues from its first entry on and report the entries, or that
    there is no stream; or stop it."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class FindStaging(BaseEffect):
    """Report whether this queue exists, the first staging queue of a change whose stream has no first entry."""

    move: str
    queue: int


@dataclass(frozen=True, slots=True)
class RecordKeyMove(BaseEffect):
    """Write the entry to the stream of the change. It may get lost, and is written again until it is read."""

    entry: KeyMoveEntry


@dataclass(frozen=True, slots=True)
class Reconnect(BaseEffect):
    """Drop the connections and claim an index anew."""

    why: str


@dataclass(frozen=True, slots=True)
class Reread(BaseEffect):
    """Read the group's record, and `reshape` the machine to the number of queues in it. Where it cannot be read, or has
    something else that is new: as `Reconnect`."""

    why: str


@dataclass(frozen=True, slots=True)
class Exit(BaseEffect):
    """Nothing is in flight any more: close the connections and end."""


@dataclass(frozen=True, slots=True)
class StoodDown(BaseEffect):
    """Nothing is in flight any more: close the connections, and join again when the application is ready."""


@dataclass(frozen=True, slots=True)
class RequestPosition(BaseEffect):
    """Requests the application's session position again: another consumer had the session meanwhile."""


@dataclass(frozen=True, slots=True)
class Fail(BaseEffect):
    """Ends the member with this error, which it cannot recover from. No message is lost."""

    error: MemberError


@dataclass(frozen=True, slots=True)
class SessionInUse(LogEffect):
    """Another live consumer has this member's session. The member waits for it, and logs that once."""

    session: str
    why: str


@dataclass(frozen=True, slots=True)
class SessionForgotten(LogEffect):
    """The broker does not continue after the position in the file (`why`), but after acknowledged messages."""

    session: str
    committed: int
    why: str


@dataclass(frozen=True, slots=True)
class SessionEnded(LogEffect):
    """The End-of-Session was received, and all `messages` before it were processed."""

    session: str
    messages: int


@dataclass(frozen=True, slots=True)
class Moved(LogEffect):
    """This member handed a queue over. `drain_s`: from paused to drained; `close_s`: then to closed."""

    queue: int
    to: int | None
    why: str
    drain_s: float
    close_s: float
    forced: int  # messages that were cut off at work, and are delivered again


@dataclass(frozen=True, slots=True)
class Recalled(LogEffect):
    """The broker moves partitions away (`queues`; none where it moves keys). Messages that had not begun are requeued,
    `at_work` messages are finished here."""

    queues: tuple[int, ...]
    requeued: int
    at_work: int


@dataclass(frozen=True, slots=True)
class Reassigned(LogEffect):
    """The handoff time ended, and the broker reassigned partitions (`queues`) to another member. `at_work` messages
    were cut off at work: they are delivered again, and their verdicts have no effect."""

    queues: tuple[int, ...]
    at_work: int


@dataclass(frozen=True, slots=True)
class HandoffAbandoned(LogEffect):
    """A handoff was postponed because the queue did not drain within `after_s`, the `times`-th in a row. The next may
    take `next_s`."""

    queue: int
    to: int | None
    why: str
    running: int
    after_s: float
    times: int
    next_s: float


@dataclass(frozen=True, slots=True)
class ParkedKeysUnread(LogEffect):
    """Queues start nothing, because the stream of parked keys has not answered for `waited_s`."""

    queues: tuple[int, ...]
    waited_s: float


@dataclass(frozen=True, slots=True)
class Show(BaseEffect):
    """Answer an administrator's peek with these messages, of `held` that this member holds."""

    request: Peek
    held: int
    shown: tuple[tuple[InFlight, HeldState], ...]


@dataclass(frozen=True, slots=True)
class ShowKey(BaseEffect):
    """Answer an administrator about a key: with these messages, of `held` that this member holds, and with those that
    it was done with; fields as of `KeyAnswer`."""

    request: KeyRequest
    held: int
    shown: tuple[tuple[InFlight, HeldState], ...]
    records: tuple[Found, ...]
    left: int
    kept: int
    since: float | None
    numbers: tuple[StreamRuns, ...]


class Failure(enum.StrEnum):
    """Kind of failure of a call. `SLOW`: it has no verdict yet, and half of the call timeout is over. The attempts of a
    message are used up where it is `POISONED`: it is retried, and its key waits; or where it is `PARKED`, and so are
    all later ones of its key."""

    RETRIED = "call_failed"
    TIMED_OUT = "call_timed_out"
    REFUSED = "message_refused"
    SLOW = "call_slow"
    POISONED = "poisoned"
    PARKED = "key_parked"


@dataclass(frozen=True, slots=True)
class CallFailed(LogEffect):
    """A call of the application failed, `attempts` of this message so far. `seconds`: the duration that was exceeded, 0
    where none was."""

    kind: Failure
    queue: int
    key: str | None
    identity: MessageIdentity | None
    attempts: int
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Stalled(LogEffect):
    """A queue has `ready` messages, and for `quiet_s` the broker delivered none to this member, which should serve
    it."""

    queue: int
    ready: int
    quiet_s: float


@dataclass(frozen=True, slots=True)
class TimedOut(LogEffect):
    """The broker's consumer timeout ended a channel, though this member reckoned with another one."""

    queue: int
    timeout_s: float
    expected_s: float


@dataclass(frozen=True, slots=True)
class Superseded(LogEffect):
    """`by` gets the deliveries of a queue that this member thought it served, and attaches anew to.

    That happens where a partition of the broker healed. `cut_off` messages were at work here meanwhile.
    """

    queue: int
    by: int
    cut_off: int


@dataclass(frozen=True, slots=True)
class StandingBy(LogEffect):
    """No queue is assigned to this member, as `at_work` others have all `queues`."""

    queues: int
    at_work: int


@dataclass(frozen=True, slots=True)
class Paused(LogEffect):
    """The group was paused, or resumed."""

    is_paused: bool


@dataclass(frozen=True, slots=True)
class BreakerOpened(LogEffect):
    """The application reported that no call can succeed, for this reason; the next try is after so many seconds.
    `is_again`: such a try has failed."""

    reason: str
    wait_s: float
    is_again: bool


@dataclass(frozen=True, slots=True)
class BreakerClosed(LogEffect):
    """Calls are let through again, after so many seconds."""

    held_s: float


@dataclass(frozen=True, slots=True)
class LiveSet(LogEffect):
    """The set of live members changed."""

    live: frozenset[int]


Effect = BaseEffect | Takeover
