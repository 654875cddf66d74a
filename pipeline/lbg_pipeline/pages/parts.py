"""What a page is made of. All of it is text and numbers; nothing in it is HTML, but the SVG of a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """One of the few figures that matter: `value` with its unit, what it is, and a few words more."""

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
    """`numeric`: set to the right, figures below figures."""

    title: str
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """`left_out` tells of rows that are not shown: where they are to be found."""

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
    """A picture: `title` says what is seen, `caption` how to read it. `narrow` is its drawing for a narrow screen."""

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
