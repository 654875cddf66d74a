"""Rows of a description: members, queues, partitions and sessions, with who serves each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from lbg_core.admin.snapshot import UNKNOWN, QueueStatus, Unknown
from lbg_core.group.member_state import QueueState, Status
from lbg_core.group.members_protocol import Beat

Count = int | Unknown

UNKNOWN_STATUS = "Unknown"


def members_of(beats: Iterable[Beat]) -> tuple[Beat, ...]:
    """The last status report of each member, with the queues that it consumes or should serve."""
    last = {beat.index: beat for beat in beats}
    return tuple(
        replace(beat, queues=tuple(one for one in beat.queues if one.is_news))
        for _, beat in sorted(last.items())
    )


def member_json(member: Beat) -> dict[str, Any]:
    """For `--json`."""
    return {
        **member.sender._asdict(),
        "rebalance": member.rebalance,
        "queues": [asdict(one) for one in member.queues],
        "counts": member.counts,
        "concurrency": member.concurrency,
        "paused": member.paused,
        "oldest_published_at_us": member.oldest_us or None,
        "pace": None if member.pace is None else asdict(member.pace),
    }


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """A queue or partition, who serves it, and its messages.

    - `status`: Ready, Paused, Unassigned, Unbound or Unknown, which a word of a newer broker is too.
    - `member`: the one that serves it, where it is known; `consumer`: the tag of the active consumer, where the broker
      reports it.
    - `bindings`: the members that report to consume it, or that should serve it, each with its report.
    - `ready`, `unacked`: None for a queue that is missing.
    """

    number: int
    status: str
    member: Beat | None
    consumer: str | None
    ready: Count | None
    unacked: Count | None
    bindings: tuple[tuple[Beat, QueueState], ...] = ()
    handoff_s: float | None = None
    """Of a partition that the broker moves: seconds that its last handoff took."""

    settled: int | None = None
    """Of a partition that the broker moves: messages that have left it since the broker's start."""

    @property
    def is_served(self) -> bool:
        return self.status in (Status.READY, Status.PAUSED)

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

    @property
    def leader(self) -> str | None:
        """The node that leads it; None where there is none or it is not known."""
        return self.status.leader if isinstance(self.status, QueueStatus) else None

    @property
    def is_in_use(self) -> bool:
        """True if it has messages, as far as that is known."""
        return any(isinstance(count := self.count(one), int) and count for one in ("ready", "unacked"))

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
    member: Beat | None
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
            "leader": self.queue.leader,
        }


def plain(value: Any) -> Any:
    """For `--json`."""
    return "unknown" if value is UNKNOWN else value
