"""When there are to be more consumers than at least, as a manifest says it.

Times by the clock on a wall follow its time zone. An entry lasts from the first moment at which the clock shows its
beginning or later, to the moment from which on the clock never again shows less than its end. So a minute of it that
comes twice is in force both times, and a beginning or an end that is left out comes at the jump.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from ..errors import ManifestError

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
        """When it is in force, of what touches the time between the two."""
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
    def parse(cls, told: Sequence[Mapping[str, Any]], *, field: str) -> Schedule:
        entries, problems = [], []
        for number, one in enumerate(told):
            try:
                entries.append(_entry(number, one, f"{field}[{number}]"))
            except ManifestError as error:
                problems.append(str(error))
        return cls(tuple(entries), tuple(problems))


def _entry(number: int, told: Mapping[str, Any], field: str) -> Entry:
    """Raises ManifestError."""
    weekly = told.get("weekly")
    if weekly is None:
        begins, ends = (_moment(told[name], f"{field}.{name}") for name in ("from", "until"))
        return Dated(number, told["minReplicas"], begins, ends)
    return Weekly(
        number,
        told["minReplicas"],
        frozenset(map(DAYS.index, weekly["days"])),
        time.fromisoformat(weekly["from"]),
        time.fromisoformat(weekly["until"]),
        _zone(weekly["timeZone"], f"{field}.weekly.timeZone"),
    )


def _moment(told: str, field: str) -> datetime:
    try:
        return datetime.fromisoformat(told).astimezone(UTC)
    except ValueError:
        raise ManifestError(field, f"{told!r} is no time: say it as 2026-11-27T16:55:00Z") from None


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
            f"{name!r} is no time zone that is known here, and the entry does not count: say it as Europe/Berlin",
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
    """When the clock shows `wall` for the first and for the last time, or is put forward past it."""
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
