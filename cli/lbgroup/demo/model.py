"""Model of the demo: members, queues, moves and rates, as data.

Times are seconds since the curtain rose.

Times are seconds since the curtain rose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from lbg_broker.admin.snapshot import Native, PartitionsStatus, QueueStatus
from lbg_broker.group import EXCLUSIVE, PARTITIONED, UNCOUNTED_MODES
from lbgroup.demo.script import Act

WINDOW_S = 2.0
HISTORY = 60


class Meter:
    """A counter that only grows, its rate over the last two seconds, and one rate a second for a sparkline."""

    def __init__(self) -> None:
        self.count = 0
        self._samples: deque[tuple[float, int]] = deque()
        self.history: deque[float] = deque(maxlen=HISTORY)
        self._noted_at_s: float | None = None

    def read(self, count: int, now_s: float) -> None:
        self.count = max(count, self.count)
        self._samples.append((now_s, self.count))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - WINDOW_S:
            self._samples.popleft()
        if self._noted_at_s is None or now_s - self._noted_at_s >= 1.0:
            self.history.append(self.rate(now_s))
            self._noted_at_s = now_s

    def rate(self, now_s: float) -> float:
        """Per second, over the window; 0 when nothing was read for that long."""
        if len(self._samples) < 2 or self._samples[-1][0] < now_s - 2 * WINDOW_S:
            return 0.0
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0


def sparkline(values: list[float], width: int) -> str:
    """The last `width` values as blocks, scaled to the highest of them."""
    bars = "▁▂▃▄▅▆▇█"
    shown = values[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return bars[0] * len(shown)
    return "".join(bars[min(7, int(value / top * 7.999))] for value in shown)


class MemberState(Enum):
    WAITING = "not started"
    STARTING = "starting"
    LIVE = "live"
    LEAVING = "leaving"
    LEFT = "left"
    KILLED = "killed"
    FAILED = "failed"


@dataclass(slots=True)
class Cell:
    """One member at one queue, as the member's last beat says."""

    role: str = "secondary"
    active: bool = False
    in_flight: int = 0
    status: str = "Unbound"


@dataclass(slots=True)
class MemberView:
    name: str
    life: MemberState = MemberState.WAITING
    lives: int = 0
    index: int | None = None
    rebalance: str = ""
    cells: dict[int, Cell] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    meter: Meter = field(default_factory=Meter)
    held: int = 0

    @property
    def in_flight(self) -> int:
        """Messages in flight, as of its last heartbeat."""
        return self.held


