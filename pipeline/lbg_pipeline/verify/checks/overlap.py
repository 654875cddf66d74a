"""Check of overlaps: a key's messages are with one application at a time."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from lbg_pipeline.columns import Flags, Ints, highest_so_far, in_order


@dataclass(frozen=True, slots=True)
class Spans:
    """One item for a span from `started_us` up to `finished_us`, that one not in it. `holder`: the member in
    one incarnation. `is_checked`: false for spans that started before, which are there for comparison only."""

    key: Ints
    holder: Ints
    started_us: Ints
    finished_us: Ints
    incarnation: Ints
    delivery: Ints
    is_checked: Flags

    def take(self, chosen: Ints) -> Spans:
        return Spans(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Indices of the spans that started while another holder was inside, and of the one that finished last of those
    that each ran into."""

    later: Ints
    other: Ints
    uncertain: Flags


def check_overlaps(spans: Spans, skew_us: int) -> Overlaps:
    order = in_order(spans.key, spans.started_us, spans.incarnation, spans.delivery)
    order = order[_suspects(spans.key[order], spans.started_us[order], spans.finished_us[order])]
    overlaps: list[tuple[int, int, bool]] = []
    for begin, end in _stretches(spans.take(order)):
        overlaps += _in_stretch(spans, order[begin:end], skew_us)
    later, other, uncertain = zip(*overlaps, strict=True) if overlaps else ((), (), ())
    return Overlaps(np.array(later, np.int64), np.array(other, np.int64), np.array(uncertain, np.bool_))


def _suspects(key: Ints, started_us: Ints, finished_us: Ints) -> Ints:
    """Indices of all spans of each key that has a span reaching beyond the start of the next. If none does, none
    reaches beyond the start of a later one."""
    reaches = (key[1:] == key[:-1]) & (finished_us[:-1] > started_us[1:])
    if not reaches.any():
        return np.zeros(0, np.int64)
    of_suspect = np.zeros(key[-1] + 1, np.bool_)
    of_suspect[key[1:][reaches]] = True
    return np.flatnonzero(of_suspect[key])


def _stretches(spans: Spans) -> list[tuple[int, int]]:
    """Of spans sorted by key and start, those that may run into one another: from one that begins with nothing open."""
    key = spans.key
    if not len(key):
        return []
    running = highest_so_far(key, spans.finished_us)
    is_open = np.r_[False, (key[1:] == key[:-1]) & (spans.started_us[1:] < running[:-1])]
    begins = np.flatnonzero(~is_open)
    ends = np.r_[begins[1:], len(key)]
    several = ends - begins > 1
    return list(zip(begins[several].tolist(), ends[several].tolist(), strict=True))


def _in_stretch(spans: Spans, rows: Ints, skew_us: int) -> list[tuple[int, int, bool]]:
    overlaps = []
    still_open: list[int] = []
    for row in rows.tolist():
        started_us = spans.started_us[row]
        still_open = [each for each in still_open if spans.finished_us[each] > started_us]
        into = [each for each in still_open if spans.holder[each] != spans.holder[row]]
        if into and spans.is_checked[row]:
            other = max(
                into,
                key=lambda each: (spans.finished_us[each], spans.incarnation[each], spans.delivery[each]),
            )
            overlaps.append((row, other, all(_is_explained(spans, each, row, skew_us) for each in into)))
        still_open.append(row)
    return overlaps


def _is_explained(spans: Spans, first: int, second: int, skew_us: int) -> bool:
    """True if two clocks that differ by the skew would show two consecutive spans like that."""
    shift_us = min(
        spans.finished_us[first] - spans.started_us[second],
        spans.finished_us[second] - spans.started_us[first],
    )
    return bool(spans.incarnation[first] != spans.incarnation[second] and shift_us <= skew_us)
