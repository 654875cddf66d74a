"""Schedules of groups: the floor that applies now, and when it changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from lbg_operator.crds import Floor, GroupManifest
from lbg_operator.reconcile.object_cache import Key


@dataclass(frozen=True, slots=True)
class _Known:
    manifest: GroupManifest
    since: datetime
    scheduled: GroupManifest
    floor: Floor


class Schedules:
    def __init__(self, wall_clock: Callable[[], datetime]) -> None:
        self._wall_clock = wall_clock
        self._known: dict[Key, _Known] = {}

    def at_present(self, key: Key, group: GroupManifest) -> GroupManifest:
        """The group with the fewest consumers that its schedule has now."""
        now, known = self._wall_clock(), self._known.get(key)
        if (
            known is not None
            and known.manifest is group
            and known.since <= now < known.floor.holds_until  # a clock may be put back
        ):
            return known.scheduled
        scheduled, floor = group.at(now)
        if floor is None:
            self.forget(key)
        else:
            self._known[key] = _Known(group, now, scheduled, floor)
        return scheduled

    def floor(self, key: Key) -> Floor | None:
        """Floor by the schedule, as of the last reconcile; None without a schedule."""
        known = self._known.get(key)
        return None if known is None else known.floor

    def due_in_s(self, key: Key) -> float:
        """In how many seconds it is another. Infinity without a schedule."""
        floor = self.floor(key)
        if floor is None:
            return float("inf")
        return max((floor.holds_until - self._wall_clock()).total_seconds(), SOON_S)

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)


SOON_S = 0.01
"""A change that came during a reconcile."""
