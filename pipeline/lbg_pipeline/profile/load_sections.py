"""Sections of a profile's page: load, heat maps and latency."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from pyspark.sql import Row

from lbg_core.counted_nouns import counted
from lbg_pipeline.html import Canvas, Column, Figure, Section, Table, charts, drawn, numbers, shown
from lbg_pipeline.html import Row as SideBySide
from lbg_pipeline.html.page import ALARM, CARD, INK, OTHERS, SERIES, STEPS
from lbg_pipeline.profile.digest import SHOWN_HASHES, SHOWN_QUEUES, Digest
from lbg_pipeline.profile.histograms import AGE, BINS_PER_DECADE, CONFIRM, SERVICE, SETTLE, SIZE, WAIT


def starts(digest: Digest) -> list[int]:
    """Start of each interval of the group's time."""
    first = digest.first_us - digest.first_us % digest.interval_us
    return list(range(first, digest.last_us + 1, digest.interval_us))


def edges(digest: Digest) -> list[float]:
    """One more than there are intervals."""
    begun = starts(digest)
    return [charts.place(one) for one in (*begun, begun[-1] + digest.interval_us)]


def values(digest: Digest, rows: Iterable[Row], column: str) -> list[float]:
    """The column by interval, 0 where there is no row."""
    by_time = {row.at_us: row[column] for row in rows}
    return [by_time.get(at, 0) for at in starts(digest)]


def stepped(each: Sequence[float]) -> list[float]:
    """For `edges` and `drawstyle="steps-post"`: the last value holds to the last edge."""
    return [*each, each[-1]]


def spoken(interval_us: int) -> str:
    """`10 seconds`, `minute`, `2 hours`."""
    seconds = interval_us // 1_000_000
    for size, name in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds % size == 0:
            return name if seconds == size else f"{seconds // size} {name}s"
    return counted(seconds, "second")


def grid(
    canvas: Canvas,
    plot: Axes,
    digest: Digest,
    rows: Mapping[str, Sequence[float]],
    written: Callable[[float], str],
    most: float | None = None,
) -> None:
    """Draws `rows` from the top down; the last shade begins at 6/7 of `most`, by default the greatest value.

    One path for each shade, and one rectangle for neighbours of one shade: a few kilobytes for thousands of cells.
    """
    most = most or max((max(row) for row in rows.values()), default=0) or 1
    across = edges(digest)
    corners: dict[int, list[tuple[float, float]]] = {shade: [] for shade in range(len(STEPS))}
    for place, row in enumerate(rows.values()):
        column = 0
        for shade, cells in groupby(row, lambda value: _shade(value, most)):
            width = len(list(cells))
            if shade is not None:
                left, right = across[column], across[column + width]
                top, bottom = place - 0.44, place + 0.44
                corners[shade] += [(left, top), (right, top), (right, bottom), (left, bottom)]
            column += width
    for shade, points in corners.items():
        if points:
            plot.add_patch(PathPatch(_rectangles(points), facecolor=STEPS[shade].light, linewidth=0))
    _name_rows(canvas, plot, list(rows))
    begun = starts(digest)
    charts.time_axis(canvas, plot, begun[0], begun[-1] + digest.interval_us)
    _key(canvas, written, most)


def _shade(value: float, most: float) -> int | None:
    return min(int(value / most * len(STEPS)), len(STEPS) - 1) if value > 0 else None


