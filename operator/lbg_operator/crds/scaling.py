"""`spec.scaling`: limits, metrics and schedule of a group's consumers.

Times by the clock on a wall follow its time zone. An entry lasts from the first moment at which the clock shows its
beginning or later, to the moment from which on the clock never again shows less than its end. So a minute of it that
comes twice is in force both times, and a beginning or an end that is left out comes at the jump.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any
from zoneinfo import ZoneInfo

from lbg_core.durations import seconds_of
from lbg_operator.errors import ManifestError

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
"""In the order of `date.weekday`."""
_DAY = timedelta(days=1)

Span = tuple[datetime, datetime]
"""From, and until: the first moment after it."""


@dataclass(frozen=True, slots=True)
class Dated:
    """In force once. `number` is its place in the manifest's list."""

    number: int
    min_replicas: int
    begins: datetime
    ends: datetime

    def spans(self, since: datetime, until: datetime) -> Iterator[Span]:
        """Spans in which it is in force, as far as they touch the time between the two."""
        if self.ends > since and self.begins <= until:
            yield self.begins, self.ends


@dataclass(frozen=True, slots=True)
class Weekly:
    """In force on `days` of every week (Monday is 0), until the next day where `ends` is not after `begins`."""

    number: int
    min_replicas: int
    days: frozenset[int]
    begins: time
    ends: time
    zone: ZoneInfo

    def spans(self, since: datetime, until: datetime) -> Iterator[Span]:
        """The same. What is in force may have begun the day before, with a day between that was left out; and where the
        clock is put back over midnight, it has shown the day after."""
        day = since.astimezone(self.zone).date() - 2 * _DAY
        while day <= until.astimezone(self.zone).date() + _DAY:
            if day.weekday() in self.days:
                begins, ends = self._span(day)
                if since < ends and begins <= until and begins < ends:
                    yield begins, ends
            day += _DAY

    def _span(self, day: date) -> Span:
        last = day if self.begins < self.ends else day + _DAY
        return (
            _reached(datetime.combine(day, self.begins), self.zone),
            _passed(datetime.combine(last, self.ends), self.zone),
        )


Entry = Dated | Weekly


@dataclass(frozen=True, slots=True)
class Schedule:
    """`problems`: why an entry is none, a line for each. The others count."""

    entries: tuple[Entry, ...]
    problems: tuple[str, ...] = ()

    @classmethod
    def parse(cls, specs: Sequence[Mapping[str, Any]], *, field: str) -> Schedule:
        entries, problems = [], []
        for number, one in enumerate(specs):
            try:
                entries.append(_entry(number, one, f"{field}[{number}]"))
            except ManifestError as error:
                problems.append(str(error))
        return cls(tuple(entries), tuple(problems))


def _entry(number: int, spec: Mapping[str, Any], field: str) -> Entry:
    """Raises ManifestError."""
    weekly = spec.get("weekly")
    if weekly is None:
        begins, ends = (_moment(spec[name], f"{field}.{name}") for name in ("from", "until"))
        return Dated(number, spec["minReplicas"], begins, ends)
    return Weekly(
        number,
        spec["minReplicas"],
        frozenset(map(DAYS.index, weekly["days"])),
        time.fromisoformat(weekly["from"]),
        time.fromisoformat(weekly["until"]),
        _zone(weekly["timeZone"], f"{field}.weekly.timeZone"),
    )


def _moment(text: str, field: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise ManifestError(field, f"{text!r} is not a time: set it as 2026-11-27T16:55:00Z") from None


def _zone(name: str, field: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (
        LookupError,
        ValueError,
        OSError,
    ):  # the last two for names of folders, and outside of the database
        raise ManifestError(
            field,
            f"{name!r} is not a known time zone, and the entry is ignored: set it as Europe/Berlin",
        ) from None


def _reached(wall: datetime, zone: ZoneInfo) -> datetime:
    """The first moment at which the clock shows `wall` or later."""
    return _shown(wall, zone)[0]


def _passed(wall: datetime, zone: ZoneInfo) -> datetime:
    """The moment from which on the clock never again shows less than `wall`.

    That is the last at which it shows `wall`; where it is put back to just that, the first, as nothing less follows.
    """
    first, last = _shown(wall, zone)
    return last if _wall(last - timedelta.resolution, zone) < wall else first


def _shown(wall: datetime, zone: ZoneInfo) -> Span:
    """First and last time at which the clock shows `wall`, or is put forward past it."""
    first, last = (wall.replace(tzinfo=zone, fold=one).astimezone(UTC) for one in (0, 1))
    if _wall(first, zone) == wall:
        return first, last
    # It never shows that. By the former offset it would be after the jump, by the later one before it (PEP 495).
    seconds = range(int((first - last).total_seconds()) + 1)
    after = bisect_left(seconds, True, key=lambda s: _wall(last + timedelta(seconds=s), zone) >= wall)
    jump = last + timedelta(seconds=after)
    return jump, jump


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


NOBODY = (0, 0)
AHEAD = timedelta(days=7)
"""Time ahead in which a change of the floor is looked for: nobody waits for one that is later."""
ANEW = timedelta(days=1)
"""After so long it is looked for again."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """`target_cpu_percent` of what the application's container requests; `target_lag` messages for each member;
    `target_delay_s`, the time that a new message may wait.
    `schedule`: None where the manifest has none."""

    min_replicas: int
    max_replicas: int
    target_cpu_percent: int | None
    target_lag: int | None
    target_delay_s: float | None
    scale_down_stabilization_s: int
    schedule: Schedule | None = None

    @classmethod
    def parse(cls, spec: Mapping[str, Any]) -> Scaling:
        schedule = spec.get("schedule")
        return cls(
            min_replicas=spec["minReplicas"],
            max_replicas=spec["maxReplicas"],
            target_cpu_percent=spec.get("targetCPUUtilizationPercentage"),
            target_lag=spec.get("targetLag"),
            target_delay_s=seconds_of(spec["targetDelay"]) if "targetDelay" in spec else None,
            scale_down_stabilization_s=spec["scaleDownStabilizationSeconds"],
            schedule=None if schedule is None else Schedule.parse(schedule, field="spec.scaling.schedule"),
        )

    @property
    def has_external_target(self) -> bool:
        """True if an autoscaler is to ask the operator for a metric."""
        return self.target_lag is not None or self.target_delay_s is not None

    @property
    def is_by_delay_alone(self) -> bool:
        """True if `target_delay_s` is the only target."""
        return self.target_delay_s is not None and self.target_lag is None and self.target_cpu_percent is None

    @property
    def has_target(self) -> bool:
        """True if there is something for an autoscaler to go by."""
        return self.target_cpu_percent is not None or self.has_external_target


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
    """Minimum replicas at `now` by minReplicas and the schedule, and when that changes. `most`: more there may never
    be."""

    def counted(replicas: int) -> int:
        return min(max(replicas, scaling.min_replicas), most)

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
    replicas, number = here
    is_above = replicas > scaling.min_replicas
    return Floor(counted(replicas), -number if is_above else None, replicas > most, until, holds_until)


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
        for _, step, replicas in changes:
            in_force[replicas] += step
        yield moment, max((replicas for replicas, times in in_force.items() if times), default=NOBODY)
