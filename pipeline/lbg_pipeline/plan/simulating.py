"""What one choice of hash count, queue count and members would have to carry. Pure: loads in, a candidate out."""

from __future__ import annotations

from dataclasses import dataclass

from .demand import Demand, Table, member_loads, queue_loads
from .sharing import Movement, movement, owners_of, without


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """- `concurrency`: calls of the application at once in a member.
    - `queue_is_a_lane`: the messages of a queue are processed one at a time, and not only those of a key.
    - `target`: the share of its time that whatever is busiest may be busy at the peak.
    - `members_max`: no more members than these, however many queues there are.
    """

    assignment: str
    concurrency: int
    queue_is_a_lane: bool
    target: float
    members_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Loads are in calls at once, of the mean and at the peak: each queue's and member's own busiest stretch.

    - `utilisation_*`: of what is busiest, from 0 to 1 and beyond: a member, or a queue where that is a lane.
    - `away_utilisation`: the same at the peak with one member away, the worst one to lose; None for a single member.
    - `spread`: the busiest member's mean load, divided by that of all.
    """

    hash_count: int
    queue_count: int
    members: int
    queue_calls_mean: tuple[float, ...]
    queue_calls_peak: tuple[float, ...]
    member_calls_mean: tuple[float, ...]
    member_calls_peak: tuple[float, ...]
    queue_messages_peak: float
    member_messages_peak: float
    utilisation_mean: float
    utilisation_peak: float
    away_utilisation: float | None
    spread: float
    moved: Movement
    meets: bool


def simulate(demand: Demand, queue_count: int, members: int, rules: Rules) -> Candidate:
    """Members 0 to `members` - 1 share the queues as their assignment tells them."""
    everybody = range(members)
    owners = owners_of(rules.assignment, queue_count, members, everybody)
    queues, messages = queue_loads(demand.calls, queue_count), queue_loads(demand.messages, queue_count)
    loads = member_loads(queues, owners, members)
    utilisation = _utilisation(queues, loads, rules)
    absences = [
        owners_of(rules.assignment, queue_count, members, live)
        for live in (without(everybody, gone) for gone in everybody)
        if live
    ]
    away = [float(member_loads(queues, absence, members).max()) for absence in absences]
    lane = _queue_utilisation(queues, rules)
    return Candidate(
        hash_count=demand.hash_count,
        queue_count=queue_count,
        members=members,
        queue_calls_mean=tuple(queues[0].tolist()),
        queue_calls_peak=tuple(queues.max(axis=0).tolist()),
        member_calls_mean=tuple(loads[0].tolist()),
        member_calls_peak=tuple(loads.max(axis=0).tolist()),
        queue_messages_peak=float(messages.max()),
        member_messages_peak=float(member_loads(messages, owners, members).max()),
        utilisation_mean=_utilisation(queues[:1], loads[:1], rules),
        utilisation_peak=utilisation,
        away_utilisation=max(max(away) / rules.concurrency, lane) if away else None,
        spread=_spread(loads[0]),
        moved=movement(owners, absences),
        meets=utilisation <= rules.target,
    )


def share_freely(demand: Demand, members: int, rules: Rules) -> Candidate:
    """Modes without queues to count: whoever has room takes the next message, so all have the same in the end."""
    calls, messages = demand.calls.sum(axis=1), demand.messages.sum(axis=1)
    mean, peak = float(calls[0]) / members, float(calls.max()) / members
    utilisation = peak / rules.concurrency
    return Candidate(
        hash_count=demand.hash_count,
        queue_count=1,
        members=members,
        queue_calls_mean=(float(calls[0]),),
        queue_calls_peak=(float(calls.max()),),
        member_calls_mean=(mean,) * members,
        member_calls_peak=(peak,) * members,
        queue_messages_peak=float(messages.max()),
        member_messages_peak=float(messages.max()) / members,
        utilisation_mean=mean / rules.concurrency,
        utilisation_peak=utilisation,
        away_utilisation=utilisation * members / (members - 1) if members > 1 else None,
        spread=1.0,
        moved=Movement(0, 0),
        meets=utilisation <= rules.target,
    )


def peak_utilisation(demand: Demand, queues: Table, members: int, rules: Rules) -> float:
    """What `simulate` says of the peak, and nothing else: to look for the fewest members."""
    owners = owners_of(rules.assignment, queues.shape[1], members, range(members))
    return _utilisation(queues, member_loads(queues, owners, members), rules)


def least_utilisation(queues: Table, rules: Rules) -> float:
    """However many members there are: one of them serves the busiest queue."""
    return max(float(queues.max()) / rules.concurrency, _queue_utilisation(queues, rules))


def _utilisation(queues: Table, members: Table, rules: Rules) -> float:
    return max(float(members.max()) / rules.concurrency, _queue_utilisation(queues, rules))


def _queue_utilisation(queues: Table, rules: Rules) -> float:
    return float(queues.max()) if rules.queue_is_a_lane else 0.0


def _spread(loads: Table) -> float:
    mean = float(loads.mean())
    return float(loads.max()) / mean if mean else 1.0
