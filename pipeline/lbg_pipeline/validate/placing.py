"""Mode Sessions: a message has one place, and a place has one message. A place is a session and a number in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lbg_pipeline.numbering import Ints

from .deposition import NEVER, Deposition, Flags


def misplaced(of: Deposition, one: Ints, other: Ints, judged: Flags) -> Iterator[dict[str, Any]]:
    """Deliveries whose `other` is not that of the first delivery of their `one`: messages and places, either way."""
    rows = of.before_us(np.flatnonzero(judged), of.delivered_at_us, one)
    if not len(rows):
        return
    starts = np.flatnonzero(np.diff(one[rows], prepend=-1))
    first = np.repeat(other[rows][starts], np.diff(np.append(starts, len(rows))))
    for row in rows[other[rows] != first].tolist():
        yield _offence(of, row)


def nowhere(of: Deposition) -> Iterator[dict[str, Any]]:
    for row in np.flatnonzero(of.is_in_sessions & ~is_placed(of)).tolist():
        yield _offence(of, row)


def is_placed(of: Deposition) -> Flags:
    found: Flags = (of.session.codes < len(of.session.told)) & (of.sequence != NEVER)
    return found


def _offence(of: Deposition, row: int) -> dict[str, Any]:
    at_us = int(of.delivered_at_us[row])
    return {**of.told(row), "kind": "misplaced", "view": "delivered", "at_us": at_us, "uncertain": False}
