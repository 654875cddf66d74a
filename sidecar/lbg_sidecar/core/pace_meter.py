"""Pace meter: time of a member's calls and of those of its busiest keys, and how busy they are.

Nothing is counted for a message: every few seconds the ring of finished messages is read, which the member has anyway,
with the calls that run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple, Self

from lbg_core.group.pace import MEASURED_S, WINDOW_S, Pace, pace_of
from lbg_sidecar.core.finished import FinishedMessages
from lbg_sidecar.core.part import Context, Part
from lbg_sidecar.core.status_report import calls_at_once

CALLS_MAX = 4000
"""Calls that are read, the latest: each takes about half a microsecond."""


class _Mark(NamedTuple):
    """Sums since the member started: seconds in calls, with those that run, messages that it processed, and seconds of
    all calls that might run at a time."""

    at: float
    busy_s: float
    acked: int
    possible_s: float


class PaceMeter(Part):
    """`pace` is None until it was measured once."""

    def __init__(self, context: Context, finished: FinishedMessages) -> None:
        super().__init__(context)
        self.pace: Pace | None = None
        self._context = context
        self._finished = finished
        self._marks: deque[_Mark] = deque()

    def resume(self, former: Self) -> None:
        self.pace, self._marks = former.pace, former._marks

    def tick(self, now: float) -> None:
        """A member at rest has ticks enough."""
        if self._marks and now > self._marks[-1].at + WINDOW_S:
            self._marks.clear()  # the process stood still
        if not self._marks:
            self._mark(now)
        elif now >= self._marks[-1].at + MEASURED_S:
            self._measure(now)

    def report_fields(self) -> Mapping[str, Any]:
        return {"pace": self.pace}

    def description(self) -> Mapping[str, Any]:
        return {"pace": None if self.pace is None else asdict(self.pace)}

    def _mark(self, now: float) -> _Mark:
        counts = self._dispatcher.counts
        running_s = sum(now - one.started_at for one in self._dispatcher.running)
        last = self._marks[-1] if self._marks else _Mark(now, 0.0, 0, 0.0)
        possible_s = last.possible_s + (now - last.at) * calls_at_once(self._context)
        self._marks.append(_Mark(now, counts.busy_us / 1e6 + running_s, counts.acked, possible_s))
        return self._marks[-1]

    def _measure(self, now: float) -> None:
        last = self._mark(now)
        while len(self._marks) > 2 and self._marks[1].at <= now - WINDOW_S:
            self._marks.popleft()
        first = self._marks[0]
        calls, since = self._finished.calls_since(max(first.at, now - WINDOW_S), CALLS_MAX)
        calls += [(one.key, one.started_at, None) for one in self._dispatcher.running]
        seconds = now - first.at
        self.pace = pace_of(
            calls,
            since=since,
            now=now,
            busy=(last.busy_s - first.busy_s) / (last.possible_s - first.possible_s),
            finished_hz=(last.acked - first.acked) / seconds,
        )
