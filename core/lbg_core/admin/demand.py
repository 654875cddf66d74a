"""Demand of a group: what members and the broker report of it, as samples of `lbg_core.group.sizing`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbg_core.admin.describe import Description
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.counted_nouns import counted
from lbg_core.group import BY_LOAD, UNCOUNTED_MODES, GroupSpec
from lbg_core.group.members_protocol import Beat
from lbg_core.group.sizing import MemberSample, Sample, Sharing, Sizer, Sizing, Why

SHARED_QUEUE = 0
"""Number of the one queue that all members consume, in the modes that have one."""


def sizer_of(spec: GroupSpec | None, target_delay_s: float, *, queues_max: int = 0) -> Sizer:
    """`target_delay_s`: the time that a new message may wait; `queues_max`: to which the number of queues may grow."""
    sharing = Sharing.BALANCED
    if spec is not None and spec.mode in UNCOUNTED_MODES:
        sharing = Sharing.SHARED
    elif spec is not None and spec.assignment == BY_LOAD:
        sharing = Sharing.BY_LOAD
    return Sizer(target_delay_s, sharing=sharing, queues_max=queues_max)


def sample_of(description: Description, at_s: float) -> Sample | None:
    """None where the members or the messages of a queue are unknown, where no member may call, as in a paused group,
    and where one does not report its calls. `at_s`: of a monotonic clock."""
    members = description.members
    if members is UNKNOWN or any(one.concurrency < 1 for one in members):
        return None
    waiting = _waiting(description)
    if waiting is None or (members and all(one.paused for one in members)):
        return None
    # A member counts the messages of one queue, not of its partitions: these are taken to be even.
    samples = (_member_sample(one, has_queues=not description.is_one_queue) for one in members)
    return Sample(at_s, tuple(samples), waiting)


def _member_sample(member: Beat, *, has_queues: bool) -> MemberSample:
    counts = member.counts
    return MemberSample(
        member.incarnation,
        member.concurrency,
        counts.get("calls", 0),
        counts.get("busy_us", 0) / 1e6,
        {one.queue: one.delivered for one in member.queues if one.delivered} if has_queues else {},
    )


def _waiting(description: Description) -> Mapping[int, int] | None:
    services = description.services
    if services is UNKNOWN or description.lag is None:
        return None
    if not services:
        return {SHARED_QUEUE: description.lag}
    # While the number of queues changes, there are others, with messages of these.
    count = len(services) if description.spec is None else description.spec.queue_count
    waiting = dict.fromkeys(range(count), 0)
    for row in services:
        if row.ready is UNKNOWN or row.unacked is UNKNOWN:
            return None
        waiting[row.number % count] += (row.ready or 0) + (row.unacked or 0)
    return waiting


def sizing_text(sizing: Sizing, target_delay_s: float) -> str:
    """One line for people."""
    if sizing.arrivals_hz is None or sizing.capacity_hz is None or sizing.wanted is None:
        return (
            f"{counted(sizing.waiting, 'message waits', 'messages wait')}, and no call has ended: the number of "
            "members is unknown"
        )
    shares = f"{sizing.arrivals_hz:.3g} messages/s arrive, a member processes {sizing.capacity_hz:.3g}/s"
    clears = "" if sizing.clears_in_s is None else f", gone in {sizing.clears_in_s:.0f} s at the present rate"
    members = counted(sizing.wanted, "member")
    wanted = f"{members} for a delay of {target_delay_s:g} s"
    return f"{shares}, {sizing.waiting} wait{clears}: {wanted}{_LIMITS.get(sizing.why, '').format(queue=sizing.queue)}"


_LIMITS = {
    Why.QUEUE_LIMITS: "; queue {queue} has more than one member can process, which more members do not help",
    Why.NO_MORE_THROUGHPUT: "; the last members that came brought no more throughput",
}


def sizing_json(sizing: Sizing) -> dict[str, Any]:
    """For `--json`: null where it is unknown; `clears_in_s` also where the backlog does not shrink."""
    return {
        "members_wanted": sizing.wanted,
        "arrivals_per_s": _rounded(sizing.arrivals_hz),
        "member_processes_per_s": _rounded(sizing.capacity_hz),
        "service_s": sizing.service_s,
        "waiting": sizing.waiting,
        "clears_in_s": _rounded(sizing.clears_in_s),
        "why": sizing.why.value,
        "queue": sizing.queue,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
