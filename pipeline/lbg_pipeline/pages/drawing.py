"""Figures by matplotlib, as SVG inside the page: text stays text, colours are the page's, and nothing is loaded."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure as Sheet

from .escaping import escaped
from .parts import Figure
from .theme import CARD, INK, LINE, MUTED, SERIES, themed

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
    """The drawing out of its document: named apart from other drawings of the page, and without what nobody uses."""
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
