"""Lag of groups, counted every two seconds while it is above 0 or changes.

Surveys (`survey_cache`) are shared and half a minute apart: they listen to members, which costs most of what a look
costs. Counts listen to nobody on the embedded broker. On RabbitMQ they go by AMQP, which counts now, where the
management API counts every five seconds.

Groups at rest are asked for what waits in their queues, all of a broker at once. How often follows from how long that
takes, so that hundreds of groups cost no more than a few, and a broker that is slow is asked less.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from lbg_broker.admin import ProvisioningError
from lbg_broker.admin.lag import Backlog
from lbg_broker.admin.snapshot import UNKNOWN, Unknown
from lbg_broker.group import GroupSpec
from lbg_operator.reconcile.object_cache import Key

log = logging.getLogger("lbg.operator")

EVERY_S = 2.0
SELDOM_S = 30.0
"""Surveys come as often as that: a count that would come later is left to them."""
REST_SHARE, BUSY_SHARE = 0.01, 0.1
"""The part of the time that counting takes at most: of groups at rest, and of those that are behind."""
LIMIT_S = 20.0
FAILED_S = 10.0
"""Until the next count after one that failed. The surveys say what is wrong."""
TOLD_PER_S = 5.0
"""Groups whose new number is worth a round and a write of a status, in a second, over all."""

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
    """`told` is called with a group whose number is another one, as often as `quiet_s` allows.

    `joined_or_left` is called with a group that has another number of consumers: its members rebalance.
    """

    def __init__(
        self,
        told: Callable[[Key], None],
        *,
        now: Callable[[], float],
        timestamp: Callable[[], str],
        joined_or_left: Callable[[Key], None] = lambda group: None,
    ) -> None:
        self._told = told
        self._joined_or_left = joined_or_left
        self._now = now
        self._timestamp = timestamp
        self._brokers: dict[Key, _Broker] = {}
        self._latest: dict[Key, Count] = {}
        self._told_at: dict[Key, float] = {}
        self._untold: set[Key] = set()

    @property
    def quiet_s(self) -> float:
        """The least time between two writes of a status for its numbers alone."""
        behind = sum(len(one.behind) for one in self._brokers.values())
        return min(max(behind / TOLD_PER_S, EVERY_S), SELDOM_S)

    def begin(self, broker: Key, counters: Counters) -> None:
        one = self._brokers.setdefault(broker, _Broker(counters))
        one.counters = counters
        if one.task is None:
            one.task = asyncio.create_task(self._run(one), name=f"lags at {broker}")

    async def end(self, broker: Key) -> None:
        one = self._brokers.pop(broker, None)
        if one is None:
            return
        for group in tuple(one.specs):
            self._forget(one, group)
        if one.task is not None:
            one.task.cancel()
            await asyncio.gather(one.task, return_exceptions=True)

    async def close(self) -> None:
        for broker in tuple(self._brokers):
            await self.end(broker)

    def watch(self, group: Key, broker: Key, spec: GroupSpec) -> None:
        if (one := self._brokers.get(broker)) is not None:
            one.specs[group] = spec

    def forget(self, group: Key) -> None:
        for one in self._brokers.values():
            if group in one.specs:
                self._forget(one, group)

    def latest(self, group: Key) -> Count | None:
        """The last count of a group that is, or was, behind."""
        return self._latest.get(group)

    def surveyed(self, group: Key, broker: Key, lag: int | None) -> None:
        """Takes the counts of a survey, which on RabbitMQ knows of what is with consumers and the backlog does not."""
        one = self._brokers.get(broker)
        if one is not None and group in one.specs and lag:
            one.behind.add(group)

    async def _run(self, one: _Broker) -> None:
        pause_s = EVERY_S
        while True:
            await asyncio.sleep(pause_s)
            began = self._now()
            try:
                async with asyncio.timeout(LIMIT_S):
                    await self._count(one)
                took_s = self._now() - began
                pause_s = max(EVERY_S, took_s / BUSY_SHARE) - took_s
            except (TimeoutError, ProvisioningError) as error:
                log.debug("lags are unknown: %s", error or "no answer")
                pause_s = FAILED_S
            except Exception:  # a bug of ours: the surveys go on
                log.exception("counting lags failed")
                pause_s = FAILED_S
            self._tell()

    async def _count(self, one: _Broker) -> None:
        began = self._now()
        if began >= one.rest_at:
            specs = dict(one.specs)
            found = await one.counters.backlogs({spec.name: spec for spec in specs.values()}) if specs else {}
            one.rest_at = began + min(max(EVERY_S, (self._now() - began) / REST_SHARE), SELDOM_S)
            for group, spec in specs.items():
                if one.specs.get(group) == spec and (seen := found.get(spec.name)) is not None:
                    self._found(one, group, seen)
        behind = {group: one.specs[group] for group in one.behind}
        if not behind:
            return
        lags = await one.counters.lags({spec.name: spec for spec in behind.values()})
        for group, spec in behind.items():
            if one.specs.get(group) == spec:
                self._take(one, group, lags.get(spec.name, UNKNOWN))

    def _found(self, one: _Broker, group: Key, seen: Backlog) -> None:
        if _is_some(seen.messages):
            one.behind.add(group)
        if isinstance(seen.consumers, int):
            former = one.consumers.get(group, seen.consumers)
            one.consumers[group] = seen.consumers
            if former != seen.consumers:
                self._joined_or_left(group)

    def _take(self, one: _Broker, group: Key, lag: int | Unknown) -> None:
        last = self._latest.pop(group, None)
        if lag is not UNKNOWN:
            self._latest[group] = Count(self._now(), self._timestamp(), lag)
        is_other = (last.lag if last is not None else UNKNOWN) != lag
        if is_other:
            self._untold.add(group)
        elif lag == 0:
            one.behind.discard(group)

    def _tell(self) -> None:
        now, quiet_s = self._now(), self.quiet_s
        for group in tuple(self._untold):
            if now - self._told_at.get(group, -SELDOM_S) >= quiet_s:
                self._untold.discard(group)
                self._told_at[group] = now
                self._told(group)

    def _forget(self, one: _Broker, group: Key) -> None:
        one.specs.pop(group, None)
        one.behind.discard(group)
        one.consumers.pop(group, None)
        self._untold.discard(group)
        self._latest.pop(group, None)
        self._told_at.pop(group, None)


def _is_some(backlog: int | Unknown) -> bool:
    return isinstance(backlog, int) and backlog > 0
