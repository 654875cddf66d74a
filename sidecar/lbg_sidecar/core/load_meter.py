"""Load meter: what the queues that a member serves need, whatever the assignment is, and what is too much for a member.

A call is counted in its attachment as it ends. All else happens once in an interval: messages that may wait at the
broker are counted only of queues whose window is used, and the calls of a key only where a queue falls behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lbg_core.group.load_plan import MOVES_FROM
from lbg_core.group.member_state import COUNT_MAX, Overload, Progress, QueueLoad
from lbg_sidecar.core.binding import Binding
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.dispatcher import Order
from lbg_sidecar.core.effects import CountReady
from lbg_sidecar.core.part import NEVER, Context, Part
from lbg_sidecar.core.status_report import KEY_MAX_CHARS, progress_of
from lbg_sidecar.message import Verdict

MEASURED_S = 5.0
COUNTED_BEFORE_S = 0.5
"""Before the end of an interval, what waits at the broker is counted."""

CLEARED_S = 10.0
"""Time in which what waits is to be gone, if the member is to count as one that keeps up."""

BEHIND_S = 3.0
BEHIND_CALLS = 20
"""A member, or a queue, falls behind if what waits needs longer than this time, and than so many calls."""

OVERLOADED_FROM = 1.05
"""Calls at a time for what comes in, for each that can run."""

REPORTED_AFTER = 2
"""Intervals until something is reported, and until it is not any more. The first shows which key it may be."""

AVERAGED_CALLS = 1600
"""For a member that keeps up the demand of a queue is an average over the time of so many calls: with random arrivals
the member's share is then known to a fortieth."""

AVERAGED_MAX_S = 300.0

STEADY_CALLS = 800
STEADY_S = 30.0
"""Calls since its load began by which a member that keeps up knows its share well enough to give queues away, and the
time after which it does by fewer, as calls of half a second need minutes for so many."""


class Interval(NamedTuple):
    """A queue in one interval. `running`: calls at a time, on average. `service_s`: of those that ended last, 0 where
    none ran. `waiting`: messages at its end, by which there were `growth_hz` more each second."""

    queue: int
    calls_hz: float
    running: float
    service_s: float
    waiting: int
    growth_hz: float

    @property
    def incoming(self) -> float:
        """Calls at a time for what came in."""
        return min(max(0.0, self.running + self.growth_hz * self.service_s), COUNT_MAX)

    @property
    def demand_behind(self) -> float:
        """The same, and what waits were gone soon."""
        demand = self.running + (self.growth_hz + self.waiting / CLEARED_S) * self.service_s
        return min(max(0.0, demand), COUNT_MAX)

    @property
    def is_behind(self) -> bool:
        return self.waiting > max(BEHIND_CALLS, BEHIND_S * self.calls_hz)


class _Seen(NamedTuple):
    """An attachment at the end of an interval: calls that ended, their time, that with the time of those that run, and
    messages that wait; None: unknown."""

    attachment: Attachment
    calls: int
    ended_s: float
    busy_s: float
    waiting: int | None


class _Lasting:
    """Something that holds for `REPORTED_AFTER` intervals, until it has not held for as many."""

    def __init__(self) -> None:
        self.holds = False
        self.count = 0

    def observe(self, *, holds: bool) -> None:
        self.count = min(self.count + 1, REPORTED_AFTER) if holds else max(self.count - 1, 0)
        self.holds = self.count == REPORTED_AFTER or (self.holds and self.count > 0)


@dataclass(slots=True)
class _QueueBehind:
    """`key`: that of which most messages wait, with the time of its calls in this interval. `overload`: the latest."""

    key: str | None
    busy_s: float = 0.0
    overload: Overload | None = None
    lasts: _Lasting = field(default_factory=_Lasting)


