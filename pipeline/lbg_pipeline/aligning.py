"""Tables as lines of text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], *, names: int = 1) -> Iterator[str]:
    """Numbers under numbers; the first `names` columns are names, and stand at the left."""
    table = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.ljust(width) if place < names else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
