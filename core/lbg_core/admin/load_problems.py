"""Problems of a group's load: what is too much for a member, by its members' status reports. Pure.

The members decide what has lasted long enough to be reported. How long a call takes depends on its message and on its
member: as in a plan of moves, the second is the median over the other queues of the member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject
from lbg_core.group import ATTRIBUTES, BY_LOAD, GroupSpec, Names
from lbg_core.group.load_plan import moves_from
from lbg_core.group.member_state import Overload, QueueLoad, QueueState
from lbg_core.group.members_protocol import Beat, Load

OVERLOADED_FROM = 1.05
"""Share of what all members can do from which what comes in is too much, if one is behind."""

IDLE_BELOW = 0.7
"""Share of what they can do up to which members have time for queues of others."""


def load_problems(spec: GroupSpec, members: Sequence[Beat]) -> Iterator[Problem]:
    demand = sum(queue.demand for one in members for queue in one.served)
    for member in members:
        for queue in member.served:
            overload = queue.overload
            if overload is not None and overload.demand > overload.calls * _slowness(members, member, queue):
                yield _of_queue(spec, member, queue, overload, _percent(queue.demand, demand))
    if ATTRIBUTES["assignment"].counts_in(spec.mode):
        of_members = [
            problem
            for member in members
            for problem in _of_member(spec, member, [one for one in members if one is not member])
        ]
        yield from of_members or _of_group(spec, [one for one in members if not one.paused])


def _of_queue(spec: GroupSpec, member: Beat, queue: QueueState, overload: Overload, percent: int) -> Problem:
    name = Names(spec.name).queue(queue.queue)
    if overload.key is not None:
        about = Subject(spec.name, name, members=(member.name,), keys=(overload.key,))
        return Problem(Kind.KEY_OVERLOADED, about, {"demand": _about(overload.demand)})
    factor = _about(overload.demand / overload.calls)
    figures = {"factor": factor, "percent": percent, "queues": _finer(spec)}
    return Problem(Kind.QUEUE_OVERLOADED, Subject(spec.name, name, members=(member.name,)), figures)


def _of_member(spec: GroupSpec, member: Beat, others: Sequence[Beat]) -> Iterator[Problem]:
    """Of one that has several queues: others can have some of them, or of smaller ones. By load they get those whose
    move pays."""
    used = sum(queue.demand for one in others for queue in one.served)
    possible = sum(one.concurrency for one in others if not one.paused)
    if member.behind_s and len(member.served) > 1 and used < IDLE_BELOW * possible:
        if spec.assignment == BY_LOAD and _pays(spec, member, others):
            return
        others_s = _service_s(others)
        figures = {
            "behind_s": _about(member.behind_s, digits=1),
            "service_ms": _about(1000 * _service_s([member])),
            "percent": _percent(used, possible),
            "others_ms": _about(1000 * others_s) if others_s else None,
            "are_timed": others_s > 0,
            "queues": _finer(spec),
        }
        kind = Kind.QUEUES_TOO_LARGE if spec.assignment == BY_LOAD else Kind.MEMBER_OVERLOADED
        yield Problem(kind, Subject(spec.name, members=(member.name,)), figures)


def _of_group(spec: GroupSpec, members: Sequence[Beat]) -> Iterator[Problem]:
    """More members help. Of a queue, or a key, that is too much for one of them only what that can do counts."""
    queues = [queue for one in members for queue in one.served]
    needed = sum(min(one.demand, one.overload.calls) if one.overload else one.demand for one in queues)
    possible = sum(one.concurrency for one in members)
    behind = [one for one in members if one.behind_s]
    if behind and needed > OVERLOADED_FROM * possible:
        figures = {
            "factor": _about(needed / possible),
            "count": len(members),
            "behind": len(behind),
            "behind_s": _about(max(one.behind_s for one in behind), digits=1),
            "max_clients": spec.max_clients,
        }
        about = Subject(spec.name, members=tuple(one.name for one in behind))
        yield Problem(Kind.GROUP_OVERLOADED, about, figures)


def _pays(spec: GroupSpec, member: Beat, others: Sequence[Beat]) -> bool:
    """True if a queue of the member may move by load."""
    loads = {
        one.index: Load(
            one.sender,
            one.concurrency,
            tuple(QueueLoad(queue.queue, queue.demand, queue.service_s) for queue in one.served),
        )
        for one in (member, *others)
        if one is member or not one.paused
    }
    pays_from = spec.rebalance_threshold_percent / 100
    return next(moves_from(member.index, loads, pays_from=pays_from), None) is not None


def _finer(spec: GroupSpec) -> int | str:
    """Number of queues with which each has half of its keys; empty where there are no more hashes."""
    return min(2 * spec.queue_count, spec.hash_count) if spec.queue_count < spec.hash_count else ""


def _percent(part: float, all_: float) -> int:
    """To tens."""
    return 10 * round(10 * part / all_) if all_ else 0


def _about(value: float, *, digits: int = 2) -> float:
    """Rounded: a condition is written anew when its message changes."""
    return float(f"{value:.{digits}g}")


def _slowness(members: Sequence[Beat], member: Beat, queue: QueueState) -> float:
    """Factor by which a call takes longer at this member than at others, as its other queues show; 1 at least."""
    own = _median(one.service_s for one in member.served if one is not queue)
    others = _service_s([one for one in members if one is not member])
    return max(1.0, own / others) if own and others else 1.0


def _service_s(members: Sequence[Beat]) -> float:
    """Of a call on average; 0 where it is unknown."""
    return _median(queue.service_s for one in members for queue in one.served)


def _median(times_s: Iterable[float]) -> float:
    known = [one for one in times_s if one > 0]
    return median(known) if known else 0.0
