"""Two members, or two runs of one, that had a key at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lbg_pipeline.numbering import Ints

from .deposition import NEVER, Deposition


def overlaps(of: Deposition, key: Ints, skew_us: int) -> Iterator[dict[str, Any]]:
    """Each delivery that the application was given while others' deliveries of its key were with it, once: with
    whoever finished last of those. `key` numbers the keys of all groups."""
    has_span = of.has_key & ~of.is_in_sessions & (of.started_at_us != NEVER)
    has_span &= of.finished_at_us > of.started_at_us
    rows = of.before_us(np.flatnonzero(has_span), of.started_at_us, key)
    if not len(rows):
        return
    for of_key in _suspects(of, rows, key[rows]):
        yield from _of_key(of, of_key, skew_us)


def _suspects(of: Deposition, rows: Ints, keys: Ints) -> Iterator[Ints]:
    """The rows of each key in which one span starts before all that started before it have ended."""
    started, finished = of.started_at_us[rows], of.finished_at_us[rows]
    # If no span reaches beyond the start of the next, none reaches beyond that of a later one.
    reaches = (keys[1:] == keys[:-1]) & (finished[:-1] > started[1:])
    for key in np.unique(keys[1:][reaches]):
        low, high = np.searchsorted(keys, [key, key + 1])
        yield rows[low:high]


def _of_key(of: Deposition, rows: Ints, skew_us: int) -> Iterator[dict[str, Any]]:
    open_rows: list[int] = []
    for row in rows.tolist():
        at_us = of.started_at_us[row]
        open_rows = [other for other in open_rows if of.finished_at_us[other] > at_us]
        into = [other for other in open_rows if not _is_one_run(of, row, other)]
        if into:
            other = max(into, key=lambda one: (of.finished_at_us[one], of.run[one], of.delivery[one]))
            uncertain = all(
                of.run[each] != of.run[row] and _shift_us(of, each, row) <= skew_us for each in into
            )
            yield {
                **of.told(row),
                "kind": "overlap",
                "at_us": int(at_us),
                "uncertain": uncertain,
                "other_member": int(of.member[other]),
                "other_incarnation": of.incarnation[other],
            }
        open_rows.append(row)


def _is_one_run(of: Deposition, one: int, other: int) -> bool:
    return bool(of.run[one] == of.run[other] and of.member[one] == of.member[other])


def _shift_us(of: Deposition, first: int, second: int) -> int:
    """How far one of two spans must be shifted until they no longer intersect."""
    started, finished = of.started_at_us, of.finished_at_us
    return int(min(finished[first] - started[second], finished[second] - started[first]))
