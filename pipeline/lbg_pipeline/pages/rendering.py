"""The HTML of each part. Text from data passes `escaped` here, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from .escaping import LONGEST, escaped
from .parts import Bar, Column, Facts, Figure, Note, Part, Row, Section, Table

DEEPEST_HEADING = 4


def part_html(part: Part, level: int, anchor: str) -> str:
    """`level` is that of a section's heading, `anchor` what links to it are called."""
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
    head = "".join(f'<th scope="col"{_numeric(one)}>{escaped(one.title)}</th>' for one in part.columns)
    rows = "".join(f"<tr>{_cells(part.columns, row)}</tr>" for row in part.rows)
    left_out = f'<p class="note">{escaped(part.left_out)}</p>' if part.left_out else ""
    table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="table" tabindex="0">{table}</div>{left_out}'


def _cells(columns: Sequence[Column], row: Sequence[str | Bar]) -> str:
    return "".join(_cell(column, cell) for column, cell in zip(columns, row, strict=True))


def _cell(column: Column, cell: str | Bar) -> str:
    text, bar = (cell.text, _bar(cell.share)) if isinstance(cell, Bar) else (cell, "")
    whole = f' title="{escaped(text)}"' if len(text) > LONGEST else ""
    return f"<td{_numeric(column)}{whole}{bar}>{escaped(text, LONGEST)}</td>"


def _numeric(column: Column) -> str:
    return ' class="number"' if column.numeric else ""


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
