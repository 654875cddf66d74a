"""A self-contained HTML file: its parts, their rendering, escaping and colours.

The series are those of Okabe and Ito ("Color Universal Design", 2008), which all kinds of colour vision distinguish;
for a dark page they are lighter. The steps are of one hue, so that they stay in order without colour. Figures are drawn
in the light colours, and each is then replaced by the variable of its role: so one drawing serves both.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files


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


LONGEST = 60
"""Characters of a name that are shown; of a longer one the middle is left out."""


def shown(text: str, longest: int = LONGEST) -> str:
    """The text in readable form: on one line, nothing invisible, not too long.

    Characters that do not print are written as escapes: a control character would end the page for some readers, an
        override of direction would turn the text around it, and half a surrogate pair cannot be written as UTF-8.
    """
    visible = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    if len(visible) <= longest:
        return visible
    front = (longest - 1) // 2
    return f"{visible[:front]}…{visible[-(longest - 1 - front) :]}"


def escaped(text: str, longest: int | None = None) -> str:
    """HTML for the text, between tags or inside a quoted attribute."""
    return html.escape(shown(text, len(text) * 10 if longest is None else longest), quote=True)


@dataclass(frozen=True, slots=True)
class Fact:
    """One of the few figures that matter: `value` with its unit, its name, and a remark."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    facts: Sequence[Fact]


@dataclass(frozen=True, slots=True)
class Bar:
    """A cell of a table with a bar behind its text, `share` (0 to 1) of the cell wide."""

    text: str
    share: float


@dataclass(frozen=True, slots=True)
class Column:
    """`numeric`: set to the right, figures below figures. `is_prose`: its texts are shown whole, on several lines."""

    title: str
    numeric: bool = False
    is_prose: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """`left_out`: the place of the rows that are not shown."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Bar]]
    title: str = ""
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph. `warns`: something that a reader must not miss."""

    text: str
    warns: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture: `title` names its subject, `caption` explains how to read it. `narrow` is its drawing for a narrow
    screen."""

    title: str
    caption: str
    wide: str
    narrow: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Figures side by side where there is room, else below each other."""

    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    parts: Sequence[Facts | Table | Note | Figure | Row | Section]
    intro: str = ""


Part = Facts | Table | Note | Figure | Row | Section


DEEPEST_HEADING = 4


def part_html(part: Part, level: int, anchor: str) -> str:
    """`level` is that of a section's heading, `anchor` the target of links to it."""
    match part:
        case Section():
            return section_html(part, level, anchor)
        case Facts():
            return _facts(part)
        case Table():
            return _table(part)
        case Figure():
            return _figure(part)
        case Row():
            return f'<div class="row">{"".join(map(_figure, part.figures))}</div>'
        case Note():
            return f'<p class="{"warning" if part.warns else "note"}">{escaped(part.text)}</p>'


def section_html(section: Section, level: int, anchor: str) -> str:
    heading = f"h{min(level, DEEPEST_HEADING)}"
    intro = f'<p class="intro">{escaped(section.intro)}</p>' if section.intro else ""
    parts = "".join(
        part_html(part, level + 1, f"{anchor}-{number}") for number, part in enumerate(section.parts, 1)
    )
    return f'<section id="{anchor}"><{heading}>{escaped(section.title)}</{heading}>{intro}{parts}</section>'


def _facts(part: Facts) -> str:
    facts = "".join(
        f"<div><dt>{escaped(fact.label)}</dt><dd>{escaped(fact.value)}"
        f"{f'<small>{escaped(fact.note)}</small>' if fact.note else ''}</dd></div>"
        for fact in part.facts
    )
    return f'<dl class="facts">{facts}</dl>'


def _table(part: Table) -> str:
    caption = f"<caption>{escaped(part.title)}</caption>" if part.title else ""
    head = "".join(f'<th scope="col"{_class(one)}>{escaped(one.title)}</th>' for one in part.columns)
    rows = "".join(f"<tr>{_cells(part.columns, row)}</tr>" for row in part.rows)
    left_out = f'<p class="note">{escaped(part.left_out)}</p>' if part.left_out else ""
    table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="table" tabindex="0">{table}</div>{left_out}'


def _cells(columns: Sequence[Column], row: Sequence[str | Bar]) -> str:
    return "".join(_cell(column, cell) for column, cell in zip(columns, row, strict=True))


def _cell(column: Column, cell: str | Bar) -> str:
    text, bar = (cell.text, _bar(cell.share)) if isinstance(cell, Bar) else (cell, "")
    longest = None if column.is_prose else LONGEST
    whole = f' title="{escaped(text)}"' if longest is not None and len(text) > longest else ""
    return f"<td{_class(column)}{whole}{bar}>{escaped(text, longest)}</td>"


def _class(column: Column) -> str:
    return ' class="number"' if column.numeric else ' class="prose"' if column.is_prose else ""


def _bar(share: float) -> str:
    return f' style="--bar:{min(max(share, 0.0), 1.0):.1%}"'


def _figure(part: Figure) -> str:
    drawings = part.wide
    if part.narrow:
        drawings = f'<div class="wide">{part.wide}</div><div class="narrow">{part.narrow}</div>'
    caption = f"<p>{escaped(part.caption)}</p>" if part.caption else ""
    return (
        f"<figure><figcaption><strong>{escaped(part.title)}</strong>{caption}</figcaption>{drawings}</figure>"
    )


POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""A second fence behind the escaping: even a tag that got through would load and run nothing."""


def page(title: str, sections: Sequence[Section], *, subtitle: str = "", made_by: str = "") -> str:
    """The text of the file. `subtitle` names the input, `made_by` the command that wrote the page, and the time."""
    anchors = [f"s{number}" for number in range(1, len(sections) + 1)]
    body = "".join(
        section_html(section, 2, anchor) for section, anchor in zip(sections, anchors, strict=True)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(title)}</title>\n<style>{_style()}</style>\n</head>\n<body>\n"
        f"<header><h1>{escaped(title)}</h1>{f'<p>{escaped(subtitle)}</p>' if subtitle else ''}"
        f"{_contents(sections, anchors)}</header>\n<main>{body}</main>\n"
        f"<footer>{escaped(made_by)}</footer>\n</body>\n</html>\n"
    )


def _contents(sections: Sequence[Section], anchors: Sequence[str]) -> str:
    if len(sections) < 2:
        return ""
    links = "".join(
        f'<li><a href="#{anchor}">{escaped(section.title, LONGEST)}</a></li>'
        for section, anchor in zip(sections, anchors, strict=True)
    )
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _style() -> str:
    dark = f"@media screen and (prefers-color-scheme: dark){{:root{{{variables(is_dark=True)}}}}}"
    sheet = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return f":root{{{variables(is_dark=False)}}}{dark}\n{sheet}"
