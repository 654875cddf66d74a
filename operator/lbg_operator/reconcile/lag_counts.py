"""Lag of groups, counted every two seconds while it is above 0 or changes.

Surveys (`survey_cache`) are shared and half a minute apart: they listen to members, which costs most of what a survey
costs. Counts listen to no members on the embedded broker. On RabbitMQ they go by AMQP, which counts now, where the
management API counts every five seconds.

The waiting messages of groups at rest are read for all groups of a broker at once. How often follows from how long
that takes, so that hundreds of groups cost no more than a few, and a slow broker gets fewer requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from lbg_core.admin import ProvisioningError
from lbg_core.admin.lag import Backlog
from lbg_core.admin.snapshot import UNKNOWN, Unknown
from lbg_core.group import GroupSpec
from lbg_operator.reconcile.object_cache import Key

log = logging.getLogger("lbg.operator")

COUNT_INTERVAL_S = 2.0
COUNT_INTERVAL_MAX_S = 30.0
"""Surveys come that often: a count that would come later is left to them."""
REST_SHARE, BUSY_SHARE = 0.01, 0.1
"""The part of the time that counting takes at most: of groups at rest, and of those that are behind."""
LIMIT_S = 20.0
FAILED_S = 10.0
"""Until the next count after one that failed. The surveys report what is wrong."""
REPORTS_PER_S = 5.0
"""Groups that are reconciled for a new number in a second, over all: each is a write of a status."""

Counts = Mapping[str, int | Unknown]
Counter = Callable[[Mapping[str, GroupSpec]], Awaitable[Counts]]
Backlogs = Callable[[Mapping[str, GroupSpec]], Awaitable[Mapping[str, Backlog]]]


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one broker: `backlogs` finds who is behind and the number of consumers, `lags` counts what is ready or not
    acknowledged."""

    backlogs: Backlogs
    lags: Counter


@dataclass(frozen=True, slots=True)
class Count:
    """`at` is the monotonic time in seconds, `time` the time of day, RFC 3339."""

    at: float
    time: str
    lag: int


@dataclass(slots=True)
class _Broker:
    counters: Counters
    specs: dict[Key, GroupSpec] = field(default_factory=dict)
    behind: set[Key] = field(default_factory=set)
    consumers: dict[Key, int] = field(default_factory=dict)
    rest_at: float = 0.0
    task: asyncio.Task[None] | None = None


