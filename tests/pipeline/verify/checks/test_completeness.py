"""Messages that are missing, late or acknowledged twice, on numbers small enough to read."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Completeness, Intervals, Line, columns, repeated, set_of, with_delivered, with_lost, with_published
    global with_published_ranges
    from lbg_pipeline import columns
    from lbg_pipeline.columns import Intervals, Line, set_of
    from lbg_pipeline.verify.checks.completeness import (
        Completeness,
        repeated,
        with_delivered,
        with_lost,
        with_published,
        with_published_ranges,
    )


class Checked:
    """Streams of which ranges (stream, first, last) were published and messages (stream, number) delivered."""

    def __init__(
        self, published: list[tuple[int, int, int]], delivered: list[tuple[int, int]], *, streams: int = 2
    ) -> None:
        stream, first, last = np.array(published, np.int64).reshape(-1, 3).T
        of, came = np.array(delivered, np.int64).reshape(-1, 2).T
        self.line = Line(streams, (first, last, came))
        known = with_published_ranges(Completeness(), self.line.intervals(stream, first, last))
        came = set_of(self.line.place(of, came))
        self.known, _ = with_delivered(known, came, came)

    def count(self, name: str) -> list[int]:
        counted: list[int] = self.line.count_by_stream(getattr(self.known, name)).tolist()
        return counted

    @property
    def missing(self) -> list[tuple[int, int, int]]:
        return list(zip(*(column.tolist() for column in self.line.ranges(self.known.open)), strict=True))


def test_gaps_are_ranges_of_their_stream() -> None:
    checked = Checked([(0, 0, 9), (1, 5, 6)], [(0, seq) for seq in (0, 3, 4, 9)] + [(1, 6)])
    assert checked.missing == [(0, 1, 2), (0, 5, 8), (1, 5, 5)]
    assert checked.count("published") == [10, 2]
    assert checked.count("distinct") == [4, 1]


def test_ranges_that_overlap_count_once() -> None:
    checked = Checked([(0, 0, 4), (0, 3, 8), (0, 8, 8), (0, 20, 21)], [(0, seq) for seq in range(9)])
    assert checked.count("published") == [11, 0]
    assert checked.missing == [(0, 20, 21)]


def test_what_nobody_published_is_counted_and_not_missing() -> None:
    checked = Checked([(0, 5, 6)], [(0, 4), (0, 5), (0, 6), (0, 7), (1, 0), (1, 0)])
    assert checked.count("unpublished") == [2, 1]
    assert checked.missing == []


@pytest.mark.parametrize("room", [1 << 62, 8])
def test_numbers_of_any_size_have_a_line_long_enough(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(columns, "ROOM", room)
    far = 2**60
    checked = Checked(
        [(0, far, far + 9), (1, 0, 1), (2, far, far), (2, 3, 6)],
        [(0, far + 1), (1, 1), (2, far), (2, 5)],
        streams=3,
    )
    assert checked.missing == [(0, far, far), (0, far + 2, far + 9), (1, 0, 0), (2, 3, 4), (2, 6, 6)]
    assert checked.count("published") == [10, 2, 5]


def test_nothing_at_all_is_complete() -> None:
    assert Checked([], [], streams=0).missing == []


@pytest.mark.parametrize(("grain_us", "since_us"), [(1, [3, 7, 12]), (10, [7, 12])])
def test_a_message_is_open_from_its_first_confirm_until_it_is_lost_or_comes(
    grain_us: int, since_us: list[int]
) -> None:
    places, confirmed_us = np.array([3, 1, 2, 1]), np.array([12, 3, 7, 99])
    known = with_published(Completeness(), places, confirmed_us, grain_us=grain_us)
    assert known.open_since_us.tolist() == since_us
    known, lost = with_lost(known, 7)
    assert (lost.firsts.tolist(), lost.lasts.tolist()) == ([1], [2])
    came = set_of(np.array([2]))
    known, found = with_delivered(known, came, came)
    assert (found.firsts.tolist(), found.lasts.tolist()) == ([2], [2])
    assert (known.lost.firsts.tolist(), known.open.firsts.tolist()) == ([1], [3])


def test_each_acknowledgement_after_the_first_is_a_repeat_and_one_never_settled_is_the_last() -> None:
    places, settled_us = np.array([5, 5, 5, 6, 7]), np.array([20, -1, 10, 1, 1])
    zeros, is_seen = np.zeros(5, np.int64), np.array([False] * 4 + [True])
    assert sorted(repeated(places, settled_us, zeros, zeros, is_seen).tolist()) == [0, 1, 4]
