"""The figures of a forecast's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import dates

from ..pages import Canvas, Figure, drawn
from ..pages.axes import at, formatted, legend, time_axis
from ..pages.formatting import count, three_figures
from ..pages.theme import OTHERS, SERIES
from .planned import Planned
from .settings import DAY_S, SECOND_US, ForecastSettings

DRAWN_HISTORY_S = 28 * DAY_S
DRAWN_BACKTEST_S = 14 * DAY_S
OURS, NAIVE, CAME = SERIES[0].light, SERIES[1].light, OTHERS.light


@dataclass(frozen=True, slots=True)
class Drawable:
    """What figures need beyond a group's plan, in messages by interval. `came` is the end of the history without gaps;
    `backtest` has start, what came, and what was expected by the method and by the naive one."""

    came: Sequence[tuple[int, float]]
    backtest: Sequence[tuple[int, float, float, float]]


def history_figure(group: Planned, drawable: Drawable, settings: ForecastSettings) -> Figure:
    def draw(canvas: Canvas) -> None:
        axes = canvas.sheet.subplots()
        # A narrow page has room for half of the past.
        came = drawable.came[len(drawable.came) // 2 :] if canvas.is_narrow else drawable.came
        starts = [_place(one.start_us) for one in group.intervals]
        axes.plot(
            [_place(start) for start, _ in came],
            [value for _, value in came],
            color=CAME,
            label="came",
            lw=1.2,
        )
        axes.fill_between(
            starts,
            [one.low for one in group.intervals],
            [one.high for one in group.intervals],
            color=OURS,
            alpha=0.25,
            lw=0,
            label="8 of 10 intervals",
        )
        axes.plot(starts, [one.expected for one in group.intervals], color=OURS, label="expected")
        first = came[0][0] if came else group.intervals[0].start_us
        time_axis(canvas, axes, first, group.intervals[-1].start_us + settings.interval_us)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"messages in {_interval(settings)}")
        formatted(axes.yaxis, count)
        legend(canvas, axes)

    return drawn(
        draw,
        title="History and forecast",
        caption="The end of the history, what is expected next, and the band that eight of ten should lie in.",
    )


def floor_figure(group: Planned) -> Figure:
    def draw(canvas: Canvas) -> None:
        axes = canvas.sheet.subplots()
        top = max(one.replicas for one in group.floor)
        edges = [_place(one.from_s * SECOND_US) for one in group.floor] + [
            _place(group.floor[-1].until_s * SECOND_US)
        ]
        axes.stairs([one.replicas for one in group.floor], edges, fill=True, color=OURS, alpha=0.35)
        axes.stairs([one.replicas for one in group.floor], edges, color=OURS, lw=1.8, baseline=None)
        height = max(1.15 * top, top + 1)
        if group.sizing is not None and group.sizing.most <= 2 * top:
            axes.axhline(group.sizing.most, color=NAIVE, lw=1.2, ls="--", label="most that there may be")
            height = max(height, 1.05 * group.sizing.most)
        time_axis(canvas, axes, group.floor[0].from_s * SECOND_US, group.floor[-1].until_s * SECOND_US)
        axes.set_ylim(0, height)
        axes.set_ylabel("replicas at least")
        formatted(axes.yaxis, three_figures)
        legend(canvas, axes)

    return drawn(
        draw,
        title="Floor of replicas",
        caption="The least number of replicas. It rises before the interval that needs it, by the lead time.",
        height_px=240,
    )


def backtest_figure(drawable: Drawable, settings: ForecastSettings) -> Figure:
    def draw(canvas: Canvas) -> None:
        axes = canvas.sheet.subplots()
        told = drawable.backtest[len(drawable.backtest) // 2 :] if canvas.is_narrow else drawable.backtest
        starts = [_place(one[0]) for one in told]
        axes.plot(starts, [one[1] for one in told], color=CAME, lw=3.2, label="came")
        axes.plot(starts, [one[3] for one in told], color=NAIVE, lw=1.1, label="naive")
        axes.plot(starts, [one[2] for one in told], color=OURS, lw=1.3, label="seasonal")
        time_axis(canvas, axes, told[0][0], told[-1][0] + settings.interval_us)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"messages in {_interval(settings)}")
        formatted(axes.yaxis, count)
        legend(canvas, axes)

    return drawn(
        draw,
        title="Backtest",
        caption="The end of the backtest: each week or day was forecast from what was known at its beginning.",
        height_px=260,
    )


def _place(time_us: int) -> float:
    return float(dates.date2num(at(time_us)))


def _interval(settings: ForecastSettings) -> str:
    minutes, seconds = divmod(settings.interval_s, 60)
    return "an hour" if minutes == 60 else f"{minutes} min" if not seconds else f"{settings.interval_s} s"
