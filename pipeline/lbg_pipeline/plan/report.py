"""Plan as text, as JSON, and as a patch file."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import yaml

from lbg_core.command_output import text_table
from lbg_core.counted_nouns import counted
from lbg_pipeline.html.numbers import count, duration
from lbg_pipeline.plan.candidates import summary
from lbg_pipeline.plan.choose import Choice
from lbg_pipeline.plan.load import MINUTE_US, Observed
from lbg_pipeline.plan.recommend import Plan
from lbg_pipeline.plan.simulate import Candidate

_SHOWN_KEYS = 10
_SHOWN_COUNTS = 8
_HEADER = (
    "",
    "hashes",
    "queues",
    "members",
    "member mean",
    "member peak",
    "queue peak",
    "busy at peak",
    "delay",
    "one away",
    "spread",
    "join moves",
)


def plan_lines(plan: Plan, observed: Observed, *, broken: int = 0) -> Iterator[str]:
    """The report as text. `broken`: lines of the journals that are no records."""
    subject, rules, choice = plan.subject, plan.rules, plan.choice
    yield (
        f"group {subject.group}, mode {subject.mode}: {counted(observed.messages, 'message')} in "
        f"{duration(observed.span_us)}, {duration(observed.service_time_us)} of service time each"
    )
    growth = f", with {plan.growth:g} times the demand" if plan.growth != 1 else ""
    yield (
        f"concurrent calls: {plan.calls_mean:.3g} in the mean, {plan.calls_peak:.3g} at the peak "
        f"({peak_text(observed)}){growth}"
    )
    yield (
        f"a member makes {counted(rules.concurrency, 'concurrent call')}, can process {count(rules.capacity_hz)} "
        "messages/s, and "
        f"should be at most {rules.target:.0%} busy at the peak; assignment {rules.assignment}, hash function "
        f"{subject.hash_function}"
    )
    if broken:
        yield (
            f"{counted(broken, 'line is not a record and is', 'lines are not records and are')} ignored: table broken "
            "has them with the reason"
        )
    yield ""
    yield from text_table(_HEADER, [_cells(label, one) for label, one in shown_candidates(plan)], names=1)
    yield ""
    yield f"recommended: {_counts(plan)}{members_text(choice)}"
    yield (
        "at the peak messages wait longer and longer: the busiest member or queue cannot keep up"
        if choice.recommended.delay_peak_us is None
        else f"at the peak one message in a hundred waits {delay_text(choice.recommended)} or longer"
    )
    yield from _hot_lines(plan)
    yield from (f"- {line}" for line in plan.proposal.advice)


def members_text(choice: Choice) -> str:
    least, most = choice.members_min, choice.recommended.members
    if least == most:
        return f"{counted(most, 'member')}, for the mean and for the peak" if most > 1 else "1 member"
    return f"{least} to {counted(most, 'member')} ({least} for the mean, {most} for the peak)"


def shown_candidates(plan: Plan) -> Iterator[tuple[str, Candidate]]:
    """Candidates of the report, with their labels: the existing counts, the recommended ones, and the same members
    with other numbers of queues."""
    choice = plan.choice
    best = choice.recommended
    if choice.existing is not None:
        yield "now", choice.existing
    yield "recommended", best
    if choice.new_group is not None:
        yield "new group", choice.new_group
    others = [one for one in same_members(plan) if one != best]
    nearest = sorted(others, key=lambda one: abs(one.queue_count - best.queue_count))[:_SHOWN_COUNTS]
    yield from (("", one) for one in others if one in nearest)


def same_members(plan: Plan) -> list[Candidate]:
    """The candidates that differ from the recommended one in queues alone, by their number."""
    best = plan.choice.recommended
    return [
        one
        for one in plan.choice.candidates
        if (one.hash_count, one.members) == (best.hash_count, best.members)
    ]


def plan_json(plan: Plan, observed: Observed, *, broken: int = 0) -> dict[str, Any]:
    """For programs: names as in the tables; loads are concurrent calls."""
    subject, rules, choice = plan.subject, plan.rules, plan.choice
    return {
        "group": subject.group,
        "mode": subject.mode,
        "hash_function": subject.hash_function,
        "assignment": rules.assignment,
        "concurrency": rules.concurrency,
        "capacity_messages_per_second": rules.capacity_hz,
        "target_utilisation": rules.target,
        "target_delay_seconds": rules.target_delay_s,
        "growth": plan.growth,
        "messages": observed.messages,
        "messages_without_key": observed.keyless,
        "broken_lines": broken,
        "span_us": observed.span_us,
        "service_time_us": observed.service_time_us,
        "load_mean": plan.calls_mean,
        "load_peak": plan.calls_peak,
        "peak_minute": peak_minute(observed).isoformat(),
        "recommended": {
            **summary(choice.recommended),
            "min_replicas": choice.members_min,
            "max_replicas": choice.recommended.members,
            "replicas_with_one_away": choice.members_spared,
        },
        "existing": None if choice.existing is None else summary(choice.existing),
        "new_group": None if choice.new_group is None else summary(choice.new_group),
        "hot_keys": [row.asDict() for row in plan.hottest],
        "patch": plan.proposal.patch,
        "advice": list(plan.proposal.advice),
    }


def patch_yaml(plan: Plan) -> str:
    """For `kubectl patch --patch-file`."""
    declared = plan.subject.declared
    name = "NAME" if declared is None else declared.name
    comments = (f"# {line}\n" for line in plan.proposal.advice)
    return (
        f"# kubectl patch lbg {name} --type merge --patch-file patch.yaml\n"
        f"{''.join(comments)}{yaml.safe_dump(plan.proposal.patch, sort_keys=False)}"
    )


def peak_minute(observed: Observed) -> dt.datetime:
    return dt.datetime.fromtimestamp(observed.minutes[0] * MINUTE_US / 1e6, dt.UTC)


def peak_text(observed: Observed) -> str:
    return f"{peak_minute(observed):%Y-%m-%d %H:%M} UTC"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def key_word(row: Any) -> str:
    """Reason for which a key is reported."""
    if row["is_too_hot"]:
        return "too hot for any split"
    return "hot" if row["is_hot"] else "most of its queue"


def _cells(label: str, one: Candidate) -> list[str]:
    values = summary(one)
    return [
        label,
        str(one.hash_count),
        str(one.queue_count),
        str(one.members),
        f"{values['max_member_load_mean']:.3g}",
        f"{values['max_member_load_peak']:.3g}",
        f"{values['max_queue_load_peak']:.3g}",
        percent(one.utilisation_peak),
        delay_text(one),
        percent(one.away_utilisation),
        f"{one.spread:.2f}",
        str(one.moved.join),
    ]


def delay_text(one: Candidate) -> str:
    return "grows" if one.delay_peak_us is None else duration(one.delay_peak_us)


def _counts(plan: Plan) -> str:
    best = plan.choice.recommended
    if not plan.subject.has_queues_to_count:
        return ""
    return f"{counted(best.hash_count, 'hash', 'hashes')}, {counted(best.queue_count, 'queue')}, "


def _hot_lines(plan: Plan) -> Iterator[str]:
    for row in plan.hottest[:_SHOWN_KEYS]:
        yield (
            f"key {row['key']!r:.60}: {key_word(row)}; {row['peak_load']:.2f} of the one call at a time that "
            f"it allows, in its busiest minute ({row['mean_load']:.2f} in the mean), {row['share_of_queue']:.0%} "
            f"of queue {row['queue']}"
        )
    if any(row["is_too_hot"] for row in plan.hottest):
        yield "a key that is too hot is planned as one call: its lag grows with any number of queues and members"
    if len(plan.hottest) > _SHOWN_KEYS:
        yield f"and {counted(len(plan.hottest) - _SHOWN_KEYS, 'more key')} in table hot_keys"
