"""Cache of surveys of the brokers: the last snapshot of each group, its moves and its lag.

Surveys are shared, because a survey for each group by itself costs the broker and the operator most of their time when
there are hundreds. Numbers come oftener, from `lag_counts`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lbg_core.admin import AdminError, GroupNotFound, ProvisioningError
from lbg_core.admin.describe import Description
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.counted_nouns import counted
from lbg_core.group import GroupSpec
from lbg_operator.reconcile.demands import Demands
from lbg_operator.reconcile.lag_counts import Counters, LagCounts
from lbg_operator.reconcile.object_cache import Key

KEPT = 10


def moves(before: Description | None, after: Description, *, time: str) -> list[dict[str, Any]]:
    """The queues that another member serves now. What happened in between two moves is not seen.

    `why` is what the members show: `Join` where the new one was not there before, `Leave` where the old one is gone,
    else `Rebalance`.
    """
    if before is None or before.members is UNKNOWN or after.members is UNKNOWN or after.spec is None:
        return []
    then = {member.incarnation for member in before.members}
    now = {member.incarnation for member in after.members}
    queue_moves = []
    for queue in range(after.spec.queue_count):
        old, new = before.active_member(queue), after.active_member(queue)
        if old is None or new is None or old.incarnation == new.incarnation:
            continue
        why = (
            "Leave" if old.incarnation not in now else "Join" if new.incarnation not in then else "Rebalance"
        )
        queue_moves.append({"time": time, "queue": queue, "from": old.index, "to": new.index, "why": why})
    return queue_moves


def latest(new: Sequence[dict[str, Any]], former: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest first, as many as the status keeps."""
    return [*new, *former][:KEPT]


log = logging.getLogger("lbg.operator")

INTERVAL_S = 30.0
SOON_S = 1.0
"""Seconds that a requested survey waits for further requests, to serve them together."""
UNSETTLED = frozenset({"HoldDown", "Rebalancing"})
"""Members are on their way to another distribution, in seconds: the next survey comes soon."""
UNSETTLED_PER_S = 100
"""Groups that are surveyed again in a second, at most: a survey costs 0.7 ms of CPU for each."""
SAMPLED_S = 5.0
"""Age that the numbers of a survey may have on RabbitMQ, whose management API counts so often: a count by AMQP that is
younger than that is the better one."""
REPORT_AGAIN_S = 300.0
"""Interval in which a group is reconciled for surveys that show nothing new: as often as the time of a status moves."""
LIMIT_S = 20.0
"""Of one survey of all groups of a broker."""

NOT_ANY_MORE = "it is not surveyed any more"

SurveyResults = Mapping[str, Description | ProvisioningError]
Survey = Callable[[Mapping[str, GroupSpec]], Awaitable[SurveyResults]]


@dataclass(frozen=True, slots=True)
class BrokerSurvey:
    """`description` is None when the survey failed, and `why` says how. `number` counts surveys of this group.

    `at` is the monotonic time in seconds at which it ended, `time` the time of day, RFC 3339.
    """

    at: float
    time: str
    number: int
    description: Description | None
    why: str = ""
    is_missing: bool = False
    """The broker says that there is no such group."""
    before: Description | None = None
    """The last one that did not fail."""
    begun_at: float = 0.0


@dataclass(frozen=True, slots=True)
class LagSeen:
    """`time`: when it was counted, RFC 3339."""

    lag: int
    time: str


