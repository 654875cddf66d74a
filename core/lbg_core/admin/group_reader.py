"""Reads descriptions of one group, of many or of all, again and again: surveys, and what live views show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from lbg_core.admin.describe import Description, describe
from lbg_core.admin.errors import (
    AdminError,
    GroupNotFound,
    GroupProblem,
    ProvisioningError,
    Refused,
    Unreachable,
)
from lbg_core.admin.groups import LISTEN_S, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.member_requests import (
    PeekResult,
    Wanted,
    oldest_waiting_us,
    peek_group,
    watch_activity,
)
from lbg_core.admin.observations import Observations, unserved_queues
from lbg_core.admin.snapshot import UNKNOWN, Snapshot
from lbg_core.admin.status_reports import CollectedReports
from lbg_core.group import GroupSpec, SpecError

EVERY_S = 2.0
LIST_EVERY = 6
"""Looks between two lists of the groups, of which the records of new ones are read."""

PEEKED = 50
"""Messages of an opened queue that are read."""

HEADS_MAX = 50
"""Queues without a member whose first message is read at the broker, in one look."""


@dataclass(slots=True)
class _Known:
    """A group's record as of look `read_at`. `without_record`: the group, where the record is missing or unreadable."""

    read_at: int
    spec: GroupSpec | None
    object_name: str
    is_paused: bool | None
    is_ingress_paused: bool | None
    without_record: Description | None


class GroupRecords:
    """Attributes of all groups of a broker, by their records, and whether each is paused.

    A record costs as much as the queues of all groups: those of new groups are read, and that of the group that was
    read the longest ago.
    """

    def __init__(self, admin: LiveAdmin) -> None:
        self._admin = admin
        self._known: dict[str, _Known] = {}
        self._looks = 0

    @property
    def specs(self) -> dict[str, GroupSpec]:
        """Attributes of each group whose record has them."""
        return {name: one.spec for name, one in self._known.items() if one.spec is not None}

    @property
    def without_record(self) -> dict[str, Description]:
        """Groups whose record is missing or unreadable."""
        return {
            name: one.without_record for name, one in self._known.items() if one.without_record is not None
        }

    def object_of(self, group: str) -> str:
        """NAMESPACE/NAME of the LoadBalancedGroup, where the group's record has it; else empty."""
        return self._known[group].object_name if group in self._known else ""

    async def read(self) -> None:
        """Raises ProvisioningError; Unsupported without a management API."""
        if self._looks % LIST_EVERY == 0:
            names = set(await self._admin.groups())
            self._known = {name: one for name, one in self._known.items() if name in names}
            due = sorted(names - self._known.keys())
        else:
            due = sorted(self._known, key=lambda name: self._known[name].read_at)[:1]
        self._looks += 1
        for name in due:
            observed = await self._admin.observe(name)
            one = describe(name, observed, beats=())
            is_there = not observed.is_empty  # else it was deleted; the next list does not have it
            self._known[name] = _Known(
                self._looks,
                one.spec,
                observed.object_name,
                one.is_paused,
                one.is_ingress_paused,
                one if is_there and one.spec is None and (one.queues or one.problems) else None,
            )

    def renew(self, name: str) -> None:
        """The record of this group has changed: it is read next."""
        if name in self._known:
            self._known[name].read_at = -1

    def with_pause(self, one: Description) -> Description:
        """With the pauses that its record had when it was last read, where nothing newer is known."""
        is_paused, is_ingress_paused = one.is_paused, one.is_ingress_paused
        if is_paused is None and one.members is not UNKNOWN and one.members:
            is_paused = all(member.paused for member in one.members)
        if (known := self._known.get(one.group)) is not None:
            is_paused = known.is_paused if is_paused is None else is_paused
            is_ingress_paused = known.is_ingress_paused if is_ingress_paused is None else is_ingress_paused
        return replace(one, is_paused=is_paused, is_ingress_paused=is_ingress_paused)


@dataclass(frozen=True, slots=True)
class Described:
    """A description, and what it was made from."""

    observed: Snapshot
    digests: frozenset[bytes]
    """Of the members' beats."""
    description: Description


KNOWN_MAX = 2000
"""Descriptions that are kept for the next survey."""


