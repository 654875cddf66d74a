"""Which member should serve which queue: a hint that every member computes for itself."""

from __future__ import annotations

from collections.abc import Collection


def static_primaries(queue_count: int, client_count: int, live: Collection[int]) -> dict[int, int | None]:
    """The document's rule: queue q belongs to index q mod client_count; None while that index is not live."""
    return {
        queue: queue % client_count if queue % client_count in live else None for queue in range(queue_count)
    }


def balanced_primaries(queue_count: int, live: Collection[int]) -> dict[int, int]:
    """A primary for every queue, from the live indexes alone; loads differ by at most one. Empty if none live."""
    members = sorted(set(live))
    if not members:
        return {}
    return {queue: members[queue % len(members)] for queue in range(queue_count)}
