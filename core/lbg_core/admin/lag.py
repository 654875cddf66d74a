"""Lag of groups: messages that wait in their queues, delivered or not.

The embedded broker counts both on request. RabbitMQ counts ready messages when a queue is declared passively; its count
of unacknowledged messages of a quorum queue is updated every five seconds, in every interface
(tests/rabbitmq/test_facts_of_counting.py). So there members' status reports are used: every second, with what each has
in flight. Where reports are missing, the broker's older count is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from lbg_core.admin.amqp import AmqpAdmin
from lbg_core.admin.errors import Refused
from lbg_core.admin.management_admin import Counts, ManagementAdmin
from lbg_core.admin.observe import seen
from lbg_core.admin.rows import members_of
from lbg_core.admin.snapshot import UNKNOWN, QueueStatus, Unknown
from lbg_core.admin.status_reports import ReportQueue
from lbg_core.group import Engine, GroupSpec, Names, is_native, stream_queues
from lbg_core.group.members_protocol import Beat

Lag = int | Unknown


class Backlog(NamedTuple):
    """`messages` that wait for members; `consumers` of all queues, whose number changes when a member comes or goes."""

    messages: Lag
    consumers: int | Unknown


FIRST_S = 1.3
"""Seconds in which every member sends at least one status report."""

STEP_S = 0.2

READ_S = 10.0
"""For one group, of which a queue may have no node to answer."""


class LagReader:
    """Reads the lag of groups; callers share a reading that is young enough. `surplus`: queues that a group has beyond
    those of its attributes, as far as they are known, as while keys move between queues."""

    def __init__(
        self,
        amqp: AmqpAdmin,
        management: ManagementAdmin | None,
        surplus: Callable[[str], Collection[str]] = lambda group: (),
    ) -> None:
        self._amqp = amqp
        self._management = management
        self._surplus = surplus
        self._ear = ReportQueue(amqp)
        self._readings: dict[GroupSpec, tuple[float, asyncio.Task[Lag]]] = {}
        """Each with the time of its beginning."""

    async def lags(self, specs: Mapping[str, GroupSpec], *, max_age_s: float = 0.5) -> dict[str, Lag]:
        """Messages of each group's queues, delivered or not, under the same keys, as counted at most `max_age_s` before
        now; UNKNOWN for a group of which one queue cannot be counted.

        Raises AdminError when the broker cannot be reached at all.
        """
        engine = await self._amqp.engine()
        now = asyncio.get_running_loop().time()
        self._readings = {
            spec: (begun_at, task)
            for spec, (begun_at, task) in self._readings.items()
            if now - begun_at <= max_age_s or not task.done()
        }
        old = [
            spec
            for spec in specs.values()
            if spec not in self._readings or now - self._readings[spec][0] > max_age_s
        ]
        if self._management is not None and not engine.is_rabbitmq and old:
            counts = asyncio.create_task(self._management.counts([spec.name for spec in old]))
            counts.add_done_callback(seen)
            begun = {spec: self._counted(spec, engine, counts) for spec in old}
        else:
            begun = {spec: self._from_reports(spec, engine) for spec in old}
        for spec, reading in begun.items():
            task = asyncio.create_task(_in_time(reading))
            task.add_done_callback(seen)
            self._readings[spec] = now, task
        readings = (asyncio.shield(self._readings[spec][1]) for spec in specs.values())
        return dict(zip(specs, await asyncio.gather(*readings), strict=True))

    async def backlogs(self, specs: Mapping[str, GroupSpec]) -> dict[str, Backlog]:
        """The backlog of each group, under the same keys, counted now and without members' status reports: ready
        messages, and on the embedded broker unacknowledged ones too.

        Raises AdminError when the broker cannot be reached at all.
        """
        engine = await self._amqp.engine()
        queues = {key: self._queues(spec, engine) for key, spec in specs.items()}
        counts: Mapping[str, Counts | QueueStatus | Unknown | None]
        if self._management is not None and not engine.is_rabbitmq:
            counts = await self._management.counts([spec.name for spec in specs.values()])
            fields: tuple[str, ...] = ("ready", "unacked")
        else:
            counts = await self._amqp.counts_of([name for names in queues.values() for name in names])
            fields = ("ready",)
        found = {key: [counts.get(name) for name in names] for key, names in queues.items()}
        return {key: Backlog(_sum(of, *fields), _sum(of, "consumers")) for key, of in found.items()}

    def _queues(self, spec: GroupSpec, engine: Engine) -> tuple[str, ...]:
        queues = stream_queues(spec, engine)
        return tuple(dict.fromkeys((*queues, *self._surplus(spec.name))))

    async def _counted(
        self, spec: GroupSpec, engine: Engine, counts: asyncio.Task[Mapping[str, Counts]]
    ) -> Lag:
        counted = await asyncio.shield(counts)
        return _sum(map(counted.get, self._queues(spec, engine)), "ready", "unacked")

    async def _from_reports(self, spec: GroupSpec, engine: Engine) -> Lag:
        queues, names = self._queues(spec, engine), Names(spec.name)
        loop = asyncio.get_running_loop()
        try:
            until = await self._ear.attend(spec.name) + FIRST_S
        except Refused:  # who may not listen has the broker's count
            until = loop.time()
        while True:
            counted = await self._amqp.counts_of(queues)
            ready = _sum(counted.values(), "ready")
            consumers = {
                names.number_of(name) or place: one.consumers
                for place, (name, one) in enumerate(counted.items())
                if isinstance(one, QueueStatus) and one.consumers is not UNKNOWN
            }
            if ready is UNKNOWN or len(consumers) < len(queues):
                return UNKNOWN
            if not await self._all_answer([name for name, one in counted.items() if _is_bare(one)]):
                return UNKNOWN
            members = members_of(self._ear.latest(spec.name))
            unacked = (
                in_flight_of_one_queue(members, consumers[0])
                if is_native(spec, engine)
                else in_flight(members, consumers)
            )
            if unacked is not UNKNOWN:
                return ready + unacked
            if loop.time() >= until:
                break
            await asyncio.sleep(STEP_S)
        if self._management is None:
            return UNKNOWN
        sampled = await self._management.counts([spec.name])
        unacked = _sum(map(sampled.get, queues), "unacked")
        return UNKNOWN if unacked is UNKNOWN else ready + unacked

    async def _all_answer(self, queues: Sequence[str]) -> bool:
        """True if these count nothing because there is nothing: a queue without a majority counts 0 too. A group that
        is served has none of them, for its members are consumers."""
        return not queues or self._management is None or await self._management.all_answer(queues)


def in_flight(members: Sequence[Beat], consumers: Mapping[int, int]) -> Lag:
    """Messages that `members` have in flight, UNKNOWN unless each consumer of each queue is one of them."""
    reported: dict[int, list[int]] = {}
    for member in members:
        for one in member.queues:
            if one.is_consumed:
                reported.setdefault(one.queue, []).append(one.in_flight)
    if any(len(reported.get(queue, ())) < count for queue, count in consumers.items()):
        return UNKNOWN
    return sum(sum(reported.get(queue, ())) for queue, count in consumers.items() if count)


def in_flight_of_one_queue(members: Sequence[Beat], consumers: int) -> Lag:
    """The same where all members consume one queue, whatever its parts are."""
    if len(members) < consumers:
        return UNKNOWN
    return sum(one.in_flight for member in members for one in member.queues)


def _is_bare(status: QueueStatus | Unknown | None) -> bool:
    return isinstance(status, QueueStatus) and status.ready == 0 and status.consumers == 0


def _sum(statuses: Iterable[Counts | QueueStatus | Unknown | None], *fields: str) -> Lag:
    """Sum of these counts; UNKNOWN as soon as one is, or a queue is missing."""
    total = 0
    for status in statuses:
        for field in fields:
            count: Lag = getattr(status, field, UNKNOWN)
            if count is UNKNOWN:
                return UNKNOWN
            total += count
    return total


async def _in_time(reading: Awaitable[Lag]) -> Lag:
    try:
        async with asyncio.timeout(READ_S):
            return await reading
    except (TimeoutError, Refused):
        return UNKNOWN
