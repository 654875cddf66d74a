"""Survey of the groups of a broker, one however many look on.

Members' status reports and what they announce to all come by themselves; queues are read at intervals. A member that is
killed is announced by the others within a second; one that no other can miss is asked for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from lbg_console.documents import SurveyState, overview_row
from lbg_console.observed_group import ObservedGroup
from lbg_core.admin.describe import Description, describe
from lbg_core.admin.errors import AdminError, GroupNotFound, ProvisioningError
from lbg_core.admin.group_reader import EVERY_S, GroupRecords, waiting_us
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.member_requests import watch_activity
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.snapshot import UNKNOWN, Snapshot
from lbg_core.admin.status_reports import BIND_AGAIN_S, VIEW_KEYS, WATCH_AGAIN_S, watch_reports
from lbg_core.client import Delivery
from lbg_core.counted_nouns import counted
from lbg_core.group import GroupSpec, Names
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Activity

log = logging.getLogger("lbg.console")

MIN_EVERY_S = 0.1
MANY_GROUPS = 50
MANY_EVERY_S = 5.0
"""For more than `MANY_GROUPS`: a look at 100 groups costs the broker some 35 ms of CPU."""

LISTEN_S = 1.5
"""Members are unknown until each of them has had the time for a status report."""

DRAWN_EVERY_S = 0.25
OTHERS_EVERY_S = 1.0
"""Seconds between two descriptions of a group that somebody looks at, and of another one."""

PROBE_EVERY_S = 0.4
PROBES_AT_ONCE = 32
BIND_EVERY_S = 0.5
AGAIN_S = 1.0
NEWS_MAX = 256
GONE_MAX = 1024
UNBOUND = float("-inf")


class SurveyedGroup:
    """A group, and what is sent of it: `version` grows with each description, `news` are timeline events and samples,
    numbered."""

    def __init__(self, name: str, now_s: float) -> None:
        self.observed = ObservedGroup(name, now_s)
        self.spec: GroupSpec | None = None
        """As its record had it when that was last read."""
        self.snapshot: Snapshot | None = None
        self.object_name = ""
        """NAMESPACE/NAME of its LoadBalancedGroup, where the group's name does not follow from it."""
        self.without_record: Description | None = None
        self.waiting_us: int | None = None
        self.bound_at_s = UNBOUND
        self.watched_at_s = float("-inf")
        """Time at which its members were last asked for their status reports."""
        self.described_at_s = float("-inf")
        self.has_listened = False
        """Each member has had the time for a status report; before that, members are unknown."""
        self.is_dirty = True
        self.row: dict[str, Any] | None = None
        self.row_version = 0
        self.version = 0
        self.news: deque[tuple[int, str, dict[str, Any]]] = deque(maxlen=NEWS_MAX)
        self.news_count = 0
        self.looked_at_by = 0
        self.reading = asyncio.Lock()
        """Held by the one reader of its dead letters and parked messages."""

    def add_news(self, kind: str, data: dict[str, Any]) -> None:
        self.news_count += 1
        self.news.append((self.news_count, kind, data))


