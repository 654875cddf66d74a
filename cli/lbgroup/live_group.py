"""Groups as they are now, for live views.

`LiveGroup` is a description that status reports and counts of queues keep up to date. `Observations` has rates, changes
and ages of descriptions. Both are pure; `observed`, `GroupReader` and `Watching` read the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lbg_broker.admin import ProvisioningError
from lbg_broker.admin.describe import Description, describe
from lbg_broker.admin.errors import RecordUnavailable, Refused
from lbg_broker.admin.live import LiveAdmin
from lbg_broker.admin.ownership import Record
from lbg_broker.admin.rows import members_of
from lbg_broker.admin.snapshot import UNKNOWN, Snapshot
from lbg_broker.admin.status_reports import REPORT_KEYS
from lbg_broker.client import Delivery
from lbg_broker.group import Engine, GroupSpec, Names, stream_queues
from lbgroup.options import count_text

if TYPE_CHECKING:
    from lbg_broker.admin.member_requests import MemberActivity, PeekResult

READ_EVERY_S = 0.4


class LiveGroup:
    """The last snapshot, and the last status report of each member until it is forgotten. No I/O."""

    def __init__(self, spec: GroupSpec, engine: Engine) -> None:
        self.spec = spec
        self._beats: dict[str, Mapping[str, Any]] = {}
        self.on_snapshot(
            Snapshot(
                engine,
                record=Record(spec.to_record(), paused=None),
                queues=dict.fromkeys(stream_queues(spec, engine), UNKNOWN),
            )
        )

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._describe()

    def on_report(self, beat: Mapping[str, Any]) -> bool:
        """True for a status report of this version; other messages are ignored."""
        if is_report := bool(members_of([beat])):
            self._beats[str(beat["name"])] = beat
            self._describe()
        return is_report

    def forget(self, name: str) -> None:
        """A member has left or died."""
        if self._beats.pop(name, None) is not None:
            self._describe()

    def name_of(self, index: object) -> str:
        """The name of the member with this index."""
        names = (str(beat["name"]) for beat in self._beats.values() if beat["index"] == index)
        return next(names, f"member {index}")

    def _describe(self) -> None:
        self.description = describe(self.spec.name, self._snapshot, beats=self._beats.values())


@contextlib.asynccontextmanager
async def observed(
    admin: LiveAdmin,
    spec: GroupSpec,
    *,
    on_message: Callable[[Mapping[str, Any]], None],
    on_snapshot: Callable[[Snapshot], None],
) -> AsyncIterator[None]:
    """For the length of the block: the members' status reports and what they send to all, and the group's queues
    several times a second."""

    def on_deliveries(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            with suppress(ValueError):
                message = json.loads(bytes(delivery.body))
                if isinstance(message, dict):
                    on_message(message)

    async def read() -> None:
        while True:
            with suppress(ProvisioningError):  # what cannot be read now is passed over
                on_snapshot(await admin.observe_queues(spec))
            await asyncio.sleep(READ_EVERY_S)

    queue = await admin.amqp.own_queue()
    async with admin.amqp.link.channel(within_s=None) as channel:
        await channel.consume(queue, on_deliveries, no_ack=True)
        await admin.amqp.bind_own(queue, [Names(spec.name).members], keys=REPORT_KEYS)
        async with running(read()):
            yield


@contextlib.asynccontextmanager
async def running(work: Any) -> AsyncIterator[None]:
    """`work` for the length of the block; its errors are raised at the end of the block."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


EVERY_S = 2.0
RATE_OVER_S = 6.0
"""A rate is the mean of so long: members report their counts once a second."""

FORGET_AFTER_S = 60.0

LIST_EVERY = 6
"""Looks between two lists of the groups, of which the records of new ones are read."""

PEEKED = 50
"""Messages of an opened queue that are read."""

HEADS_MAX = 50
"""Queues without a member whose first message is read at the broker, in one look."""

CHANGES_MAX = 200
REPORTED_FOR_S = 8.0
"""After a member reported that it took a queue over, a broker may still have the former one as its consumer."""

HOT_KEYS = 5
SORTS: dict[str, Callable[[GroupRow], Any]] = {
    "lag": lambda row: -row.waiting,
    "rate": lambda row: -row.rate,
    "oldest": lambda row: -(row.oldest_s or 0.0),
    "problems": lambda row: -len(row.description.problems),
    "name": lambda row: row.description.group,
}


