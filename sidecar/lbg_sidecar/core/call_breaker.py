"""Circuit breaker of a group: while what its application depends on is down, no member calls it.

A verdict `retry` with the scope `group` opens it at all members, and counts no attempt. Of those that reported it the
member with the lowest index tries one message when the wait is over, and reports how that ends; the others wait for
that, or try themselves where nothing comes. Then each member lets twice as many calls start with every one that
succeeds, until all are let through.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Self

from lbg_core.client.backoff import Backoff
from lbg_core.group.member_state import HELD_REASON_MAX_CHARS, HeldCalls
from lbg_core.group.members_protocol import CallsHeld, Message
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.effects import BreakerClosed, BreakerOpened, Post
from lbg_sidecar.core.part import NEVER, Context, Part
from lbg_sidecar.message import AFTER_MAX_S, Kind, Verdict

WAIT = Backoff(first_s=1.0, max_s=30.0, jitter=0.2)
"""Until a probe, where the application says nothing else; longer after each that failed."""

REPORTED_WITHIN_S = 5.0
"""After a probe that another member was to make, until this one makes its own."""


class Stage(enum.Enum):
    """No call starts; one call tries; each success lets as many again."""

    OPEN = enum.auto()
    PROBING = enum.auto()
    RECOVERING = enum.auto()


class CallBreaker(Part):
    """Receives reports. The breaker itself is made when it opens: a group that never needs it pays nothing."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._context = context
        self.wall_us: Callable[[float], int] = lambda at: int(at * 1e6)
        self.breaker: Breaker | None = None

    def resume(self, former: Self) -> None:
        self.wall_us = former.wall_us
        if former.breaker is not None and former.breaker.stage is not None:
            self._used().resume(former.breaker)

    def handlers(self) -> Mapping[type[Message], Callable[[Any, float], None]]:
        return {CallsHeld: self._received}

    def held_back(self, in_flight: InFlight, verdict: Verdict, now: float) -> float:
        return self._used().failed(in_flight, verdict, now)

    def _received(self, report: CallsHeld, now: float) -> None:
        me = self._roster.me
        if me is None or report.sender.incarnation == me.incarnation:
            return
        if report.seconds or (self.breaker is not None and self.breaker.stage is not None):
            self._used().received(report, now)

    def _used(self) -> Breaker:
        if self.breaker is None:
            self.breaker = Breaker(self._context, self.wall_us)
        return self.breaker


class Breaker(Part):
    """`stage` is None while it is closed."""

    def __init__(self, context: Context, wall_us: Callable[[float], int]) -> None:
        self.stage: Stage | None = None
        self._wall_us = wall_us
        self._is_prober = False
        self._reason = ""
        self._since = 0.0
        self._until = NEVER
        self._failures = 0
        self._allowed = 0
        self._tried_at = 0.0  # calls that began before say nothing of a recovery
        super().__init__(context)

    def resume(self, former: Self) -> None:
        self.stage, self._is_prober, self._reason = former.stage, former._is_prober, former._reason
        self._since, self._until, self._failures = former._since, former._until, former._failures
        self._allowed, self._tried_at = former._allowed, former._tried_at

    def failed(self, in_flight: InFlight, verdict: Verdict, now: float) -> float:
        """The application reports that no call can succeed. Returns the time of the next call of this message."""
        if self.stage is Stage.OPEN or in_flight.started_at < self._tried_at:
            return max(self._until, now)  # it began before
        self._failures += 1
        wait_s = WAIT.delay_s(self._failures, self._uniform)
        if verdict.after_s is not None:
            wait_s = min(max(verdict.after_s, 0.0), AFTER_MAX_S)
        self._is_prober = True
        self._open(verdict.reason, now, wait_s)
        self._report(wait_s)
        return self._until

    def received(self, report: CallsHeld, now: float) -> None:
        me = self._roster.me
        assert me is not None
        if self._is_prober and self.stage is not None and report.sender.index > me.index:
            return
        self._is_prober = False
        if report.seconds:
            self._open(report.reason, now, report.seconds + REPORTED_WITHIN_S)
        elif self.stage is Stage.OPEN:
            self._try(Stage.RECOVERING, now)

    def may_take(self) -> bool:
        if self.stage is None:
            return True
        tried_at = self._tried_at
        return sum(one.started_at >= tried_at for one in self._lanes.running) < self._allowed

    def called(self, in_flight: InFlight) -> None:
        if self.stage is Stage.PROBING and self._is_prober:
            self._report(self._dispatcher.rules.call_timeout_s)  # nobody else need try meanwhile

    def ended(self, in_flight: InFlight, verdict: Verdict, now: float) -> None:
        is_try = self.stage in (Stage.PROBING, Stage.RECOVERING) and in_flight.started_at >= self._tried_at
        if not is_try or verdict.kind not in (Kind.ACK, Kind.DROP):
            return
        if self.stage is Stage.PROBING:
            self.stage = Stage.RECOVERING
            self._report(0.0)
        self._allowed *= 2
        if self._allowed >= self._lanes.concurrency:
            self.stage, self._failures, self._is_prober = None, 0, False
            self._reports.changed(now)
            self._effects.append(BreakerClosed(now - self._since))

    def tick(self, now: float) -> None:
        if self.stage is Stage.OPEN and now >= self._until:
            self._try(Stage.PROBING, now)

    def next_due(self, now: float) -> float:
        return self._until if self.stage is Stage.OPEN else NEVER

    def report_fields(self) -> Mapping[str, Any]:
        if self.stage is None:
            return {}
        until_us = self._wall_us(self._until) if self.stage is Stage.OPEN else 0
        return {"held": HeldCalls(self._reason, self._wall_us(self._since), until_us)}

    def _open(self, reason: str, now: float, wait_s: float) -> None:
        if self.stage is None:
            self._since = now
        if self.stage is not Stage.OPEN:
            self._effects.append(BreakerOpened(reason, wait_s, is_again=self.stage is not None))
        self.stage, self._allowed = Stage.OPEN, 0
        self._reason = reason[:HELD_REASON_MAX_CHARS] or self._reason
        self._until = now + wait_s
        self._reports.changed(now)

    def _try(self, stage: Stage, now: float) -> None:
        self.stage, self._allowed, self._tried_at = stage, 1, now
        self._reports.changed(now)

    def _report(self, seconds: float) -> None:
        if self._roster.me is not None:
            self._effects.append(Post(CallsHeld(self._roster.me, seconds, self._reason)))