class LagCounts:
    """`on_change` is called with a group whose number has changed, as often as `quiet_s` allows.

    `on_consumers_changed` is called with a group whose number of consumers has changed: its members rebalance.
    """

    def __init__(
        self,
        on_change: Callable[[Key], None],
        *,
        now: Callable[[], float],
        timestamp: Callable[[], str],
        on_consumers_changed: Callable[[Key], None] = lambda group: None,
    ) -> None:
        self._on_change = on_change
        self._on_consumers_changed = on_consumers_changed
        self._now = now
        self._timestamp = timestamp
        self._brokers: dict[Key, _Broker] = {}
        self._latest: dict[Key, Count] = {}
        self._reported_at: dict[Key, float] = {}
        self._unreported: set[Key] = set()

    @property
    def quiet_s(self) -> float:
        """The least time between two writes of a status for its numbers alone."""
        behind = sum(len(state.behind) for state in self._brokers.values())
        return min(max(behind / REPORTS_PER_S, COUNT_INTERVAL_S), COUNT_INTERVAL_MAX_S)

    def begin(self, broker: Key, counters: Counters) -> None:
        state = self._brokers.setdefault(broker, _Broker(counters))
        state.counters = counters
        if state.task is None:
            state.task = asyncio.create_task(self._run(state), name=f"lags at {broker}")

    async def end(self, broker: Key) -> None:
        state = self._brokers.pop(broker, None)
        if state is None:
            return
        for group in tuple(state.specs):
            self._forget(state, group)
        if state.task is not None:
            state.task.cancel()
            await asyncio.gather(state.task, return_exceptions=True)

    async def close(self) -> None:
        for broker in tuple(self._brokers):
            await self.end(broker)

    def watch(self, group: Key, broker: Key, spec: GroupSpec) -> None:
        if (state := self._brokers.get(broker)) is not None:
            state.specs[group] = spec

    def forget(self, group: Key) -> None:
        for state in self._brokers.values():
            if group in state.specs:
                self._forget(state, group)

    def latest(self, group: Key) -> Count | None:
        """The last count of a group that is, or was, behind."""
        return self._latest.get(group)

    def surveyed(self, group: Key, broker: Key, lag: int | None) -> None:
        """Takes the counts of a survey, which on RabbitMQ include messages in flight and the backlog does not."""
        state = self._brokers.get(broker)
        if state is not None and group in state.specs and lag:
            state.behind.add(group)

    async def _run(self, state: _Broker) -> None:
        pause_s = COUNT_INTERVAL_S
        while True:
            await asyncio.sleep(pause_s)
            began = self._now()
            try:
                async with asyncio.timeout(LIMIT_S):
                    await self._count(state)
                took_s = self._now() - began
                pause_s = max(COUNT_INTERVAL_S, took_s / BUSY_SHARE) - took_s
            except (TimeoutError, ProvisioningError) as error:
                log.debug("lags are unknown: %s", error or "no answer")
                pause_s = FAILED_S
            except Exception:  # a bug of ours: the surveys go on
                log.exception("counting lags failed")
                pause_s = FAILED_S
            self._report()

    async def _count(self, state: _Broker) -> None:
        began = self._now()
        if began >= state.rest_at:
            specs = dict(state.specs)
            backlogs = (
                await state.counters.backlogs({spec.name: spec for spec in specs.values()}) if specs else {}
            )
            state.rest_at = began + min(
                max(COUNT_INTERVAL_S, (self._now() - began) / REST_SHARE), COUNT_INTERVAL_MAX_S
            )
            for group, spec in specs.items():
                if state.specs.get(group) == spec and (backlog := backlogs.get(spec.name)) is not None:
                    self._record_backlog(state, group, backlog)
        behind = {group: state.specs[group] for group in state.behind}
        if not behind:
            return
        lags = await state.counters.lags({spec.name: spec for spec in behind.values()})
        for group, spec in behind.items():
            if state.specs.get(group) == spec:
                self._record_lag(state, group, lags.get(spec.name, UNKNOWN))

    def _record_backlog(self, state: _Broker, group: Key, backlog: Backlog) -> None:
        if _is_some(backlog.messages):
            state.behind.add(group)
        if isinstance(backlog.consumers, int):
            former = state.consumers.get(group, backlog.consumers)
            state.consumers[group] = backlog.consumers
            if former != backlog.consumers:
                self._on_consumers_changed(group)

    def _record_lag(self, state: _Broker, group: Key, lag: int | Unknown) -> None:
        last = self._latest.pop(group, None)
        if lag is not UNKNOWN:
            self._latest[group] = Count(self._now(), self._timestamp(), lag)
        is_other = (last.lag if last is not None else UNKNOWN) != lag
        if is_other:
            self._unreported.add(group)
        elif lag == 0:
            state.behind.discard(group)

    def _report(self) -> None:
        now, quiet_s = self._now(), self.quiet_s
        for group in tuple(self._unreported):
            if now - self._reported_at.get(group, -COUNT_INTERVAL_MAX_S) >= quiet_s:
                self._unreported.discard(group)
                self._reported_at[group] = now
                self._on_change(group)

    def _forget(self, state: _Broker, group: Key) -> None:
        state.specs.pop(group, None)
        state.behind.discard(group)
        state.consumers.pop(group, None)
        self._unreported.discard(group)
        self._latest.pop(group, None)
        self._reported_at.pop(group, None)


def _is_some(backlog: int | Unknown) -> bool:
    return isinstance(backlog, int) and backlog > 0
