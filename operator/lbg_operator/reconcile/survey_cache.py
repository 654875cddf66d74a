"""Cache of surveys of the brokers: the last snapshot of each group, its moves and its lag.

Looks are shared, because a look for each group by itself costs the broker and the operator most of their time when
there are hundreds. Numbers come oftener, from `lag_counts`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lbg_broker.admin import AdminError, GroupNotFound, ProvisioningError
from lbg_broker.admin.describe import Description
from lbg_broker.admin.snapshot import UNKNOWN
from lbg_broker.group import GroupSpec
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
    found = []
    for queue in range(after.spec.queue_count):
        old, new = before.active_member(queue), after.active_member(queue)
        if old is None or new is None or old.incarnation == new.incarnation:
            continue
        why = (
            "Leave" if old.incarnation not in now else "Join" if new.incarnation not in then else "Rebalance"
        )
        found.append({"time": time, "queue": queue, "from": old.index, "to": new.index, "why": why})
    return found


def latest(new: Sequence[dict[str, Any]], former: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest first, as many as the status keeps."""
    return [*new, *former][:KEPT]


log = logging.getLogger("lbg.operator")

INTERVAL_S = 30.0
SOON_S = 1.0
"""Seconds that a requested survey waits for further requests, to serve them together."""
UNSETTLED = frozenset({"HoldDown", "Rebalancing"})
"""Members are on their way to another distribution, in seconds: the next look comes soon."""
UNSETTLED_PER_S = 100
"""Groups that are looked at again in a second, at most: a look costs 0.7 ms of CPU for each."""
SAMPLED_S = 5.0
"""Age that the numbers of a survey may have on RabbitMQ, whose management API counts so often: a count by AMQP that is
younger than that is the better one."""
TELL_AGAIN_S = 300.0
"""A look that shows what the last one did is worth a round, with all that is judged again in it, as seldom as that: as
often as the time of a status moves."""
LIMIT_S = 20.0
"""Of one look at all groups of a broker."""

NOT_ANY_MORE = "it is not surveyed any more"

Found = Mapping[str, Description | ProvisioningError]
Survey = Callable[[Mapping[str, GroupSpec]], Awaitable[Found]]


