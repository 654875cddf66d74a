"""Durations of manifests."""

from __future__ import annotations

import pytest

from lbg_core.durations import seconds_of


@pytest.mark.parametrize(
    ("told", "seconds"), [("10s", 10), ("1m30s", 90), ("500ms", 0.5), ("1h", 3600), ("0s2s", 2)]
)
def test_a_duration_is_the_sum_of_its_parts(told: str, seconds: float) -> None:
    assert seconds_of(told) == seconds


@pytest.mark.parametrize("told", ["", "10", "s", "1.5s", "-1s", "1d", "10s ", "1s2s3s4s5s"])
def test_another_text_is_none(told: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds_of(told)
