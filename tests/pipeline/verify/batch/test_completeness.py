"""What is missing, on ranges small enough to read."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Completeness, Deliveries, Ranges, completeness, module
    from lbg_pipeline.verify import batch_checks as module
    from lbg_pipeline.verify.batch_checks import Completeness, Deliveries, Ranges, completeness


def judged(
    published: list[tuple[int, int, int]], delivered: list[tuple[int, int]], *, streams: int = 2
) -> Completeness:
    ranges = np.array(published, np.int64).reshape(-1, 3).T
    came = np.array(delivered, np.int64).reshape(-1, 2).T
    return completeness(streams, Ranges(*ranges), Deliveries(came[0], came[1], np.ones(len(came[0]), bool)))


def missing(found: Completeness) -> list[tuple[int, int, int]]:
    ranges = found.missing
    return list(zip(ranges.stream.tolist(), ranges.first.tolist(), ranges.last.tolist(), strict=True))


def test_gaps_are_ranges_of_their_stream() -> None:
    found = judged([(0, 0, 9), (1, 5, 6)], [(0, seq) for seq in (0, 3, 4, 9)] + [(1, 6)])
    assert missing(found) == [(0, 1, 2), (0, 5, 8), (1, 5, 5)]
    assert found.published.tolist() == [10, 2]
    assert found.distinct.tolist() == [4, 1]


def test_ranges_that_overlap_count_once() -> None:
    found = judged([(0, 0, 4), (0, 3, 8), (0, 8, 8), (0, 20, 21)], [(0, seq) for seq in range(9)])
    assert found.published.tolist() == [11, 0]
    assert missing(found) == [(0, 20, 21)]


def test_what_nobody_published_is_counted_and_not_missing() -> None:
    found = judged([(0, 5, 6)], [(0, 4), (0, 5), (0, 6), (0, 7), (1, 0), (1, 0)])
    assert found.unpublished.tolist() == [2, 1]
    assert missing(found) == []


@pytest.mark.parametrize("line", [2.0**61, 8.0])
def test_numbers_of_any_size_have_a_line_long_enough(monkeypatch: pytest.MonkeyPatch, line: float) -> None:
    monkeypatch.setattr(module, "_LINE", line)
    far = 2**60
    found = judged([(0, far, far + 2), (1, 0, 1), (2, far, far)], [(0, far + 1), (1, 1), (2, far)], streams=3)
    assert missing(found) == [(0, far, far), (0, far + 2, far + 2), (1, 0, 0)]
    assert found.published.tolist() == [3, 2, 1]


def test_nothing_at_all_is_complete() -> None:
    assert missing(judged([], [], streams=0)) == []