class LoadMeter(Part):
    """`queues` are of the last interval, of those that this member served at its end; None before the first."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.queues: tuple[QueueLoad, ...] | None = None
        """For plans: what waits counts too, where this member falls behind."""
        self.is_steady = False
        """`queues` are by many calls or a long time, or this member falls behind."""
        self._since = 0.0
        self._due = self._count_due = NEVER
        self._seen: dict[int, _Seen] = {}
        self._requested: set[int] = set()
        self._ready: dict[int, int] = {}
        self._intervals: dict[int, Interval] = {}
        self._averages: dict[int, tuple[float, float]] = {}
        """Demands of queues, each with the time of which it is the average."""
        self._loaded_calls = self._loaded_s = 0.0
        """Since the load of this member began."""
        self._waiting_s = 0.0
        self._lags = _Lasting()
        self._behind: dict[int, _QueueBehind] = {}
        self._ended = context.hooks.of(Part.ended)
        self._measured = context.hooks.of(Part.measured)

    @property
    def times_calls(self) -> bool:
        """True while a queue is behind: then the calls of one of its keys are timed."""
        return bool(self._behind)

    def connected(self, now: float) -> None:
        self._begin(now)

    def disconnected(self, now: float) -> None:
        self._due = self._count_due = NEVER
        self.queues, self._lags, self._waiting_s = None, _Lasting(), 0.0
        self._seen.clear()
        self._intervals.clear()
        self._begin_averages()
        self._follow({})

    def counted(self, queue: int, ready: int | None, consumers: int | None, now: float) -> None:
        if ready is not None and queue in self._requested:
            self._ready[queue] = ready

    def next_due(self, now: float) -> float:
        """A member at rest has ticks enough."""
        return min(self._due, self._count_due) if self.takes_part and self._dispatcher.running else NEVER

    def tick(self, now: float) -> None:
        if not self.takes_part:
            return
        if now >= self._count_due:
            self._count_due = NEVER
            self._requested = {one.queue for one in self._bindings.served() if _may_have_more(one)}
            self._effects.extend(map(CountReady, sorted(self._requested)))
        if now >= self._due:
            self._measure(now)
            self._begin(now)
            for measured in self._measured:
                measured(now)

    def _begin(self, now: float) -> None:
        self._since = now
        self._requested.clear()
        self._ready.clear()
        self._due, self._count_due = now + MEASURED_S, now + MEASURED_S - COUNTED_BEFORE_S

    def queue_fields(self, binding: Binding) -> Mapping[str, Any]:
        interval, behind = self._intervals.get(binding.queue), self._behind.get(binding.queue)
        if interval is None or not binding.active:
            return {}
        is_reported = behind is not None and behind.lasts.holds
        return {
            "demand": _rounded(interval.incoming),
            "service_s": _rounded(interval.service_s),
            "overload": behind.overload if behind is not None and is_reported else None,
        }

    def report_fields(self) -> Mapping[str, Any]:
        return {"behind_s": _rounded(self._waiting_s) if self._lags.holds else 0.0}

    def _measure(self, now: float) -> None:
        concurrency, seconds = self._dispatcher.rules.concurrency, now - self._since
        served = [one for one in self._bindings.served() if one.attachment is not None]
        former_running = sum(one.running for one in self._intervals.values())
        self._intervals = {one.queue: self._interval(one, seconds, now) for one in served}
        self._seen = {queue: self._seen[queue] for queue in self._intervals}
        intervals = self._intervals.values()
        self._waiting_s = min(sum(one.waiting * one.service_s for one in intervals) / concurrency, COUNT_MAX)
        longest_s = max((one.service_s for one in intervals), default=0.0)
        lags = self._waiting_s > max(BEHIND_S, BEHIND_CALLS * longest_s)
        is_busy = sum(one.running for one in intervals) >= MOVES_FROM * concurrency
        self._lags.observe(holds=lags and is_busy)
        if lags or 2 * former_running < sum(one.running for one in intervals):
            self._begin_averages()
        self._loaded_calls += seconds * sum(one.calls_hz for one in intervals)
        self._loaded_s += seconds
        if not lags:
            self._average(seconds)
        self.is_steady = lags or self._loaded_calls >= STEADY_CALLS or self._loaded_s >= STEADY_S
        self.queues = tuple(
            QueueLoad(one.queue, one.demand_behind if lags else self._averages[one.queue][0], one.service_s)
            for one in intervals
        )
        self._follow({one.queue: behind for one in served if (behind := self._queue_behind(one, seconds))})

    def _interval(self, binding: Binding, seconds: float, now: float) -> Interval:
        attachment, queue = binding.attachment, binding.queue
        assert attachment is not None
        former = self._seen.get(queue)
        if former is None or former.attachment is not attachment:
            former = _Seen(attachment, 0, 0.0, 0.0, None)
        parts = [one for one in (attachment, attachment.beside) if one is not None]
        calls, ended_s = sum(one.calls for one in parts), sum(one.busy_s for one in parts)
        busy_s = ended_s + sum(now - one.started_at for part in parts for one in part.running)
        # A blocked one waits for its retries, and not for its turn.
        is_blocked = progress_of(attachment) is Progress.BLOCKED
        waiting = 0 if is_blocked else attachment.ack_window.unacked + self._ready.get(queue, 0)
        is_known = not is_blocked and (queue in self._ready or queue not in self._requested)
        self._seen[queue] = _Seen(attachment, calls, ended_s, busy_s, waiting if is_known else None)
        ended, worked_s = calls - former.calls, max(0.0, busy_s - former.busy_s)
        came = 0 if former.waiting is None or not is_known else waiting - former.waiting
        before = self._intervals.get(queue)
        service_s = before.service_s if before is not None and worked_s else 0.0
        if ended:
            service_s = (ended_s - former.ended_s) / ended
        return Interval(queue, ended / seconds, worked_s / seconds, service_s, waiting, came / seconds)

    def _begin_averages(self) -> None:
        self._averages.clear()
        self._loaded_calls = self._loaded_s = 0.0

    def _average(self, seconds: float) -> None:
        """Demands of a member that keeps up: each an average over the time of many calls."""
        calls_hz = sum(one.calls_hz for one in self._intervals.values())
        longest_s = AVERAGED_CALLS / calls_hz if calls_hz else AVERAGED_MAX_S
        longest_s = max(seconds, min(longest_s, AVERAGED_MAX_S))
        averages = {}
        for queue, one in self._intervals.items():
            demand, averaged_s = self._averages.get(queue, (0.0, 0.0))
            averaged_s = min(averaged_s + seconds, longest_s)
            averages[queue] = demand + (one.running - demand) * min(1.0, seconds / averaged_s), averaged_s
        self._averages = averages

    # What is too much for a member

    def _queue_behind(self, binding: Binding, seconds: float) -> _QueueBehind | None:
        """None for a queue that keeps up."""
        attachment, one = binding.attachment, self._intervals[binding.queue]
        assert attachment is not None
        former = self._behind.get(binding.queue)
        if former is None:
            return _QueueBehind(self._key(attachment, None)) if one.is_behind else None
        overload = self._overload(one, former, attachment, seconds) if one.is_behind else None
        former.lasts.observe(holds=overload is not None)
        if not one.is_behind and not former.lasts.count:
            return None
        former.overload = overload or former.overload
        former.key, former.busy_s = self._key(attachment, former.key), 0.0
        return former

    def _overload(
        self, one: Interval, behind: _QueueBehind, attachment: Attachment, seconds: float
    ) -> Overload | None:
        """Of what comes in the key has the share that it has of the calls."""
        now = self._since + seconds
        by_key = self._dispatcher.rules.order is Order.KEY
        calls = self._dispatcher.rules.concurrency if by_key else 1
        if behind.key is not None and one.running:
            running_s = sum(
                self._time_of(call, now) for call in attachment.running if call.lane == behind.key
            )
            demand = one.incoming * min(1.0, (behind.busy_s + running_s) / (one.running * seconds))
            if demand > OVERLOADED_FROM:
                return Overload(behind.key[:KEY_MAX_CHARS], _rounded(demand), 1)
        if one.incoming > OVERLOADED_FROM * calls:
            return Overload(None, _rounded(one.incoming), calls)
        return None

    def _key(self, attachment: Attachment, former: str | None) -> str | None:
        """The key of which most messages wait for their turn; the former one while it has half as many at least."""
        if self._dispatcher.rules.order is not Order.KEY:
            return None
        waiting = {
            lane: len(behind) for lane, behind in attachment.lanes.items() if behind and isinstance(lane, str)
        }
        key = max(waiting, key=waiting.__getitem__, default=None)
        return former if former and key and 2 * waiting.get(former, 0) >= waiting[key] else key

    def _follow(self, behind: dict[int, _QueueBehind]) -> None:
        """Times calls of keys while a queue is behind."""
        if behind and not self._behind:
            self._ended.append(self._time)
        elif self._behind and not behind:
            self._ended.remove(self._time)
        self._behind = behind

    def _time(self, in_flight: InFlight, verdict: Verdict, now: float) -> None:
        behind = self._behind.get(in_flight.attachment.queue)
        if behind is not None and in_flight.lane == behind.key:
            behind.busy_s += self._time_of(in_flight, now)

    def _time_of(self, in_flight: InFlight, now: float) -> float:
        """In this interval."""
        return now - max(in_flight.started_at, self._since)


def _may_have_more(binding: Binding) -> bool:
    """The broker holds messages back only from a consumer whose window is used."""
    attachment = binding.attachment
    return attachment is not None and 2 * attachment.ack_window.unacked >= attachment.prefetch


def _rounded(value: float) -> float:
    """For reports: they are shorter, and one like the last is not sent."""
    return float(f"{value:.3g}")
