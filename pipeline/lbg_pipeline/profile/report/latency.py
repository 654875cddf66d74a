"""How long things took."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Row

from lbg_pipeline.pages import Canvas, Column, Figure, Section, Table, axes, drawn, formatting
from lbg_pipeline.pages import Row as SideBySide
from lbg_pipeline.pages.theme import INK, SERIES, STEPS

from ..digesting import Digest
from ..histograms import AGE, BINS_PER_DECADE, CONFIRM, SERVICE, SETTLE, SIZE, WAIT
from .intervals import edges, spoken, starts, stepped

METRICS = {
    CONFIRM: ("Confirm", "from sending a message to the broker's confirm"),
    AGE: ("Age at delivery", "from sending a message to its delivery to a member"),
    WAIT: ("Wait in the member", "from delivery until the application is given the message"),
    SERVICE: ("Service time", "from then to the application's last answer"),
    SETTLE: ("Settling", "from that answer to the acknowledgement"),
    SIZE: ("Size of bodies", "without headers"),
}
PERCENTILES = {"p50": ("median", SERIES[0]), "p95": ("95 %", SERIES[1]), "p99": ("99 %", SERIES[5])}
_COLUMNS = {
    "least": "least",
    "mean": "mean",
    "p50": "median",
    "p90": "90 %",
    "p95": "95 %",
    "p99": "99 %",
    "p999": "99.9 %",
    "greatest": "greatest",
}
SHORTEST_US = 1
"""Where axes of time spans begin: shorter ones, and those that differing clocks make negative, are drawn there."""


def latency(digest: Digest) -> Section:
    told = [metric for metric in METRICS if metric in {row.metric for row in digest.latencies}]
    timed = [metric for metric in told if metric != SIZE]
    parts: list[Table | Figure | SideBySide] = [_table(digest.latencies, told)]
    if timed:
        parts.append(
            drawn(
                lambda canvas: _distributions(canvas, digest, timed),
                title="How long each step took",
                caption="How often each time was seen, on a scale of powers of ten; each row has a height of its own.",
                height_px=70 + 62 * len(timed),
            )
        )
    over_time = [_over_time(digest, metric) for metric in told]
    parts += [SideBySide(over_time[first : first + 2]) for first in range(0, len(over_time), 2)]
    return Section(
        "Latency and size",
        parts,
        intro="Of all deliveries, also those that were given back. Percentiles are at most 0.4 % off.",
    )


def _table(latencies: Sequence[Row], told: Sequence[str]) -> Table:
    by_metric = {row.metric: row for row in latencies}
    columns = [Column(""), Column("count", numeric=True)]
    rows = []
    for metric in told:
        row, written = by_metric[metric], _written(metric)
        values = (written(row[name]) for name in _COLUMNS)
        rows.append([METRICS[metric][0], formatting.whole(row.messages), *values])
    return Table([*columns, *(Column(name, numeric=True) for name in _COLUMNS.values())], rows)


def _written(metric: str) -> Callable[[float | None], str]:
    return formatting.size if metric == SIZE else formatting.duration


def _distributions(canvas: Canvas, digest: Digest, metrics: Sequence[str]) -> None:
    plot = canvas.sheet.subplots()
    percentiles = {row.metric: row for row in digest.latencies}
    axes.duration_scale(plot.xaxis)
    for place, metric in enumerate(reversed(metrics)):
        bins = {row.bin: row.messages for row in digest.densities if row.metric == metric}
        first, last, most = min(bins), max(bins), max(bins.values())
        across = [10 ** (bin_ / BINS_PER_DECADE) for bin_ in range(first, last + 2)]
        heights = [place + 0.82 * bins.get(bin_, 0) / most for bin_ in range(first, last + 1)]
        plot.fill_between(across, place, stepped(heights), step="post", color=STEPS[3].light, linewidth=0)
        for name, colour in (("p50", INK), ("p99", SERIES[5])):
            at = max(percentiles[metric][name], SHORTEST_US)
            plot.vlines(at, place, place + 0.82, color=colour.light, linewidth=1.6)
    plot.vlines([], 0, 0, color=INK.light, label="median")
    plot.vlines([], 0, 0, color=SERIES[5].light, label="99 %")
    plot.set_yticks(range(len(metrics)), [METRICS[metric][0] for metric in reversed(metrics)])
    plot.set_ylim(-0.06, len(metrics))
    plot.tick_params(axis="y", labelcolor=INK.light)
    axes.legend(canvas, plot)


def _over_time(digest: Digest, metric: str) -> Figure:
    label, meaning = METRICS[metric]
    return drawn(
        lambda canvas: _percentiles(canvas, digest, metric),
        title=label,
        caption=f"{meaning[0].upper()}{meaning[1:]}. Percentiles of each {spoken(digest.interval_us)}.",
        height_px=230,
        is_half=True,
    )


def _percentiles(canvas: Canvas, digest: Digest, metric: str) -> None:
    plot = canvas.sheet.subplots()
    rows = {row.at_us: row for row in digest.latencies_over_time if row.metric == metric}
    begun = starts(digest)
    if metric == SIZE:
        axes.formatted(plot.yaxis, formatting.size)
    else:
        axes.duration_scale(plot.yaxis)
    for name, (label, colour) in PERCENTILES.items():
        course = [max(rows[at][name], SHORTEST_US) if at in rows else float("nan") for at in begun]
        plot.step(
            edges(digest), stepped(course), where="post", color=colour.light, label=label, linewidth=1.6
        )
    if metric == SIZE:
        plot.set_ylim(bottom=0)
    axes.time_axis(canvas, plot, begun[0], begun[-1] + digest.interval_us)
    axes.legend(canvas, plot, columns=3)
