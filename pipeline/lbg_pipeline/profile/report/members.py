"""Members: when they were there, and how busy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pyspark.sql import Row

from lbg_pipeline.pages import Bar, Canvas, Column, Figure, Section, Table, axes, drawn
from lbg_pipeline.pages.formatting import duration, moment, ratio, share, whole
from lbg_pipeline.pages.theme import MUTED

from ..digesting import SHOWN_MEMBERS, Digest
from .grids import grid
from .intervals import spoken, values

LISTED = 60


def members(digest: Digest) -> Section | None:
    if not digest.runs:
        return None
    intro = (
        "A run of a member is told of from its first delivery to the last thing that it did. Busy is the service time "
        "of all its messages over that: it exceeds 1 where lanes work side by side. Occupied is the share of the time "
        "in which its application had at least one message."
    )
    return Section("Members", list(_parts(digest)), intro)


def _parts(digest: Digest) -> Iterator[Table | Figure]:
    shown = {row.member for row in digest.members_over_time}
    yield drawn(
        lambda canvas: _presence(canvas, digest),
        title="When members were there, and how busy",
        caption=f"A frame is a run of the member. Shades are service time in each {spoken(digest.interval_us)}, "
        "by when the message was delivered."
        + (f" The {SHOWN_MEMBERS} members that did most." if len(shown) == SHOWN_MEMBERS else ""),
        height_px=90 + max(len(shown) * 17, 100),
    )
    yield _table(digest)


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
            left, right = (axes.place(one) for one in (run.first_us, run.last_us))
            place = members.index(run.member)
            plot.barh(place, right - left, 0.88, left, fill=False, edgecolor=MUTED.light, linewidth=0.8)
    plot.set_ylabel("member")


def _table(digest: Digest) -> Table:
    columns = (
        *(Column("member", numeric=True), Column("name"), Column("from (UTC)"), Column("for", numeric=True)),
        *(Column("done", numeric=True), Column("busy", numeric=True), Column("occupied", numeric=True)),
        *(Column("queues", numeric=True), Column("dead", numeric=True), Column("repeats", numeric=True)),
        Column("given back", numeric=True),
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
