"""The same schedule for every week, by the clocks of a time zone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from .scheduling import MOST_ENTRIES, Need, fewer, floors, said
from .settings import DAY_S, WEEK_S

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class WeeklyNeed:
    """On each of `days` from `from_s` until `until_s` of the day, in seconds; `until_s` is a day at most."""

    replicas: int
    days: tuple[str, ...]
    from_s: int
    until_s: int


def weekly(
    needs: Iterable[Need], *, lead_s: int, time_zone: str, most_entries: int = MOST_ENTRIES
) -> list[WeeklyNeed]:
    """Of needs in seconds since the epoch, the highest at each time of the week. Lead times are whole minutes, as
    times of a week are: longer where they are not."""
    lead_s = -(-lead_s // MINUTE_S) * MINUTE_S
    zone = ZoneInfo(time_zone)
    walls = [
        Need(at, at + need.until_s - need.from_s, need.replicas)
        for need in needs
        for at in [_wall_s(need.from_s, zone)]
    ]
    # The weeks before and after make the week's edges what they are in the middle of the year.
    around = [
        Need(need.from_s + shift, need.until_s + shift, need.replicas)
        for need in walls
        for shift in (-WEEK_S, 0, WEEK_S)
    ]
    within = [
        Need(max(one.from_s, 0), min(one.until_s, WEEK_S), one.replicas)
        for one in floors(around, lead_s=lead_s)
        if one.from_s < WEEK_S and one.until_s > 0
    ]
    # Each of the seven midnights may cut one in two.
    return _by_days(said(fewer(within, most_entries - len(DAYS))))


def _wall_s(at_s: int, zone: ZoneInfo) -> int:
    """Seconds since Monday, 0:00, as the clocks show."""
    shown = datetime.fromtimestamp(at_s, zone).replace(tzinfo=None)
    return shown.weekday() * DAY_S + (shown - datetime.combine(shown, datetime.min.time())) // timedelta(
        seconds=1
    )


def _by_days(segments: Iterable[Need]) -> list[WeeklyNeed]:
    """Cut at midnight, and what is alike on several days said once."""
    alike: dict[tuple[int, int, int], list[str]] = {}
    for segment in segments:
        for day in range(segment.from_s // DAY_S, -(-segment.until_s // DAY_S)):
            midnight_s = day * DAY_S
            from_s = max(segment.from_s, midnight_s) - midnight_s
            until_s = min(segment.until_s, midnight_s + DAY_S) - midnight_s
            alike.setdefault((from_s, until_s, segment.replicas), []).append(DAYS[day])
    return [
        WeeklyNeed(replicas, tuple(days), from_s, until_s)
        for (from_s, until_s, replicas), days in alike.items()
    ]
