"""Sections of a profile's page: handoffs, members and skew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pyspark.sql import Row

from lbg_pipeline.html import Bar, Canvas, Column, Figure, Note, Section, Table, charts, drawn, shown
from lbg_pipeline.html import Row as SideBySide
from lbg_pipeline.html.numbers import count, duration, moment, ratio, share, whole
from lbg_pipeline.html.page import CARD, MUTED, OTHERS, SERIES
from lbg_pipeline.profile.digest import SHOWN_HANDOFFS, SHOWN_KEYS, SHOWN_MEMBERS, Digest
from lbg_pipeline.profile.load_sections import grid, spoken, starts, values
from lbg_pipeline.profile.skew import UNITS
from lbg_pipeline.profile.tables import MINUTE_US

MOVES_LISTED = 12
HELD_QUEUES = 40
"""Most rows of the figure of queues by member; with more of them single rows are illegible."""


def moves(digest: Digest) -> Section | None:
    """None where nothing can have moved: no member's journal, or a mode in which members share a queue."""
    if digest.delivered is None or (
        not digest.pauses and digest.delivered.mode not in ("Exclusive", "Partitioned")
    ):
        return None
    intro = (
        "A queue was delivered to another member than before. The pause is the time between the last delivery to the "
        "one and the first to the other. Without its idle part, in which no message was there, it is what a message "
        "had to wait."
    )
    return Section("Handoffs", list(_move_parts(digest)), intro)


def _move_parts(digest: Digest) -> Iterator[Table | Figure | Note]:
    if not digest.pauses:
        yield Note("No queue and no hash moved.")
        return
    yield _pauses(digest.pauses)
    if not digest.handoffs:
        return
    yield drawn(
        lambda canvas: _timeline(canvas, digest),
        title="Pauses of queues, when they moved",
        caption="A dot for each move: how long a message waited. A faint line above it: how long the queue was without "
        "delivery, idle time included." + _limit(digest),
        height_px=280,
    )
    queues = {row.queue for row in digest.handoffs}
    if len(queues) <= HELD_QUEUES and len(digest.handoffs) < SHOWN_HANDOFFS:
        yield drawn(
            lambda canvas: _held(canvas, digest),
            title="Which member served each queue that moved",
            caption="The number is the member's. Gaps are pauses.",
            height_px=80 + 19 * max(len(queues), 4),
        )
    yield _longest(digest)


def _limit(digest: Digest) -> str:
    return f" The {SHOWN_HANDOFFS} longest pauses." if len(digest.handoffs) == SHOWN_HANDOFFS else ""


def _pauses(pauses: Sequence[Row]) -> Table:
    numbers = (
        "moves",
        "pause, median",
        "90 %",
        "99 %",
        "longest",
        "a message waited, median",
        "90 %",
        "99 %",
        "longest",
    )
    parts = ("p50", "p90", "p99", "greatest")
    rows = [
        [
            {"hash": "hashes", "queue": "queues"}[row.unit],
            whole(row["count"]),
            *(duration(row[f"{name}_{part}"]) for name in ("pause", "waited") for part in parts),
        ]
        for row in sorted(pauses, key=lambda row: str(row.unit), reverse=True)
    ]
    return Table([Column(""), *(Column(name, numeric=True) for name in numbers)], rows, "Pauses")


def _timeline(canvas: Canvas, digest: Digest) -> None:
    plot = canvas.sheet.subplots()
    charts.duration_scale(plot.yaxis)
    at = [charts.place(row.at_us) for row in digest.handoffs]
    pauses = [max(row.pause_us, 1) for row in digest.handoffs]
    waited = [max(row.pause_us - row.idle_us, 1) for row in digest.handoffs]
    plot.vlines(at, waited, pauses, color=OTHERS.light, linewidth=1, label="pause with idle time")
    plot.plot(
        at,
        waited,
        "o",
        color=SERIES[0].light,
        markeredgecolor=CARD.light,
        markersize=6,
        label="a message waited",
    )
    begun = starts(digest)
    charts.time_axis(canvas, plot, begun[0], begun[-1] + digest.interval_us)
    charts.legend(canvas, plot)


def _held(canvas: Canvas, digest: Digest) -> None:
    plot = canvas.sheet.subplots()
    moved: dict[int, list[Row]] = defaultdict(list)
    for row in sorted(digest.handoffs, key=lambda row: row.at_us):
        moved[row.queue].append(row)
    queues = sorted(moved)
    begun = starts(digest)
    first, last = begun[0], begun[-1] + digest.interval_us
    wide_enough = (last - first) / (18 if canvas.is_narrow else 50)
    for place, queue in enumerate(queues):
        for member, from_us, until_us in _tenures(digest, moved[queue]):
            left, right = charts.place(from_us), charts.place(until_us)
            colour = SERIES[member % len(SERIES)].light
            plot.barh(place, right - left, 0.8, left, color=colour, alpha=0.55, linewidth=0)
            if until_us - from_us > wide_enough:
                plot.text(
                    left + (right - left) / 2, place, str(member), ha="center", va="center", fontsize=10
                )
    plot.set_yticks(range(len(queues)), map(str, queues))
    plot.set_ylim(len(queues) - 0.5, -0.5)
    plot.grid(visible=False)
    plot.set_ylabel("queue")
    charts.time_axis(canvas, plot, first, last)


