"""Counts as text."""

from __future__ import annotations

from lbg_broker.provisioning.describing import Count
from lbg_broker.provisioning.observed import UNKNOWN


def count_text(count: Count | None) -> str:
    """None: there is nothing to count."""
    if count is UNKNOWN:
        return "unknown"
    return "missing" if count is None else str(count)


def counted(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"
