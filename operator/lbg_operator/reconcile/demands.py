"""Demands of groups: how many consumers each needs, from one survey to the next."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from lbg_core.admin.demand import sample_of, sizer_of
from lbg_core.admin.describe import Description
from lbg_core.group import GroupSpec
from lbg_core.group.sizing import Sizer, Sizing
from lbg_operator.reconcile.object_cache import Key

SAMPLED_EVERY_S = 10.0
"""Of a group that scales by delay. Others are sampled when they are surveyed."""

FRESH_S = 45.0
"""A demand is unknown from then on: surveys come every half minute."""

NO_TARGET_S = 60.0
"""Target of a group without one: its time to clear does not depend on it."""


@dataclass(slots=True)
class _Demand:
    target_delay_s: float | None
    sharing: tuple[str, str]
    sizer: Sizer
    due_at: float
    at: float = float("-inf")


class Demands:
    """`now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._demands: dict[Key, _Demand] = {}

    def watch(self, group: Key, spec: GroupSpec, target_delay_s: float | None) -> None:
        """`target_delay_s`: the time that a new message may wait; None: the group does not scale by it."""
        known, sharing = self._demands.get(group), (spec.mode, spec.assignment)
        if known is None or (known.target_delay_s, known.sharing) != (target_delay_s, sharing):
            due_at = float("inf") if target_delay_s is None else self._now()
            sizer = sizer_of(spec, target_delay_s or NO_TARGET_S)
            self._demands[group] = _Demand(target_delay_s, sharing, sizer, due_at)

    def forget(self, group: Key) -> None:
        self._demands.pop(group, None)

    def scales(self, group: Key) -> bool:
        """True if it scales by delay."""
        return group in self._demands and self._demands[group].target_delay_s is not None

    def due_at(self, groups: Collection[Key]) -> float:
        """Time at which one of these groups is to be surveyed next; infinity for none."""
        return min(
            (self._demands[one].due_at for one in groups if one in self._demands), default=float("inf")
        )

    def take_due(self, groups: Collection[Key]) -> set[Key]:
        """Those of these groups that are to be surveyed now."""
        now = self._now()
        due = {one for one in groups if one in self._demands and self._demands[one].due_at <= now}
        for one in due:
            self._demands[one].due_at = now + SAMPLED_EVERY_S
        return due

    def surveyed(self, group: Key, description: Description, begun_at: float) -> None:
        demand, sample = self._demands.get(group), sample_of(description, begun_at)
        if demand is not None and sample is not None:
            demand.sizer.add(sample)
            demand.at = begun_at

    def latest(self, group: Key) -> Sizing | None:
        """None while it is not known, or known too long ago."""
        demand = self._demands.get(group)
        if demand is None or demand.at < self._now() - FRESH_S:
            return None
        return demand.sizer.sizing()
