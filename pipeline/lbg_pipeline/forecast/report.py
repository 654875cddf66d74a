"""A forecast as a page for people."""

from __future__ import annotations

from collections.abc import Sequence

from ..pages import Column, Fact, Facts, Figure, Note, Section, Table, page
from ..pages.formatting import count, share, three_figures, whole
from .figures import Drawable, backtest_figure, floor_figure, history_figure
from .manifest import rfc3339
from .planned import Planned, shown
from .settings import SECOND_US, ForecastSettings

BUSIEST = 12
SHOWN_ENTRIES = 60


def report(
    groups: Sequence[tuple[Planned, Drawable]], settings: ForecastSettings, *, left_out: int, made_by: str
) -> str:
    """`left_out`: how many groups are in the tables alone."""
    sections = [_section(group, drawable, settings) for group, drawable in groups]
    if left_out:
        others = Note(f"{left_out} groups with fewer messages are in the tables alone.")
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
        f"{whole(history.messages)} messages in {history.days:.1f} days, by {group.season.value}"
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
            f"{busiest.planned / settings.interval_s:,.3g} messages/s",
        )
    ]
    if group.sizing is not None:
        facts.append(
            Fact("replicas then", whole(busiest.replicas), f"{group.sizing.capacity:,.3g} messages/s each")
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
            f"{one.planned / settings.interval_s:,.3g}",
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
    left_out = f"{beyond} more are in the patch." if beyond else ""
    return Table(columns, rows, title="Schedule", left_out=left_out)


def made_by(settings: ForecastSettings) -> str:
    return f"lbg pipeline forecast, {rfc3339(settings.now_us // SECOND_US)}"
