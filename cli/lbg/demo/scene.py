"""What the demo's screen shows, as data: fed with beats, the validator's events and the script; no I/O, no clock.

Times are seconds since the curtain rose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lbg.demo.cast import Cell, Kill, Life, MemberView, MoveView, Note, QueueView
from lbg.demo.meters import Meter
from lbg.demo.script import Act
from lbg_broker.group import EXCLUSIVE, PARTITIONED, UNCOUNTED_MODES
from lbg_broker.provisioning.native import Native, PartitionsSeen
from lbg_broker.provisioning.observed import QueueSeen

KEPT_EVENTS = 200


@dataclass(slots=True)
class Scene:
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
    """How the broker shares the one queue out, where it does and was asked."""

    @classmethod
    def of(
        cls, title: str, *, rows: int, queues: int, members: tuple[str, ...], acts: int, mode: str = EXCLUSIVE
    ) -> Scene:
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
        """Whether queues or partitions are served by one member each, and move."""
        return self.mode not in UNCOUNTED_MODES

    @property
    def row_word(self) -> str:
        return "partition" if self.mode == PARTITIONED else "queue"

    def shares(self, seen: QueueSeen) -> None:
        """What the broker says of the one queue that it shares out."""
        self.shared = seen.native if isinstance(seen.native, Native) else None
        if isinstance(self.shared, PartitionsSeen):
            self._shares_partitions(self.shared)
        else:
            self.queues[0].ready = seen.ready if isinstance(seen.ready, int) else None
        self.counts_published()

    def _shares_partitions(self, seen: PartitionsSeen) -> None:
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
        """What was published so far, from what can be seen of it: delivered, or waiting, or on its way."""
        lag = self.lag
        if lag is not None:
            distinct = self.delivered.count - self.rewinds
            in_flight = sum(member.in_flight for member in self.members.values())
            self.published.read(min(self.rows, distinct + lag + in_flight), self.now_s)

    @property
    def share(self) -> float:
        """How much of the input has been delivered, once each: 0 to 1."""
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

    def lives(self, member: str, life: Life, *, at_us: int = 0, why: str = "") -> None:
        """A member's process started, was signalled or ended; `why` in place of the usual words."""
        view = self.members[member]
        if life is Life.KILLED:
            self.kills.append(Kill(member, self.now_s, at_us, view.in_flight))
        if life is Life.STARTING:
            view.lives += 1
        if life in (Life.KILLED, Life.LEFT, Life.FAILED, Life.STARTING):
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
        if view is None or view.life in (Life.KILLED, Life.LEFT, Life.WAITING):
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
        if view.life is Life.STARTING:
            view.life = Life.LIVE
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
        """Whether the killed member held a queue again between the kill and `at_s`."""
        return any(move.now == kill.member and kill.at_s < move.at_s <= at_s for move in self.moves)

    def _holds(self, queue: QueueView, member: str, at_s: float) -> None:
        if queue.holder != member:
            queue.holder = member
            queue.spans.append((at_s, member))


def is_tag_of(tag: str | None, index: int | None) -> bool:
    """A member's consumers are tagged with its mailbox, which ends with its index."""
    return tag is not None and index is not None and tag.endswith(f".member.{index}")


_LIFE_WORDS = {
    Life.WAITING: "waits",
    Life.STARTING: "starts",
    Life.LIVE: "is live",
    Life.LEAVING: "gets SIGTERM",
    Life.LEFT: "has left",
    Life.KILLED: "gets SIGKILL",
    Life.FAILED: "ended by itself",
}
