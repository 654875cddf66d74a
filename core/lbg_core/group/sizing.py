"""Number of members that a group needs, so that a new message waits at most a target time.

Members report what they did, a survey reports what waits, and the rest follows: arrivals, the time of a call, the work
of each queue, and the least number of members of which the busiest keeps up (docs/adr/0088-members-by-time.md).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from lbg_core.group.assignment import balanced_owners

START_S = 30.0
"""From a wish to the first call of the new members: a period of the autoscaler (15 s), a pod's start, and the first
delivery to it (bench.first_delivery)."""

CLEAR_S = 60.0
"""Default time in which a backlog is to be gone: new members need half as long to start."""

RECENT_S, BEFORE_S = 30.0, 60.0
"""Arrivals are those of the last time; their growth is the difference to those of the time before it."""

SHARES_S = 300.0
"""Time of which the shares of the queues are an average."""

SHARE_OF = 10
"""Messages that each queue is taken to have got besides: few messages say little about shares."""

HELD_S = 60.0
"""Fewer members are wanted when they would have sufficed for so long."""

BUSY_MAX, BUSY_MIN = 0.98, 0.5
"""Limits of the busy share up to which a member is filled: estimates err by a fiftieth, and below a half a wait is
chance that members do not change."""

TAIL = 4.6
"""The slowest message in a hundred waits so many times the mean (exponential tail: ln 100)."""

SPREAD_MAX = 1.5
"""Members, of those that an even spread would need, that make up for uneven queues."""


class MemberSample(NamedTuple):
    """Cumulative values of one member since it started.

    `calls` are ended calls, `busy_s` the seconds of calls, ended and running. `delivered` has the messages that the
    broker gave it, by queue; a lower number than before counts as from 0.
    """

    incarnation: str
    concurrency: int
    calls: int
    busy_s: float
    delivered: Mapping[int, int]


class Sample(NamedTuple):
    """Members at a monotonic time, and messages ready or unacknowledged, by queue."""

    at_s: float
    members: tuple[MemberSample, ...]
    waiting: Mapping[int, int]


class Why(Enum):
    """Reason of the number that is wanted."""

    UNKNOWN = "Unknown"
    ARRIVALS = "Arrivals"
    BACKLOG = "Backlog"
    QUEUE_LIMITS = "QueueLimits"
    """A queue has more than one member can do: that is left out."""
    NO_MORE_THROUGHPUT = "NoMoreThroughput"
    """The last members that came brought none: more are not wanted."""


class Sharing(Enum):
    """Members among which the messages of a queue are shared."""

    BALANCED = "Balanced"
    """One for each queue, by numbers of queues."""
    BY_LOAD = "ByLoad"
    """One for each queue, by load."""
    SHARED = "Shared"
    """All."""


@dataclass(frozen=True)
class Sizing:
    """Members that a group needs, and the sum that led to it.

    - `wanted`: members; None while it is unknown, which is not 0.
    - `arrivals_hz`, `capacity_hz`: messages a second that come, and that one member processes; None while unknown.
    - `service_s`: seconds of a call; None while unknown.
    - `waiting`: messages ready or unacknowledged.
    - `clears_in_s`: seconds until these are processed at the present rate; None if they never are, or unknown.
    - `queue`: the one that is limited (QUEUE_LIMITS).
    """

    wanted: int | None = None
    arrivals_hz: float | None = None
    service_s: float | None = None
    capacity_hz: float | None = None
    waiting: int = 0
    clears_in_s: float | None = None
    why: Why = Why.UNKNOWN
    queue: int | None = None


class _Point(NamedTuple):
    """Sums since the first sample. `came`: calls, and what waits; `arrived`: the same by queue, of deliveries."""

    at_s: float
    members: int
    calls: float
    busy_s: float
    came: float
    arrived: Mapping[int, int]


class Sizer:
    """Sizing of one group, from its samples.

    `target_delay_s`: a new message waits at most so long. `clear_within_s`: a backlog is gone within so many seconds of
    the start of new members; None: CLEAR_S, or the target if that is longer.
    """

    def __init__(
        self,
        target_delay_s: float,
        clear_within_s: float | None = None,
        *,
        sharing: Sharing = Sharing.BALANCED,
        start_s: float = START_S,
    ) -> None:
        self._target_s = target_delay_s
        self._clear_s = max(CLEAR_S, target_delay_s) if clear_within_s is None else clear_within_s
        self._sharing, self._start_s = sharing, start_s
        self._members: dict[str, MemberSample] = {}
        self._waiting: Mapping[int, int] = {}
        self._points: deque[_Point] = deque()
        self._delivered: dict[int, int] = {}
        self._wishes: deque[tuple[float, int]] = deque()
        self._service_s: float | None = None
        self._misses_one = False
        self._sizing = Sizing()

    def sizing(self) -> Sizing:
        return self._sizing

    def add(self, sample: Sample) -> None:
        """A sample that misses a member changes nothing, for the next one may have it again."""
        members = {one.incarnation: one for one in sample.members}
        if self._points and sample.at_s <= self._points[-1].at_s:
            return
        if self._members.keys() - members.keys() and not self._misses_one:
            self._misses_one = True
            return
        self._misses_one = False
        self._points.append(self._point(sample))
        while len(self._points) > 2 and self._points[1].at_s <= sample.at_s - SHARES_S:
            self._points.popleft()
        self._members, self._waiting = members, sample.waiting
        self._sizing = self._sized(sample)

    def _point(self, sample: Sample) -> _Point:
        last = self._points[-1] if self._points else None
        calls, busy_s = (last.calls, last.busy_s) if last else (0.0, 0.0)
        for one in sample.members if last else ():
            before = self._members.get(one.incarnation) or self._began(one, sample.at_s - last.at_s)
            calls += max(0, one.calls - before.calls)
            busy_s += max(0.0, one.busy_s - before.busy_s)
            for queue, count in one.delivered.items():
                known = before.delivered.get(queue, 0)
                came = count - known if count >= known else count
                self._delivered[queue] = self._delivered.get(queue, 0) + came
        arrived = {queue: n + self._delivered.get(queue, 0) for queue, n in sample.waiting.items()}
        came = calls + sum(sample.waiting.values())
        return _Point(sample.at_s, len(sample.members), calls, busy_s, came, arrived)

    @staticmethod
    def _began(one: MemberSample, seconds: float) -> MemberSample:
        """A new member counts from 0, but for one that was there before, unseen."""
        was_there = one.busy_s > one.concurrency * seconds
        return one if was_there else MemberSample(one.incarnation, one.concurrency, 0, 0.0, {})

    def _sized(self, sample: Sample) -> Sizing:
        waiting = sum(sample.waiting.values())
        if len(self._points) < 2 or not sample.members:
            return Sizing(waiting=waiting)
        now_hz, ahead_hz = self._arrivals()
        self._service_s = service_s = self._service()
        if service_s is None:
            if waiting or now_hz:
                return Sizing(arrivals_hz=now_hz, waiting=waiting)
            return Sizing(self._held(sample.at_s, 1), 0.0, waiting=0, clears_in_s=0.0, why=Why.ARRIVALS)
        concurrency = sum(one.concurrency for one in sample.members) / len(sample.members)
        capacity_hz = concurrency / service_s
        busy_max = busy_share(service_s, max(1, round(concurrency)), self._target_s)
        arrivals, backlog = self._loads(sample, ahead_hz / capacity_hz, 1 / capacity_hz)
        least = self._members_for(arrivals, busy_max)
        raw = self._members_for({queue: load + backlog[queue] for queue, load in arrivals.items()}, busy_max)
        why, queue = (Why.BACKLOG if raw > least else Why.ARRIVALS), None
        hottest = max(arrivals, key=lambda one: arrivals[one] + backlog[one])
        if self._sharing is not Sharing.SHARED and arrivals[hottest] + backlog[hottest] > 1:
            why, queue = Why.QUEUE_LIMITS, hottest
        return Sizing(
            self._held(sample.at_s, raw),
            now_hz,
            service_s,
            capacity_hz,
            waiting,
            self._clears_in(waiting, now_hz, capacity_hz),
            why,
            queue,
        )

    def _before(self, at_s: float) -> _Point:
        """The last point that is not later; the first one if there is none."""
        return next((one for one in reversed(self._points) if one.at_s <= at_s), self._points[0])

    def _arrivals(self) -> tuple[float, float]:
        """Arrivals a second: now, and when members that are wanted now have started."""
        last = self._points[-1]
        middle = self._before(last.at_s - RECENT_S)
        first = self._before(middle.at_s - BEFORE_S)
        recent_hz, recent_s = _came_hz(middle, last), last.at_s - middle.at_s
        if first is middle:
            return recent_hz, recent_hz
        before_hz, before_s = _came_hz(first, middle), middle.at_s - first.at_s
        by_chance_hz = math.sqrt(recent_hz / recent_s + before_hz / before_s)
        growth = max(0.0, recent_hz - before_hz - by_chance_hz) / ((recent_s + before_s) / 2)
        return recent_hz + growth * recent_s / 2, recent_hz + growth * (recent_s / 2 + self._start_s)

    def _service(self) -> float | None:
        """Seconds of a call; as before while none ended."""
        last, first = self._points[-1], self._before(self._points[-1].at_s - RECENT_S)
        if last.calls - first.calls < SHARE_OF:
            first = self._points[0]
        calls, busy_s = last.calls - first.calls, last.busy_s - first.busy_s
        return busy_s / calls if calls and busy_s else self._service_s

    def _loads(
        self, sample: Sample, members: float, each: float
    ) -> tuple[dict[int, float], dict[int, float]]:
        """Arrivals and backlog of each queue, in members that they keep busy."""
        first, last = self._points[0], self._points[-1]
        came = {
            queue: SHARE_OF + max(0.0, last.arrived[queue] - first.arrived.get(queue, last.arrived[queue]))
            for queue in sample.waiting
        }
        total = sum(came.values())
        arrivals = {queue: members * n / total for queue, n in came.items()}
        backlog = {queue: n * each / self._clear_s for queue, n in sample.waiting.items()}
        return arrivals, backlog

    def _members_for(self, loads: Mapping[int, float], busy_max: float) -> int:
        """The least number of members of which none is busier than `busy_max`."""
        if self._sharing is Sharing.SHARED:
            return max(1, math.ceil(sum(loads.values()) / busy_max))
        queues = sorted(loads)
        limited = [min(loads[queue], busy_max) for queue in queues]
        least = max(1, math.ceil(sum(limited) / busy_max - 1e-9))
        if self._sharing is Sharing.BY_LOAD:
            return min(least, len(queues))
        most = min(len(queues), math.ceil(SPREAD_MAX * least))
        step = max(1, least // 16)
        for members in range(least, most, step):
            if busiest(limited, members) <= busy_max:
                return members
        return most

    def _held(self, at_s: float, raw: int) -> int:
        self._wishes.append((at_s, raw))
        while self._wishes[0][0] < at_s - HELD_S:
            self._wishes.popleft()
        return max(wish for _, wish in self._wishes)

    def _clears_in(self, waiting: int, arrivals_hz: float, capacity_hz: float) -> float | None:
        last, middle = self._points[-1], self._before(self._points[-1].at_s - RECENT_S)
        members_hz = capacity_hz * last.members
        if waiting <= members_hz:
            return waiting / members_hz
        gone_hz = (last.calls - middle.calls) / (last.at_s - middle.at_s) - arrivals_hz
        return waiting / gone_hz if gone_hz > 0 else None


def _came_hz(first: _Point, last: _Point) -> float:
    return max(0.0, last.came - first.came) / (last.at_s - first.at_s)


def busiest(loads: list[float], members: int) -> float:
    """Load of the member with the most of `loads`, by queue, where so many have the queues of a balanced assignment."""
    shares = [0.0] * members
    for load, owner in zip(loads, balanced_owners(len(loads), frozenset(range(members))), strict=True):
        shares[owner] += load
    return max(shares)


@lru_cache(maxsize=1024)
def busy_share(service_s: float, concurrency: int, target_delay_s: float) -> float:
    """Busy share of a member at which a message waits as long as the target."""
    low, high = BUSY_MIN, BUSY_MAX
    for _ in range(20):
        share = (low + high) / 2
        is_low = delay_s(service_s, concurrency, share) <= target_delay_s
        low, high = (share, high) if is_low else (low, share)
    return low


def delay_s(service_s: float, concurrency: int, share: float) -> float:
    """Time that the slowest message in a hundred waits at a member of this busy share; infinity from 1 on.

    By Sakasegawa's approximation of M/G/c. Calls vary as exponential ones do (coefficient of variation 1).
    """
    if share >= 1:
        return math.inf
    exponent = math.sqrt(2 * (concurrency + 1)) - 1
    return TAIL * service_s * math.pow(share, exponent) / (concurrency * (1 - share))


def published(wanted: int, current: int, tolerance: float = 0.1) -> float:
    """Value of the metric, with target 1 for each replica, at which the autoscaler goes from `current` to `wanted`.

    It rounds the value up, and ignores one that differs from `current` by at most `tolerance`. Where that hides more
    members, the value is the least that it follows, and there are a few more than wanted; where it hides fewer, they
    stay.
    """
    if wanted < current and tolerance:
        return wanted - 0.99
    followed = math.floor(current * (1 + tolerance) + 1e-9) + 1
    return float(max(wanted, followed) if wanted > current else wanted)
