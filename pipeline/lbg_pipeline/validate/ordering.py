"""Rewinds and inversions: exactly, of the few lines of messages that are not plainly in order.

A line is what has an order of its own: a key of a publisher, over its epochs, and hash; or a session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lbg_pipeline.numbering import Ints

from .deposition import NEVER, Deposition, Flags

DELIVERED_VIEW, ACKNOWLEDGED_VIEW = "delivered", "acknowledged"


def out_of_order(
    of: Deposition, line: Ints, number: Ints, judged: Flags, skew_us: int, *, told: Ints | None = None
) -> Iterator[dict[str, Any]]:
    """The offences among the `judged` deliveries as delivered and as acknowledged; `number` rises within `line`, and
    `told` is what it is called where that is not the same."""
    told = number if told is None else told
    rows = of.before_us(np.flatnonzero(judged), of.delivered_at_us, line)
    suspects = _not_rising(line, rows, number)
    yield from _judged(
        of, _of_lines(rows, line, suspects), line, number, told, of.delivered_at_us, DELIVERED_VIEW, skew_us
    )

    settled = rows[of.is_acknowledged[rows] & (of.settled_at_us[rows] != NEVER)]
    suspects = np.union1d(_not_rising(line, settled, number), _not_rising(line, settled, of.settled_at_us))
    of_suspects = _of_lines(settled, line, suspects)
    in_order = of.before_us(of_suspects, of.settled_at_us, line)
    yield from _judged(of, in_order, line, number, told, of.settled_at_us, ACKNOWLEDGED_VIEW, skew_us)


def _not_rising(line: Ints, rows: Ints, value: Ints) -> Ints:
    """The lines in which `value` does not rise from row to row."""
    lines, values = line[rows], value[rows]
    falls = (lines[1:] == lines[:-1]) & (values[1:] <= values[:-1])
    return np.unique(lines[1:][falls])


def _of_lines(rows: Ints, line: Ints, wanted: Ints) -> Ints:
    return rows[np.isin(line[rows], wanted)] if len(wanted) else rows[:0]


def _judged(
    of: Deposition, rows: Ints, line: Ints, number: Ints, told: Ints, at_us: Ints, view: str, skew_us: int
) -> Iterator[dict[str, Any]]:
    """`rows` are sorted by line."""
    starts = np.flatnonzero(np.diff(line[rows], prepend=-1))
    for of_line in np.split(rows, starts[1:]):
        numbers, ats, runs = number[of_line], at_us[of_line], of.run[of_line]
        highest = np.maximum.accumulate(numbers)
        latest = np.maximum.accumulate(np.where(numbers == highest, np.arange(len(numbers)), 0))
        seen: set[int] = set()
        for place, row in enumerate(of_line.tolist()):
            one = int(numbers[place])
            if place and one <= highest[place - 1]:
                expected = int(told[of_line[latest[place - 1]]]) + 1
                offence = {**of.told(row), "expected": expected, "view": view, "at_us": int(ats[place])}
                if one in seen:
                    yield {**offence, "kind": "rewound", "uncertain": False}
                else:
                    is_higher = numbers[:place] > one
                    is_certain = (runs[:place] == runs[place]) | (ats[place] - ats[:place] > skew_us)
                    uncertain = not np.any(is_higher & is_certain)
                    yield {**offence, "kind": "inverted", "uncertain": uncertain}
            seen.add(one)


def repeated(of: Deposition, message: Ints) -> Iterator[dict[str, Any]]:
    """Each acknowledgement of a message after its first. Those that were not settled count as the last."""
    rows = np.flatnonzero(of.is_acknowledged)
    of_message = message[rows]
    times = np.bincount(of_message) if len(rows) else np.zeros(0, np.int64)
    rows = rows[times[of_message] > 1]
    settled = of.settled_at_us[rows]
    is_open = settled == NEVER
    order = np.lexsort(
        (of.delivery[rows], of.run[rows], np.where(is_open, 0, settled), is_open, message[rows])
    )
    rows = rows[order]
    again = np.diff(message[rows], prepend=-1) == 0
    for row in rows[again].tolist():
        at_us = int(of.settled_at_us[row])
        yield {
            **of.told(row),
            "kind": "repeated",
            "at_us": None if at_us == NEVER else at_us,
            "uncertain": False,
        }
