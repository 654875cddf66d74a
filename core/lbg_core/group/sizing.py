"""Number of members that a group needs, so that a new message waits at most a target time.

Members report what they did, a survey reports what waits, and the rest follows: arrivals, the time of a call, the work
of each queue, and the least number of members of which the busiest keeps up (docs/adr/0088-members-by-time.md).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from heapq import heapreplace
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from lbg_core.group.assignment import balanced_owners

START_S = 30.0
"""From a wish to the first call of the new members: a period of the autoscaler (15 s), a pod's start, and the first
delivery to it (bench.first_delivery)."""

CLEAR_S = 60.0
"""Time in which a backlog is to be gone, or the target if that is longer: new members need half as long to start."""

RECENT_S, BEFORE_S = 20.0, 60.0
"""Arrivals are those of the last time; they grow by the difference to those of the time before it."""

WINDOW_S = 300.0
"""Longest time of which anything is an average, as the shares of the queues are."""

ENOUGH = 100
"""Calls, or messages, of which a mean is right by a tenth."""

BURST = 3
"""Times the arrivals of the lesser half of the recent time that are taken to last."""

FEW = 30
"""Messages that are added to those of each queue: as few vary by chance as queues do by their keys, by a fifth."""

HELD_S = 30.0
"""Fewer members are wanted when they would have sufficed for so long."""

BUSY_MAX, BUSY_MIN = 0.98, 0.5
"""Limits of the busy share up to which a member is filled: estimates err by a fiftieth, and below a half a wait is
chance that members do not change."""

TAIL = 4.6
"""The slowest message in a hundred waits so many times the mean (exponential tail: ln 100)."""

SPREAD_MAX = 1.5
"""Members, of those that an even spread would need, that make up for uneven queues."""

USED = 0.5
"""Part of the target for which messages may wait before more members are wanted."""

BEHIND_S = 5.0
"""Members whose queues have more than they process in this time are behind: they call as much as they can."""

HELD_UP = 0.5
"""Busy share below which a member that is behind is held up: by a key, whose calls run one at a time."""

MORE, GAIN_MIN = 1.25, 0.2
"""So many times the members have to process more, by this part of what they are more, or they are of no use."""

RETRY_S = 900.0
"""After this time more members are tried again: three times that of the autoscaler's scale-in."""


class MemberSample(NamedTuple):
    """Cumulative values of one member since it started.

    `calls` are ended calls, `busy_s` the seconds that they took. `delivered` has the messages that the broker gave it,
    by queue; a lower number than before counts as from 0.
    """

    incarnation: str
    concurrency: int
    calls: int
    busy_s: float
    delivered: Mapping[int, int]


class Sample(NamedTuple):
    """Members at a monotonic time, and messages ready or unacknowledged, by queue: of all, or of none if unknown."""

    at_s: float
    members: tuple[MemberSample, ...]
    waiting: Mapping[int, int]


Loads: TypeAlias = Mapping[int, float]
"""Of queues, in members that they keep busy."""


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
    """Sums since the first sample. `came`: calls, and what waits."""

    at_s: float
    members: int
    calls: float
    busy_s: float
    came: float


class _Run(NamedTuple):
    """Throughput of a number of members, over a time in which none came or left."""

    members: int
    calls_hz: float
    seconds: float


