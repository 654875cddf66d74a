"""Plan of one group: its load, the choice, and the proposed change."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pyspark.sql import Row

from lbg_core.group import ATTRIBUTES, BALANCED, EXCLUSIVE, SESSIONS, default_assignment
from lbg_pipeline.errors import PlanRefused
from lbg_pipeline.plan.candidates import hot_keys
from lbg_pipeline.plan.choose import Choice, Existing, choose, choose_freely
from lbg_pipeline.plan.load import Observed, demands
from lbg_pipeline.plan.manifest import Declared, Recognised, Stamp, first_stranger, recognise
from lbg_pipeline.plan.propose import Proposal, Subject, propose
from lbg_pipeline.plan.simulate import Rules

HASH_COUNTS = (128, 256, 512, 1024, 2048)
HOT_KEYS_MAX = 1000
"""Rows of the table, the hottest."""

MEMBERS_MAX = 4096
"""The CRD's."""

CONCURRENCY = 16
"""The sidecar's (docs/sidecar.md)."""

TARGET_DELAY_S = 10.0
"""For a group whose manifest has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Options of the user; None is for the plan to choose."""

    growth: float = 1.0
    target: float = 0.7
    target_delay_s: float | None = None
    hash_counts: tuple[int, ...] | None = None
    queue_counts: tuple[int, ...] | None = None
    members_max: int | None = None
    concurrency: int | None = None
    hash_function: str | None = None
    assignment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`calls_mean` and `calls_peak`: of the whole group, at once. `hottest` are rows of HOT_KEYS."""

    subject: Subject
    rules: Rules
    growth: float
    calls_mean: float
    calls_peak: float
    choice: Choice
    proposal: Proposal
    hottest: tuple[Row, ...]


def plan_for(
    observed: Observed,
    wishes: Wishes,
    declared: Declared | None,
    *,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Plan:
    """Raises PlanRefused. `on_phase` hears what begins."""
    recognised = recognise(observed.stamps)
    if declared is not None:
        _require_same(declared, observed.stamps)
    subject = _subject(observed, recognised, wishes, declared)
    rules = _rules(subject, wishes, declared, max(1.0, observed.service_time_us) / 1e6)
    existing = Existing(
        subject.hash_count if subject.is_known else None,
        subject.queue_count if subject.is_known else None,
        None if declared is None else declared.members,
    )
    if subject.has_queues_to_count:
        counts = set(wishes.hash_counts or HASH_COUNTS)
        if existing.hash_count is not None:
            counts.add(existing.hash_count)
        hash_counts = sorted(counts)
        most = existing.hash_count or hash_counts[-1]
        if wishes.queue_counts is not None and wishes.queue_counts[0] > most:
            raise PlanRefused(
                f"--queue-counts has only numbers above the hash count, {most}, and each queue needs a hash: "
                "give a lower number"
            )
    else:
        hash_counts = [subject.hash_count or 1]
    on_phase("summing the loads of hashes")
    all_of_it = demands(
        observed,
        hash_counts,
        subject.hash_function,
        growth=wishes.growth,
        has_order=subject.mode != SESSIONS,
    )
    on_phase("trying candidates")
    if subject.has_queues_to_count:
        choice = choose(all_of_it, wishes.queue_counts, rules, existing)
    else:
        choice = choose_freely(all_of_it[0], rules, existing)
    on_phase("searching for hot keys")
    hot = hot_keys(
        observed.keys,
        hash_count=choice.recommended.hash_count,
        queue_count=choice.recommended.queue_count,
        function=subject.hash_function,
        span_us=observed.span_us,
        peak_span_us=observed.peak_span_us,
        growth=wishes.growth,
        target=wishes.target,
        has_order=subject.mode != SESSIONS,
    ).limit(HOT_KEYS_MAX)
    return Plan(
        subject=subject,
        rules=rules,
        growth=wishes.growth,
        calls_mean=all_of_it[0].total_mean,
        calls_peak=all_of_it[0].total_peak,
        choice=choice,
        proposal=propose(choice, subject, rules),
        hottest=tuple(hot.collect()),
    )


def _require_same(declared: Declared, stamps: Collection[Stamp]) -> None:
    stranger = first_stranger(stamps, declared.hash_count, declared.hash_function)
    if stranger is not None:
        raise PlanRefused(
            f"the manifest is not of the group in the journals: there key {stranger.key!r:.60} has hash "
            f"{stranger.hash}, and another with hash.count {declared.hash_count} and "
            f"{declared.hash_function}: correct --manifest or --group"
        )


def _subject(
    observed: Observed, recognised: Recognised, wishes: Wishes, declared: Declared | None
) -> Subject:
    if declared is not None:
        function: str | None = declared.hash_function
        hash_count: int | None = declared.hash_count
        queue_count: int | None = declared.queue_count
    else:
        function, hash_count, queue_count = (
            recognised.hash_function,
            recognised.hash_count,
            recognised.queue_count,
        )
    hash_function = wishes.hash_function or function or "crc32"
    return Subject(
        group=observed.group,
        mode=_mode(observed, declared),
        hash_count=hash_count,
        queue_count=queue_count,
        hash_function=hash_function,
        is_same_function=function in (None, hash_function),
        declared=declared,
    )


def _mode(observed: Observed, declared: Declared | None) -> str:
    if declared is not None:
        return declared.mode
    if len(observed.modes) > 1:
        raise PlanRefused(
            f"the journals have the group in modes {' and '.join(observed.modes)}: give those of one mode "
            "with --journal"
        )
    return observed.modes[0] if observed.modes else EXCLUSIVE


def _rules(subject: Subject, wishes: Wishes, declared: Declared | None, service_s: float) -> Rules:
    assignment = wishes.assignment or (
        default_assignment(subject.mode) if declared is None else declared.assignment
    )
    if assignment != BALANCED and not ATTRIBUTES["assignment"].counts_in(subject.mode):
        raise PlanRefused(
            f"--assignment {assignment} is for modes Exclusive and Partitioned, and the group is in mode {subject.mode}"
        )
    is_a_lane = subject.mode == SESSIONS if declared is None else declared.queue_is_a_lane
    concurrency = wishes.concurrency or (CONCURRENCY if declared is None else declared.concurrency)
    target_delay_s = (
        wishes.target_delay_s or (None if declared is None else declared.target_delay_s) or TARGET_DELAY_S
    )
    return Rules(
        assignment=assignment,
        # The one queue of all is a lane in each member: calls one after another.
        concurrency=1 if is_a_lane and not subject.has_queues_to_count else concurrency,
        queue_is_a_lane=is_a_lane,
        service_s=service_s,
        target_utilisation=wishes.target,
        target_delay_s=target_delay_s,
        members_max=wishes.members_max or MEMBERS_MAX,
    )
