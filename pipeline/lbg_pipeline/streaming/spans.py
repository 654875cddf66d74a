"""Two members inside one key at once: spans of time that intersect."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from .intervals import Flags, Ints


@dataclass(frozen=True, slots=True)
class Spans:
    """One item for a span from `started_us` up to `finished_us`, that one not in it. `holder`: who had it, a member in
    one incarnation. `is_judged`: what started before is there only to be compared with."""

    key: Ints
    holder: Ints
    started_us: Ints
    finished_us: Ints
    incarnation: Ints
    delivery: Ints
    is_judged: Flags


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Indices of the spans that started while another holder was inside, and of the one that finished last of those
    that each ran into."""

    later: Ints
    other: Ints
    uncertain: Flags


def overlaps(spans: Spans, skew_us: int) -> Overlaps:
    order = np.lexsort((spans.delivery, spans.incarnation, spans.started_us, spans.key))
    key = spans.key[order]
    found: list[tuple[int, int, bool]] = []
    if len(key):
        running = pd.Series(spans.finished_us[order]).groupby(key, sort=False).cummax().to_numpy()
        before = np.r_[0, running[:-1]]
        suspect = (key == np.r_[-1, key[:-1]]) & (spans.started_us[order] < before)
        for begin, end in _stretches(key, suspect):
            found += _in_key(spans, order[begin:end], skew_us)
    later, other, uncertain = zip(*found, strict=True) if found else ((), (), ())
    return Overlaps(np.array(later, np.int64), np.array(other, np.int64), np.array(uncertain, np.bool_))


def _stretches(key: Ints, suspect: Flags) -> list[tuple[int, int]]:
    """Where rows stand, sorted by start, that may run into one another: from one that begins with nothing open."""
    begins = np.flatnonzero(~suspect)
    ends = np.r_[begins[1:], len(key)]
    several = ends - begins > 1
    return list(zip(begins[several].tolist(), ends[several].tolist(), strict=True))


def _in_key(spans: Spans, rows: Ints, skew_us: int) -> list[tuple[int, int, bool]]:
    found = []
    still_open: list[int] = []
    for row in rows.tolist():
        started_us = spans.started_us[row]
        still_open = [each for each in still_open if spans.finished_us[each] > started_us]
        into = [each for each in still_open if spans.holder[each] != spans.holder[row]]
        if into and spans.is_judged[row]:
            other = max(
                into,
                key=lambda each: (spans.finished_us[each], spans.incarnation[each], spans.delivery[each]),
            )
            found.append((row, other, all(_is_explained(spans, each, row, skew_us) for each in into)))
        still_open.append(row)
    return found


def _is_explained(spans: Spans, first: int, second: int, skew_us: int) -> bool:
    """Two clocks that differ by so much may show what were two spans one after the other."""
    shift_us = min(
        spans.finished_us[first] - spans.started_us[second],
        spans.finished_us[second] - spans.started_us[first],
    )
    return bool(spans.incarnation[first] != spans.incarnation[second] and shift_us <= skew_us)
