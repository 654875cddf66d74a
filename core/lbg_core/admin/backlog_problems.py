"""Problems of messages that nobody processes: in queues without a consumer, in front of members that get none, parked,
and in sessions whose member is away. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject, moment_text
from lbg_core.admin.rows import ObservedQueue
from lbg_core.admin.snapshot import UNKNOWN, Native, PartitionsStatus, QueueStatus, SessionsStatus, Unknown
from lbg_core.group import Names
from lbg_core.group.member_state import ParkingState, Progress, QueueState
from lbg_core.group.members_protocol import Beat

FULL_PERCENT = 90
"""Share of its size from which a queue counts as full: it refuses each message for which there is no room."""


def backlog_problems(
    names: Names,
    queues: Sequence[ObservedQueue],
    members: Sequence[Beat] | Unknown,
    *,
    staging: Collection[int],
) -> Iterator[Problem]:
    """A queue that is empty has none, whatever its members report: a report is older than the count. `staging`: numbers
    of queues that members consume only when another one is processed up to its fence."""
    for queue in queues:
        if (percent := queue.full_percent) is not None and percent >= FULL_PERCENT:
            yield Problem(Kind.QUEUE_FULL, Subject(names.group, queue.name), {"percent": percent})
        if isinstance(native := _native(queue), SessionsStatus):
            yield from _of_sessions(names, native)
    waiting = [(one, count) for one in queues if isinstance(count := one.count("ready"), int) and count]
    reports = () if members is UNKNOWN else members
    if (
        waiting
        and members is not UNKNOWN
        and not reports
        and all(one.count("consumers") in (0, None) for one in queues)
    ):
        figures = {"count": sum(count for _, count in waiting), "queues": len(waiting)}
        yield Problem(Kind.NO_MEMBERS, Subject(names.group), figures)
        return
    states: dict[int, list[tuple[Beat, QueueState]]] = {}
    for member in reports:
        for state in member.queues:
            states.setdefault(state.queue, []).append((member, state))
    for queue in queues:
        of_queue = states.get(queue.number or 0, [])
        if isinstance(native := _native(queue), PartitionsStatus):
            yield from _of_partitions(names, queue, native)
        elif queue.number not in staging and members is not UNKNOWN:
            yield from _unserved(names, queue, of_queue, reports)
        yield from _held_up(names, queue, of_queue)


def _native(queue: ObservedQueue) -> Native | Unknown | None:
    return queue.status.native if isinstance(queue.status, QueueStatus) else None


def _of_partitions(names: Names, queue: ObservedQueue, native: PartitionsStatus) -> Iterator[Problem]:
    for one in native.partitions if native.rebalance == "Ready" else ():
        if one.ready and not one.is_served:
            figures = {"partition": one.partition, "count": one.ready}
            yield Problem(Kind.PARTITION_UNSERVED, Subject(names.group, queue.name), figures)


def _unserved(
    names: Names, queue: ObservedQueue, states: Sequence[tuple[Beat, QueueState]], members: Sequence[Beat]
) -> Iterator[Problem]:
    """RabbitMQ counts consumers late: a member that reports one has it."""
    count, is_consumed = queue.count("ready"), any(state.is_consumed for _, state in states)
    if isinstance(count, int) and count and queue.count("consumers") == 0 and not is_consumed:
        should = [one for one, state in states if state.is_primary] or members
        about = Subject(names.group, queue.name, members=tuple(one.name for one in should))
        yield Problem(Kind.QUEUE_UNSERVED, about, {"count": count})


def _held_up(
    names: Names, queue: ObservedQueue, states: Sequence[tuple[Beat, QueueState]]
) -> Iterator[Problem]:
    """Of a message that its member reports there is a problem of its own, which blocks a key; where the window is full
    of such keys, all others wait too."""
    ready = queue.count("ready")
    count = ready if isinstance(ready, int) else 0
    for member, state in states:
        about = Subject(names.group, queue.name, members=(member.name,))
        if state.progress is Progress.STALLED and count:
            yield Problem(Kind.QUEUE_STALLED, about, {"count": count})
        # What waits in a queue that all members consume may go to another one.
        behind = (0 if queue.number is None else count) + state.in_flight - 1
        is_named = state.poisoned or state.retried_messages or state.suspects
        if state.progress is Progress.BLOCKED and behind > 0 and (count or not is_named):
            yield Problem(Kind.QUEUE_BLOCKED, about, {"count": behind, "number": state.queue})


def _of_sessions(names: Names, status: SessionsStatus) -> Iterator[Problem]:
    if stranded := status.stranded:
        figures = {
            "count": len(stranded),
            "messages": sum(one.messages for one in stranded),
            "sessions": tuple(one.session for one in stranded),
        }
        yield Problem(Kind.SESSIONS_STRANDED, Subject(names.group, names.parent), figures)


def parking_problems(
    group: str, parking: ParkingState | None, parked: int | Unknown | None
) -> Iterator[Problem]:
    """`parking`: as a member has read it. Without that the parking queue shows whether there are any."""
    count = parking.messages if parking is not None and parking.is_read else parked
    if isinstance(count, int) and count:
        keys = "" if parking is None or not parking.keys else f"{parking.keys:,} "
        figures: dict[str, object] = {
            "count": count,
            "since": "at an unknown time",
            "keys_parked": f"{keys}{'key' if keys == '1 ' else 'keys'}",
            "is_full": parking is not None and parking.is_full,
        }
        if parking is not None and parking.oldest_us:
            figures["since"] = moment_text(parking.oldest_us)
        yield Problem(Kind.KEYS_PARKED, Subject(group), figures)
