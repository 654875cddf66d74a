"""Page of a verification: its first line is the verdict, then a section for each group. Rows in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes

from lbg_pipeline.html import Canvas, Column, Fact, Facts, Figure, Note, Section, Table, charts, drawn, page
from lbg_pipeline.html.numbers import duration, whole
from lbg_pipeline.html.page import ALARM, CARD, OTHERS, SERIES, Part, shown
from lbg_pipeline.verify.incidents import DETAILED_GROUPS, LISTED, SLICES, Incidents, Row, slice_us
from lbg_pipeline.verify.report import (
    Report,
    affected_text,
    broken_lines_text,
    copy_text,
    during_text,
    faults_text,
    iso,
    kind_text,
    lost_messages_text,
    member_text,
    message_text,
    near_text,
    notes,
    verdict_text,
)

MEMBERS_SHOWN = 24
RUNS_SHOWN = 300
_NEAR = Column("move or crash", is_prose=True)


def report_page(
    report: Report,
    incidents: Incidents,
    broken: Sequence[Row],
    *,
    journals: Sequence[str],
    made_by: str,
    warnings: Sequence[str] = (),
) -> str:
    """`broken`: the first lines that are no records."""
    order = sorted(report.verdicts, key=lambda row: (row["verdict"] == "sound", row["group"]))
    sections = [_group(row, incidents) for row in order[:DETAILED_GROUPS]]
    if len(order) > 1:
        left_out = ""
        if len(order) > DETAILED_GROUPS:
            left_out = f"{DETAILED_GROUPS} of them have a section below, the broken ones first."
        sections.insert(0, Section("All groups", [_groups(order[:LISTED], left_out)]))
    if report.broken_lines or report.copies or warnings:
        files = [*(Note(one, warns=True) for one in warnings), *_files(report, broken)]
        sections.append(Section("Files", files))
    return page(
        verdict_text(report),
        sections,
        subtitle=f"From the journals in {', '.join(journals)}",
        made_by=made_by,
    )


def _groups(verdicts: Sequence[Row], left_out: str) -> Table:
    names = ("published", "delivered", "lost", "overlaps", "moves")
    columns = [
        Column("group"),
        Column("verdict", is_prose=True),
        *(Column(name, numeric=True) for name in names),
    ]
    rows = [[row["group"], _verdict(row), *(whole(row[name]) for name in names)] for row in verdicts]
    return Table(columns, rows, "", left_out)


def _verdict(row: Row) -> str:
    return f"broken: {faults_text(row)}" if row["verdict"] == "broken" else str(row["verdict"])


def _group(row: Row, incidents: Incidents) -> Section:
    return Section(row["group"], list(_parts(row, incidents)), _intro(row, incidents))


def _intro(row: Row, incidents: Incidents) -> str:
    affected = [affected_text(one) for one in incidents.affected if one["group"] == row["group"]]
    verdict = _verdict(row)
    return f"{verdict[0].upper()}{verdict[1:]}{'. Affected: ' if affected else ''}{'; '.join(affected)}."


def _parts(row: Row, incidents: Incidents) -> Iterator[Part]:
    keys, lost, offences = (
        [one for one in rows if one["group"] == row["group"]]
        for rows in (incidents.keys, incidents.lost, incidents.offences)
    )
    if keys:
        yield _keys(keys, [*lost, *offences])
    if row["group"] in incidents.spans:
        yield _timeline(row, incidents)
    if lost:
        yield _lost(lost)
    if offences:
        yield _offences(offences)
    yield Section("What was checked, and what was not", [_counts(row), *map(Note, notes(row))])


def _keys(keys: Sequence[Row], findings: Sequence[Row]) -> Table:
    near: dict[str, str] = {}
    for one in sorted(findings, key=lambda one: one.get("at_us") or 0):
        for key in _keys_of(one):
            if key is not None and (text := near_text(one)):
                near.setdefault(key, text)
    columns = [Column("key"), Column("findings"), Column("when (UTC)", is_prose=True), Column("members")]
    rows = [
        [
            one["key"],
            f"{whole(one['findings'])} {', '.join(one['kinds'])}",
            during_text(one),
            ", ".join(map(str, one["members"])) or "–",
            near.get(one["key"], "–"),
        ]
        for one in keys
    ]
    columns.append(_NEAR)
    return Table(columns, rows, "Affected keys", _left_out(keys, "offences and lost_messages"))


def _keys_of(one: Row) -> Iterator[str | None]:
    if "key" in one:
        yield one["key"]
        return
    for name in ("first_message", "last_message"):
        if one[name] is not None:
            yield one[name]["key"]


def _left_out(rows: Sequence[Row], tables: str) -> str:
    return f"The first {LISTED} of all groups; tables {tables} have all." if len(rows) >= LISTED else ""


def _lost(lost: Sequence[Row]) -> Table:
    columns = [
        Column("publisher"),
        Column("hash", numeric=True),
        Column("numbers and keys", is_prose=True),
        _NEAR,
    ]
    rows = [
        [one["publisher"], str(one["hash"]), lost_messages_text(one), near_text(one) or "–"] for one in lost
    ]
    return Table(columns, rows, "Lost messages", _left_out(lost, "lost and lost_messages"))


def _offences(offences: Sequence[Row]) -> Table:
    columns = [Column("time (UTC)"), *(Column(name, is_prose=True) for name in ("finding", "member")), _NEAR]
    rows = [
        [iso(one["at_us"]), f"{kind_text(one)}: {message_text(one)}", member_text(one), near_text(one) or "–"]
        for one in offences
    ]
    return Table(columns, rows, "Order, overlaps and differences", _left_out(offences, "offences"))


def _counts(row: Row) -> Facts:
    facts = [
        Fact("published", whole(row["published"]), "records of publishers"),
        Fact("delivered", whole(row["delivered"]), f"{whole(row['acknowledged'])} acknowledged"),
        Fact("dead letters", whole(row["dead"])),
        Fact("given back", whole(row["released"]), f"{whole(row['repeats_dropped'])} dropped as repeats"),
        Fact("moves of hashes", whole(row["moves"]), f"longest pause {duration(row['longest_pause_us'])}"),
        Fact("pending", whole(row["pending"]), "confirmed too late to count as lost"),
        Fact("unpublished", whole(row["unpublished"]), "no record of their publisher"),
        Fact("uncertain", whole(row["uncertain"]), "the clock skew may explain them"),
    ]
    return Facts(facts)


def _timeline(row: Row, incidents: Incidents) -> Figure:
    group = row["group"]
    span = incidents.spans[group]
    found = [one for one in incidents.found if one["group"] == group]
    moves = [one for one in incidents.moves if one["group"] == group]
    runs = sorted((one for one in incidents.runs if one["group"] == group), key=lambda one: one["first_us"])
    members = sorted({one["member"] for one in runs})[:MEMBERS_SHOWN]
    kinds = sorted({one["kind"] for one in found})
    caption = (
        "A line is a run of a member, from its first to its last delivery; a bar, moves of hashes in "
        f"{duration(slice_us(span))}; a dot, findings: lost messages by when they were published."
    )
    if len(members) == MEMBERS_SHOWN:
        caption += f" Of the members the first {MEMBERS_SHOWN}."
    return drawn(
        lambda canvas: _draw(canvas, span, kinds, found, moves, members, runs[-RUNS_SHOWN:]),
        title="Findings, moves and runs of members",
        caption=caption,
        height_px=170 + 20 * (len(kinds) + len(members)),
    )


def _draw(
    canvas: Canvas,
    span: tuple[int, int],
    kinds: Sequence[str],
    found: Sequence[Row],
    moves: Sequence[Row],
    members: Sequence[int],
    runs: Sequence[Row],
) -> None:
    heights = [*([len(kinds) + 0.5] if kinds else []), 2.5, len(members) + 0.5]
    plots = canvas.sheet.subplots(len(heights), sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    width_us = slice_us(span)

    def at(one: Row) -> float:
        return charts.place(span[0] + one["slice"] * width_us + width_us // 2)

    if kinds:
        _rows(plots[0], kinds)
        for one in found:
            place = kinds.index(one["kind"])
            plots[0].plot(at(one), place, "o", color=ALARM.light, markeredgecolor=CARD.light, markersize=8)
    counts = [0] * SLICES
    for one in moves:
        counts[one["slice"]] += one["count"]
    slices = [{"slice": place} for place, count in enumerate(counts) if count]
    bar = (charts.place(span[1]) - charts.place(span[0])) / SLICES
    plots[-2].bar(
        [at(one) for one in slices], [counts[one["slice"]] for one in slices], bar, color=OTHERS.light
    )
    plots[-2].set_ylabel("moves")
    charts.formatted(plots[-2].yaxis, lambda value: whole(int(value)), ticks=2)
    _rows(plots[-1], [f"member {one}" for one in members])
    for run in runs:
        if run["member"] in members:
            colour, place = SERIES[run["member"] % len(SERIES)].light, members.index(run["member"])
            begin, end = charts.place(run["first_us"]), charts.place(run["last_us"])
            plots[-1].plot([begin, end], [place, place], "|-", color=colour, linewidth=3, markersize=9)
    charts.time_axis(canvas, plots[-1], *span)


def _rows(plot: Axes, names: Sequence[str]) -> None:
    plot.set_yticks(range(len(names)), [shown(name, 22) for name in names])
    plot.set_ylim(len(names) - 0.5, -0.5)
    plot.grid(visible=False)


def _files(report: Report, broken: Sequence[Row]) -> Iterator[Part]:
    if report.broken_lines:
        yield Note(broken_lines_text(report.broken_lines), warns=True)
        columns = [
            Column("file", is_prose=True),
            Column("line", numeric=True),
            Column("reason", is_prose=True),
        ]
        rows = [[one["file"], str(one.get("line") or "–"), one["reason"]] for one in broken]
        yield Table(columns, rows, "", _left_out(broken, "broken"))
    for copy in report.copies:
        yield Note(copy_text(copy))