class Look:
    """Of one looker. `changed` is set when there is something new, `lost` when a member is lost: that does not wait."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.lost = asyncio.Event()


class GroupSurvey:
    """`names`: these groups, or all of the broker if there are none, for which it takes an administrator's login."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.groups: dict[str, SurveyedGroup] = {}
        self.state = SurveyState(None, "the broker has not been read yet", EVERY_S, "")
        self.awaited = ""
        """Sentence about the file without which there is no survey; empty while the broker is observed."""
        self.version = 0
        self.gone: deque[tuple[int, str]] = deque(maxlen=GONE_MAX)
        """Groups that were deleted, each with the version from which on."""
        self._admin: LiveAdmin
        self._records: GroupRecords
        self._names = tuple(names)
        self._subscribed_at_s = float("inf")
        self._lookers: dict[str | None, set[Look]] = {}
        self._acted = asyncio.Event()
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._epoch_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Seconds since the epoch, as of a clock that is never set back."""
        return self._epoch_s + time.monotonic()

    async def run(self, admin: LiveAdmin) -> None:
        """Observe by `admin` until this is cancelled. What was observed before by another one is kept."""
        self._admin, self._records, self.awaited = admin, GroupRecords(admin), ""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._observe(), self._receive(), self._describe(), self._probe(), self._watch()):
                tasks.create_task(work)

    def wait_for(self, file: str) -> None:
        """There is no survey now, because of this file: `awaited`, and the error of the state."""
        self.awaited = file
        self._set_state(replace(self.state, error=file))

    @contextmanager
    def looking(self, name: str | None) -> Iterator[Look]:
        """For the length of the block, a looker at this group, or at all."""
        look = Look()
        self._lookers.setdefault(name, set()).add(look)
        group = None if name is None else self.groups.get(name)
        if group is not None:
            group.looked_at_by += 1
        try:
            yield look
        finally:
            self._lookers[name].discard(look)
            if not self._lookers[name]:
                del self._lookers[name]
            if group is not None:
                group.looked_at_by -= 1

    # Queues

    async def _observe(self) -> None:
        while True:
            began_s = time.monotonic()
            every_s = MANY_EVERY_S if len(self.groups) > MANY_GROUPS else EVERY_S
            try:
                missing = await self._observe_once()
            except ProvisioningError as error:
                self._set_state(replace(self.state, error=str(error), every_s=every_s))
            else:
                self._set_state(SurveyState(self.now_s(), "", every_s, missing))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(MIN_EVERY_S, began_s + every_s - time.monotonic())):
                    await self._acted.wait()
            self._acted.clear()

    async def _observe_once(self) -> str:
        """Returns what the login cannot see."""
        snapshots: dict[str, Snapshot] = {}
        specs: Mapping[str, GroupSpec] = {}
        without_record: Mapping[str, Description] = {}
        if self._names:
            snapshots = {name: await self._admin.observe(name) for name in self._names}
        else:
            await self._records.read()
            specs, without_record = self._records.specs, self._records.without_record
            snapshots.update(await self._admin.observe_many(list(specs.values())))
        snapshots = {name: one for name, one in snapshots.items() if not one.is_empty}
        self._keep(snapshots.keys() | without_record.keys())
        for name, snapshot in snapshots.items():
            group = self.groups[name]
            group.snapshot, group.is_dirty = snapshot, True
            if self._names:
                group.spec = describe(name, snapshot, beats=()).spec
                group.object_name = snapshot.object_name
            else:
                group.spec = specs.get(name)
                group.object_name = self._records.object_of(name)
        for name, group in self.groups.items():
            group.without_record = without_record.get(name)
        described = [group.observed.row.description for group in self.groups.values() if group.observed.row]
        with suppress(AdminError):
            waiting = await waiting_us(self._admin, described)
            for name, group in self.groups.items():
                group.waiting_us = waiting.get(name)
        for name in self._names:
            if name not in snapshots:
                raise GroupNotFound(name)
        whys = dict.fromkeys(
            f"{', '.join(parts)}: {why}"
            for one in snapshots.values()
            for parts, why in one.why.items()
            if why
        )
        return "; ".join(whys)

    def _keep(self, names: Iterable[str]) -> None:
        """These groups are there, and no others."""
        kept = set(names)
        for name in kept - self.groups.keys():
            self.groups[name] = SurveyedGroup(name, self.now_s())
            self.groups[name].looked_at_by = len(self._lookers.get(name, ()))
        for name in self.groups.keys() - kept:
            del self.groups[name]
            self.version += 1
            self.gone.append((self.version, name))
            self._notify(name)
            self._notify(None)

    def _set_state(self, state: SurveyState) -> None:
        if state.error != self.state.error:
            if state.error:
                log.warning("the broker cannot be read: %s", state.error)
            else:
                log.info("the broker is read: %s", counted(len(self.groups), "group"))
            self.state = state
            for name in list(self._lookers):
                self._notify(name)
        self.state = state

    # Members

    async def _receive(self) -> None:
        while True:
            with suppress(AdminError):  # `_observe` says what is wrong
                await self._subscribe()
            self._subscribed_at_s = float("inf")
            await asyncio.sleep(AGAIN_S)

    async def _subscribe(self) -> None:
        amqp = self._admin.amqp
        queue = await amqp.own_queue(of_members_of=self._names[0] if self._names else None)
        for group in self.groups.values():
            group.bound_at_s = UNBOUND
            group.watched_at_s = float("-inf")
        async with amqp.link.channel(within_s=None) as channel:
            await channel.consume(queue, self._on_deliveries, no_ack=True, on_cancelled=channel.close_soon)
            while channel.is_open:
                now_s = self.now_s()
                # A binding does not outlive its exchange: a group may have been made anew.
                due = [
                    name
                    for name, group in self.groups.items()
                    if group.bound_at_s < now_s - BIND_AGAIN_S
                    and (group.bound_at_s == UNBOUND or group.observed.reported_at_s < now_s - BIND_AGAIN_S)
                ]
                if due:
                    exchanges = [Names(name).members for name in due]
                    await amqp.bind_own(queue, exchanges, keys=VIEW_KEYS)
                    for name in due:
                        if name in self.groups:
                            self.groups[name].bound_at_s = self.now_s()
                    self._subscribed_at_s = min(self._subscribed_at_s, self.now_s())
                self._ask_for_reports(due)
                await asyncio.sleep(BIND_EVERY_S)

    def _ask_for_reports(self, bound: Collection[str]) -> None:
        """Of the groups that were just bound to, and of the others again before their members report less often."""
        now_s = self.now_s()
        asked = [
            name
            for name, group in self.groups.items()
            if name in bound or group.watched_at_s < now_s - WATCH_AGAIN_S
        ]
        for name in asked:
            self.groups[name].watched_at_s = now_s
        if asked:
            watch_reports(self._admin.amqp, asked)

    def _on_deliveries(self, deliveries: list[Delivery]) -> None:
        now_s = self.now_s()
        for delivery in deliveries:
            group = self.groups.get(delivery.exchange.removeprefix("lbg.").removesuffix(".members"))
            if group is None:
                continue
            is_loss = group.observed.on_message(bytes(delivery.body), now_s)
            group.is_dirty = True
            if is_loss:
                self._on_loss(group)

    async def _probe(self) -> None:
        room = asyncio.Semaphore(PROBES_AT_ONCE)

        async def ask(group: SurveyedGroup, probe: Identity) -> None:
            async with room:
                with suppress(AdminError):
                    if await self._admin.amqp.mailboxes(group.observed.name, [probe.index]):
                        return
                    if group.observed.on_gone(probe, self.now_s()):
                        self._on_loss(group)

        while True:
            now_s = self.now_s()
            await asyncio.gather(
                *(
                    ask(group, probe)
                    for group in self.groups.values()
                    for probe in group.observed.probes(now_s, is_watched=group.looked_at_by > 0)
                )
            )
            await asyncio.sleep(PROBE_EVERY_S)

    async def _watch(self) -> None:
        """Has the members of groups that somebody looks at report their activity."""
        try:
            while True:
                watched = {name for name, group in self.groups.items() if group.looked_at_by}
                for name in watched - self._watches.keys():
                    self._watches[name] = asyncio.create_task(self._watch_one(name))
                for name in self._watches.keys() - watched:
                    self._watches.pop(name).cancel()
                await asyncio.sleep(AGAIN_S / 2)
        finally:
            for task in self._watches.values():
                task.cancel()
            self._watches.clear()

    async def _watch_one(self, name: str) -> None:
        while True:
            # Without the reports everything else is shown.
            with suppress(ProvisioningError):
                await watch_activity(
                    self._admin.amqp, name, lambda activity: self._on_activity(name, activity)
                )
            await asyncio.sleep(AGAIN_S)

    def _on_activity(self, name: str, activity: Activity) -> None:
        if (group := self.groups.get(name)) is not None:
            group.observed.on_activity(activity, self.now_s())
            group.is_dirty = True

    # Descriptions

    async def _describe(self) -> None:
        while True:
            now_s = self.now_s()
            for group in list(self.groups.values()):
                every_s = DRAWN_EVERY_S if group.looked_at_by else OTHERS_EVERY_S
                if group.is_dirty and now_s >= group.described_at_s + every_s:
                    self._describe_one(group)
                    await asyncio.sleep(0)
            await asyncio.sleep(DRAWN_EVERY_S / 2)

    def _on_loss(self, group: SurveyedGroup) -> None:
        self._describe_one(group)
        for look in (*self._lookers.get(group.observed.name, ()), *self._lookers.get(None, ())):
            look.lost.set()

    def _describe_one(self, group: SurveyedGroup) -> None:
        now_s, observed = self.now_s(), group.observed
        if now_s >= max(group.bound_at_s, self._subscribed_at_s) + LISTEN_S and group.bound_at_s != UNBOUND:
            group.has_listened = True
        if group.without_record is not None:
            described = group.without_record
        elif group.snapshot is not None:
            beats = observed.beats if group.has_listened else UNKNOWN
            described = describe(observed.name, group.snapshot, beats=beats)
            # What the login cannot see is shown once for all groups, and not with each.
            seen = tuple(one for one in described.problems if one.kind is not Kind.PART_UNKNOWN)
            described = replace(described, problems=seen)
        else:
            return
        described = described if self._names else self._records.with_pause(described)
        group.is_dirty, group.described_at_s = not group.has_listened, now_s
        observed.describe(described, now_s, now_us=time.time_ns() // 1000, waiting_us=group.waiting_us)
        for event in observed.news:
            group.add_news("change", event.to_json())
        observed.news.clear()
        if (sample := observed.sample(now_s)) is not None:
            group.add_news("sample", sample)
        group.version += 1
        self._notify(observed.name)
        row = overview_row(observed, now_s)
        if row != group.row:
            self.version += 1
            group.row, group.row_version = row, self.version
            self._notify(None)

    def note_act(self, name: str, text: str) -> None:
        """An act of a user has begun, goes on (without a `text`) or has ended; for the timeline of the group."""
        if (group := self.groups.get(name)) is not None:
            if text:
                group.observed.note_act(text, self.now_s())
                self._records.renew(name)
                self._acted.set()
            group.is_dirty = True
            self._describe_one(group)

    def _notify(self, name: str | None) -> None:
        for look in self._lookers.get(name, ()):
            look.changed.set()