def _tenures(digest: Digest, moved: Sequence[Row]) -> Iterator[tuple[int, int, int]]:
    """Owners of the queues that moved, from first delivery to last."""
    since_us = digest.delivered.first_us if digest.delivered is not None else digest.first_us
    for row in moved:
        yield row.from_member, since_us, row.at_us - row.pause_us
        since_us = row.at_us
    if moved:
        yield moved[-1].to_member, since_us, digest.last_us


def _longest(digest: Digest) -> Table:
    columns = (
        *(Column("at (UTC)"), Column("queue", numeric=True), Column("from"), Column("to")),
        *(Column("pause", numeric=True), Column("a message waited", numeric=True)),
    )
    longest = sorted(digest.handoffs, key=lambda row: (row.idle_us - row.pause_us, row.at_us))[:MOVES_LISTED]
    rows = [
        [
            moment(row.at_us),
            str(row.queue),
            f"{row.from_member} {row.from_member_name}",
            f"{row.to_member} {row.to_member_name}",
            duration(row.pause_us),
            duration(row.pause_us - row.idle_us),
        ]
        for row in longest
    ]
    more = len(digest.handoffs) - len(rows)
    left_out = f"{whole(more)} more, and those of hashes, are in the table handoffs." if more else ""
    return Table(columns, rows, "The handoffs for which a message waited longest", left_out)


LISTED = 60


def members(digest: Digest) -> Section | None:
    if not digest.runs:
        return None
    intro = (
        "A run of a member lasts from its first delivery to the end of its last one. Busy is the service time of all "
        "its messages over that time: it exceeds 1 if lanes run at the same time. Occupied is the share of the time "
        "in which its application had at least one message."
    )
    return Section("Members", list(_member_parts(digest)), intro)


def _member_parts(digest: Digest) -> Iterator[Table | Figure]:
    shown = {row.member for row in digest.members_over_time}
    yield drawn(
        lambda canvas: _presence(canvas, digest),
        title="When members were there, and how busy",
        caption=f"A frame is a run of the member. Shades are service time in each {spoken(digest.interval_us)}, "
        "by when the message was delivered."
        + (f" The {SHOWN_MEMBERS} members that did most." if len(shown) == SHOWN_MEMBERS else ""),
        height_px=90 + max(len(shown) * 17, 100),
    )
    yield _member_table(digest)


def _presence(canvas: Canvas, digest: Digest) -> None:
    plot = canvas.sheet.subplots()
    by_member: dict[int, list[Row]] = defaultdict(list)
    for row in digest.members_over_time:
        by_member[row.member].append(row)
    members = sorted(by_member)
    rows = {
        str(member): [busy / digest.interval_us for busy in values(digest, by_member[member], "busy_us")]
        for member in members
    }
    grid(canvas, plot, digest, rows, lambda most: f"{ratio(most)} busy")
    for run in digest.runs:
        if run.member in by_member:
            left, right = (charts.place(one) for one in (run.first_us, run.last_us))
            place = members.index(run.member)
            plot.barh(place, right - left, 0.88, left, fill=False, edgecolor=MUTED.light, linewidth=0.8)
    plot.set_ylabel("member")


def _member_table(digest: Digest) -> Table:
    columns = (
        *(Column("member", numeric=True), Column("name"), Column("from (UTC)"), Column("for", numeric=True)),
        *(Column("done", numeric=True), Column("busy", numeric=True), Column("occupied", numeric=True)),
        *(Column("queues", numeric=True), Column("dead", numeric=True), Column("repeats", numeric=True)),
        Column("released", numeric=True),
    )
    runs = sorted(digest.runs, key=lambda row: (row.member, row.first_us))
    rows = [
        [
            str(row.member),
            row.member_name,
            moment(row.first_us),
            duration(row.presence_us),
            whole(row.ack + row.dead),
            ratio(row.utilisation),
            Bar(share(row.occupied_share), row.occupied_share or 0.0),
            whole(row.queues),
            whole(row.dead),
            whole(row.repeat),
            whole(row.released),
        ]
        for row in runs[:LISTED]
    ]
    more = len(runs) - len(rows)
    return Table(
        columns, rows, "Runs of members", f"{whole(more)} more are in the table utilisation." if more else ""
    )


CURVES = {"key": SERIES[0], "hash": SERIES[1], "queue": SERIES[2]}
DRAWN_KEYS = 12
_PLURAL = {"key": "keys", "hash": "hashes", "queue": "queues", "member": "members"}


