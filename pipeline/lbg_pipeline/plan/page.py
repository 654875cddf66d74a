"""Plan as a page: the choice, and the distribution of load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes

from lbg_core.counted_nouns import counted
from lbg_pipeline.html import Bar, Canvas, Column, Fact, Facts, Figure, Note, Row, Section, Table, drawn, page
from lbg_pipeline.html.charts import formatted, legend
from lbg_pipeline.html.numbers import count, duration, rate
from lbg_pipeline.html.page import ALARM, MUTED, SERIES
from lbg_pipeline.plan.candidates import summary
from lbg_pipeline.plan.load import Observed
from lbg_pipeline.plan.recommend import Plan
from lbg_pipeline.plan.report import (
    delay_text,
    key_word,
    peak_text,
    percent,
    same_members,
    shown_candidates,
)
from lbg_pipeline.plan.simulate import Candidate

_SHOWN_KEYS = 30


def plan_page(plan: Plan, observed: Observed) -> str:
    subject = plan.subject
    sections = [
        Section("Recommendation", [_facts(plan), *_notes(plan)]),
        Section("Candidates", [*_figures(plan), _candidates(plan)]),
        Section("Hot keys", list(_hot_keys(plan)), "One key is served one call at a time, by one member."),
    ]
    return page(
        f"Plan for group {subject.group}",
        sections,
        subtitle=(
            f"mode {subject.mode}; {count(observed.messages)} {'message' if observed.messages == 1 else 'messages'} "
            f"in {duration(observed.span_us)}, "
            f"{duration(observed.service_time_us)} of service time each; busiest minute {peak_text(observed)}"
            + (f"; {plan.growth:g} times the demand" if plan.growth != 1 else "")
        ),
        made_by="made by lbg pipeline plan",
    )


def _facts(plan: Plan) -> Facts:
    choice, rules = plan.choice, plan.rules
    best, now = choice.recommended, choice.existing
    facts = []
    if plan.subject.has_queues_to_count:
        facts += [
            Fact("hashes", str(best.hash_count), "" if now is None else f"now {now.hash_count}"),
            Fact("queues", str(best.queue_count), "" if now is None else f"now {now.queue_count}"),
        ]
    return Facts(
        [
            *facts,
            Fact("members", f"{choice.members_min} to {best.members}", "for the mean, and for the peak"),
            Fact(
                "concurrent calls",
                f"{plan.calls_peak:.3g}",
                f"at the peak; {plan.calls_mean:.3g} in the mean",
            ),
            Fact("capacity of a member", rate(rules.capacity_hz), "messages"),
            Fact("busiest member", percent(best.utilisation_peak), f"at the peak; target {rules.target:.0%}"),
            Fact(
                "delay",
                delay_text(best),
                f"of the slowest message in a hundred at the peak; target {rules.target_delay_s:g} s",
            ),
            Fact("with one away", percent(best.away_utilisation), "at the peak, in the worst case"),
        ]
    )


def _notes(plan: Plan) -> Iterator[Note]:
    """Advice as notes; the first one warns when the target is not met."""
    for number, line in enumerate(plan.proposal.advice):
        yield Note(line, warns=number == 0 and not plan.choice.recommended.meets)


def _figures(plan: Plan) -> Iterator[Row | Figure]:
    if not plan.subject.has_queues_to_count:
        yield _against_members(plan)
        return
    yield Row([_against_queues(plan), _of_queues(plan)])


def _against_queues(plan: Plan) -> Figure:
    best = plan.choice.recommended
    candidates = same_members(plan)
    queues = [one.queue_count for one in candidates]

    def draw(canvas: Canvas) -> None:
        axes = canvas.sheet.add_subplot()
        peak, mean, even = SERIES[0].light, SERIES[2].light, MUTED.light
        axes.plot(queues, [max(one.member_calls_peak) for one in candidates], "o-", color=peak, label="peak")
        axes.plot(queues, [max(one.member_calls_mean) for one in candidates], "o-", color=mean, label="mean")
        axes.axhline(plan.calls_peak / best.members, color=even, linestyle=":", label="peak, evenly shared")
        axes.axhline(
            plan.rules.target * plan.rules.concurrency, color=ALARM.light, linestyle="--", label="target"
        )
        axes.axvline(best.queue_count, color=even, linewidth=1)
        axes.set_xscale("log", base=2)
        _ticks(axes, queues, best.queue_count)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("queues")
        axes.set_ylabel("concurrent calls of the busiest member")
        formatted(axes.yaxis, lambda value: f"{value:.3g}")
        legend(canvas, axes, 2)

    return drawn(
        draw,
        title=f"Busiest of {counted(best.members, 'member')}, by the number of queues",
        caption="More queues split the keys more finely; the dotted line is the least that any split can have.",
        is_half=True,
    )


def _of_queues(plan: Plan) -> Figure:
    best = plan.choice.recommended

    def draw(canvas: Canvas) -> None:
        axes = canvas.sheet.add_subplot()
        places = np.arange(best.queue_count)
        axes.bar(places, best.queue_calls_peak, color=SERIES[4].light, label="peak")
        axes.bar(places, best.queue_calls_mean, color=SERIES[0].light, label="mean")
        axes.axhline(
            float(np.mean(best.queue_calls_mean)),
            color=MUTED.light,
            linestyle=":",
            label="mean of all queues",
        )
        axes.set_xlabel("queue")
        axes.set_ylabel("concurrent calls")
        axes.xaxis.set_major_locator(ticker.MaxNLocator(8, integer=True))
        formatted(axes.yaxis, lambda value: f"{value:.3g}")
        legend(canvas, axes, 3)

    return drawn(
        draw,
        title=f"Load of each of {counted(best.queue_count, 'queue')}",
        caption="With the recommended counts: the mean of each queue, and its busiest minute.",
        is_half=True,
    )


def _against_members(plan: Plan) -> Figure:
    candidates = plan.choice.candidates

    def draw(canvas: Canvas) -> None:
        axes = canvas.sheet.add_subplot()
        members = [one.members for one in candidates]
        axes.plot(members, [one.utilisation_peak * 100 for one in candidates], "o-", label="peak")
        axes.plot(members, [one.utilisation_mean * 100 for one in candidates], "o-", label="mean")
        axes.axhline(plan.rules.target * 100, color=ALARM.light, linestyle="--", label="target")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("members")
        axes.set_ylabel("busy (%)")
        legend(canvas, axes)

    return drawn(
        draw,
        title="Utilisation of members, by their number",
        caption="In this mode all members have equal loads.",
    )


def _ticks(axes: Axes, queues: Sequence[int], marked: int) -> None:
    """At counts that were tried, with room between them; at `marked` in any case."""
    shown = [marked]
    for one in queues:
        if all(max(one, other) >= 1.3 * min(one, other) for other in shown):
            shown.append(one)
    axes.set_xticks(shown, [str(one) for one in shown])
    axes.set_xticks([], minor=True)


def _candidates(plan: Plan) -> Table:
    titles = [
        "hashes",
        "queues",
        "members",
        "member, mean",
        "member, peak",
        "queue, peak",
        "busy at the peak",
    ]
    titles += ["delay", "one away", "spread", "a join moves"]
    return Table(
        [Column(""), *(Column(title, numeric=True) for title in titles)],
        [_row(label, one) for label, one in shown_candidates(plan)],
        title="Loads in concurrent calls",
        left_out="Table candidates has all of them, with the load of each queue and member.",
    )


def _row(label: str, one: Candidate) -> list[str | Bar]:
    values = summary(one)
    return [
        label,
        str(one.hash_count),
        str(one.queue_count),
        str(one.members),
        f"{values['max_member_load_mean']:.3g}",
        f"{values['max_member_load_peak']:.3g}",
        f"{values['max_queue_load_peak']:.3g}",
        Bar(percent(one.utilisation_peak), min(1.0, one.utilisation_peak)),
        delay_text(one),
        percent(one.away_utilisation),
        f"{one.spread:.2f}",
        str(one.moved.join),
    ]


def _hot_keys(plan: Plan) -> Iterator[Table | Note]:
    if not plan.hottest:
        yield Note(
            "No key is near the limit of one call at a time, and none has most of the load of a busy queue."
        )
        return
    yield Table(
        [
            Column("key"),
            Column("why"),
            *(Column(title, numeric=True) for title in ("peak", "mean", "queue", "of it")),
        ],
        [
            [
                row["key"],
                key_word(row),
                Bar(percent(row["peak_load"]), min(1.0, row["peak_load"])),
                percent(row["mean_load"]),
                str(row["queue"]),
                percent(row["share_of_queue"]),
            ]
            for row in plan.hottest[:_SHOWN_KEYS]
        ],
        title="Utilisation of the one call at a time that a key allows",
        left_out="" if len(plan.hottest) <= _SHOWN_KEYS else "Table hot_keys has the others.",
    )
