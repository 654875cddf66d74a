"""A broker as the operator sees it, in memory: it can be away, refuse a login, hold messages, and has members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from lbg_core.admin.actions import Action
from lbg_core.admin.errors import Denied, Unreachable
from lbg_core.admin.lag import Backlog
from lbg_core.admin.record import Record
from lbg_core.admin.snapshot import QueueStatus, Snapshot, Unknown
from lbg_core.admin.status_reports import CollectedReports
from lbg_core.group import Engine, GroupSpec, Names
from lbg_operator.reconcile.broker_pool import Access
from testing.admin.fake_admin import FakeAdmin
from testing.admin.reports import beat_body


class OperatedBroker(FakeAdmin):
    """`is_down`: nothing answers; `is_deaf`: looks fail, all else works. `password`: the administrator's, None: any.
    `waiting`: messages by queue. `counted`: the groups of each count of lags. `members_of` says who has joined a
    group. `accesses`: with what it was checked."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        self.is_deaf = False
        self.password: str | None = "admin"
        self.accesses: list[Access] = []
        self.check_takes_s = 0.0
        self.waiting: dict[str, int] = {}
        self.counted: list[frozenset[str]] = []
        self.members_of: Callable[[str], Sequence[Mapping[str, Any]]] = lambda group: ()

    async def check(self, access: Access) -> Engine:
        self._require()
        await asyncio.sleep(self.check_takes_s)
        self.accesses.append(access)
        if self.password is not None and access.password != self.password:
            raise Denied("the login was refused")
        return self.engine

    async def alarms(self) -> tuple[str, ...]:
        self._require()
        return ()

    @asynccontextmanager
    async def lock(self, group: str) -> AsyncIterator[None]:
        self._require()
        async with super().lock(group):
            yield

    async def observe(self, group: str, *, desired: GroupSpec | None = None) -> Snapshot:
        self._require()
        return self._counted(group, await super().observe(group, desired=desired))

    async def perform(self, action: Action) -> None:
        self._require()
        await super().perform(action)

    async def observe_many(self, specs: Sequence[GroupSpec]) -> Mapping[str, Snapshot]:
        self._require()
        if self.is_deaf:
            raise Unreachable("statistics are away")
        found = {spec.name: await self.observe(spec.name, desired=spec) for spec in specs}
        return {name: _without_pause(one) for name, one in found.items()}

    async def listen_many(self, groups: Sequence[str], *, seconds: float) -> Mapping[str, CollectedReports]:
        self._require()
        found = {group: CollectedReports(group) for group in groups}
        for group, reports in found.items():
            for fields in self.members_of(group):
                reports.append(beat_body(fields))
        return found

    @property
    def lag_reader(self) -> OperatedBroker:
        return self

    async def lags(
        self, specs: Mapping[str, GroupSpec], *, max_age_s: float = 0.5
    ) -> Mapping[str, int | Unknown]:
        self._require()
        self.counted.append(frozenset(spec.name for spec in specs.values()))
        return {key: self._waiting_of(spec) for key, spec in specs.items()}

    async def backlogs(self, specs: Mapping[str, GroupSpec]) -> Mapping[str, Backlog]:
        self._require()
        return {
            key: Backlog(self._waiting_of(spec), len(self.members_of(spec.name)))
            for key, spec in specs.items()
        }

    def _waiting_of(self, spec: GroupSpec) -> int:
        stem = Names(spec.name).queue(0)[:-1]
        return sum(count for name, count in self.waiting.items() if name.startswith(stem))

    def _require(self) -> None:
        if self.is_down:
            raise Unreachable("no broker answers")

    def _counted(self, group: str, observed: Snapshot) -> Snapshot:
        stem = Names(group).queue(0)[:-1]
        consumers = len(self.members_of(group))
        queues = {
            name: replace(seen, ready=self.waiting.get(name, 0), consumers=consumers)
            if isinstance(seen, QueueStatus) and name.startswith(stem)
            else seen
            for name, seen in observed.queues.items()
        }
        return replace(observed, queues=queues)


class Login:
    """An administrator's connection to `broker`."""

    def __init__(self, broker: OperatedBroker, access: Access) -> None:
        self._broker = broker
        self._access = access

    async def check(self) -> Engine:
        return await self._broker.check(self._access)

    def __getattr__(self, name: str) -> object:
        return getattr(self._broker, name)


class OperatedPool:
    """As `BrokerPool`, with the brokers that a test has."""

    def __init__(self, brokers: Mapping[Hashable, OperatedBroker]) -> None:
        self._brokers = brokers
        self._admins: dict[Hashable, tuple[Access, Login]] = {}

    async def admin(self, broker: Hashable, access: Access) -> Login:
        known = self._admins.get(broker)
        if known is None or known[0] != access:
            known = self._admins[broker] = (access, Login(self._brokers[broker], access))
        return known[1]

    async def drop(self, broker: Hashable) -> None:
        self._admins.pop(broker, None)


def _without_pause(observed: Snapshot) -> Snapshot:
    """A survey reads no records."""
    record = observed.record
    return replace(observed, record=replace(record, paused=None)) if isinstance(record, Record) else observed
