"""Poison, and what an administrator does with parked keys, in groups with a parking queue."""

from __future__ import annotations

from lbg_core.admin.dead_letters import Selection
from lbg_core.group.parked_keys import ParkedKey
from testing.simulation.faults import Fault, Installation, fault

PARKING = ("poison", "release_parked", "replay_one", "discard_parked")
KILLED = 0.4
"""Share of the commands that are killed."""


def _killed_after_s(it: Fault) -> float | None:
    """From 2 ms to 20 s."""
    return 0.002 * 10_000 ** (it.size / KILLED) if it.size < KILLED else None


def _parked(history: Installation, choice: float) -> ParkedKey | None:
    keys = list(history.parkings.keys.parked())
    return keys[int(choice * len(keys))] if keys else None


@fault(4, of_parking=True)
def poison(history: Installation, it: Fault) -> None:
    publisher = history.publishers[int(it.choice * len(history.publishers))]
    key = history.key_of(publisher.name, int(it.size * 104_729))
    is_one = int(it.choice * 1000) % 2 == 0
    seconds = 2.0 * 40**it.size
    history.note(f"{'the next message' if is_one else 'all'} of {key} fails for {seconds:.1f} s")
    history.parkings.poison(key, is_one=is_one, seconds=seconds)


@fault(2.5, of_parking=True)
def release_parked(history: Installation, it: Fault) -> None:
    parked = _parked(history, it.choice * 2) if it.choice < 0.5 else None
    if len(history.parkings.keys):
        history.parkings.release(parked.key if parked else None, killed_after_s=_killed_after_s(it))


@fault(1, of_parking=True)
def replay_one(history: Installation, it: Fault) -> None:
    parked = _parked(history, it.choice)
    if parked is not None:
        history.parkings.replay_one(parked.key, killed_after_s=_killed_after_s(it))


@fault(0.7, of_parking=True)
def discard_parked(history: Installation, it: Fault) -> None:
    parked = _parked(history, it.choice)
    if parked is None:
        return
    first = "-".join(map(str, parked.first[0]))
    is_one = int(it.choice * 1000) % 2 == 0
    selection = Selection(frozenset((first,))) if is_one else Selection(key=parked.key)
    history.parkings.discard(selection, killed_after_s=_killed_after_s(it))
