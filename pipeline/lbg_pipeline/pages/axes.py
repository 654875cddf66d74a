"""Axes that say their units, and legends above what they explain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from matplotlib import dates, ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis

from . import formatting
from .drawing import Canvas
from .escaping import shown
from .theme import INK


def at(time_us: int) -> datetime:
    """A place on an axis of time."""
    return datetime.fromtimestamp(time_us / 1e6, UTC)


def place(time_us: int) -> float:
    """The same as matplotlib counts, for what takes numbers alone."""
    return float(dates.date2num(at(time_us)))


def time_axis(canvas: Canvas, axes: Axes, first_us: int, last_us: int) -> None:
    """The horizontal axis is time, in UTC, from `first_us` to `last_us`."""
    # With three ticks at least, of five at most, spans of 2 to 3 minutes, hours or years have no step that does.
    least, most = (2, 5) if canvas.is_narrow else (3, 10)
    locator = dates.AutoDateLocator(minticks=least, maxticks=most, tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlim(place(first_us), place(max(last_us, first_us + 1000)))
    axes.set_xlabel("time (UTC)")
    axes.grid(visible=False, axis="x")


def formatted(axis: Axis, how: Callable[[float], str], ticks: int = 5) -> None:
    """A linear axis whose ticks are written by `how`, one of `formatting`, after steps that people count in."""
    axis.set_major_locator(ticker.MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: how(value)))


def duration_scale(axis: Axis) -> None:
    """A logarithmic axis of microseconds."""
    is_horizontal = axis is axis.axes.xaxis
    (axis.axes.set_xscale if is_horizontal else axis.axes.set_yscale)("log")
    axis.set_major_locator(_Decades(numticks=8))
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: _power_of_ten(value)))


class _Decades(ticker.LogLocator):
    """Powers of ten, and 2 and 5 between them where there are few."""

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        self.set_params(subs=(1.0, 2.0, 5.0) if vmax < vmin * 300 else (1.0,))
        return super().tick_values(vmin, vmax)


def _power_of_ten(value_us: float) -> str:
    """Seconds, however many: minutes are no power of ten."""
    if value_us >= 1e6:
        return f"{value_us / 1e6:,.0f} s"
    return formatting.duration(value_us)


def legend(canvas: Canvas, axes: Axes, columns: int | None = None) -> None:
    """What the colours mean, above the axes."""
    handles, names = axes.get_legend_handles_labels()
    if not names:
        return
    canvas.sheet.legend(
        handles,
        [shown(name, 22) for name in names],
        loc="outside upper left",
        ncols=columns or (2 if canvas.is_narrow else min(len(names), 7)),
        labelcolor=INK.light,
        borderaxespad=0,
    )


def nothing(canvas: Canvas, why: str) -> None:
    """In place of a picture: why there is none."""
    canvas.sheet.text(0.5, 0.5, why, ha="center", va="center", wrap=True)
