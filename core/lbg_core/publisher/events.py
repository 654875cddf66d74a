"""Events of the send window."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from lbg_core.counted_nouns import counted


@dataclass(frozen=True, slots=True)
class Connected:
    address: str

    def __str__(self) -> str:
        return f"connected to {self.address}"


@dataclass(frozen=True, slots=True)
class Disconnected:
    """`in_flight` messages were not answered yet; they are sent again."""

    reason: str
    in_flight: int

    def __str__(self) -> str:
        return (
            f"connection lost ({self.reason}); "
            f"{counted(self.in_flight, 'message in flight is', 'messages in flight are')} sent again"
        )


@dataclass(frozen=True, slots=True)
class Unreachable:
    reason: str
    retry_in_s: float

    def __str__(self) -> str:
        return f"{self.reason}; trying again within {self.retry_in_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Blocked:
    """connection.blocked: the broker is short of memory or disk and takes nothing from publishers."""

    reason: str

    def __str__(self) -> str:
        return f"the broker takes no messages for now ({self.reason}); waiting"


@dataclass(frozen=True, slots=True)
class Unblocked:
    def __str__(self) -> str:
        return "the broker takes messages again"


@dataclass(frozen=True, slots=True)
class QueueFull:
    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue} is full; its messages wait in order"


@dataclass(frozen=True, slots=True)
class QueueSilent:
    """The broker has the messages and neither confirms nor refuses them: a quorum queue without a majority, or in an
    election."""

    queue: str
    for_s: float

    def __str__(self) -> str:
        return (
            f"queue {self.queue} has answered nothing for {self.for_s:g} s (are most of its nodes down?); "
            "its messages wait in order"
        )


@dataclass(frozen=True, slots=True)
class ChannelRenewed:
    """The publisher replaces its channel, as RabbitMQ does not confirm a queue's messages there. `why`: a predicate of
    the queue, as "has no answer after 10 s"."""

    queue: str
    why: str

    def __str__(self) -> str:
        return f"queue {self.queue} {self.why}: going on over a new channel"


@dataclass(frozen=True, slots=True)
class QueueTaking:
    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue} takes messages again"


@dataclass(frozen=True, slots=True)
class Unrouted:
    """Messages arrive in the group's queue of unrouted messages, `count` since the publisher's start: no queue of the
    group took them, of this publisher or another. The broker confirmed them."""

    group: str
    count: int

    def __str__(self) -> str:
        return (
            f"{counted(self.count, 'message was', 'messages were')} confirmed that no queue took, as a queue or "
            f"binding of group {self.group} is missing: repair it (`lbg group create {self.group} …`), then `lbg "
            f"unrouted replay {self.group}`"
        )


@dataclass(frozen=True, slots=True)
class IngressClosed:
    """The group is being given another number of queues, and takes nothing until that is done."""

    group: str
    queue_count: int

    def __str__(self) -> str:
        return (
            f"group {self.group} is on its way to {counted(self.queue_count, 'queue')} and takes no messages until "
            "it is there; they wait in order"
        )


@dataclass(frozen=True, slots=True)
class IngressPaused:
    """An administrator has paused the group's ingress, and it takes nothing until that is over."""

    group: str

    def __str__(self) -> str:
        return (
            f"ingress of group {self.group} is paused; messages wait in order until `lbg group resume {self.group} "
            "--ingress`"
        )


@dataclass(frozen=True, slots=True)
class IngressOpen:
    """The group takes messages again, after `IngressClosed` or `IngressPaused`."""

    group: str
    queue_count: int

    def __str__(self) -> str:
        return f"group {self.group} takes messages again, in {counted(self.queue_count, 'queue')}"


@dataclass(frozen=True, slots=True)
class Resumed:
    """Publishing goes on from a state file that `run` runs have used, and that may be a copy of an earlier one.

    `confirmed` rows are; as many as `unknown` behind them may have been sent. `saved_at_us`: 0 where it is not known.
    """

    path: str
    run: int
    saved_at_us: int
    confirmed: int
    unknown: int

    def __str__(self) -> str:
        at = f", saved at {utc(self.saved_at_us)}" if self.saved_at_us else ""
        return (
            f"going on from {self.path} (run {self.run}{at}): {counted(self.confirmed, 'row is', 'rows are')} "
            "confirmed, up to "
            f"{self.unknown:,} are sent again with their numbers, and all that follow are new messages; those of them "
            "that a run published after this state was saved are repeated"
        )


@dataclass(frozen=True, slots=True)
class JournalTrouble:
    line: str

    def __str__(self) -> str:
        return self.line


PublisherEvent = (
    Connected
    | Disconnected
    | Unreachable
    | Blocked
    | Unblocked
    | QueueFull
    | QueueSilent
    | ChannelRenewed
    | QueueTaking
    | Unrouted
    | IngressClosed
    | IngressPaused
    | IngressOpen
    | Resumed
    | JournalTrouble
)


def utc(at_us: int) -> str:
    """Microseconds since the epoch for a person, to the second."""
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
