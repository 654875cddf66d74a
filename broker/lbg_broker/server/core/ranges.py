"""Positions as ranges."""

from collections.abc import Sequence

__all__ = ["runs_of"]


def runs_of(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Sorted positions as inclusive ranges."""
    if not positions:
        return []
    if positions[-1] - positions[0] == len(positions) - 1:
        return [(positions[0], positions[-1])]
    runs: list[tuple[int, int]] = []
    first = last = positions[0]
    for position in positions[1:]:
        if position != last + 1:
            runs.append((first, last))
            first = position
        last = position
    runs.append((first, last))
    return runs
