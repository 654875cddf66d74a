"""Proposed change of a group: a merge patch that the API server accepts, and advice for changes that no patch can
make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lbg_core.counted_nouns import counted
from lbg_core.group import STATIC, UNCOUNTED_MODES
from lbg_pipeline.plan.choose import Choice
from lbg_pipeline.plan.manifest import Declared
from lbg_pipeline.plan.simulate import Rules

_EVEN = 1.2
"""The busiest member's load, divided by the mean of all, from which on another number of queues is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The group that is planned for. `hash_count` and `queue_count` are its own, None if unknown;
    `hash_function` is that of the plan, and `is_same_function` whether it is the group's."""

    group: str
    mode: str
    hash_count: int | None
    queue_count: int | None
    hash_function: str
    is_same_function: bool
    declared: Declared | None

    @property
    def has_queues_to_count(self) -> bool:
        return self.mode not in UNCOUNTED_MODES

    @property
    def is_known(self) -> bool:
        """True if the changes that the group accepts are known."""
        return not self.has_queues_to_count or (self.hash_count is not None and self.is_same_function)


@dataclass(frozen=True, slots=True)
class Proposal:
    """`patch` is None if the changes that the group accepts are unknown; then the advice has the reason."""

    patch: dict[str, Any] | None
    advice: tuple[str, ...]


def propose(choice: Choice, subject: Subject, rules: Rules) -> Proposal:
    patch = _patch(choice, subject, rules) if subject.is_known else None
    return Proposal(patch, tuple(_advice(choice, subject, rules, patch)))


def _patch(choice: Choice, subject: Subject, rules: Rules) -> dict[str, Any]:
    """Rules of the CRD that bind here: queues.count <= hash.count, replicas and scaling.maxReplicas <= queues.count,
    minReplicas <= maxReplicas, and scaling has a target. hash.count and hash.function cannot be changed."""
    best, declared = choice.recommended, subject.declared
    spec: dict[str, Any] = {}
    if subject.has_queues_to_count and best.queue_count != subject.queue_count:
        spec["queues"] = {"count": best.queue_count}
    if declared is not None and declared.members_min is None:
        return {"spec": {**spec, "replicas": best.members}}
    is_fewer = best.queue_count < (subject.queue_count or best.queue_count)
    if subject.has_queues_to_count and (
        is_fewer if declared is None else declared.replicas > best.queue_count
    ):
        spec["replicas"] = best.members
    spec["scaling"] = {"minReplicas": choice.members_min, "maxReplicas": best.members}
    if declared is None or declared.target_delay_s != rules.target_delay_s:
        spec["scaling"]["targetDelay"] = _duration(rules)
    return {"spec": spec}


def _duration(rules: Rules) -> str:
    return f"{rules.target_delay_s:g}s"


def _advice(choice: Choice, subject: Subject, rules: Rules, patch: dict[str, Any] | None) -> Iterator[str]:
    best, declared = choice.recommended, subject.declared
    if not best.meets:
        yield (
            f"no candidate keeps below {rules.target:.0%}: the busiest is {best.utilisation_peak:.0%} busy at "
            "the peak with the recommended counts; the limit is a hot key, --max-replicas or the application's speed"
        )
    if not subject.has_queues_to_count:
        yield f"mode {subject.mode} has no number of queues: only replicas are planned, with equal loads"
    elif not subject.is_known:
        yield from _of_a_new_group(choice, subject)
    elif best.queue_count != subject.queue_count:
        yield _repartitioning(choice, subject)
    if patch is not None and "targetDelay" in patch["spec"].get("scaling", ()):
        yield (
            f"the patch sets targetDelay to {_duration(rules)}; other targets of the group remain, and the one that "
            "needs the most replicas applies"
        )
    if declared is not None and declared.members_min is None:
        yield (
            f"the manifest has no scaling, so the replicas are those of the peak; {choice.members_min} are enough "
            "for the mean, and the group scales between the two with scaling: "
            f"{{minReplicas: {choice.members_min}, maxReplicas: {best.members}, targetDelay: {_duration(rules)}}}"
        )
    if patch and rules.assignment == STATIC and declared is not None and declared.members != best.members:
        yield "with assignment Static another number of members moves nearly all queues"
    if choice.members_spared is not None and choice.members_spared > best.members:
        yield f"with {counted(choice.members_spared, 'member')} one may be away at the peak without growing lag"
    if subject.has_queues_to_count:
        yield from _of_the_spread(choice)
    if choice.new_group is not None:
        other = choice.new_group
        yield (
            f"hash.count cannot be changed; a new group with hash.count {other.hash_count} and "
            f"{counted(other.queue_count, 'queue')} would need {counted(other.members, 'member')}, at most "
            f"{other.utilisation_peak:.0%} busy"
        )


def _of_the_spread(choice: Choice) -> Iterator[str]:
    """Members have as many queues, and not as much to do."""
    best = choice.recommended
    if best.spread <= _EVEN:
        return
    same = (best.hash_count, best.members)
    others = [one for one in choice.candidates if (one.hash_count, one.members) == same]
    evener = [one for one in others if one.spread <= _EVEN] or [min(others, key=lambda one: one.spread)]
    other = min(evener, key=lambda one: one.queue_count)
    finding = f"the busiest of {counted(best.members, 'member')} has {best.spread:.2f} times the mean load"
    if other.spread > _EVEN:
        yield f"{finding}, and no number of queues that was tried has a ratio below {other.spread:.2f}"
    else:
        yield f"{finding}; with {counted(other.queue_count, 'queue')} it would have {other.spread:.2f}"


def _of_a_new_group(choice: Choice, subject: Subject) -> Iterator[str]:
    best = choice.recommended
    new = (
        f"make a new group with hash.count {best.hash_count}, hash.function {subject.hash_function} and "
        f"queues.count {best.queue_count}, and move the publishers to it: hash.count and hash.function cannot "
        "be changed"
    )
    if not subject.is_same_function:
        yield f"there is no patch, as the group has another hash function than {subject.hash_function}: {new}"
    else:
        yield (
            "there is no patch, as the journals have too few keys to infer the group's counts: "
            f"name its manifest with --manifest, or {new}"
        )


def _repartitioning(choice: Choice, subject: Subject) -> str:
    best = choice.recommended
    command = f"lbg group repartition {subject.group} --queues {best.queue_count}"
    was = "" if subject.queue_count is None else f" from {subject.queue_count}"
    return (
        f"queues.count changes{was} to {best.queue_count}: the operator does that while publishers go on; without it, "
        f"run `{command}`"
    )
