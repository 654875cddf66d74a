"""HTML pages: one file with everything in it, from plain values. No I/O, and no Spark.

`page(title, sections)` makes the text of the file. A section holds parts: `Facts` (the few figures that matter),
`Table`, `Note`, `Figure` (from `drawn`, which lets matplotlib draw), `Row` (two figures side by side) and further
sections. Every text is data and is escaped; `numbers` turns numbers into text with their units, and `charts`
does so for those of a figure.
"""

from __future__ import annotations

from lbg_pipeline.html.charts import Canvas, drawn
from lbg_pipeline.html.page import Bar, Column, Fact, Facts, Figure, Note, Row, Section, Table, page, shown

__all__ = [
    "Bar",
    "Canvas",
    "Column",
    "Fact",
    "Facts",
    "Figure",
    "Note",
    "Row",
    "Section",
    "Table",
    "drawn",
    "page",
    "shown",
]
