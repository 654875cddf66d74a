"""A history with a violation, and as few faults as show it."""

from __future__ import annotations

from collections.abc import Sequence

from testing.simulation.context import Setting
from testing.simulation.faults import Fault
from testing.simulation.history import History


def shrunk(
    seed: int, setting: Setting, faults: Sequence[Fault], *, simulated_max_s: float = 20_000.0
) -> History:
    """Leaves out faults as long as a violation remains, by halves, quarters and so on, and returns the last history
    that has one. The seed decides everything else as before."""
    kept = list(faults)
    best = _failing(seed, setting, kept)
    assert best is not None, "the history has no violation"
    parts, simulated_s = 2, 0.0
    while kept and simulated_s < simulated_max_s:
        size = max(1, len(kept) // parts)
        for start in range(0, len(kept), size):
            simulated_s += setting.seconds
            fewer = kept[:start] + kept[start + size :]
            found = _failing(seed, setting, fewer)
            if found is not None:
                kept, best = fewer, found
                break
        else:
            if size == 1:
                break
            parts *= 2
    return best


def _failing(seed: int, setting: Setting, faults: Sequence[Fault]) -> History | None:
    history = History(seed, setting, faults=faults, is_verbose=True)
    return history if history.run() else None
