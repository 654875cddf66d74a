"""How unevenly the load is spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import Row

from lbg_pipeline.pages import Bar, Canvas, Column, Figure, Section, Table, axes, drawn, shown
from lbg_pipeline.pages import Row as SideBySide
from lbg_pipeline.pages.formatting import count, duration, ratio, share, whole
from lbg_pipeline.pages.theme import OTHERS, SERIES

from ..columns import MINUTE_US
from ..digesting import SHOWN_KEYS, Digest
from ..skewing import UNITS

CURVES = {"key": SERIES[0], "hash": SERIES[1], "queue": SERIES[2]}
DRAWN_KEYS = 12
_PLURAL = {"key": "keys", "hash": "hashes", "queue": "queues", "member": "members"}


def skew(digest: Digest) -> Section:
    return Section("Skew", list(_parts(digest)))


def _parts(digest: Digest) -> Iterator[Table | SideBySide]:
    by_unit = {row.unit: row for row in digest.skew}
    yield _table([by_unit[unit] for unit in UNITS if unit in by_unit])
    curves = [unit for unit in CURVES if unit in by_unit and by_unit[unit]["count"] > 1]
    figures = [_lorenz(digest, curves)] if curves else []
    if digest.keys:
        figures.append(_hottest(digest))
    if figures:
        yield SideBySide(figures)
    if digest.keys:
        yield _keys(digest)


def _table(told: Sequence[Row]) -> Table:
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
        for row in told
    ]
    left_out = "Gini: 0 where all bear the same, near 1 where one bears everything. Only those that had messages count."
    return Table(columns, rows, "How the load is spread", left_out)


def _lorenz(digest: Digest, units: Sequence[str]) -> Figure:
    return drawn(
        lambda canvas: _curves(canvas, digest, units),
        title="How few bring how much",
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
        axes.formatted(axis, lambda value: f"{value:.0%}".replace("%", " %"))
    axes.legend(canvas, plot, columns=3)


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
    axes.formatted(plot.xaxis, count, 4)
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