class Sizer:
    """Sizing of one group, from its samples.

    `target_delay_s`: a new message waits at most so long. `queues_max`: to which the number of queues is doubled if
    more members are wanted than there are (docs/adr/0070-the-operator-doubles-the-queues.md).
    """

    def __init__(
        self,
        target_delay_s: float,
        *,
        sharing: Sharing = Sharing.BALANCED,
        queues_max: int = 0,
    ) -> None:
        self._target_s = target_delay_s
        self._clear_s = max(CLEAR_S, target_delay_s)
        self._sharing, self._queues_max = sharing, queues_max
        self._overload = USED * target_delay_s / self._clear_s
        """Busy share besides, of members that there are: what waits is within the target until others have started."""
        self._raw: int | None = None
        self._sizing = Sizing()
        self._points: deque[_Point] = deque()
        self._last = Sample(-math.inf, (), {})
        self._misses_one = False
        self._came: dict[int, float] = {}
        """Messages of each queue, of which those of long ago count less."""
        self._holders: dict[int, str] = {}
        """Member that got messages of a queue last."""
        self._held_up: set[int] = set()
        """Queues whose backlog is that of a key."""
        self._service_s: float | None = None
        self._efficiency = 1.0
        """Busy share of members that are behind: the rest is spent between calls."""
        self._wishes: deque[tuple[float, int]] = deque()
        self._fewer: _Run | None = None
        """To which the throughput of more members is compared while there is a backlog."""
        self._limited_until_s: float | None = None
        """Time until which no more members are tried than these."""

    def sizing(self) -> Sizing:
        return self._sizing

    def add(self, sample: Sample) -> None:
        """A sample that misses a member changes nothing, for the next one may have it again; two in a row count."""
        if not sample.waiting:
            self._sizing = Sizing()
            return
        if sample.at_s <= self._last.at_s:
            return
        present = {one.incarnation for one in sample.members}
        if not self._misses_one and any(one.incarnation not in present for one in self._last.members):
            self._misses_one = True
            return
        self._misses_one = False
        self._points.append(self._point(sample))
        while len(self._points) > 2 and self._points[1].at_s <= sample.at_s - WINDOW_S:
            self._points.popleft()
        self._sizing = self._sized(sample)
        self._last = sample

    def _point(self, sample: Sample) -> _Point:
        if not self._points:
            return _Point(sample.at_s, len(sample.members), 0, 0.0, sum(sample.waiting.values()))
        last, seconds = self._points[-1], sample.at_s - self._last.at_s
        self._count_waiting(sample.waiting, seconds)
        known = {one.incarnation: one for one in self._last.members}
        calls, busy_s, behind = last.calls, last.busy_s, list[tuple[float, set[int]]]()
        for one in sample.members:
            before = known.get(one.incarnation) or _began(one, seconds)
            ran_s = max(0.0, one.busy_s - before.busy_s)
            calls += max(0, one.calls - before.calls)
            busy_s += ran_s
            kept = self._count_delivered(one, before)
            if self._is_behind(
                sum(self._last.waiting.get(queue, 0) for queue in kept), one.concurrency, seconds
            ):
                behind.append((ran_s / (one.concurrency * seconds), kept))
        self._judge(behind)
        return _Point(sample.at_s, len(sample.members), calls, busy_s, calls + sum(sample.waiting.values()))

    def _count_waiting(self, waiting: Mapping[int, int], seconds: float) -> None:
        fades = math.exp(-seconds / WINDOW_S)
        self._came = {
            queue: self._came.get(queue, 0.0) * fades + count - self._last.waiting.get(queue, count)
            for queue, count in waiting.items()
        }

    def _count_delivered(self, one: MemberSample, before: MemberSample) -> set[int]:
        """Returns the queues that the member had before, too."""
        kept = {queue for queue in one.delivered if self._holders.get(queue) == one.incarnation}
        for queue, count in one.delivered.items():
            known = before.delivered.get(queue, 0)
            came = count - known if count >= known else count
            if came and queue in self._came:
                self._came[queue] += came
                self._holders[queue] = one.incarnation
        return {queue for queue in kept if self._holders[queue] == one.incarnation}

    def _is_behind(self, waiting: int, concurrency: float, seconds: float) -> bool:
        """True if a member with so much to do has been busy for the time, and will be for longer. It is not known of a
        time in which few calls end, as only ended ones are counted."""
        service_s = self._service_s
        if service_s is None or seconds < 2 * service_s:
            return False
        return waiting * service_s > concurrency * (seconds + BEHIND_S)

    def _judge(self, behind: list[tuple[float, set[int]]]) -> None:
        """Members that are behind show what is between calls, or a key that holds them up."""
        self._held_up = {queue for share, queues in behind if share < HELD_UP for queue in queues}
        for share, _ in behind:
            if share >= HELD_UP:
                self._efficiency += (min(1.0, share) - self._efficiency) / 8

    def _sized(self, sample: Sample) -> Sizing:
        waiting = sum(sample.waiting.values())
        if len(self._points) < 2 or not sample.members:
            return Sizing(waiting=waiting)
        now_hz, ahead_hz = self._arrivals()
        self._service_s = service_s = self._service()
        if service_s is None:
            if waiting or now_hz:
                return Sizing(arrivals_hz=now_hz, waiting=waiting)
            return Sizing(self._held(sample.at_s, 1), 0.0, clears_in_s=0.0, why=Why.ARRIVALS)
        concurrency = sum(one.concurrency for one in sample.members) / len(sample.members)
        capacity_hz = self._efficiency * concurrency / service_s
        busy_max = busy_share(service_s, max(1, round(concurrency)), self._target_s)
        arrivals, both = self._loads(sample.waiting, ahead_hz / capacity_hz, 1 / capacity_hz)
        to_arrivals = self._members_for(arrivals, busy_max)
        least = self._members_for(both, busy_max + self._overload)
        enough = max(to_arrivals, least)
        raw = enough if self._raw is None else min(max(self._raw, least), enough)
        why, queue = Why.BACKLOG if least > to_arrivals else Why.ARRIVALS, None
        hottest = max(both, key=lambda one: both[one])
        if self._held_up:
            why, queue = Why.QUEUE_LIMITS, max(self._held_up, key=lambda one: sample.waiting.get(one, 0))
        elif self._sharing is not Sharing.SHARED and both[hottest] > 1:
            why, queue = Why.QUEUE_LIMITS, hottest
        self._raw, wanted = raw, self._held(sample.at_s, raw)
        limit = self._useful(waiting / capacity_hz)
        if limit is not None and limit < wanted:
            wanted, why, queue = limit, Why.NO_MORE_THROUGHPUT, None
        clears_in_s = self._clears_in(waiting, now_hz, capacity_hz)
        return Sizing(wanted, now_hz, service_s, capacity_hz, waiting, clears_in_s, why, queue)

    def _before(self, at_s: float) -> _Point:
        """The last point that is not later; the first one if there is none."""
        return next((one for one in reversed(self._points) if one.at_s <= at_s), self._points[0])

    def _recent(self, counted: Callable[[_Point], float]) -> _Point:
        """Begin of the last time in which enough was counted; the first point if there is none."""
        last = self._points[-1]
        before = (one for one in reversed(self._points) if one.at_s <= last.at_s - RECENT_S)
        return next((one for one in before if counted(last) - counted(one) >= ENOUGH), self._points[0])

    def _arrivals(self) -> tuple[float, float]:
        """Arrivals a second: of late, and when members that are wanted now have started.

        They grow if they have grown since the time before by more than chance, and still do. Many more than in the
        lesser half of the recent time may be a burst, which is a backlog then.
        """
        last, middle = self._points[-1], self._recent(lambda one: one.came)
        recent_hz, recent_s = _came_hz(middle, last), last.at_s - middle.at_s
        few = next((one for one in self._points if middle.at_s < one.at_s <= last.at_s - RECENT_S), None)
        if few is not None:  # the rest of them came before
            recent_hz = min(recent_hz, ENOUGH / (last.at_s - few.at_s))
        first, half = self._before(middle.at_s - BEFORE_S), self._before(last.at_s - recent_s / 2)
        ahead_hz = recent_hz
        if first is not middle:
            long, long_chance = _growth(first, middle, last)
            short, short_chance = _growth(middle, half, last)
            growth = max(0.0, min(long - long_chance, short + short_chance))
            ahead_hz += growth * (recent_s / 2 + START_S)
        if half is not middle:
            lesser_hz = min(_came_hz(middle, half), _came_hz(half, last))
            ahead_hz = min(ahead_hz, BURST * (lesser_hz + FEW / recent_s))
        return recent_hz, ahead_hz

    def _service(self) -> float | None:
        """Seconds of a call; as before while none ended."""
        last, first = self._points[-1], self._recent(lambda one: one.calls)
        calls, busy_s = last.calls - first.calls, last.busy_s - first.busy_s
        return busy_s / calls if calls and busy_s else self._service_s

    def _loads(self, waiting: Mapping[int, int], members: float, each: float) -> tuple[Loads, Loads]:
        """Work of each queue's arrivals, and with that of its backlog, in members that it keeps busy."""
        came = {queue: FEW + max(0.0, count) for queue, count in self._came.items()}
        part = members / sum(came.values())
        arrivals = {queue: count * part for queue, count in came.items()}
        clearing = {queue: 0.0 if queue in self._held_up else each / self._clear_s for queue in waiting}
        return arrivals, {
            queue: arrivals[queue] + count * clearing[queue] for queue, count in waiting.items()
        }

    def _members_for(self, loads: Loads, busy_max: float) -> int:
        """The least number of members of which none is busier than `busy_max`."""
        if self._sharing is Sharing.SHARED:
            return max(1, math.ceil(sum(loads.values()) / busy_max))
        limited = [min(loads[queue], busy_max) for queue in sorted(loads)]
        wanted = self._members_of(limited, busy_max)
        if wanted < len(limited) or self._queues_max <= len(limited):
            return wanted
        # Half of the keys of each queue go to a new one.
        halves = [min(loads[queue] / 2, busy_max) for queue in sorted(loads)] * 2
        return max(wanted, min(self._members_of(halves, busy_max), self._queues_max))

    def _members_of(self, loads: list[float], busy_max: float) -> int:
        """The same of queues of which none has more than a member can do."""
        least = min(max(1, math.ceil(sum(loads) / busy_max - 1e-9)), len(loads))
        most = min(len(loads), math.ceil(SPREAD_MAX * least))
        busiest = most_by_load if self._sharing is Sharing.BY_LOAD else most_by_number
        return next((tried for tried in _steps(least, most) if busiest(loads, tried) <= busy_max), most)

    def _held(self, at_s: float, raw: int) -> int:
        """The most of the last time."""
        self._wishes.append((at_s, raw))
        while self._wishes[0][0] < at_s - HELD_S:
            self._wishes.popleft()
        return max(wish for _, wish in self._wishes)

    def _useful(self, backlog: float) -> int | None:
        """Members beyond which more brought no throughput while there was a backlog; None as far as is known.

        `backlog`: seconds for which it keeps one member busy.
        """
        last, run, fewer = self._points[-1], self._run(), self._fewer
        if backlog <= BEHIND_S * last.members:
            self._fewer = self._limited_until_s = None
            return None
        if fewer is not None and self._limited_until_s is not None:
            if last.at_s < self._limited_until_s and self._calls_hz() < MORE * fewer.calls_hz:
                return fewer.members
            fewer = self._fewer = self._limited_until_s = None
        if run is None:
            return None
        if fewer is None or run.members <= fewer.members:
            self._fewer = run
        elif run.members >= MORE * fewer.members:
            due_hz = fewer.calls_hz * (run.members / fewer.members - 1)
            by_chance_hz = math.sqrt(run.calls_hz / run.seconds + fewer.calls_hz / fewer.seconds)
            if run.calls_hz - fewer.calls_hz > GAIN_MIN * due_hz:
                self._fewer = run
            elif (1 - GAIN_MIN) * due_hz >= 3 * by_chance_hz:
                self._limited_until_s = last.at_s + RETRY_S
                return fewer.members
        return None

    def _run(self) -> _Run | None:
        """Since members came or left last; None if that is not long ago."""
        last = self._points[-1]
        same = list(takewhile(lambda one: one.members == last.members, reversed(self._points)))
        first = same[-1]
        seconds = last.at_s - first.at_s
        return (
            _Run(last.members, (last.calls - first.calls) / seconds, seconds) if seconds >= RECENT_S else None
        )

    def _calls_hz(self) -> float:
        last, start = self._points[-1], self._before(self._points[-1].at_s - RECENT_S)
        return (last.calls - start.calls) / (last.at_s - start.at_s)

    def _clears_in(self, waiting: int, arrivals_hz: float, capacity_hz: float) -> float | None:
        members_hz = capacity_hz * self._points[-1].members
        if waiting <= members_hz:
            return waiting / members_hz
        gone_hz = self._calls_hz() - arrivals_hz
        return waiting / gone_hz if gone_hz > 0 else None


