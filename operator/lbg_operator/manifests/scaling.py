"""Between which limits a group's consumers are scaled, by what, and what its schedule comes to at a moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any

from .schedule import Schedule

NOBODY = (0, 0)
AHEAD = timedelta(days=7)
"""How far ahead a change of the floor is looked for: nobody waits for one that is later."""
ANEW = timedelta(days=1)
"""After so long it is looked for again."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """`target_cpu_percent` of what the application's container requests; `target_lag` messages for each member.
    `schedule`: None where the manifest has none."""

    min_replicas: int
    max_replicas: int
    target_cpu_percent: int | None
    target_lag: int | None
    scale_down_stabilization_s: int
    schedule: Schedule | None = None

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Scaling:
        schedule = told.get("schedule")
        return cls(
            min_replicas=told["minReplicas"],
            max_replicas=told["maxReplicas"],
            target_cpu_percent=told.get("targetCPUUtilizationPercentage"),
            target_lag=told.get("targetLag"),
            scale_down_stabilization_s=told["scaleDownStabilizationSeconds"],
            schedule=None if schedule is None else Schedule.parse(schedule, field="spec.scaling.schedule"),
        )

    @property
    def has_target(self) -> bool:
        """Whether there is something for an autoscaler to go by."""
        return self.target_cpu_percent is not None or self.target_lag is not None


@dataclass(frozen=True, slots=True)
class Floor:
    """The fewest consumers that there are to be.

    - `entry`: the number of the entry that asks for the most, of those in force; the first of several.
    - `is_cut`: that one asks for more than there may be.
    - `until`: when `min_replicas` changes; None if it does not within AHEAD.
    - `holds_until`: when any of this is to be worked out anew.
    """

    min_replicas: int
    entry: int | None
    is_cut: bool
    until: datetime | None
    holds_until: datetime


def floor_at(scaling: Scaling, now: datetime, *, most: int) -> Floor:
    """What minReplicas and the schedule come to at `now`, and when that changes. `most`: more there may never be."""

    def counted(asked: int) -> int:
        return min(max(asked, scaling.min_replicas), most)

    here, holds_until, until = NOBODY, now + ANEW, None
    for moment, top in _tops(scaling.schedule or Schedule(()), now, now + AHEAD):
        if moment <= now:
            here = top
            continue
        if top != here:
            holds_until = min(holds_until, moment)
        if counted(top[0]) != counted(here[0]):
            until = moment
            break
    asked, number = here
    is_above = asked > scaling.min_replicas
    return Floor(counted(asked), -number if is_above else None, asked > most, until, holds_until)


def _tops(schedule: Schedule, since: datetime, until: datetime) -> Iterator[tuple[datetime, tuple[int, int]]]:
    """Each moment at which an entry begins or ends, and the highest in force from then on: what it asks for, and its
    number, negative, so that the first of several is the highest."""
    events = sorted(
        (moment, step, (entry.min_replicas, -entry.number))
        for entry in schedule.entries
        for begins, ends in entry.spans(since, until)
        for moment, step in ((begins, 1), (ends, -1))
        if moment <= until
    )
    in_force: Counter[tuple[int, int]] = Counter()
    for moment, changes in groupby(events, key=itemgetter(0)):
        for _, step, asked in changes:
            in_force[asked] += step
        yield moment, max((asked for asked, times in in_force.items() if times), default=NOBODY)