def _rectangles(corners: list[tuple[float, float]]) -> Path:
    points, codes = [], []
    for first in range(0, len(corners), 4):
        points += [*corners[first : first + 4], corners[first]]
        codes += [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return Path(points, codes)


def _name_rows(canvas: Canvas, plot: Axes, names: list[str]) -> None:
    every = max(1, -(-len(names) // 30))
    plot.set_yticks(range(0, len(names), every), names[::every])
    plot.set_ylim(len(names) - 0.5, -0.5)
    plot.grid(visible=False)


def _key(canvas: Canvas, written: Callable[[float], str], most: float) -> None:
    patches = [Patch(facecolor=step.light, linewidth=0) for step in STEPS]
    canvas.sheet.legend(
        patches,
        [""] * (len(STEPS) - 1) + [f"up to {written(most)}"],
        loc="outside upper left",
        ncols=len(STEPS),
        labelcolor=INK.light,
        borderaxespad=0,
        columnspacing=0,
        handletextpad=0.2,
    )


MAPPED_QUEUES = 60


def load(digest: Digest) -> Section:
    return Section("Load", list(_figures(digest)))


def _figures(digest: Digest) -> Iterator[Figure]:
    each = spoken(digest.interval_us)
    yield drawn(
        lambda canvas: _rates(canvas, digest),
        title="Messages per second, done by each member and published",
        caption=f"Mean over each {each}. The gap between the line and the coloured area is growing lag.",
    )
    if not digest.queues:
        return
    if len(digest.queues) > 1 and len(starts(digest)) > 1:
        rows = min(len({row.queue for row in digest.queues_over_time}), MAPPED_QUEUES)
        yield drawn(
            lambda canvas: _map(canvas, digest),
            title="When each queue was busy",
            caption=f"Messages done in each {each}: the darker against the page, the more."
            + (f" The {MAPPED_QUEUES} hottest queues." if len(digest.queues) > MAPPED_QUEUES else ""),
            height_px=90 + max(rows * 13, 120),
        )
    yield drawn(
        lambda canvas: _made_of(canvas, digest.queues, "queue"),
        title="Load of each queue, and its hottest hash",
        caption="Messages done. The full colour is its hottest hash's part, which no number of queues splits."
        + (f" The {SHOWN_QUEUES} hottest queues." if len(digest.queues) == SHOWN_QUEUES else ""),
        height_px=260,
    )
    yield drawn(
        lambda canvas: _made_of(canvas, digest.hashes, "hash"),
        title="The hottest hashes, and the hottest key of each",
        caption="Messages done, hottest first. The full colour is its hottest key's part, which no number of hashes "
        f"splits.{f' The first {SHOWN_HASHES}.' if len(digest.hashes) == SHOWN_HASHES else ''}",
        height_px=260,
    )


def _rates(canvas: Canvas, digest: Digest) -> None:
    plot = canvas.sheet.subplots()
    across, seconds = edges(digest), digest.interval_us / 1e6
    lower = [0.0] * len(across)
    for label, colour, messages in _stacked(digest):
        upper = [below + each / seconds for below, each in zip(lower, stepped(messages), strict=True)]
        plot.fill_between(across, lower, upper, step="post", label=label, color=colour, linewidth=0)
        plot.step(across, upper, where="post", color=CARD.light, linewidth=0.6)
        lower = upper
    if digest.published_over_time:
        published = [each / seconds for each in values(digest, digest.published_over_time, "messages")]
        plot.step(across, stepped(published), where="post", color=INK.light, linewidth=1.3, label="published")
    plot.set_ylim(bottom=0)
    charts.formatted(plot.yaxis, numbers.count)
    plot.set_ylabel("messages/s")
    _time(canvas, plot, digest)
    charts.legend(canvas, plot)


def _stacked(digest: Digest) -> Iterator[tuple[str, str, list[float]]]:
    """The members that did most, each with a colour, and all others as one."""
    by_member: dict[int, list[Row]] = defaultdict(list)
    for row in digest.members_over_time:
        by_member[row.member].append(row)
    most = sorted(by_member, key=lambda member: (-sum(row.messages for row in by_member[member]), member))
    rest = values(digest, digest.done_over_time, "messages")
    for member, colour in zip(sorted(most[: len(SERIES)]), SERIES, strict=False):
        messages = values(digest, by_member[member], "messages")
        rest = [left - each for left, each in zip(rest, messages, strict=True)]
        yield f"member {member}", colour.light, messages
    if any(rest):
        yield "other members", OTHERS.light, rest


def _map(canvas: Canvas, digest: Digest) -> None:
    plot = canvas.sheet.subplots()
    by_queue: dict[int, list[Row]] = defaultdict(list)
    for row in digest.queues_over_time:
        by_queue[row.queue].append(row)
    hottest = {row.queue for row in digest.queues[:MAPPED_QUEUES]}
    rows = {str(queue): values(digest, by_queue[queue], "messages") for queue in sorted(hottest)}
    seconds = digest.interval_us / 1e6
    grid(canvas, plot, digest, rows, lambda most: f"{numbers.rate(most / seconds)}")
    plot.set_ylabel("queue")


def _made_of(canvas: Canvas, wholes: list[Row], unit: str) -> None:
    plot = canvas.sheet.subplots()
    wholes = wholes if unit == "hash" else sorted(wholes, key=lambda row: row[unit])
    if canvas.is_narrow:
        wholes = wholes[:SHOWN_HASHES] if len(wholes) > SHOWN_HASHES * 2 else wholes
    places = range(len(wholes))
    width = 0.78 if len(wholes) < 80 else 1.0
    plot.bar(places, [row.messages for row in wholes], width, color=STEPS[2].light, label=f"the whole {unit}")
    part = "hash" if unit == "queue" else "key"
    plot.bar(
        places,
        [row.hottest_messages for row in wholes],
        width,
        color=SERIES[0].light,
        label=f"its hottest {part}",
    )
    mean = sum(row.messages for row in wholes) / len(wholes)
    if unit == "queue" and len(wholes) > 1:
        plot.axhline(mean, color=ALARM.light, linewidth=1.2, linestyle=(0, (4, 3)), label="the same for each")
    every = max(1, -(-len(wholes) // (12 if canvas.is_narrow else 40)))
    plot.set_xticks(places[::every], [shown(str(row[unit])) for row in wholes[::every]])
    plot.margins(x=0.01)
    plot.grid(visible=False, axis="x")
    plot.set_xlabel(unit)
    charts.formatted(plot.yaxis, numbers.count)
    plot.set_ylabel("messages")
    charts.legend(canvas, plot)


def _time(canvas: Canvas, plot: Axes, digest: Digest) -> None:
    begun = starts(digest)
    charts.time_axis(canvas, plot, begun[0], begun[-1] + digest.interval_us)


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
"""Start of axes of time spans: shorter ones, and those that differing clocks make negative, are drawn there."""


def latency(digest: Digest) -> Section:
    metrics = [metric for metric in METRICS if metric in {row.metric for row in digest.latencies}]
    timed = [metric for metric in metrics if metric != SIZE]
    parts: list[Table | Figure | SideBySide] = [_table(digest.latencies, metrics)]
    if timed:
        parts.append(
            drawn(
                lambda canvas: _distributions(canvas, digest, timed),
                title="How long each step took",
                caption="How often each time was seen, on a scale of powers of ten; each row has a height of its own.",
                height_px=70 + 62 * len(timed),
            )
        )
    over_time = [_over_time(digest, metric) for metric in metrics]
    parts += [SideBySide(over_time[first : first + 2]) for first in range(0, len(over_time), 2)]
    return Section(
        "Latency and size",
        parts,
        intro="Of all deliveries, also those released to the broker. Percentiles are at most 0.4 % off.",
    )


def _table(latencies: Sequence[Row], metrics: Sequence[str]) -> Table:
    by_metric = {row.metric: row for row in latencies}
    columns = [Column(""), Column("count", numeric=True)]
    rows = []
    for metric in metrics:
        row, written = by_metric[metric], _written(metric)
        values = (written(row[name]) for name in _COLUMNS)
        rows.append([METRICS[metric][0], numbers.whole(row.messages), *values])
    return Table([*columns, *(Column(name, numeric=True) for name in _COLUMNS.values())], rows)


def _written(metric: str) -> Callable[[float | None], str]:
    return numbers.size if metric == SIZE else numbers.duration


def _distributions(canvas: Canvas, digest: Digest, metrics: Sequence[str]) -> None:
    plot = canvas.sheet.subplots()
    percentiles = {row.metric: row for row in digest.latencies}
    charts.duration_scale(plot.xaxis)
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
    charts.legend(canvas, plot)


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
        charts.formatted(plot.yaxis, numbers.size)
    else:
        charts.duration_scale(plot.yaxis)
    for name, (label, colour) in PERCENTILES.items():
        course = [max(rows[at][name], SHORTEST_US) if at in rows else float("nan") for at in begun]
        plot.step(
            edges(digest), stepped(course), where="post", color=colour.light, label=label, linewidth=1.6
        )
    if metric == SIZE:
        plot.set_ylim(bottom=0)
    charts.time_axis(canvas, plot, begun[0], begun[-1] + digest.interval_us)
    charts.legend(canvas, plot, columns=3)