def _began(one: MemberSample, seconds: float) -> MemberSample:
    """A new member counts from 0, but for one that was there before, unseen."""
    was_there = one.busy_s > one.concurrency * seconds
    return one if was_there else MemberSample(one.incarnation, one.concurrency, 0, 0.0, {})


def _came_hz(first: _Point, last: _Point) -> float:
    return max(0.0, last.came - first.came) / (last.at_s - first.at_s)


def _growth(first: _Point, middle: _Point, last: _Point) -> tuple[float, float]:
    """Growth of arrivals from the first time to the second, in hz a second, and that by chance (one sigma)."""
    if first is middle or middle is last:
        return 0.0, 0.0
    before_hz, recent_hz = _came_hz(first, middle), _came_hz(middle, last)
    before_s, recent_s = middle.at_s - first.at_s, last.at_s - middle.at_s
    between_s = (before_s + recent_s) / 2
    by_chance_hz = math.sqrt(before_hz / before_s + recent_hz / recent_s)
    return (recent_hz - before_hz) / between_s, by_chance_hz / between_s


def _steps(least: int, most: int) -> Iterator[int]:
    """Numbers from `least`, below `most`: all up to 32, above a part of about a thirtieth, as assignments cost time."""
    tried = least
    while tried < most:
        step = 1 << max(0, tried.bit_length() - 6)
        if tried % step == 0:
            yield tried
        tried += step - tried % step


