"""Schedule of minimum replicas from planned demand, for dates and for every week.

A schedule's floor at a moment is the highest of the needs of all intervals that the moment is in, or so close before
that their replicas have to start. Segments of one floor follow each other without overlap; a floor of one replica
has no entry, as a group has at least one.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from lbg_pipeline.forecast.model import DAY_S, WEEK_S

MOST_ENTRIES = 512
"""Longest list that the API server accepts in `scaling.schedule`."""
NO_FLOOR = 1


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """`replicas` from `from_s` until `until_s`, in seconds since the epoch, or on the wall of a week."""

    from_s: int
    until_s: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Sizing:
    """Rule that turns demand into replicas. `capacity` is messages a second of one member."""

    capacity: float
    least: int
    most: int

    def replicas(self, messages: float, interval_s: int) -> int:
        """For so many messages in an interval, within the limits."""
        return min(max(self.unbounded(messages, interval_s), self.least), self.most)

    def unbounded(self, messages: float, interval_s: int) -> int:
        # A part in a billion less: 7.000000000000001 replicas are seven.
        return math.ceil(messages / interval_s / self.capacity * (1 - 1e-9))


def floors(needs: Iterable[Need], *, lead_s: int) -> list[Need]:
    """The highest of what is needed at each moment, each need from `lead_s` before it: in order, without overlap, no
    two neighbours alike. Where nothing is needed there is nothing."""
    begun = sorted(Need(need.from_s - lead_s, need.until_s, need.replicas) for need in needs)
    edges = sorted({edge for need in begun for edge in (need.from_s, need.until_s)})
    open_now: list[tuple[int, int]] = []  # a heap: the highest first, with its end
    merged: list[Need] = []
    place = 0
    for here, there in itertools.pairwise(edges):
        while place < len(begun) and begun[place].from_s <= here:
            heapq.heappush(open_now, (-begun[place].replicas, begun[place].until_s))
            place += 1
        while open_now and open_now[0][1] <= here:
            heapq.heappop(open_now)
        if open_now:
            _extend(merged, Need(here, there, -open_now[0][0]))
    return merged


def schedule(needs: Iterable[Need], *, lead_s: int, most_entries: int = MOST_ENTRIES) -> list[Need]:
    """The floors that need an entry, at most `most_entries` of them: where there would be more, neighbours are put
    together at the higher of the two, those first that cost the fewest replica-seconds. So nothing that is needed is
    ever dropped."""
    return entries_of(fewer(floors(needs, lead_s=lead_s), most_entries))


def entries_of(segments: Iterable[Need]) -> list[Need]:
    return [one for one in segments if one.replicas > NO_FLOOR]


def fewer(segments: Sequence[Need], most: int) -> list[Need]:
    """`segments` in order, merged up until at most `most` of them need an entry."""
    rest = _without_holes(segments)
    before = [place - 1 for place in range(len(rest))]
    after = [place + 1 for place in range(len(rest))]
    alive = [True] * len(rest)
    merges = [
        (_cost(one, other), place, one, other) for place, (one, other) in enumerate(itertools.pairwise(rest))
    ]
    heapq.heapify(merges)
    count = len(entries_of(rest))
    while count > most:
        _, place, one, other = heapq.heappop(merges)
        follower = after[place]
        if not alive[place] or follower >= len(rest) or (rest[place], rest[follower]) != (one, other):
            continue  # one of the two was merged with another one
        merged = Need(one.from_s, other.until_s, max(one.replicas, other.replicas))
        count += len(entries_of([merged])) - len(entries_of([one, other]))
        rest[place], alive[follower], after[place] = merged, False, after[follower]
        if after[place] < len(rest):
            before[after[place]] = place
            _offer(merges, rest, place, after[place])
        if before[place] >= 0:
            _offer(merges, rest, before[place], place)
    segments_left: list[Need] = []
    for segment, is_alive in zip(rest, alive, strict=True):
        if is_alive:
            _extend(segments_left, segment)
    return segments_left


def _offer(
    merges: list[tuple[tuple[int, int], int, Need, Need]], rest: Sequence[Need], place: int, follower: int
) -> None:
    heapq.heappush(merges, (_cost(rest[place], rest[follower]), place, rest[place], rest[follower]))


def _cost(one: Need, other: Need) -> tuple[int, int]:
    """In replica-seconds; of equals those that make the shorter segment are merged first."""
    lower = min(one, other, key=lambda need: need.replicas)
    return abs(one.replicas - other.replicas) * (lower.until_s - lower.from_s), other.until_s - one.from_s


def _without_holes(segments: Sequence[Need]) -> list[Need]:
    filled: list[Need] = []
    for segment in segments:
        if filled and filled[-1].until_s < segment.from_s:
            _extend(filled, Need(filled[-1].until_s, segment.from_s, NO_FLOOR))
        _extend(filled, segment)
    return filled


def _extend(segments: list[Need], one: Need) -> None:
    """Append, or lengthen the last one where it ends as `one` begins and is alike."""
    if segments and segments[-1].until_s == one.from_s and segments[-1].replicas == one.replicas:
        segments[-1] = Need(segments[-1].from_s, one.until_s, one.replicas)
    else:
        segments.append(one)


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
    return _by_days(entries_of(fewer(within, most_entries - len(DAYS))))


def _wall_s(at_s: int, zone: ZoneInfo) -> int:
    """Seconds since Monday, 0:00, as the clocks show."""
    shown = datetime.fromtimestamp(at_s, zone).replace(tzinfo=None)
    return shown.weekday() * DAY_S + (shown - datetime.combine(shown, datetime.min.time())) // timedelta(
        seconds=1
    )


def _by_days(segments: Iterable[Need]) -> list[WeeklyNeed]:
    """Entries cut at midnight; days that are alike share an entry."""
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


Entry = dict[str, Any]


def dated_entry(need: Need) -> Entry:
    return {"minReplicas": need.replicas, "from": rfc3339(need.from_s), "until": rfc3339(need.until_s)}


def weekly_entry(need: WeeklyNeed, *, time_zone: str) -> Entry:
    times = {"from": _clock(need.from_s), "until": _clock(need.until_s)}
    return {"minReplicas": need.replicas, "weekly": {"days": list(need.days), **times, "timeZone": time_zone}}


def patch(schedule: Sequence[Entry]) -> Entry:
    return {"spec": {"scaling": {"schedule": list(schedule)}}}


def patch_yaml(group: str, schedule: Sequence[Entry], *, remarks: Iterable[str]) -> str:
    """With an entry a line. JSON is YAML, so each entry is written as JSON: no text of ours can break it."""
    usage = f"group {_one_line(group)}: kubectl patch lbg NAME --type merge --patch-file FILE"
    lines = [f"# {line}" for line in (usage, *remarks)]
    entries = [f"    - {_flow(entry)}" for entry in schedule]
    return (
        "\n".join([*lines, "spec:", "  scaling:", "    schedule:" + ("" if entries else " []"), *entries])
        + "\n"
    )


def rfc3339(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _clock(of_day_s: int) -> str:
    """Midnight at a day's end is its beginning: an `until` that is not after `from` is of the next day."""
    minutes = of_day_s % DAY_S // 60
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _flow(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=True)


def _one_line(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)
