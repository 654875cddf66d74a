"""The colours of pages and figures, light and dark.

The series are those of Okabe and Ito ("Color Universal Design", 2008), which all kinds of colour vision tell apart; for
a dark page they are lighter. The steps are of one hue, so that they stay in order without colour. Figures are drawn in
the light colours, and each is then replaced by the variable of its role: so one drawing serves both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Colour:
    role: str
    light: str
    dark: str


PAPER = Colour("paper", "#faf9f6", "#15181d")
CARD = Colour("card", "#fffffe", "#1c2027")
INK = Colour("ink", "#1c232d", "#e6e8eb")
MUTED = Colour("muted", "#5b6470", "#a0a8b3")
LINE = Colour("line", "#e1dfd8", "#313843")
OTHERS = Colour("others", "#aab0b8", "#626b77")
ALARM = Colour("alarm", "#c14a09", "#ff8a50")

SERIES = (
    Colour("series-1", "#0072b2", "#4aa8e6"),
    Colour("series-2", "#e69f00", "#f3b83f"),
    Colour("series-3", "#009e73", "#35c69c"),
    Colour("series-4", "#cc79a7", "#e39cc4"),
    Colour("series-5", "#56b4e9", "#9bd6fa"),
    Colour("series-6", "#d55e00", "#f58142"),
)
STEPS = (
    Colour("step-1", "#e6eef5", "#222c37"),
    Colour("step-2", "#c4d9ea", "#26435b"),
    Colour("step-3", "#98c0dd", "#2c5f86"),
    Colour("step-4", "#64a2cc", "#3a7fb3"),
    Colour("step-5", "#3382b6", "#5aa2d6"),
    Colour("step-6", "#125f95", "#8bc4ef"),
    Colour("step-7", "#063d68", "#c9e7ff"),
)
ALL = (PAPER, CARD, INK, MUTED, LINE, OTHERS, ALARM, *SERIES, *STEPS)

_VARIABLES = {colour.light: f"var(--{colour.role})" for colour in ALL}


def variables(is_dark: bool) -> str:
    """CSS declarations of all colours."""
    return "".join(f"--{one.role}:{one.dark if is_dark else one.light};" for one in ALL)


def themed(svg: str) -> str:
    """The drawing, its colours replaced by their roles."""
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    return svg
