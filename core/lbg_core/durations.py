"""Durations as Kubernetes' manifests have them."""

from __future__ import annotations

import re

_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def seconds_of(duration: str) -> float:
    """Seconds of a duration such as 1m30s (Gateway API, GEP-2257). Raises ValueError for another text."""
    if not re.fullmatch(r"([0-9]{1,5}(h|m|s|ms)){1,4}", duration):
        raise ValueError(f"{duration!r} is not a duration such as 10s or 1m30s")
    return sum(int(number) * _UNITS_S[unit] for number, unit in re.findall(r"(\d+)(ms|h|m|s)", duration))