@dataclass(frozen=True, slots=True)
class BrokerSurvey:
    """`description` is None when the look failed, and `why` says how. `number` counts looks at this group.

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
class _Round:
    survey: Survey
    specs: dict[Key, GroupSpec] = field(default_factory=dict)
    asked: set[Key] = field(default_factory=set)
    waiting: list[tuple[Key, asyncio.Future[BrokerSurvey]]] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class SurveyCache:
    def __init__(
        self,
        told: Callable[[Key], None],
        *,
        now: Callable[[], float],
        timestamp: Callable[[], str],
    ) -> None:
        self._told = told
        self._now = now
        self._timestamp = timestamp
        self._counts = LagCounts(told, now=now, timestamp=timestamp, joined_or_left=self.soon)
        self._rounds: dict[Key, _Round] = {}
        self._broker_of: dict[Key, Key] = {}
        self._latest: dict[Key, BrokerSurvey] = {}
        self._told_at: dict[Key, float] = {}

    def begin(self, broker: Key, survey: Survey, counters: Counters | None = None) -> None:
        """From now on `broker` is looked at with `survey`, and what waits there counted with `counters`."""
        if counters is not None:
            self._counts.begin(broker, counters)
        one = self._rounds.setdefault(broker, _Round(survey))
        one.survey = survey
        if one.task is None:
            one.task = asyncio.create_task(self._run(one), name=f"looks at {broker}")

    async def end(self, broker: Key) -> None:
        """Discards what was read there; whoever waits for a look is told that there will be none."""
        await self._counts.end(broker)
        one = self._rounds.pop(broker, None)
        if one is None:
            return
        if one.task is not None:
            one.task.cancel()
            await asyncio.gather(one.task, return_exceptions=True)
        for group in one.specs:
            self._latest.pop(group, None)

    async def close(self) -> None:
        for broker in tuple(self._rounds):
            await self.end(broker)

    def watch(self, group: Key, broker: Key, spec: GroupSpec) -> None:
        """Take `group` into the looks at `broker`; the first comes soon."""
        one = self._rounds.get(broker)
        if one is None or one.specs.get(group) == spec:
            return
        self._broker_of[group] = broker
        one.specs[group] = spec
        self._counts.watch(group, broker, spec)
        self.soon(group)

    def forget(self, group: Key) -> None:
        self._latest.pop(group, None)
        self._told_at.pop(group, None)
        self._counts.forget(group)
        broker = self._broker_of.pop(group, None)
        if broker is not None and broker in self._rounds:
            self._rounds[broker].specs.pop(group, None)

    def latest(self, group: Key) -> BrokerSurvey | None:
        return self._latest.get(group)

    def lag(self, group: Key) -> LagSeen | None:
        """The newest number there is; None when the last look failed, or could not count every queue."""
        look, count = self._latest.get(group), self._counts.latest(group)
        if look is None or look.description is None:
            return None
        if count is not None and count.at + SAMPLED_S >= look.begun_at:
            return LagSeen(count.lag, count.time)
        lag = look.description.lag
        return None if lag is None else LagSeen(lag, look.time)

    @property
    def quiet_s(self) -> float:
        """The least time between two writes of a status for its numbers alone."""
        return self._counts.quiet_s

    def soon(self, group: Key) -> None:
        one = self._rounds.get(self._broker_of.get(group, group))
        if one is not None and group in one.specs:
            one.asked.add(group)
            one.woken.set()

    async def fresh(self, group: Key) -> BrokerSurvey | None:
        """A look that begins after now; None for a group that nothing is looked at of."""
        one = self._rounds.get(self._broker_of.get(group, group))
        if one is None or group not in one.specs:
            return None
        future: asyncio.Future[BrokerSurvey] = asyncio.get_running_loop().create_future()
        one.waiting.append((group, future))
        self.soon(group)
        return await future

    async def _run(self, one: _Round) -> None:
        all_at = 0.0
        unsettled: set[Key] = set()
        try:
            while True:
                left_s = all_at - self._now()
                if left_s > 0:
                    try:
                        async with asyncio.timeout(left_s):
                            await one.woken.wait()
                        await asyncio.sleep(max(SOON_S, len(unsettled) / UNSETTLED_PER_S))
                    except TimeoutError:
                        pass
                one.woken.clear()
                is_all = self._now() >= all_at
                if is_all:
                    all_at = self._now() + INTERVAL_S * random.uniform(0.9, 1.1)
                groups = set(one.specs) if is_all else one.asked & one.specs.keys()
                one.asked = set()
                begun, one.waiting = one.waiting, []
                try:
                    unsettled = await self._look(one, groups)
                except asyncio.CancelledError:  # they wait, whatever becomes of this task
                    self._disappoint(begun)
                    raise
                for group, future in begun:
                    if not future.done():
                        future.set_result(self._latest.get(group) or self._seen(group, None, NOT_ANY_MORE))
                if unsettled:
                    one.asked |= unsettled
                    one.woken.set()
        finally:
            self._disappoint(one.waiting)

    def _disappoint(self, waiting: Iterable[tuple[Key, asyncio.Future[BrokerSurvey]]]) -> None:
        for group, future in waiting:
            if not future.done():
                future.set_result(self._seen(group, None, NOT_ANY_MORE))

    async def _look(self, one: _Round, groups: set[Key]) -> set[Key]:
        """Returns the groups whose members rebalance."""
        if not groups:
            return set()
        specs = {one.specs[group].name: one.specs[group] for group in groups}
        found: Found = {}
        why, begun_at = "", self._now()
        try:
            async with asyncio.timeout(LIMIT_S):
                found = await one.survey(specs)
        except TimeoutError:
            why = f"the broker did not answer within {LIMIT_S:g} s"
        except AdminError as error:
            why = str(error)
        except Exception as error:  # a bug of ours: the next look may go well, and this one is unknown
            log.exception("a survey of %d groups failed", len(groups))
            why = f"{type(error).__name__}: {error}"
        for group in groups & one.specs.keys():
            seen = found.get(one.specs[group].name)
            last = self._latest.get(group)
            look = self._latest[group] = self._seen(group, seen, why, begun_at=begun_at)
            if isinstance(seen, Description):
                self._counts.surveyed(group, self._broker_of[group], seen.lag)
            told_at = self._told_at.get(group)
            if told_at is None or look.at >= told_at + TELL_AGAIN_S or _is_news(look, last):
                self._told_at[group] = look.at
                self._told(group)
        return {group for group in groups & one.specs.keys() if _is_unsettled(self._latest.get(group))}

    def _seen(
        self, group: Key, seen: Description | ProvisioningError | None, why: str, *, begun_at: float = 0.0
    ) -> BrokerSurvey:
        last = self._latest.get(group)
        is_good = isinstance(seen, Description)
        return BrokerSurvey(
            self._now(),
            self._timestamp(),
            last.number + 1 if last is not None else 1,
            seen if isinstance(seen, Description) else None,
            "" if is_good else why or str(seen or "it was not surveyed"),
            isinstance(seen, GroupNotFound),
            before=None if last is None else last.description or last.before,
            begun_at=begun_at,
        )


def _is_news(look: BrokerSurvey, last: BrokerSurvey | None) -> bool:
    """True if a look shows what the last one did not. Descriptions of what is at rest are mostly one object."""
    if last is None or (look.why, look.is_missing) != (last.why, last.is_missing):
        return True
    return look.description is not last.description and look.description != last.description


def _is_unsettled(look: BrokerSurvey | None) -> bool:
    return look is not None and look.description is not None and look.description.rebalance in UNSETTLED