def skew(digest: Digest) -> Section:
    return Section("Skew", list(_skew_parts(digest)))


def _skew_parts(digest: Digest) -> Iterator[Table | SideBySide]:
    by_unit = {row.unit: row for row in digest.skew}
    yield _skew_table([by_unit[unit] for unit in UNITS if unit in by_unit])
    curves = [unit for unit in CURVES if unit in by_unit and by_unit[unit]["count"] > 1]
    figures = [_lorenz(digest, curves)] if curves else []
    if digest.keys:
        figures.append(_hottest(digest))
    if figures:
        yield SideBySide(figures)
    if digest.keys:
        yield _keys(digest)


def _skew_table(skews: Sequence[Row]) -> Table:
    columns = (
        *(
            Column(""),
            Column("how many", numeric=True),
            Column("hottest"),
            Column("has of the messages", numeric=True),
        ),
        *(Column("busiest"), Column("has of the service time", numeric=True)),
        *(Column("Gini, messages", numeric=True), Column("Gini, service time", numeric=True)),
    )
    rows = [
        [
            _PLURAL[row.unit],
            whole(row["count"]),
            row.hottest,
            Bar(share(row.hottest_share), row.hottest_share),
            row.busiest,
            Bar(share(row.busiest_share), row.busiest_share),
            ratio(row.gini_messages),
            ratio(row.gini_busy),
        ]
        for row in skews
    ]
    left_out = "Gini: 0 where all bear the same, near 1 where one bears everything. Only those that had messages count."
    return Table(columns, rows, "Distribution of the load", left_out)


def _lorenz(digest: Digest, units: Sequence[str]) -> Figure:
    return drawn(
        lambda canvas: _curves(canvas, digest, units),
        title="Concentration of the load",
        caption="Share of the messages that the least loaded bring together. The further below the straight line, the "
        "more uneven.",
        height_px=310,
        is_half=True,
    )


def _curves(canvas: Canvas, digest: Digest, units: Sequence[str]) -> None:
    plot = canvas.sheet.subplots()
    plot.plot([0, 1], [0, 1], color=OTHERS.light, linewidth=1.2, linestyle=(0, (4, 3)))
    for unit in units:
        points = [(row.share_of_count, row.share_of_load) for row in digest.lorenz if row.unit == unit]
        plot.plot(*zip((0.0, 0.0), *points, strict=True), color=CURVES[unit].light, label=_PLURAL[unit])
    plot.set(
        xlim=(0, 1), ylim=(0, 1), xlabel="share of all, least loaded first", ylabel="share of the messages"
    )
    for axis in (plot.xaxis, plot.yaxis):
        charts.formatted(axis, lambda value: f"{value:.0%}".replace("%", " %"))
    charts.legend(canvas, plot, columns=3)


def _hottest(digest: Digest) -> Figure:
    return drawn(
        lambda canvas: _bars(canvas, digest),
        title="The hottest keys",
        caption="Messages done. A key is worked off in order, so by one member at a time.",
        height_px=310,
        is_half=True,
    )


def _bars(canvas: Canvas, digest: Digest) -> None:
    plot = canvas.sheet.subplots()
    keys = digest.keys[:DRAWN_KEYS]
    plot.barh(range(len(keys)), [row.messages for row in keys], 0.74, color=SERIES[0].light)
    plot.set_yticks(range(len(keys)), [shown(row.key, 18) for row in keys])
    plot.set_ylim(max(len(keys), 4) - 0.5, -0.5)
    plot.grid(visible=False, axis="y")
    charts.formatted(plot.xaxis, count, 4)
    plot.set_xlabel("messages")


def _keys(digest: Digest) -> Table:
    total = sum(row.messages for row in digest.skew if row.unit == "hash") or 1
    columns = (
        *(
            Column("key"),
            Column("hash", numeric=True),
            Column("messages", numeric=True),
            Column("of all", numeric=True),
        ),
        *(
            Column("service time", numeric=True),
            Column("most in a minute", numeric=True),
            Column("busy in that", numeric=True),
        ),
    )
    rows = [
        [
            row.key,
            str(row.hash),
            whole(row.messages),
            Bar(share(row.messages / total), row.messages / total),
            duration(row.busy_us),
            whole(row.peak_minute_messages),
            Bar(share(row.peak_minute_busy_us / MINUTE_US), row.peak_minute_busy_us / MINUTE_US),
        ]
        for row in digest.keys
    ]
    left_out = (
        "Busy in that: service time in the busiest minute, of a minute. A key is one lane: near 100 % it is at its "
        "limit, whatever the number of members."
    )
    more = (
        f" All keys are in the table keys; these are the first {SHOWN_KEYS}."
        if len(rows) == SHOWN_KEYS
        else ""
    )
    return Table(columns, rows, "The hottest keys", left_out + more)
