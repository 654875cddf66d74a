"""Forecast as a page, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import dates

from lbg_core.counted_nouns import counted
from lbg_pipeline.forecast.model import DAY_S, SECOND_US, ForecastSettings
from lbg_pipeline.forecast.result import Planned, shown
from lbg_pipeline.forecast.schedule import rfc3339
from lbg_pipeline.html import Canvas, Column, Fact, Facts, Figure, Note, Section, Table, drawn, page
from lbg_pipeline.html.charts import at, formatted, legend, time_axis
from lbg_pipeline.html.numbers import count, share, three_figures, whole
from lbg_pipeline.html.page import OTHERS, SERIES

DRAWN_HISTORY_S = 28 * DAY_S
DRAWN_BACKTEST_S = 14 * DAY_S
OURS, NAIVE, CAME = SERIES[0].light, SERIES[1].light, OTHERS.light


@dataclass(frozen=True, slots=True)
class Drawable:
    """Data of the figures beyond a group's plan, in messages by interval. `came` is the end of the history without
    gaps; `backtest` has start, actual demand, and the forecasts of the method and of the naive one."""

    came: Sequence[tuple[int, float]]
    backtest: Sequence[tuple[int, float, float, float]]


def history_figure(group: Planned, drawable: Drawable, settings: ForecastSettings) -> Figure:
    def draw(canvas: Canvas) -> None:
        axes = canvas.sheet.subplots()
        # A narrow page has room for half of the past.
        came = drawable.came[len(drawable.came) // 2 :] if canvas.is_narrow else drawable.came
        starts = [_place(one.start_us) for one in group.intervals]
        axes.plot(
            [_place(start) for start, _ in came],
            [value for _, value in came],
            color=CAME,
            label="actual",
            lw=1.2,
        )
        axes.fill_between(
            starts,
            [one.low for one in group.intervals],
            [one.high for one in group.intervals],
            color=OURS,
            alpha=0.25,
            lw=0,
            label="8 of 10 intervals",
        )
        axes.plot(starts, [one.expected for one in group.intervals], color=OURS, label="expected")
        first = came[0][0] if came else group.intervals[0].start_us
        time_axis(canvas, axes, first, group.intervals[-1].start_us + settings.interval_us)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"messages in {_interval(settings)}")
        formatted(axes.yaxis, count)
        legend(canvas, axes)

    return drawn(
        draw,
        title="History and forecast",
        caption="The end of the history, the forecast, and the band for 8 of 10 intervals.",
    )


def floor_figure(group: Planned) -> Figure:
    def draw(canvas: Canvas) -> None:
        axes = canvas.sheet.subplots()
        top = max(one.replicas for one in group.floor)
        edges = [_place(one.from_s * SECOND_US) for one in group.floor] + [
            _place(group.floor[-1].until_s * SECOND_US)
        ]
        axes.stairs([one.replicas for one in group.floor], edges, fill=True, color=OURS, alpha=0.35)
        axes.stairs([one.replicas for one in group.floor], edges, color=OURS, lw=1.8, baseline=None)
        height = max(1.15 * top, top + 1)
        if group.sizing is not None and group.sizing.most <= 2 * top:
            axes.axhline(group.sizing.most, color=NAIVE, lw=1.2, ls="--", label="most that are allowed")
            height = max(height, 1.05 * group.sizing.most)
        time_axis(canvas, axes, group.floor[0].from_s * SECOND_US, group.floor[-1].until_s * SECOND_US)
        axes.set_ylim(0, height)
        axes.set_ylabel("replicas at least")
        formatted(axes.yaxis, three_figures)
        legend(canvas, axes)

    return drawn(
        draw,
        title="Floor of replicas",
        caption="The least number of replicas. It rises before the interval that needs it, by the lead time.",
        height_px=240,
    )


def backtest_figure(drawable: Drawable, settings: ForecastSettings) -> Figure:
    def draw(canvas: Canvas) -> None:
        axes = canvas.sheet.subplots()
        intervals = (
            drawable.backtest[len(drawable.backtest) // 2 :] if canvas.is_narrow else drawable.backtest
        )
        starts = [_place(one[0]) for one in intervals]
        axes.plot(starts, [one[1] for one in intervals], color=CAME, lw=3.2, label="actual")
        axes.plot(starts, [one[3] for one in intervals], color=NAIVE, lw=1.1, label="naive")
        axes.plot(starts, [one[2] for one in intervals], color=OURS, lw=1.3, label="seasonal")
        time_axis(canvas, axes, intervals[0][0], intervals[-1][0] + settings.interval_us)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"messages in {_interval(settings)}")
        formatted(axes.yaxis, count)
        legend(canvas, axes)

    return drawn(
        draw,
        title="Backtest",
        caption="The end of the backtest: each week or day was forecast from the records before it.",
        height_px=260,
    )


def _place(time_us: int) -> float:
    return float(dates.date2num(at(time_us)))


def _interval(settings: ForecastSettings) -> str:
    minutes, seconds = divmod(settings.interval_s, 60)
    return "an hour" if minutes == 60 else f"{minutes} min" if not seconds else f"{settings.interval_s} s"


BUSIEST = 12
SHOWN_ENTRIES = 60


def report(
    groups: Sequence[tuple[Planned, Drawable]], settings: ForecastSettings, *, left_out: int, made_by: str
) -> str:
    """`left_out`: how many groups are in the tables alone."""
    sections = [_section(group, drawable, settings) for group, drawable in groups]
    if left_out:
        others = Note(
            f"{counted(left_out, 'group with fewer messages is', 'groups with fewer messages are')} in the tables "
            "alone."
        )
        sections.append(Section("Other groups", [others]))
    first = shown(settings.starts_us()[0], settings.time_zone)
    until = shown(settings.starts_us()[-1] + settings.interval_us, settings.time_zone)
    subtitle = (
        f"from {first:%A %d %B %Y, %H:%M} to {until:%A %d %B, %H:%M} ({settings.time_zone}), "
        f"planned for the {settings.quantile:.3g} quantile"
    )
    return page("Demand forecast", sections, subtitle=subtitle, made_by=made_by)


def _section(group: Planned, drawable: Drawable, settings: ForecastSettings) -> Section:
    parts: list[Facts | Note | Figure | Table] = [_facts(group, settings)]
    parts += [Note(note, warns=True) for note in group.notes]
    parts.append(history_figure(group, drawable, settings))
    if group.floor:
        parts.append(floor_figure(group))
    if drawable.backtest:
        parts.append(backtest_figure(drawable, settings))
        parts.append(_scores(group, settings))
    parts.append(_busiest(group, settings))
    if group.schedule:
        parts.append(_schedule(group, settings))
    history = group.history
    intro = (
        f"{counted(history.messages, 'message')} in {history.days:.1f} days, by {group.season.value}"
        + (f": {group.variant}" if group.variant else "")
        + "."
    )
    return Section(group.group, parts, intro=intro)


def _facts(group: Planned, settings: ForecastSettings) -> Facts:
    busiest = group.busiest(1)[0]
    used = next((one for one in group.scores if one.is_used), None)
    naive = next((one for one in group.scores if one.method == "naive"), None)
    facts = [
        Fact(
            "busiest interval",
            f"{shown(busiest.start_us, settings.time_zone):%a %H:%M}",
            f"{count(busiest.planned / settings.interval_s)} messages/s",
        )
    ]
    if group.sizing is not None:
        facts.append(
            Fact("replicas then", whole(busiest.replicas), f"{count(group.sizing.capacity)} messages/s each")
        )
    if used is not None and naive is not None:
        facts += [
            Fact("weighted MAPE", share(used.wmape), f"naive last period: {share(naive.wmape)}"),
            Fact(f"stayed below {settings.quantile:.3g}", share(used.covered), "of the backtest's intervals"),
        ]
    return Facts(facts)


def _scores(group: Planned, settings: ForecastSettings) -> Table:
    level = f"{settings.quantile:.3g}"
    columns = [
        Column("method"),
        Column("weighted MAPE", numeric=True),
        Column(f"pinball loss at {level}", numeric=True),
        Column(f"stayed below {level}", numeric=True),
        Column("in the band of 0.8", numeric=True),
        Column("origins", numeric=True),
        Column("used"),
    ]
    rows = [
        [
            one.method,
            share(one.wmape),
            "–" if one.pinball is None else three_figures(one.pinball),
            share(one.covered),
            share(one.in_band),
            whole(one.origins),
            "yes" if one.is_used else "",
        ]
        for one in group.scores
    ]
    return Table(columns, rows, title="Backtest")


def _busiest(group: Planned, settings: ForecastSettings) -> Table:
    columns = [
        Column(f"from ({settings.time_zone})"),
        Column("expected", numeric=True),
        Column(f"quantile {settings.quantile:.3g}", numeric=True),
        Column("messages/s", numeric=True),
        Column("replicas", numeric=True),
    ]
    rows = [
        [
            f"{shown(one.start_us, settings.time_zone):%a %Y-%m-%d %H:%M}",
            count(one.expected),
            count(one.planned),
            count(one.planned / settings.interval_s),
            whole(one.replicas),
        ]
        for one in group.busiest(BUSIEST)
    ]
    return Table(columns, rows, title="Busiest intervals", left_out="All are in table forecast.")


def _schedule(group: Planned, settings: ForecastSettings) -> Table:
    shown_entries = group.schedule[:SHOWN_ENTRIES]
    zone = settings.time_zone if "weekly" in group.schedule[0] else "UTC"
    times = [entry.get("weekly", entry) for entry in shown_entries]
    rows = [
        [str(entry["minReplicas"]), at["from"], at["until"], ", ".join(at.get("days", ()))]
        for entry, at in zip(shown_entries, times, strict=True)
    ]
    columns = [Column("replicas", numeric=True), Column(f"from ({zone})"), Column("until"), Column("days")]
    if not any(row[-1] for row in rows):
        rows, columns = [row[:-1] for row in rows], columns[:-1]
    beyond = len(group.schedule) - len(rows)
    left_out = f"{counted(beyond, 'more is', 'more are')} in the patch." if beyond else ""
    return Table(columns, rows, title="Schedule", left_out=left_out)


def made_by(settings: ForecastSettings) -> str:
    return f"lbg pipeline forecast, {rfc3339(settings.now_us // SECOND_US)}"