def most_by_number(loads: list[float], members: int) -> float:
    """Load of the member with the most of `loads`, by queue, where so many have the queues of a balanced assignment."""
    shares = [0.0] * members
    for load, owner in zip(loads, balanced_owners(len(loads), frozenset(range(members))), strict=True):
        shares[owner] += load
    return max(shares)


def most_by_load(loads: list[float], members: int) -> float:
    """The same where each queue, the largest first, is at the member with the least load: queues move whole."""
    shares = [0.0] * members
    for load in sorted(loads, reverse=True):
        heapreplace(shares, shares[0] + load)
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


TOLERANCE = 0.1
"""An autoscaler's, by default (Kubernetes: --horizontal-pod-autoscaler-tolerance)."""


def published(wanted: int, current: int, tolerance: float = TOLERANCE) -> float:
    """Value of the metric, with target 1 for each replica, at which the autoscaler goes from `current` to `wanted`.

    It rounds the value up, and ignores one that differs from `current` by at most `tolerance`. Where that hides more
    members, the value is the least that it follows, and there are a few more than wanted; where it hides fewer, they
    stay.
    """
    if wanted < current and tolerance:
        return wanted - 0.99
    followed = math.floor(current * (1 + tolerance) + 1e-9) + 1
    return float(max(wanted, followed) if wanted > current else wanted)
