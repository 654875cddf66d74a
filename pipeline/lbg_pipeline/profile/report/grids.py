"""Heat maps: a row for each queue or member, a column for each interval, few shades that can be told apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from lbg_pipeline.pages import Canvas, axes
from lbg_pipeline.pages.theme import INK, STEPS

from ..digesting import Digest
from .intervals import edges, starts


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
    axes.time_axis(canvas, plot, begun[0], begun[-1] + digest.interval_us)
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
