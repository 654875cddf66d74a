"""The picture of the comparison: docs/comparison.png."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.axes import Axes

mpl.use("Agg")

from matplotlib import pyplot

if TYPE_CHECKING:
    from bench.comparison import Outcome

DARK, LIGHT = "#1f5a8a", "#9dc3de"
ALARM, FAINT = "#b8442f", "#e9b8ab"
THICK = 0.38


def draw(outcomes: dict[str, Outcome], keys: int, file: Path) -> None:
    names = ["\n".join(name.rsplit(", ", 1)) for name in outcomes]
    found = list(outcomes.values())
    figure, (rates, order) = pyplot.subplots(1, 2, figsize=(11, 4.6), sharey=True, layout="constrained")
    _pairs(
        rates,
        ("application returns at once", [each.at_once_hz for each in found], LIGHT),
        ("application waits 2 ms", [each.waiting_hz for each in found], DARK),
    )
    rates.set_title("Messages per second, four consumers", loc="left", fontsize=11)
    _pairs(
        order,
        ("nothing changes", [len(each.steady.keys) for each in found], FAINT),
        ("consumers leave, join and are killed", [len(each.changing.keys) for each in found], ALARM),
    )
    order.set_title(f"Sub-streams out of order, of {keys}", loc="left", fontsize=11)
    order.set_xlim(right=keys * 1.12)
    rates.set_yticks(range(len(names)), names, fontsize=9)
    rates.invert_yaxis()
    figure.savefig(file, dpi=130)
    pyplot.close(figure)


def _pairs(axes: Axes, *pairs: tuple[str, list[float], str]) -> None:
    for number, (label, values, colour) in enumerate(pairs):
        places = [at + (number - 0.5) * THICK for at in range(len(values))]
        bars = axes.barh(places, values, THICK, label=label, color=colour)
        axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=3, fontsize=8)
    axes.margins(x=0.14)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="x", labelsize=9)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.06), ncols=2, fontsize=8, frameon=False)
