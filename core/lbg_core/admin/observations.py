"""Observations of groups from one survey to the next: rates, changes, ages, the hottest keys.

Pure: descriptions and reports come in, with the time as an argument. `lbg_core.admin.group_reader` reads them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from lbg_core.admin.describe import Description
from lbg_core.admin.pace_text import flow_text, hot_key_json, rounded, trend_text
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.group import Names
from lbg_core.group.members_protocol import Activity, Beat
from lbg_core.group.pace import HotKey, hottest

if TYPE_CHECKING:
    from lbg_core.admin.member_requests import PeekResult

RATE_OVER_S = 6.0
"""A rate is the mean of so long: members report their counts once a second."""

FORGET_AFTER_S = 60.0

CLEARS_OVER_S = 20.0
"""The trend of the lag is by how it changed in so long, and with it the time to clear a backlog, and what came in."""

TREND_FROM_S = 5.0
"""A trend of less time is chance: a report may be a second older than a count."""

TAKEN_BY_OTHERS = 0.05
"""Part of what left by which the lag may fall in addition: reports and counts are of different moments."""

LEAVES = ("acked", "dead_lettered", "repeats_dropped")
"""Counts of messages that left the group. Parked ones stay in it: a release publishes them to it again."""

CLEARS_FROM_S = 3.0
"""Messages that are processed in so long at the present rate are no backlog."""

CHANGES_MAX = 200
REPORTED_FOR_S = 8.0
"""After a member reported that it took a queue over, a broker may still have the former one as its consumer."""

HOT_KEYS = 5
SORTS: dict[str, Callable[[GroupRow], Any]] = {
    "problems": lambda row: (row.description.severity, -row.waiting),
    "lag": lambda row: -row.waiting,
    "rate": lambda row: -row.rate,
    "oldest": lambda row: -(row.oldest_s or 0.0),
    "clears": lambda row: -(row.clears_s or 0.0),
    "name": lambda row: row.description.group,
}


@dataclass(frozen=True, slots=True)
class Change:
    """A queue or partition (`word`) that another member serves from now on.

    `former`: the member that served it, None where that is unknown. `is_planned`: by a handoff; None where it is
    unknown. `pause_s`: seconds without a call between the two; None where it is unknown.
    """

    at_s: float
    group: str
    number: int
    server: str
    former: str | None = None
    is_planned: bool | None = None
    pause_s: float | None = None
    word: str = "queue"

    @property
    def text(self) -> str:
        source = f" from {self.former}" if self.former is not None else ""
        pause = f" in {self.pause_s * 1000:.1f} ms" if self.pause_s is not None else ""
        cause = ", not planned" if self.is_planned is False and self.former is not None else ""
        return f"{self.word} {self.number}{source} to {self.server}{pause}{cause}"


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group, and the messages per second that its members have finished lately.

    `oldest_s`: age of the oldest message that is known; None where none is. `has_older`: queues that no member serves
    have messages, of which the broker does not show the first. `clears_s`: time after which the backlog is gone at the
    present rate, infinity while it does not shrink; None without one, or while that is not known. `lag_per_min`: by
    which the lag grows a minute, and `published_hz`: messages that came a second, both of the last `CLEARS_OVER_S`;
    None while that is not known.
    """

    description: Description
    rate: float
    oldest_s: float | None = None
    has_older: bool = False
    clears_s: float | None = None
    published_hz: float | None = None
    lag_per_min: float | None = None

    @property
    def waiting(self) -> int:
        """The lag, or the ready messages alone where the others could not be counted."""
        ready = self.description.ready
        return self.description.lag or (ready if isinstance(ready, int) else 0)

    @property
    def oldest_text(self) -> str:
        if self.oldest_s is None:
            return "unknown" if self.has_older else "-"
        return f"{'>' if self.has_older else ''}{age_text(self.oldest_s)}"

    @property
    def flow_text(self) -> str:
        return flow_text(self.published_hz, self.rate, self.lag_per_min)

    @property
    def trend_text(self) -> str:
        return trend_text(self.lag_per_min, self.rate)

    @property
    def clears_json(self) -> float | str | None:
        """JSON has no infinity."""
        return "never" if self.clears_s == inf else None if self.clears_s is None else round(self.clears_s, 1)

    @property
    def clears_text(self) -> str:
        if self.clears_s is None:
            return "-"
        return "never" if self.clears_s == inf else age_text(self.clears_s)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            **self.description.to_json(),
            "rate": round(self.rate, 1),
            "oldest_s": self.oldest_s,
            "clears_s": self.clears_json,
            "publish_rate": rounded(self.published_hz),
            "lag_per_min": rounded(self.lag_per_min),
        }


