"""Tables as lines of text, for terminals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, names: int | None = None
) -> Iterator[str]:
    """A line for the header and each row, columns as wide as they need to be.

    The first `names` columns stand at the left, the others, numbers, at the right; None: all stand at the left.
    """
    table = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.ljust(width) if names is None or place < names else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
