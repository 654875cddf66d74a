"""Charts by matplotlib, as SVG inside the page; axes with units."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import matplotlib as mpl
from cycler import cycler
from matplotlib import dates, ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Sheet

from lbg_pipeline.html import numbers
from lbg_pipeline.html.page import CARD, INK, LINE, MUTED, SERIES, Figure, escaped, shown, themed

WIDE_PX, HALF_PX, NARROW_PX = 1000, 440, 380
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lbg",
    # A key may hold dollars, which are no formula.
    "text.parse_math": False,
    "text.color": INK.light,
    "font.size": 11.5,
    "font.family": "DejaVu Sans",
    "axes.facecolor": "none",
    "axes.edgecolor": LINE.light,
    "axes.labelcolor": MUTED.light,
    "axes.labelsize": 11.5,
    "axes.linewidth": 1,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.prop_cycle": cycler(color=[colour.light for colour in SERIES]),
    "grid.color": LINE.light,
    "grid.linewidth": 0.8,
    "xtick.color": LINE.light,
    "ytick.color": LINE.light,
    "xtick.labelcolor": MUTED.light,
    "ytick.labelcolor": MUTED.light,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "xtick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 11.5,
    "legend.handlelength": 1.1,
    "legend.handleheight": 1.1,
    "legend.columnspacing": 1.4,
    "lines.linewidth": 1.8,
    "patch.edgecolor": CARD.light,
    "figure.constrained_layout.h_pad": 0.06,
}


@dataclass(frozen=True, slots=True)
class Canvas:
    """A sheet to draw on. One unit of matplotlib's (a point) is a pixel of the page."""

    sheet: Sheet
    is_narrow: bool


def drawn(
    draw: Callable[[Canvas], None], *, title: str, caption: str, height_px: int = 300, is_half: bool = False
) -> Figure:
    """The figure that `draw` makes, drawn once for a wide page and once for a narrow one, with text of one size.

    A figure that is `is_half` a page wide fits both. The title is the page's: do not draw one. Names from data that are
    drawn pass `shown` first.
    """
    if is_half:
        return Figure(title, caption, _svg(draw, HALF_PX, height_px, title, is_narrow=True))
    wide = _svg(draw, WIDE_PX, height_px, title, is_narrow=False)
    return Figure(title, caption, wide, _svg(draw, NARROW_PX, height_px, title, is_narrow=True))


def _svg(
    draw: Callable[[Canvas], None], width_px: int, height_px: int, title: str, *, is_narrow: bool
) -> str:
    text = io.StringIO()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # Matplotlib only measures: the browser has the glyphs.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        sheet = Sheet(figsize=(width_px / 72, height_px / 72), dpi=72, layout="constrained")
        draw(Canvas(sheet, is_narrow))
        sheet.savefig(
            text,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
        )
    return _inlined(text.getvalue(), width_px, height_px, title)


def _inlined(document: str, width_px: int, height_px: int, title: str) -> str:
    """The drawing out of its document: named apart from other drawings of the page, and without unused parts."""
    body = document[document.index(">", document.index("<svg")) + 1 : document.rindex("</svg>")]
    body = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.S)
    mark = hashlib.sha256(f"{width_px}{title}{body}".encode(errors="surrogatepass")).hexdigest()[:8]
    # Tags only: what is between them is text from data, in which "<" and ">" are escaped.
    body = re.sub(r"<[^<>]+>", lambda tag: _tag(tag[0], mark), body)
    body = re.sub(r"\s*\n\s*", "\n", body).strip()
    return f'<svg viewBox="0 0 {width_px} {height_px}" role="img" aria-label="{escaped(title)}">{body}</svg>'


def _tag(tag: str, mark: str) -> str:
    tag = re.sub(r'^<g id="[^"]*"', "<g", tag)
    tag = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", tag)
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    tag = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>f{mark}-", tag)
    # A hundredth of a pixel is enough, and a third of the size.
    tag = re.sub(r'(?<=\bd=")[^"]*', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), tag)
    return themed(tag.replace("xlink:href", "href"))


def at(time_us: int) -> datetime:
    """A place on an axis of time."""
    return datetime.fromtimestamp(time_us / 1e6, UTC)


def place(time_us: int) -> float:
    """The same in matplotlib's days, for methods that accept numbers alone."""
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


def formatted(axis: Axis, text_of: Callable[[float], str], ticks: int = 5) -> None:
    """A linear axis whose ticks are written by `text_of`, one of `numbers`, at round steps."""
    axis.set_major_locator(ticker.MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: text_of(value)))


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
    return numbers.duration(value_us)


def legend(canvas: Canvas, axes: Axes, columns: int | None = None) -> None:
    """Legend of the colours, above the axes."""
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


def nothing(canvas: Canvas, reason: str) -> None:
    """In place of a picture: why there is none."""
    canvas.sheet.text(0.5, 0.5, reason, ha="center", va="center", wrap=True)
