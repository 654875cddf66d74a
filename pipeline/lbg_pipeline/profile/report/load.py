"""How much was done, by whom, on which queue and hash."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from matplotlib.axes import Axes
from pyspark.sql import Row

from lbg_pipeline.pages import Canvas, Figure, Section, axes, drawn, formatting, shown
from lbg_pipeline.pages.theme import ALARM, CARD, INK, OTHERS, SERIES, STEPS

from ..digesting import SHOWN_HASHES, SHOWN_QUEUES, Digest
from .grids import grid
from .intervals import edges, spoken, starts, stepped, values

MAPPED_QUEUES = 60


def load(digest: Digest) -> Section:
    return Section("Load", list(_figures(digest)))


def _figures(digest: Digest) -> Iterator[Figure]:
    each = spoken(digest.interval_us)
    yield drawn(
        lambda canvas: _rates(canvas, digest),
        title="Messages per second, done by each member and published",
        caption=f"Mean over each {each}. Between the line and the coloured area is what has to wait.",
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
    axes.formatted(plot.yaxis, formatting.count)
    plot.set_ylabel("messages/s")
    _time(canvas, plot, digest)
    axes.legend(canvas, plot)


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
    grid(canvas, plot, digest, rows, lambda most: f"{formatting.rate(most / seconds)}")
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
    axes.formatted(plot.yaxis, formatting.count)
    plot.set_ylabel("messages")
    axes.legend(canvas, plot)


def _time(canvas: Canvas, plot: Axes, digest: Digest) -> None:
    begun = starts(digest)
    axes.time_axis(canvas, plot, begun[0], begun[-1] + digest.interval_us)
