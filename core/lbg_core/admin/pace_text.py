"""Words and JSON about the pace of members, keys and groups, the same in every view. Pure.

`-`: there is nothing to time; `unknown`: nobody reports it.
"""

from __future__ import annotations

from math import inf
from typing import Any

from lbg_core.admin.key_lane import duration
from lbg_core.group.pace import HotKey, KeyPace, Pace, Slow

PACE_HEADER = ("P50", "P99", "BUSY")
"""Of `pace_cells`: the time that half of the calls take at most, and 99 of 100, and the busy share."""

STEADY = 0.02
"""A trend of less than this part of what is finished is chance: calls that run count as lag."""


def pace_cells(pace: Pace | KeyPace | None) -> tuple[str, str, str]:
    if pace is None:
        return "unknown", "unknown", "unknown"
    return _time(pace.p50_s), _time(pace.p99_s), share_text(pace.busy)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(round(seconds * 1e6))


def share_text(share: float) -> str:
    percent = 100 * share
    if 0 < percent < 0.1:
        return "<0.1 %"
    return f"{percent:.0f} %" if percent >= 1 or not percent else f"{percent:.1g} %"


def slow_text(slow: Slow) -> str:
    """Of a member that is far slower than its peers."""
    return f"{slow.factor:.0f} times the {_time(slow.peers_s)} of its peers"


def key_text(key: HotKey) -> str:
    """Without the key."""
    words = [] if key.rate is None else [rate_text(key.rate)]
    if key.pace is not None:
        p50, p99, busy = pace_cells(key.pace)
        words += [f"{busy} busy", *([f"p50 {p50}, p99 {p99}"] if key.pace.calls else ["no call has ended"])]
    return ", ".join(words)


def trend_text(lag_per_min: float | None, finished_hz: float | None) -> str:
    """Change of the lag."""
    if lag_per_min is None:
        return "unknown"
    if abs(lag_per_min) <= max(0.5, 60 * STEADY * (finished_hz or 0.0)):
        return "steady"
    return f"{'rises' if lag_per_min > 0 else 'falls'} by {abs(lag_per_min):,.0f}/min"


def flow_text(
    published_hz: float | None,
    finished_hz: float | None,
    lag_per_min: float | None,
    clears_s: float | None = None,
) -> str:
    """Messages that come and go, and the change of the lag. `clears_s`: infinity where the lag does not shrink."""
    trend = trend_text(lag_per_min, finished_hz)
    words = [
        f"published {rate_text(published_hz)}",
        f"finished {rate_text(finished_hz)}",
        "trend of lag unknown" if trend == "unknown" else f"lag {trend}",
    ]
    if clears_s is not None:
        words.append("does not clear" if clears_s == inf else f"clears in {duration(round(clears_s * 1e6))}")
    return ", ".join(words)


def rate_text(per_s: float | None) -> str:
    if per_s is None:
        return "unknown"
    return "<0.1/s" if 0 < per_s < 0.05 else f"{per_s:,.1f}/s" if 0 < per_s < 10 else f"{per_s:,.0f}/s"


def hot_key_json(key: HotKey) -> dict[str, Any]:
    """For `--json`: null where it is unknown."""
    return {
        "key": key.key,
        "rate": rounded(key.rate),
        "busy": None if key.pace is None else key.pace.busy,
        "p50_s": None if key.pace is None else key.pace.p50_s,
        "p99_s": None if key.pace is None else key.pace.p99_s,
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