@dataclass(frozen=True, slots=True)
class Change:
    """A queue or partition that another member serves from now on."""

    at_s: float
    group: str
    number: int
    server: str
    text: str


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group, and the messages per second that its members have finished lately.

    `oldest_s`: age of the oldest message that is known; None where none is. `has_older`: queues that no member serves
    have messages, of which the broker does not show the first.
    """

    description: Description
    rate: float
    oldest_s: float | None = None
    has_older: bool = False

    @property
    def waiting(self) -> int:
        """The lag, or the ready messages alone where the others could not be counted."""
        ready = self.description.ready
        return self.description.lag or (ready if isinstance(ready, int) else 0)

    @property
    def cells(self) -> tuple[str, ...]:
        one = self.description
        spec, services = one.spec, one.reported_services
        served = f"{len(services) - len(one.unserved)}/{len(services)}" if services else "-"
        return (
            one.group,
            spec.mode if spec is not None else "no readable record",
            served,
            "unknown" if one.members is UNKNOWN else str(len(one.members)),
            f"{self.rate:,.0f}",
            count_text(one.ready),
            count_text(one.unacked),
            self.oldest_text,
            count_text(one.dead_letters),
            one.pause_text,
            str(len(one.problems) or ""),
        )

    @property
    def oldest_text(self) -> str:
        if self.oldest_s is None:
            return "unknown" if self.has_older else "-"
        return f"{'>' if self.has_older else ''}{age_text(self.oldest_s)}"


def age_text(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


HEADER = (
    *(
        "GROUP",
        "MODE",
        "SERVED",
        "MEMBERS",
        "RATE/S",
        "READY",
        "UNACKED",
        "OLDEST",
        "DEAD",
        "STATE",
        "PROBLEMS",
    ),
)


@dataclass
class Observations:
    """Rates and changes of groups, from one look to the next. No I/O; `now_s` rises."""

    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=CHANGES_MAX))
    rows: list[GroupRow] = field(default_factory=list)
    queue_rates: dict[int, float] = field(default_factory=dict)
    """Messages per second delivered from each queue, of the only group."""

    peeked: PeekResult | str = ""
    """Messages of the opened queue, or why they are not shown."""

    _counts: dict[tuple[str, ...], deque[tuple[float, int]]] = field(default_factory=dict)
    _servers: dict[tuple[str, int], str] = field(default_factory=dict)
    _reported_at: dict[tuple[str, int], float] = field(default_factory=dict)
    _keys: deque[tuple[float, str, int]] = field(default_factory=deque)

    def look(
        self,
        descriptions: Sequence[Description],
        now_s: float,
        *,
        now_us: int = 0,
        waiting_us: Mapping[str, int] | None = None,
    ) -> None:
        """`now_us`: since the epoch. `waiting_us`: when the first message was published that waits in a queue without a
        member, by group."""
        self.rows = [
            self._row(one, now_s, now_us=now_us, waiting_us=(waiting_us or {}).get(one.group))
            for one in descriptions
        ]
        self.queue_rates = {}
        for one in descriptions:
            self._look_at_queues(one, now_s)
        for name in [
            name for name, samples in self._counts.items() if samples[-1][0] < now_s - FORGET_AFTER_S
        ]:
            del self._counts[name]  # a member that has left

    def report(self, group: str, activity: MemberActivity, now_s: float) -> None:
        """Take a report of a member of the watched group."""
        self._keys.extend((now_s, key, count) for key, count in activity.keys)
        takeover = activity.takeover
        if takeover is None:
            return
        described = next((row.description for row in self.rows if row.description.group == group), None)
        members = () if described is None or described.members is UNKNOWN else described.members
        former = next((one.name for one in members if one.index == takeover.former), None)
        if former is None and takeover.former is not None:
            former = f"member {takeover.former}"
        pause = f" in {takeover.pause_s * 1000:.1f} ms" if takeover.pause_s is not None else ""
        source = f" from {former}" if former is not None else ""
        cause = "" if takeover.planned else ", not planned"
        text = f"queue {takeover.queue}{source} to {activity.name}{pause}{cause}"
        place = (group, takeover.queue)
        for seen in [one for one in self.changes if one.at_s > now_s - REPORTED_FOR_S]:
            if (seen.group, seen.number) == place and seen.server == activity.name:
                self.changes.remove(seen)  # a look has seen it before
        self.changes.append(Change(now_s, *place, activity.name, text))
        self._servers[place] = activity.name
        self._reported_at[place] = now_s

    def hot_keys(self, now_s: float) -> list[tuple[str, float]]:
        """Keys of the watched group with most messages, and the messages per second of each."""
        while self._keys and self._keys[0][0] <= now_s - RATE_OVER_S:
            self._keys.popleft()
        counts: Counter[str] = Counter()
        for _, key, count in self._keys:
            counts[key] += count
        # A report is of the second before it.
        seconds = now_s - self._keys[0][0] + 1.0 if self._keys else 1.0
        return [(key, count / seconds) for key, count in counts.most_common(HOT_KEYS)]

    def forget_keys(self) -> None:
        """Another group is watched, or none."""
        self._keys.clear()

    def _row(self, one: Description, now_s: float, *, now_us: int, waiting_us: int | None) -> GroupRow:
        oldest_us = min((us for us in (one.oldest_us, waiting_us) if us), default=None)
        return GroupRow(
            one,
            self._rate(one, now_s),
            None if oldest_us is None else max(0.0, (now_us - oldest_us) / 1e6),
            has_older=waiting_us is None and bool(unserved_queues(one)),
        )

    def _rate(self, one: Description, now_s: float) -> float:
        members = () if one.members is UNKNOWN else one.members
        return sum(
            self._growth((one.group, member.name, member.incarnation), member.counts.get("acked", 0), now_s)
            for member in members
        )

    def _growth(self, name: tuple[str, ...], count: int, now_s: float) -> float:
        """Growth of a count per second; 0 for the first look and after a count that fell."""
        samples = self._counts.setdefault(name, deque())
        if samples and samples[-1][1] > count:
            samples.clear()
        samples.append((now_s, count))
        while len(samples) > 2 and samples[1][0] <= now_s - RATE_OVER_S:
            samples.popleft()
        (first_s, first), (last_s, last) = samples[0], samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def _look_at_queues(self, one: Description, now_s: float) -> None:
        for row in one.reported_services:
            place = (one.group, row.number)
            server = row.server or ""
            before = self._servers.get(place)
            is_reported = now_s < self._reported_at.get(place, float("-inf")) + REPORTED_FOR_S
            if server and before is not None and before != server and not is_reported:
                word = "partition" if one.has_partitions else "queue"
                pause = "" if row.handoff_s is None else f" in {row.handoff_s * 1000:.1f} ms"
                text = f"{word} {row.number} from {before} to {server}{pause}"
                self.changes.append(Change(now_s, one.group, row.number, server, text))
            if server and not is_reported:
                self._servers[place] = server
            if row.member is None:
                continue
            count = next((queue.delivered for queue in row.member.queues if queue.queue == row.number), 0)
            name = (one.group, str(row.number), row.member.name, row.member.incarnation)
            self.queue_rates[row.number] = self._growth(name, count, now_s)

    def ordered(self, sort: str, chosen: str) -> list[GroupRow]:
        """Rows whose group has `chosen` in its name."""
        rows = [row for row in self.rows if chosen.lower() in row.description.group.lower()]
        return sorted(rows, key=lambda row: (SORTS[sort](row), row.description.group))

    def to_json(self, at: datetime, *, watched: str | None, now_s: float) -> dict[str, Any]:
        """One object a look: docs/output.md."""
        looked = {
            "at": at.isoformat(timespec="milliseconds"),
            "groups": [
                {**row.description.to_json(), "rate": round(row.rate, 1), "oldest_s": row.oldest_s}
                for row in self.rows
            ],
            "changes": [f"{one.group}: {one.text}" for one in self.changes],
        }
        if watched is not None:
            looked["hot_keys"] = [{"key": key, "rate": round(rate, 1)} for key, rate in self.hot_keys(now_s)]
        return looked


def unserved_queues(one: Description) -> list[str]:
    """Names of the queues with messages that no member serves: of the one queue of a group, if a partition has none."""
    if one.is_one_queue and one.has_partitions:
        unserved = any(not row.is_served and row.ready for row in one.reported_services)
        return [queue.name for queue in one.queues] if unserved else []
    numbers = set(one.unserved)
    return [
        queue.name
        for queue in one.queues
        if (queue.number or 0) in numbers and isinstance(ready := queue.count("ready"), int) and ready
    ]


class GroupReader:
    """Descriptions of one group, or of all: the latter by the survey that the operator uses."""

    def __init__(self, admin: LiveAdmin, group: str | None) -> None:
        self._admin = admin
        self._group = group
        self._specs: dict[str, Any] = {}
        self._without_record: dict[str, Description] = {}
        self._read_at: dict[str, int] = {}
        self._pauses: dict[str, tuple[bool | None, bool | None]] = {}
        self._looks = 0
        self._cache: dict[str, Any] = {}
        self.waiting_us: dict[str, int] = {}
        """Publishing time of the first message that waits in a queue without a member, by group."""

    async def look(self) -> list[Description]:
        """Raises ProvisioningError."""
        from lbg_broker.admin.groups import show_group
        from lbg_broker.admin.survey import survey

        if self._group is not None:
            found = [await show_group(self._admin, self._group)]
        else:
            await self._read_records()
            surveyed = await survey(self._admin, self._specs, cache=self._cache)
            found = [self._with_pause(one) for one in surveyed.values() if isinstance(one, Description)]
            found += self._without_record.values()
        await self._read_heads(found)
        return found

    async def peek(self, group: str, queue: int) -> PeekResult | str:
        """The first messages of a queue, or why they cannot be shown. Raises Unreachable."""
        from lbg_broker.admin.member_requests import Wanted, peek_group

        try:
            return await peek_group(self._admin, group, Wanted(queue=queue), limit=PEEKED, body_bytes=1)
        except Refused:
            return "an administrator's login shows its messages"
        except RecordUnavailable as error:
            return str(error)

    async def _read_records(self) -> None:
        """The records of groups that are new, and that of the one that was read the longest ago: a record costs as much
        as the queues of all groups."""
        from lbg_broker.admin.describe import describe

        if self._looks % LIST_EVERY == 0:
            names = set(await self._admin.groups())
            for known in (self._specs, self._without_record, self._read_at, self._pauses):
                for gone in known.keys() - names:
                    del known[gone]
            due = sorted(names - self._read_at.keys())
        else:
            due = sorted(self._read_at, key=lambda name: self._read_at[name])[:1]
        self._looks += 1
        for name in due:
            one = describe(name, await self._admin.observe(name), beats=())
            self._read_at[name] = self._looks
            self._pauses[name] = one.is_paused, one.is_ingress_paused
            self._specs.pop(name, None)
            self._without_record.pop(name, None)
            if one.spec is not None:
                self._specs[name] = one.spec
            elif one.queues or one.problems:
                self._without_record[name] = one

    def _with_pause(self, one: Description) -> Description:
        """With the pauses that its record had when it was last read, where nothing newer is known."""
        is_paused, is_ingress_paused = self._pauses.get(one.group, (None, None))
        if one.members is not UNKNOWN and one.members:
            is_paused = all(member.paused for member in one.members)
        return replace(
            one,
            is_paused=is_paused if one.is_paused is None else one.is_paused,
            is_ingress_paused=is_ingress_paused if one.is_ingress_paused is None else one.is_ingress_paused,
        )

    async def _read_heads(self, found: Sequence[Description]) -> None:
        from lbg_broker.admin.member_requests import oldest_waiting_us

        self.waiting_us, read = {}, 0
        for one in found:
            queues = unserved_queues(one)[: HEADS_MAX - read]
            read += len(queues)
            oldest = await oldest_waiting_us(self._admin, queues) if queues else None
            if oldest is not None:
                self.waiting_us[one.group] = oldest


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
        from lbg_broker.admin.member_requests import watch_activity

        while True:
            # Without the reports everything else is shown; a look tells what is wrong.
            with suppress(ProvisioningError):
                await watch_activity(
                    self._admin.amqp, group, lambda one: self._seen.report(group, one, time.monotonic())
                )
            await asyncio.sleep(EVERY_S)
