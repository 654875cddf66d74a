"""Handoffs: when queues moved, between whom, and how long that took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pyspark.sql import Row

from lbg_pipeline.pages import Canvas, Column, Figure, Note, Section, Table, axes, drawn
from lbg_pipeline.pages.formatting import duration, moment, whole
from lbg_pipeline.pages.theme import CARD, OTHERS, SERIES

from ..digesting import SHOWN_HANDOFFS, Digest
from .intervals import starts

LISTED = 12
HELD_QUEUES = 40
"""Rows of the picture of who served which queue; with more of them nobody would follow one."""


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
    return Section("Handoffs", list(_parts(digest)), intro)


def _parts(digest: Digest) -> Iterator[Table | Figure | Note]:
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
    axes.duration_scale(plot.yaxis)
    at = [axes.place(row.at_us) for row in digest.handoffs]
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
    axes.time_axis(canvas, plot, begun[0], begun[-1] + digest.interval_us)
    axes.legend(canvas, plot)


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
            left, right = axes.place(from_us), axes.place(until_us)
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
    axes.time_axis(canvas, plot, first, last)


def _tenures(digest: Digest, moved: Sequence[Row]) -> Iterator[tuple[int, int, int]]:
    """Who had a queue that moved, from its first delivery to its last."""
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
    longest = sorted(digest.handoffs, key=lambda row: (row.idle_us - row.pause_us, row.at_us))[:LISTED]
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
