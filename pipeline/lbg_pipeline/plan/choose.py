"""Choice among candidates, by the load that each would carry.

A member costs a pod, a queue some bindings, a hash nothing much: so of the candidates that meet the target the one with
the fewest members, then the fewest queues, then the fewest hashes. An existing group stays as it is where that does as
well, and gets fewer queues only on request: that would save bindings and cost the space to grow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lbg_pipeline.plan.simulate import (
    Candidate,
    Demand,
    Rules,
    least_utilisation,
    peak_utilisation,
    queue_loads,
    share_freely,
    simulate,
)

HASHES_FOR_EACH_QUEUE = 10
"""The CRD's advice for hash.count: "at least ten times as many as there may be queues"."""

QUEUES_FOR_EACH_MEMBER = 16
"""End of the ladder of queue counts: beyond it the loads of members hardly come closer (docs/pipeline.md)."""

_WORTH_A_CHANGE = 1.1
"""Members that another number of queues has to save before publishers are made to wait for it."""

_AS_GOOD = 1.05
"""Ratio up to which a utilisation counts as equal to the best, when no candidate meets the target."""


@dataclass(frozen=True, slots=True)
class Existing:
    """The group as it is; None for unknown values. Its hash count never changes."""

    hash_count: int | None = None
    queue_count: int | None = None
    members: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """- `recommended`: the best that the group can become as it is; of a new group the best there is.
    - `members_min`: the fewest members that meet the target in the mean.
    - `members_spared`: the fewest with which any one may be away at the peak, None when no number allows it.
    - `existing`: the load with the group's present counts.
    - `new_group`: another hash count that does better than anything the group can become.
    """

    recommended: Candidate
    members_min: int
    members_spared: int | None
    existing: Candidate | None
    new_group: Candidate | None
    candidates: tuple[Candidate, ...]