@dataclass(slots=True)
class _BrokerState:
    survey: Survey
    specs: dict[Key, GroupSpec] = field(default_factory=dict)
    requested: set[Key] = field(default_factory=set)
    waiting: list[tuple[Key, asyncio.Future[BrokerSurvey]]] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class SurveyCache:
    def __init__(
        self,
        on_change: Callable[[Key], None],
        *,
        now: Callable[[], float],
        timestamp: Callable[[], str],
    ) -> None:
        self._on_change = on_change
        self._now = now
        self._timestamp = timestamp
        self._counts = LagCounts(on_change, now=now, timestamp=timestamp, on_consumers_changed=self.soon)
        self.demands = Demands(now)
        self._brokers: dict[Key, _BrokerState] = {}
        self._broker_of: dict[Key, Key] = {}
        self._latest: dict[Key, BrokerSurvey] = {}
        self._reported_at: dict[Key, float] = {}

    def begin(self, broker: Key, survey: Survey, counters: Counters | None = None) -> None:
        """From now on `broker` is surveyed with `survey`, and its waiting messages are counted with `counters`."""
        if counters is not None:
            self._counts.begin(broker, counters)
        state = self._brokers.setdefault(broker, _BrokerState(survey))
        state.survey = survey
        if state.task is None:
            state.task = asyncio.create_task(self._run(state), name=f"looks at {broker}")

    async def end(self, broker: Key) -> None:
        """Discards what was read there; those who wait for a survey get one that failed."""
        await self._counts.end(broker)
        state = self._brokers.pop(broker, None)
        if state is None:
            return
        if state.task is not None:
            state.task.cancel()
            await asyncio.gather(state.task, return_exceptions=True)
        for group in state.specs:
            self._latest.pop(group, None)
            self.demands.surveyed(group, None)

    async def close(self) -> None:
        for broker in tuple(self._brokers):
            await self.end(broker)

    def watch(self, group: Key, broker: Key, spec: GroupSpec) -> None:
        """Include `group` in the surveys of `broker`; the first comes soon."""
        state = self._brokers.get(broker)
        if state is None or state.specs.get(group) == spec:
            return
        self._broker_of[group] = broker
        state.specs[group] = spec
        self._counts.watch(group, broker, spec)
        self.soon(group)

    def forget(self, group: Key) -> None:
        self._latest.pop(group, None)
        self._reported_at.pop(group, None)
        self._counts.forget(group)
        self.demands.forget(group)
        broker = self._broker_of.pop(group, None)
        if broker is not None and broker in self._brokers:
            self._brokers[broker].specs.pop(group, None)

    def latest(self, group: Key) -> BrokerSurvey | None:
        return self._latest.get(group)

    def lag(self, group: Key) -> LagSeen | None:
        """The newest number there is; None when the last survey failed, or could not count every queue."""
        survey, count = self._latest.get(group), self._counts.latest(group)
        if survey is None or survey.description is None:
            return None
        if count is not None and count.at + SAMPLED_S >= survey.begun_at:
            return LagSeen(count.lag, count.time)
        lag = survey.description.lag
        return None if lag is None else LagSeen(lag, survey.time)

    @property
    def quiet_s(self) -> float:
        """The least time between two writes of a status for its numbers alone."""
        return self._counts.quiet_s

    def soon(self, group: Key) -> None:
        state = self._brokers.get(self._broker_of.get(group, group))
        if state is not None and group in state.specs:
            state.requested.add(group)
            state.woken.set()

    async def fresh(self, group: Key) -> BrokerSurvey | None:
        """A survey that begins after now; None for a group that is not surveyed."""
        state = self._brokers.get(self._broker_of.get(group, group))
        if state is None or group not in state.specs:
            return None
        future: asyncio.Future[BrokerSurvey] = asyncio.get_running_loop().create_future()
        state.waiting.append((group, future))
        self.soon(group)
        return await future

    async def _run(self, state: _BrokerState) -> None:
        all_at = 0.0
        unsettled: set[Key] = set()
        try:
            while True:
                left_s = min(all_at, self.demands.due_at(state.specs)) - self._now()
                if left_s > 0:
                    try:
                        async with asyncio.timeout(left_s):
                            await state.woken.wait()
                        await asyncio.sleep(max(SOON_S, len(unsettled) / UNSETTLED_PER_S))
                    except TimeoutError:
                        pass
                state.woken.clear()
                is_all = self._now() >= all_at
                if is_all:
                    all_at = self._now() + INTERVAL_S * random.uniform(0.9, 1.1)
                due = self.demands.take_due(state.specs)
                groups = set(state.specs) if is_all else (state.requested | due) & state.specs.keys()
                state.requested = set()
                waiting, state.waiting = state.waiting, []
                try:
                    unsettled = await self._survey(state, groups)
                except asyncio.CancelledError:  # they wait, whatever becomes of this task
                    self._end_waiting(waiting)
                    raise
                for group, future in waiting:
                    if not future.done():
                        future.set_result(
                            self._latest.get(group) or self._next_survey(group, None, NOT_ANY_MORE)
                        )
                if unsettled:
                    state.requested |= unsettled
                    state.woken.set()
        finally:
            self._end_waiting(state.waiting)

    def _end_waiting(self, waiting: Iterable[tuple[Key, asyncio.Future[BrokerSurvey]]]) -> None:
        for group, future in waiting:
            if not future.done():
                future.set_result(self._next_survey(group, None, NOT_ANY_MORE))

    async def _survey(self, state: _BrokerState, groups: set[Key]) -> set[Key]:
        """Returns the groups whose members rebalance."""
        if not groups:
            return set()
        specs = {state.specs[group].name: state.specs[group] for group in groups}
        results: SurveyResults = {}
        why, begun_at = "", self._now()
        try:
            async with asyncio.timeout(LIMIT_S):
                results = await state.survey(specs)
        except TimeoutError:
            why = f"the broker did not answer within {LIMIT_S:g} s"
        except AdminError as error:
            why = str(error)
        except Exception as error:  # a bug of ours: the next survey may go well, and this one is unknown
            log.exception("a survey of %s failed", counted(len(groups), "group"))
            why = f"{type(error).__name__}: {error}"
        for group in groups & state.specs.keys():
            result = results.get(state.specs[group].name)
            last = self._latest.get(group)
            survey = self._latest[group] = self._next_survey(group, result, why, begun_at=begun_at)
            is_other = self.demands.surveyed(group, survey.description)
            if isinstance(result, Description):
                self._counts.surveyed(group, self._broker_of[group], result.lag)
            reported_at = self._reported_at.get(group)
            is_due = reported_at is None or survey.at >= reported_at + REPORT_AGAIN_S
            if is_due or is_other or _has_changed(survey, last):
                self._reported_at[group] = survey.at
                self._on_change(group)
        return {group for group in groups & state.specs.keys() if _is_unsettled(self._latest.get(group))}

    def _next_survey(
        self, group: Key, result: Description | ProvisioningError | None, why: str, *, begun_at: float = 0.0
    ) -> BrokerSurvey:
        last = self._latest.get(group)
        is_good = isinstance(result, Description)
        return BrokerSurvey(
            self._now(),
            self._timestamp(),
            last.number + 1 if last is not None else 1,
            result if isinstance(result, Description) else None,
            "" if is_good else why or str(result or "it was not surveyed"),
            isinstance(result, GroupNotFound),
            before=None if last is None else last.description or last.before,
            begun_at=begun_at,
        )


def _has_changed(survey: BrokerSurvey, last: BrokerSurvey | None) -> bool:
    """True if a survey shows what the last one did not. Descriptions of groups at rest are mostly one object."""
    if last is None or (survey.why, survey.is_missing) != (last.why, last.is_missing):
        return True
    return survey.description is not last.description and survey.description != last.description


def _is_unsettled(survey: BrokerSurvey | None) -> bool:
    return survey is not None and survey.description is not None and survey.description.rebalance in UNSETTLED
