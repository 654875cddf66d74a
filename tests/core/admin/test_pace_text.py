"""Words about pace, and what is said where it is unknown."""

from __future__ import annotations

from math import inf

import pytest

from lbg_core.admin.pace_text import flow_text, key_text, pace_cells, share_text, slow_text, trend_text
from lbg_core.group.pace import HotKey, KeyPace, Pace, Slow


@pytest.mark.parametrize(
    ("pace", "cells"),
    [
        (None, ("unknown", "unknown", "unknown")),
        (Pace(), ("-", "-", "0 %")),
        (Pace(busy=1.0), ("-", "-", "100 %")),
        (Pace(0.353, 10.0, 600, 0.00004, 2.5), ("0.04 ms", "2.5 s", "35 %")),
    ],
)
def test_a_member_without_calls_has_no_times_and_one_without_a_report_is_unknown(
    pace: Pace | None, cells: tuple[str, ...]
) -> None:
    assert pace_cells(pace) == cells


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (0.004, "0.4 %"), (0.0004, "<0.1 %"), (0.01, "1 %"), (1, "100 %")]
)
def test_a_small_share_is_not_nothing(share: float, text: str) -> None:
    assert share_text(share) == text


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (HotKey("k", 12.0, KeyPace("k", 0.98, 700, 0.08, 0.12)), "12/s, 98 % busy, p50 80 ms, p99 120 ms"),
        (HotKey("k", None, KeyPace("k", 1.0)), "100 % busy, no call has ended"),
        (HotKey("k", 12.0, None), "12/s"),
        (HotKey("k", 0.04, None), "<0.1/s"),
    ],
)
def test_a_key_has_what_is_known_of_it(key: HotKey, text: str) -> None:
    assert key_text(key) == text


@pytest.mark.parametrize(
    ("lag_per_min", "finished", "text"),
    [
        (None, 10.0, "unknown"),
        (0.0, 0.0, "steady"),
        (60.0, 0.0, "rises by 60/min"),
        (-12_000.0, 1000.0, "falls by 12,000/min"),
        (1000.0, 1000.0, "steady"),
    ],
)
def test_a_trend_within_what_runs_is_steady(lag_per_min: float | None, finished: float, text: str) -> None:
    assert trend_text(lag_per_min, finished) == text


@pytest.mark.parametrize(
    ("flow", "text"),
    [
        ((None, None, None), "published unknown, finished unknown, trend of lag unknown"),
        (
            (1240.0, 1000.0, 14_400.0, inf),
            "published 1,240/s, finished 1,000/s, lag rises by 14,400/min, does not clear",
        ),
        ((0.0, 2.5, -150.0, 90.0), "published 0/s, finished 2.5/s, lag falls by 150/min, clears in 90.0 s"),
    ],
)
def test_what_comes_stands_beside_what_goes(flow: tuple[float | None, ...], text: str) -> None:
    assert flow_text(*flow) == text


def test_a_slow_member_stands_beside_its_peers() -> None:
    assert slow_text(Slow(20.4, 0.012)) == "20 times the 12 ms of its peers"