@dataclass(slots=True)
class QueueView:
    """`ready` is None while it could not be read. `spans` says who got its messages from when on."""

    number: int
    ready: int | None = None
    meter: Meter = field(default_factory=Meter)
    holder: str | None = None
    spans: list[tuple[float, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MoveView:
    """A queue went from member to member. `is_crash`: the one it left had been killed."""

    at_s: float
    queue: int
    was: str
    now: str
    pause_ms: float
    waited_ms: float
    is_crash: bool


@dataclass(frozen=True, slots=True)
class Note:
    at_s: float
    kind: str
    text: str


@dataclass(slots=True)
class Kill:
    """A SIGKILL. `in_flight` is what the victim's last beat said; `at_us` is wall-clock time."""

    member: str
    at_s: float
    at_us: int
    in_flight: int


KEPT_EVENTS = 200


@dataclass(slots=True)
class DemoModel:
    title: str
    rows: int
    acts_total: int
    queues: list[QueueView]
    members: dict[str, MemberView]
    act: Act | None = None
    act_number: int = 0
    act_marks: list[float] = field(default_factory=list)
    now_s: float = 0.0
    published: Meter = field(default_factory=Meter)
    delivered: Meter = field(default_factory=Meter)
    rewinds: int = 0
    inversions: int = 0
    moves: list[MoveView] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    notes: deque[Note] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    noted: int = 0
    started_at_us: int = 0
    mode: str = EXCLUSIVE
    shared: Native | None = None
    """Shares of the one queue, where the broker divides it and was asked."""

    @classmethod
    def of(
        cls, title: str, *, rows: int, queues: int, members: tuple[str, ...], acts: int, mode: str = EXCLUSIVE
    ) -> DemoModel:
        return cls(
            title,
            rows,
            acts,
            [QueueView(number) for number in range(queues)],
            {name: MemberView(name) for name in members},
            mode=mode,
        )

    @property
    def has_rows(self) -> bool:
        """True if queues or partitions are served by one member each, and move."""
        return self.mode not in UNCOUNTED_MODES

    @property
    def row_word(self) -> str:
        return "partition" if self.mode == PARTITIONED else "queue"

    def shares(self, seen: QueueStatus) -> None:
        """Fields of the one queue that the broker shares out."""
        self.shared = seen.native if isinstance(seen.native, Native) else None
        if isinstance(self.shared, PartitionsStatus):
            self._shares_partitions(self.shared)
        else:
            self.queues[0].ready = seen.ready if isinstance(seen.ready, int) else None
        self.counts_published()

    def _shares_partitions(self, seen: PartitionsStatus) -> None:
        for view in self.members.values():
            view.cells.clear()
            view.rebalance = seen.rebalance
        for one in seen.partitions:
            self.queues[one.partition].ready = one.ready
            for view in self.members.values():
                if is_tag_of(one.consumer_tag, view.index):
                    cell = Cell("primary", one.is_served, one.unacked, one.status)
                    view.cells[one.partition] = cell

    @property
    def lag(self) -> int | None:
        """Messages that wait in the queues; None while one of them could not be read."""
        counts = [queue.ready for queue in self.queues]
        return None if None in counts else sum(count for count in counts if count is not None)

    def counts_published(self) -> None:
        """Number of messages published so far, from what can be seen of it: delivered, or waiting, or on its way."""
        lag = self.lag
        if lag is not None:
            distinct = self.delivered.count - self.rewinds
            in_flight = sum(member.in_flight for member in self.members.values())
            self.published.read(min(self.rows, distinct + lag + in_flight), self.now_s)

    @property
    def share(self) -> float:
        """Share of the input that has been delivered, once each: 0 to 1."""
        return min(1.0, max(0, self.delivered.count - self.rewinds) / self.rows) if self.rows else 1.0

    def note(self, kind: str, text: str) -> None:
        self.notes.append(Note(self.now_s, kind, text))
        self.noted += 1

    def notes_since(self, noted: int) -> list[Note]:
        """The notes made after `noted` of them had been; the oldest may be forgotten."""
        new = min(self.noted - noted, len(self.notes))
        return list(self.notes)[len(self.notes) - new :]

    def begins(self, act: Act) -> None:
        self.act = act
        self.act_number += 1
        self.act_marks.append(self.share)
        self.note("act", f"{self.act_number}. {act.title}")

    def lives(self, member: str, life: MemberState, *, at_us: int = 0, why: str = "") -> None:
        """A member's process started, was signalled or ended; `why` in place of the usual words."""
        view = self.members[member]
        if life is MemberState.KILLED:
            self.kills.append(Kill(member, self.now_s, at_us, view.in_flight))
        if life is MemberState.STARTING:
            view.lives += 1
        if life in (MemberState.KILLED, MemberState.LEFT, MemberState.FAILED, MemberState.STARTING):
            view.cells.clear()
            view.index = None
            view.held = 0
        view.life = life
        self.note("life", f"{member} {why or _LIFE_WORDS[life]}")

    def hears(self, message: Mapping[str, Any]) -> None:
        """A message of the members' exchange. What is none of this version is passed over."""
        view = self.members.get(str(message.get("name")))
        kind = message.get("type")
        if kind == "gone":
            # This one names the dead and is said by somebody else.
            self.note(
                "member", f"{self._named(message.get('by'))} noticed that {message.get('name')} is gone"
            )
            return
        if view is None or view.life in (MemberState.KILLED, MemberState.LEFT, MemberState.WAITING):
            # The last words of a dead member must not bring it back.
            return
        if kind == "beat":
            self._beat(view, message)
        elif kind == "move":
            target = self._named(message.get("to"))
            self.note("member", f"{view.name} hands queue {message.get('queue')} to {target}")
        elif kind == "leave":
            self.note("member", f"{view.name} says goodbye")

    def _named(self, index: object) -> str:
        for view in self.members.values():
            if view.index == index and index is not None:
                return view.name
        return f"member {index}"

    def _beat(self, view: MemberView, beat: Mapping[str, Any]) -> None:
        try:
            cells = {
                int(one["queue"]): Cell(
                    str(one["role"]), bool(one["active"]), int(one["in_flight"]), str(one["status"])
                )
                for one in beat["queues"]
            }
            index, rebalance = int(beat["index"]), str(beat["rebalance"])
            counts = {str(name): int(value) for name, value in beat["counts"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            return
        if view.life is MemberState.STARTING:
            view.life = MemberState.LIVE
            view.index = index
            self.note("member", f"{view.name} is a member, index {index}")
        view.index, view.counts = index, counts
        view.held = sum(cell.in_flight for cell in cells.values())
        if self.shared is None:
            view.rebalance, view.cells = rebalance, cells

    def validated(self, event: Mapping[str, Any]) -> None:
        """An event of `lbg validate --json`."""
        kind = event.get("event")
        if kind == "progress":
            self.rewinds, self.inversions = event["rewinds"], event["inversions"]
            self.delivered.read(event["delivered"], self.now_s)
            for queue in self.queues:
                queue.meter.read(event["per_queue"].get(str(queue.number), 0), self.now_s)
            for view in self.members.values():
                view.meter.read(event["per_member"].get(view.name, 0), self.now_s)
            for number, name in event.get("holders", {}).items():
                self._holds(self.queues[int(number)], name, self.now_s)
        elif kind == "queue_moved":
            self._moved(event)
        elif kind == "sequence_error" and event["kind"] == "inversion":
            self.note(
                "bad",
                f"ORDER ERROR: key {event['key']} expected {event['expected']}, got {event['received']}",
            )
        elif kind == "session_error":
            self.note(
                "bad", f"SESSION ERROR: {event['kind']}: session {event['session']} {event['sequence']}"
            )

    def _moved(self, event: Mapping[str, Any]) -> None:
        at_s = (event["at_us"] - self.started_at_us) / 1e6
        queue = self.queues[event["queue"]]
        killed = any(
            kill.member == event["was_name"]
            and event["at_us"] >= kill.at_us
            and not self._is_back(kill, at_s)
            for kill in self.kills
        )
        move = MoveView(
            at_s,
            event["queue"],
            event["was_name"],
            event["now_name"],
            event["pause_us"] / 1000,
            event["waited_us"] / 1000,
            killed,
        )
        self.moves.append(move)
        self._holds(queue, move.now, at_s)
        how = "crash" if killed else "planned"
        self.note(
            "move", f"{self.row_word} {move.queue}: {move.was} → {move.now}, {move.waited_ms:.1f} ms ({how})"
        )

    def _is_back(self, kill: Kill, at_s: float) -> bool:
        """True if the killed member held a queue again between the kill and `at_s`."""
        return any(move.now == kill.member and kill.at_s < move.at_s <= at_s for move in self.moves)

    def _holds(self, queue: QueueView, member: str, at_s: float) -> None:
        if queue.holder != member:
            queue.holder = member
            queue.spans.append((at_s, member))


def is_tag_of(tag: str | None, index: int | None) -> bool:
    """A member's consumers are tagged with its mailbox, which ends with its index."""
    return tag is not None and index is not None and tag.endswith(f".member.{index}")


_LIFE_WORDS = {
    MemberState.WAITING: "waits",
    MemberState.STARTING: "starts",
    MemberState.LIVE: "is live",
    MemberState.LEAVING: "gets SIGTERM",
    MemberState.LEFT: "has left",
    MemberState.KILLED: "gets SIGKILL",
    MemberState.FAILED: "ended by itself",
}