def age_text(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


@dataclass
class Observations:
    """Rates and changes of groups, from one look to the next. No I/O; `now_s` rises."""

    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=CHANGES_MAX))
    rows: list[GroupRow] = field(default_factory=list)
    queue_rates: dict[int, float] = field(default_factory=dict)
    """Messages per second delivered from each queue, of the only group, or settled in each partition of one queue."""

    peeked: PeekResult | str = ""
    """Messages of the opened queue, or why they are not shown."""

    _counts: dict[tuple[str, ...], deque[tuple[float, int]]] = field(default_factory=dict)
    _backlogs: dict[str, deque[_Backlog]] = field(default_factory=dict)
    _left: Counter[str] = field(default_factory=Counter)
    """Messages that left each group's queues since it was first seen."""
    _member_rates: dict[tuple[str, str], float] = field(default_factory=dict)
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
        self._member_rates = {}
        self.rows = [
            self._row(one, now_s, now_us=now_us, waiting_us=(waiting_us or {}).get(one.group))
            for one in descriptions
        ]
        self.queue_rates = {}
        for one in descriptions:
            self._look_at_queues(one, now_s)
        for group in self._backlogs.keys() - {one.group for one in descriptions}:
            del self._backlogs[group], self._left[group]
        for name in [
            name for name, samples in self._counts.items() if samples[-1][0] < now_s - FORGET_AFTER_S
        ]:
            del self._counts[name]  # a member that has left

    def report(self, group: str, activity: Activity, now_s: float) -> None:
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
        place = (group, takeover.queue)
        for seen in [one for one in self.changes if one.at_s > now_s - REPORTED_FOR_S]:
            if (seen.group, seen.number) == place and seen.server == activity.sender.name:
                self.changes.remove(seen)  # a look has seen it before
        self.changes.append(
            Change(now_s, *place, activity.sender.name, former, takeover.planned, takeover.pause_s)
        )
        self._servers[place] = activity.sender.name
        self._reported_at[place] = now_s

    def member_rate(self, group: str, member: Beat) -> float:
        """Messages per second that a member has finished lately, as of the last look."""
        return self._member_rates.get((group, member.name), 0.0)

    def server_of(self, group: str, number: int) -> str | None:
        """The last member that was seen to serve this queue or partition."""
        return self._servers.get((group, number))

    def hot_keys(self, group: str, now_s: float) -> list[HotKey]:
        """Keys of the watched group with most time in calls, or most messages (`lbg_core.group.pace.hottest`)."""
        described = (row.description for row in self.rows if row.description.group == group)
        members = next((one.members for one in described if one.members is not UNKNOWN), ())
        return hottest((one.pace for one in members), self._key_rates(now_s), HOT_KEYS)

    def _key_rates(self, now_s: float) -> dict[str, float]:
        """Messages per second of each key that members report, most first."""
        while self._keys and self._keys[0][0] <= now_s - RATE_OVER_S:
            self._keys.popleft()
        counts: Counter[str] = Counter()
        for _, key, count in self._keys:
            counts[key] += count
        # A report is of the second before it.
        seconds = now_s - self._keys[0][0] + 1.0 if self._keys else 1.0
        return {key: count / seconds for key, count in counts.most_common()}

    def forget_keys(self) -> None:
        """Another group is watched, or none."""
        self._keys.clear()

    def _row(self, one: Description, now_s: float, *, now_us: int, waiting_us: int | None) -> GroupRow:
        oldest_us = min((us for us in (one.oldest_us, waiting_us) if us), default=None)
        rate = self._rate(one, now_s)
        backlogs = self._look_at_backlog(one, now_s)
        published_hz, lag_per_min = _flow(backlogs)
        return GroupRow(
            one,
            rate,
            None if oldest_us is None else max(0.0, (now_us - oldest_us) / 1e6),
            has_older=waiting_us is None and bool(unserved_queues(one)),
            clears_s=_clears_s(backlogs, rate),
            published_hz=published_hz,
            lag_per_min=lag_per_min,
        )

    def _look_at_backlog(self, one: Description, now_s: float) -> Sequence[_Backlog]:
        """Of the last time; none where what waits is unknown."""
        members = () if one.members is UNKNOWN else one.members
        for member in members:
            count = sum(member.counts.get(name, 0) for name in LEAVES)
            place = (one.group, member.name, "left")
            before = self._counts.get(place)
            self._left[one.group] += 0 if before is None else max(0, count - before[-1][1])
            self._counts[place] = deque([(now_s, count)])
        lag = one.lag
        if lag is None and one.members is not UNKNOWN and isinstance(one.ready, int):
            lag = one.ready + sum(member.in_flight for member in members)  # without a management API
        if lag is None:
            self._backlogs.pop(one.group, None)
            return ()
        samples = self._backlogs.setdefault(one.group, deque())
        parked = 0 if one.parked is None else one.parked
        is_known = one.members is not UNKNOWN and parked is not UNKNOWN
        samples.append(
            _Backlog(now_s, lag, self._left[one.group] + (0 if parked is UNKNOWN else parked), is_known)
        )
        while len(samples) > 2 and samples[1].at_s <= now_s - CLEARS_OVER_S:
            samples.popleft()
        return samples

    def _rate(self, one: Description, now_s: float) -> float:
        members = () if one.members is UNKNOWN else one.members
        rates = {
            (one.group, member.name): self._growth(
                (one.group, member.name, member.incarnation), member.counts.get("acked", 0), now_s
            )
            for member in members
        }
        self._member_rates |= rates
        return sum(rates.values())

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
        mailboxes = Names(one.group).mailbox(0).removesuffix("0")
        for row in one.reported_services:
            place = (one.group, row.number)
            # The consumer of a member that sends no reports is that of one that has just gone, or come.
            is_unknown = row.member is None and (row.consumer or "").startswith(mailboxes)
            server = "" if is_unknown else row.server or ""
            before = self._servers.get(place)
            is_reported = now_s < self._reported_at.get(place, float("-inf")) + REPORTED_FOR_S
            if server and before is not None and before != server and not is_reported:
                word = "partition" if one.has_partitions else "queue"
                self.changes.append(
                    Change(now_s, one.group, row.number, server, before, pause_s=row.handoff_s, word=word)
                )
            if server and not is_reported:
                self._servers[place] = server
            if row.settled is not None:
                of_partition = (one.group, str(row.number), "settled")
                self.queue_rates[row.number] = self._growth(of_partition, row.settled, now_s)
            if row.member is None or one.is_one_queue:
                continue  # a member counts the messages of one queue, not of its partitions
            count = next((queue.delivered for queue in row.member.queues if queue.queue == row.number), 0)
            name = (one.group, str(row.number), row.member.name, row.member.incarnation)
            self.queue_rates[row.number] = self._growth(name, count, now_s)

    def ordered(self, sort: str, chosen: str) -> list[GroupRow]:
        """Rows whose group has `chosen` in its name."""
        rows = [row for row in self.rows if chosen.lower() in row.description.group.lower()]
        return sorted(rows, key=lambda row: (SORTS[sort](row), row.description.group))

    def to_json(self, at: datetime, *, watched: str | None, now_s: float) -> dict[str, Any]:
        """One object a look: docs/reference/output.md."""
        looked = {
            "at": at.isoformat(timespec="milliseconds"),
            "groups": [row.to_json() for row in self.rows],
            "changes": [f"{one.group}: {one.text}" for one in self.changes],
        }
        if watched is not None:
            looked["hot_keys"] = list(map(hot_key_json, self.hot_keys(watched, now_s)))
        return looked


class _Backlog(NamedTuple):
    """`left`: messages that left the queues since the first look, as far as members and parked messages are known."""

    at_s: float
    lag: int
    left: int
    is_known: bool


def _clears_s(samples: Sequence[_Backlog], rate: float) -> float | None:
    if not samples:
        return None
    first, last = samples[0], samples[-1]
    if last.at_s <= first.at_s or last.lag <= CLEARS_FROM_S * rate:
        return None
    return last.lag * (last.at_s - first.at_s) / (first.lag - last.lag) if last.lag < first.lag else inf


def _flow(samples: Sequence[_Backlog]) -> tuple[float | None, float | None]:
    """Messages that came a second, which are those that left and by which the lag grew; growth of the lag a minute."""
    if not samples or samples[-1].at_s < samples[0].at_s + TREND_FROM_S:
        return None, None
    first, last = samples[0], samples[-1]
    seconds, grown = last.at_s - first.at_s, last.lag - first.lag
    left = last.left - first.left
    # A lag that fell by more than members took was taken by somebody else: what came is unknown.
    is_known = all(one.is_known for one in samples) and left + grown >= -max(5, TAKEN_BY_OTHERS * left)
    return max(0, left + grown) / seconds if is_known else None, 60 * grown / seconds


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
