"""Parts of both ways of changing the number of separate queues: announcements, counts, and the wait for members."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from lbg_core.admin.actions import Announce
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject
from lbg_core.admin.snapshot import UNKNOWN, PartitionStatus, QueueStatus, Snapshot
from lbg_core.group import IDENTITY_BYTES, Names
from lbg_core.group.member_state import Identity, Rebalance
from lbg_core.group.members_protocol import Beat, Repartition
from lbg_core.group.topology import Binding


def sender() -> Identity:
    """The sender of announcements."""
    return Identity(0, "lbg group repartition", secrets.token_hex(IDENTITY_BYTES))


def repartition_announced(group: str, queue_count: int) -> Announce:
    """The number of queues changes: members report what they processed, for those that get their keys from now on."""
    return Announce(group, Repartition(sender(), queue_count, done=False))


def repartition_done(group: str, queue_count: int) -> Announce:
    """The number of queues has changed, as the record has it."""
    return Announce(group, Repartition(sender(), queue_count, done=True))


Counted = tuple[str, QueueStatus | PartitionStatus]
"""A queue by its name, or one partition of it."""


def left_in(group: str, counted: Iterable[Counted]) -> Iterator[Problem]:
    """Those that are not empty, or could not be counted."""
    for queue, one in counted:
        subject = Subject(group, queue)
        if one.ready is UNKNOWN or one.unacked is UNKNOWN:
            yield Problem(Kind.QUEUE_UNCOUNTED, subject)
        elif one.ready or one.unacked:
            kind, figures = Kind.QUEUE_NOT_EMPTY, {"ready": one.ready, "unacked": one.unacked}
            if isinstance(one, PartitionStatus):
                kind, figures["partition"] = Kind.PARTITION_NOT_EMPTY, one.partition
            yield Problem(kind, subject, figures)


def numbered_queues(names: Names, observed: Snapshot) -> dict[int, QueueStatus]:
    """The queues that are there, by their numbers."""
    return {
        number: QueueStatus() if status is UNKNOWN else status
        for name, status in observed.queues.items()
        if status is not None and (number := names.number_of(name)) is not None
    }


def surplus_queues(names: Names, observed: Snapshot, queue_count: int) -> list[tuple[str, QueueStatus]]:
    """Queues that are too many, the highest number first."""
    queues = numbered_queues(names, observed)
    return [
        (names.queue(number), queues[number])
        for number in sorted(queues, reverse=True)
        if number >= queue_count
    ]


def forwarding_bindings(names: Names, bindings: Collection[Binding]) -> list[Binding]:
    """Bindings by which members forward messages to the queue of their hash during a change."""
    return [
        one for one in bindings if one.exchange == names.members and names.number_of(one.queue) is not None
    ]


def by_queue(bindings: Iterable[Binding]) -> Iterator[tuple[str, tuple[Binding, ...]]]:
    """Bindings of each queue, in the order of their names."""
    ordered = sorted(bindings, key=attrgetter("queue", "routing_key"))
    return ((name, tuple(of_queue)) for name, of_queue in groupby(ordered, key=attrgetter("queue")))


LATE_S = 10.0
"""Members have a new number within a second of the message, or when they next connect."""

LISTEN_S = 1.3
"""Members that are asked send a status report every second, 1.2 s apart at most."""


def unsettled(group: str, members: Sequence[Beat], queue_count: int, *, is_late: bool) -> Iterator[Problem]:
    """Members that do not serve so many queues yet, or are not Ready with it. `is_late`: they have had the time for
    it."""
    for member in members:
        subject = Subject(group, members=(member.name,))
        if member.queue_count != queue_count:
            yield Problem(Kind.MEMBER_OUTDATED, subject, {"count": member.queue_count, "is_late": is_late})
        elif member.rebalance is not Rebalance.READY:
            yield Problem(Kind.MEMBER_NOT_READY, subject, {"rebalance": str(member.rebalance)})
        elif unbound := [one.queue for one in member.queues if not one.is_consumed]:
            yield Problem(Kind.MEMBER_UNBOUND, subject, {"count": len(unbound)})