def queue_ladder(demand: Demand, rules: Rules, hash_count: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16 … as far as it is of use, and the counts that the fewest members share evenly."""
    least = _least_members(demand.total_peak, rules)
    powers = [2**power for power in range(13)]
    steps = {*powers, *(3 * power for power in powers), *(least * power for power in powers)}
    return sorted(step for step in steps if step <= min(hash_count, QUEUES_FOR_EACH_MEMBER * least))


def choose(
    demands: Sequence[Demand],
    queue_counts: Sequence[int] | None,
    rules: Rules,
    existing: Existing,
) -> Choice:
    """Tries every hash count with every number of queues (None: a ladder of them), each with the fewest members that
    meet the target. There is a demand of the existing hash count."""
    pairs = [
        (demand, count) for demand in demands for count in _counts(demand, queue_counts, rules, existing)
    ]
    tried: list[Candidate] = []
    enough: dict[int, int] = {}
    for demand, queue_count in pairs:
        one = _with_fewest_members(demand, queue_count, rules, enough=enough.get(demand.hash_count))
        if one.meets:
            enough[demand.hash_count] = min(one.members, enough.get(demand.hash_count, one.members))
        tried.append(one)
    here = [one for one in tried if existing.hash_count in (None, one.hash_count)]
    if existing.queue_count is not None and queue_counts is None:
        here = [one for one in here if one.queue_count >= existing.queue_count]
    best = _least_change(here, best_of(here), existing)
    demand = next(one for one in demands if one.hash_count == best.hash_count)
    elsewhere = best_of(tried)
    is_worth_it = (elsewhere.meets and not best.meets) or elsewhere.members * _WORTH_A_CHANGE < best.members
    now = _existing(demands, rules, existing)
    others = [
        simulate(demand, one.queue_count, best.members, rules)
        for one in tried
        if one.hash_count == best.hash_count
        and best.members <= one.queue_count
        and one.members != best.members
    ]
    return Choice(
        recommended=best,
        members_min=_with_fewest_members(demand.mean_alone(), best.queue_count, rules).members,
        members_spared=_spared(demand, best, rules),
        existing=now,
        new_group=elsewhere if is_worth_it and elsewhere.hash_count != best.hash_count else None,
        candidates=_distinct([*tried, *others, *([now] if now else [])]),
    )


def choose_freely(demand: Demand, rules: Rules, existing: Existing) -> Choice:
    """Of modes without queues to count: members alone."""
    members = min(rules.members_max, _least_members(demand.total_peak, rules))
    fewest = min(members, _least_members(demand.total_mean, rules))
    counts = {*range(1, 2 * members + 1), existing.members or 1}
    candidates = {count: share_freely(demand, count, rules) for count in sorted(counts)}
    spared = [
        count
        for count, one in candidates.items()
        if members <= count <= rules.members_max
        and one.away_utilisation is not None
        and one.away_utilisation <= 1
    ]
    return Choice(
        recommended=candidates[members],
        members_min=fewest,
        members_spared=spared[0] if spared else None,
        existing=candidates[existing.members] if existing.members else None,
        new_group=None,
        candidates=tuple(candidates.values()),
    )


def best_of(candidates: Iterable[Candidate]) -> Candidate:
    """Of those that meet the target the cheapest; if none does, the cheapest of the least busy."""
    everyone = list(candidates)
    least = min(one.utilisation_peak for one in everyone)
    good = [one for one in everyone if one.meets] or [
        one for one in everyone if one.utilisation_peak <= least * _AS_GOOD
    ]
    return min(good, key=_cost)


def _cost(one: Candidate) -> tuple[int, int, bool, int]:
    is_short = one.hash_count < HASHES_FOR_EACH_QUEUE * one.queue_count
    return one.members, one.queue_count, is_short, one.hash_count


def _counts(
    demand: Demand, queue_counts: Sequence[int] | None, rules: Rules, existing: Existing
) -> list[int]:
    """The most first: they need the fewest members, and so bound the search with the others."""
    if queue_counts is not None:
        counts = set(queue_counts)
    else:
        counts = set(queue_ladder(demand, rules, demand.hash_count))
        if existing.queue_count is not None and existing.hash_count in (None, demand.hash_count):
            counts.add(existing.queue_count)
    return sorted((count for count in counts if count <= demand.hash_count), reverse=True)


def _with_fewest_members(
    demand: Demand, queue_count: int, rules: Rules, *, enough: int | None = None
) -> Candidate:
    """The mean of all members is no busier than the busiest, so fewer than are tried cannot suffice. More than
    `enough`, which suffice with another number of queues, are tried only as far as a choice would have them."""
    queues = queue_loads(demand.calls, queue_count)
    floor = least_utilisation(queues, rules)
    most = min(queue_count, rules.members_max)
    first = min(most, _least_members(demand.total_peak, rules))
    if floor <= rules.target:
        last = most if enough is None else max(first, min(most, math.floor(enough * _WORTH_A_CHANGE)))
    else:  # one queue alone is too busy: many members are of no more use than a few
        first = min(most, max(first, enough or 0))
        last = min(most, 4 * first) if enough is None else first
    good_enough = rules.target if floor <= rules.target else floor * _AS_GOOD
    best, lowest = first, math.inf
    for members in range(first, last + 1):
        utilisation = peak_utilisation(demand, queues, members, rules)
        if utilisation < lowest:
            best, lowest = members, utilisation
        if utilisation <= good_enough:
            break
    return simulate(demand, queue_count, best, rules)


def _least_change(candidates: Sequence[Candidate], best: Candidate, existing: Existing) -> Candidate:
    """A change of the number of queues makes publishers wait: it has to be worth that."""
    for one in candidates:
        if one.queue_count == existing.queue_count and one.hash_count == best.hash_count:
            is_as_good = one.meets or one.utilisation_peak <= best.utilisation_peak * _AS_GOOD
            if is_as_good and one.meets == best.meets and one.members <= best.members * _WORTH_A_CHANGE:
                return one
    return best


def _spared(demand: Demand, best: Candidate, rules: Rules) -> int | None:
    for members in range(max(2, best.members), min(best.queue_count, rules.members_max) + 1):
        away = simulate(demand, best.queue_count, members, rules).away_utilisation
        if away is not None and away <= 1:
            return members
        if members > 4 * best.members:
            return None
    return None


def _existing(demands: Sequence[Demand], rules: Rules, existing: Existing) -> Candidate | None:
    if existing.hash_count is None or existing.queue_count is None or existing.members is None:
        return None
    demand = next(one for one in demands if one.hash_count == existing.hash_count)
    return simulate(demand, existing.queue_count, min(existing.members, existing.queue_count), rules)


def _least_members(calls: float, rules: Rules) -> int:
    return max(1, math.ceil(calls / (rules.concurrency * rules.target) - 1e-9))


def _distinct(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    by_counts = {(one.hash_count, one.queue_count, one.members): one for one in candidates}
    return tuple(by_counts[counts] for counts in sorted(by_counts))