async def survey(
    admin: LiveAdmin,
    specs: Mapping[str, GroupSpec],
    *,
    listen_s: float = LISTEN_S,
    cache: dict[str, Described] | None = None,
) -> dict[str, Description | ProvisioningError]:
    """Description of each group as by `show_group`, under the same keys, from a few lists for all of them.

    `cache` is filled: with it the next survey reuses the objects that have not changed since.

    An error of one group is in its place. Messages are counted as by the management API, on RabbitMQ up to 5 s ago.
    Records and bindings are not read, so their problems are not reported.

    Raises AdminError when the broker cannot be reached at all, and Unsupported without a management API.
    """
    observed = await admin.observe_many(list(specs.values()))
    served = [name for name, one in observed.items() if one.is_served(name)]
    beats: Mapping[str, CollectedReports | AdminError] = {}
    if served:
        try:
            beats = await admin.listen_many(served, seconds=listen_s)
        except (Refused, Unreachable) as error:
            # The user may not declare a queue for reports, or no user can: most nodes of RabbitMQ 4.3 are down.
            beats = dict.fromkeys(served, error)
    cache = {} if cache is None else cache
    described = {
        key: _described(spec.name, observed[spec.name], beats.get(spec.name), cache)
        for key, spec in specs.items()
    }
    while len(cache) > KNOWN_MAX:  # those that were not surveyed for the longest time
        del cache[next(iter(cache))]
    return described


def _described(
    group: str, observed: Snapshot, reports: CollectedReports | AdminError | None, cache: dict[str, Described]
) -> Description | ProvisioningError:
    last = cache.pop(group, None)
    if observed.is_empty:
        return GroupNotFound(group)
    if isinstance(reports, AdminError):
        return describe(group, observed, beats=reports)
    digests = frozenset() if reports is None else reports.digests
    if last is not None and last.digests == digests and _is_same(last.observed, observed):
        cache[group] = last
        return last.description
    description = describe(group, observed, beats=() if reports is None else reports.beats)
    # Else members changed meanwhile or report by two keys, and which message came last counts.
    if description.members is not UNKNOWN and len(description.members) == len(digests):
        cache[group] = Described(observed, digests, description)
    return description


def _is_same(last: Snapshot, observed: Snapshot) -> bool:
    """Users are of the whole broker: they are not compared for each group."""
    return last is observed or (last.users is observed.users and last == observed)


class GroupReader:
    """Descriptions of one group, or of all: the latter by the survey that the operator uses."""

    def __init__(self, admin: LiveAdmin, group: str | None) -> None:
        self._admin = admin
        self._group = group
        self._records = GroupRecords(admin)
        self._cache: dict[str, Described] = {}
        self.waiting_us: dict[str, int] = {}
        """Publishing time of the first message that waits in a queue without a member, by group."""

    async def look(self) -> list[Description]:
        """Raises ProvisioningError."""
        if self._group is not None:
            found = [await show_group(self._admin, self._group)]
        else:
            await self._records.read()
            surveyed = await survey(self._admin, self._records.specs, cache=self._cache)
            found = [
                self._records.with_pause(one) for one in surveyed.values() if isinstance(one, Description)
            ]
            found += self._records.without_record.values()
        self.waiting_us = await waiting_us(self._admin, found)
        return found

    async def peek(self, group: str, queue: int) -> PeekResult | str:
        """The first messages of a queue, or why they cannot be shown. Raises Unreachable."""
        try:
            return await peek_group(self._admin, group, Wanted(queue=queue), limit=PEEKED, body_bytes=1)
        except Refused:
            return "an administrator's login shows its messages"
        except (GroupProblem, SpecError) as error:
            return str(error)


async def waiting_us(admin: LiveAdmin, found: Iterable[Description]) -> dict[str, int]:
    """Publishing time of the first message that waits in a queue without a member, by group: of at most `HEADS_MAX`
    such queues. Raises AdminError."""
    waiting, read = {}, 0
    for one in found:
        queues = unserved_queues(one)[: HEADS_MAX - read]
        read += len(queues)
        oldest = await oldest_waiting_us(admin, queues) if queues else None
        if oldest is not None:
            waiting[one.group] = oldest
    return waiting


class Watching:
    """The members' reports of one group's activity, which is the opened one."""

    def __init__(self, admin: LiveAdmin, seen: Observations) -> None:
        self._admin = admin
        self._seen = seen
        self._group: str | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Watching:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.watch(None)

    async def watch(self, group: str | None) -> None:
        """Watch this group from now on; None: none."""
        if group == self._group:
            return
        self._group = group
        self._seen.forget_keys()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._task = None if group is None else asyncio.ensure_future(self._receive(group))

    async def _receive(self, group: str) -> None:
        while True:
            # Without the reports everything else is shown; a look tells what is wrong.
            with suppress(ProvisioningError):
                await watch_activity(
                    self._admin.amqp, group, lambda one: self._seen.report(group, one, time.monotonic())
                )
            await asyncio.sleep(EVERY_S)
