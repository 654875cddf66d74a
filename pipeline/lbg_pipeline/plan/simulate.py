"""Simulation of a choice of hashes, queues and members. Pure: loads in, a candidate out.

Work is measured in *calls at once*: seconds of service time for each second. A key never has more than one call at
once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lbg_core.group import STATIC, balanced_primaries, queue_of, static_primaries
from lbg_core.group.sizing import busy_share, delay_s

Owners = Sequence[int | None]


def owners_of(assignment: str, queue_count: int, members: int, live: Collection[int]) -> Owners:
    """For each queue the index that should serve it; with ByLoad before any has moved. With Static, `members` is its
    client count, and a queue whose primary is away is None: any other member may serve it."""
    primaries: dict[int, int | None] = (
        static_primaries(queue_count, members, live)
        if assignment == STATIC
        else dict(balanced_primaries(queue_count, live))
    )
    return [primaries[queue] for queue in range(queue_count)]


@dataclass(frozen=True, slots=True)
class Movement:
    """Queues whose primary changes: `join` when the last of the members joins the others, `leave_max` when the
    worst one of them to lose leaves. A return moves as many as the leave before it."""

    join: int
    leave_max: int


def movement(together: Owners, absences: Sequence[Owners]) -> Movement:
    """Between all members and all but one, for each that may be the one. The only one takes every queue."""
    moved = [_changed(together, absence) for absence in absences] or [len(together)]
    return Movement(moved[-1], max(moved))


def without(members: Collection[int], away: int) -> list[int]:
    return [member for member in members if member != away]


def _changed(before: Owners, after: Owners) -> int:
    return sum(one != other for one, other in zip(before, after, strict=True))


Table = npt.NDArray[np.float64]
"""A row for each stretch of time: the first is all that was observed, the others are its busiest minutes."""


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Demand of each of `hash_count` hashes; `calls` at once and `messages` a second, a column for each hash."""

    hash_count: int
    calls: Table
    messages: Table

    @property
    def total_mean(self) -> float:
        """Calls at once of the whole group, over all that was observed."""
        return float(self.calls[0].sum())

    @property
    def total_peak(self) -> float:
        """The same in its busiest stretch."""
        return float(self.calls.sum(axis=1).max())

    def mean_alone(self) -> Demand:
        """As if every minute were like the mean."""
        return Demand(self.hash_count, self.calls[:1], self.messages[:1])


def queue_loads(loads: Table, queue_count: int) -> Table:
    """From a column for each hash to a column for each queue."""
    queues = np.array([queue_of(hash_, queue_count) for hash_ in range(loads.shape[1])])
    return _summed(loads, queues, queue_count)


def member_loads(loads: Table, owners: Owners, members: int) -> Table:
    """From a column for each queue to a column for each member. Queues without a primary all count for the busiest
    member: the worst case."""
    held = np.array([-1 if owner is None else owner for owner in owners])
    served = held >= 0
    result = _summed(loads[:, served], held[served], members)
    busiest = result.argmax(axis=1)
    result[np.arange(len(result)), busiest] += loads[:, ~served].sum(axis=1)
    return result


def _summed(loads: Table, places: npt.NDArray[np.int64], count: int) -> Table:
    result = np.zeros((count, loads.shape[0]))
    np.add.at(result, places, loads.T)
    return result.T


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """- `concurrency`: calls of the application at once in a member.
    - `queue_is_a_lane`: the messages of a queue are processed one at a time, and not only those of a key.
    - `service_s`: seconds of a call, in the mean.
    - `target_utilisation`: the share of its time that the busiest member or queue may be busy at the peak.
    - `target_delay_s`: the time that a new message may wait, to which the group is to scale.
    - `members_max`: no more members than these, however many queues there are.
    """

    assignment: str
    concurrency: int
    queue_is_a_lane: bool
    service_s: float
    target_utilisation: float
    target_delay_s: float
    members_max: int

    @property
    def capacity_hz(self) -> float:
        """Messages a second that a member can process."""
        return self.concurrency / self.service_s

    @property
    def target(self) -> float:
        """The utilisation that meets both targets."""
        return min(self.target_utilisation, busy_share(self.service_s, self._calls, self.target_delay_s))

    def delay_us(self, utilisation: float) -> int | None:
        """Time that the slowest message in a hundred waits; None where the backlog grows."""
        seconds = delay_s(self.service_s, self._calls, utilisation)
        return None if math.isinf(seconds) else round(seconds * 1e6)

    @property
    def _calls(self) -> int:
        """At once, of what can be busiest."""
        return 1 if self.queue_is_a_lane else self.concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Loads are in calls at once, of the mean and at the peak: each queue's and member's own busiest stretch.

    - `utilisation_*`: of the busiest member, or of the busiest queue where that is a lane, from 0 to 1 and beyond.
        - `away_utilisation`: the same at the peak with one member away, the worst one to lose; None for a single
          member.
        - `delay_peak_us`: of the slowest message in a hundred at the peak; None where the backlog grows.
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
    delay_peak_us: int | None
    spread: float
    moved: Movement
    meets: bool


def simulate(demand: Demand, queue_count: int, members: int, rules: Rules) -> Candidate:
    """Members 0 to `members` - 1 share the queues by their assignment."""
    everybody = range(members)
    owners = owners_of(rules.assignment, queue_count, members, everybody)
    queues, messages = queue_loads(demand.calls, queue_count), queue_loads(demand.messages, queue_count)
    loads = member_loads(queues, owners, members)
    utilisation = _utilisation(queues, loads, rules)
    absences = [
        owners_of(rules.assignment, queue_count, members, live)
        for live in (without(everybody, crashed) for crashed in everybody)
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
        delay_peak_us=rules.delay_us(utilisation),
        spread=_spread(loads[0]),
        moved=movement(owners, absences),
        meets=utilisation <= rules.target,
    )


def share_freely(demand: Demand, members: int, rules: Rules) -> Candidate:
    """Modes without queues to count: the member with space in its window receives the next message, so all have the
    same load in the end."""
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
        delay_peak_us=rules.delay_us(utilisation),
        spread=1.0,
        moved=Movement(0, 0),
        meets=utilisation <= rules.target,
    )


def peak_utilisation(demand: Demand, queues: Table, members: int, rules: Rules) -> float:
    """Utilisation at the peak, as by `simulate`: to search for the fewest members."""
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
