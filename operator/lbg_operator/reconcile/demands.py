"""Demands of groups: how many consumers each needs, from one survey to the next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from lbg_core.admin.demand import sample_of, sizer_of
from lbg_core.admin.describe import Description
from lbg_core.group import GroupSpec
from lbg_core.group.sizing import Sizer, Sizing
from lbg_operator.reconcile.object_cache import Key

SAMPLED_EVERY_S = 10.0
"""Of a group that scales by delay. Others are sampled when they are surveyed."""

NO_TARGET_S = 60.0
"""Target of a group without one: its time to clear does not depend on it."""


log = logging.getLogger("lbg.operator")


@dataclass(slots=True)
class _Demand:
    target_delay_s: float | None
    rules: tuple[object, ...]
    sizer: Sizer
    due_at: float
    is_known: bool = False


class Demands:
    """`now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._demands: dict[Key, _Demand] = {}

    def watch(
        self, group: Key, spec: GroupSpec, target_delay_s: float | None, *, queues_max: int = 0
    ) -> None:
        """`target_delay_s`: the time that a new message may wait; None: the group does not scale by it. `queues_max`:
        to which the number of queues may grow."""
        known, rules = self._demands.get(group), (target_delay_s, spec.mode, spec.assignment, queues_max)
        if known is None or known.rules != rules:
            due_at = float("inf") if target_delay_s is None else self._now()
            sizer = sizer_of(spec, target_delay_s or NO_TARGET_S, queues_max=queues_max)
            self._demands[group] = _Demand(target_delay_s, rules, sizer, due_at)

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

    def surveyed(self, group: Key, description: Description | None) -> bool:
        """`description`: None after a survey that failed, or when the group is not surveyed any more. True if a group
        that scales by delay wants another number than before, or for another reason."""
        demand = self._demands.get(group)
        if demand is None:
            return False
        before = self.latest(group)
        try:
            sample = None if description is None else sample_of(description, self._now())
            if sample is not None:
                demand.sizer.add(sample)
        except Exception:  # a bug of ours, or numbers of a member: the survey has other uses
            log.exception("%s: its demand cannot be computed", group)
            sample = None
        demand.is_known = sample is not None
        return demand.target_delay_s is not None and _wish(before) != _wish(self.latest(group))

    def latest(self, group: Key) -> Sizing | None:
        """The demand as of the last survey; None while that is unknown."""
        demand = self._demands.get(group)
        return demand.sizer.sizing() if demand is not None and demand.is_known else None


def _wish(sizing: Sizing | None) -> tuple[object, ...]:
    return () if sizing is None else (sizing.wanted, sizing.why, sizing.queue)
