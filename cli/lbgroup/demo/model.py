"""Model of the demo: the group, its members' processes, and the deliveries. No I/O.

Times are seconds since the first member starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lbg_core.admin.describe import Description
from lbg_core.group import Engine, GroupSpec
from lbg_core.group.members_protocol import Beat, Gone, Message, Move
from lbgroup.demo.report import Kill, is_crash
from lbgroup.demo.script import MEMBERS, Act
from lbgroup.live_group import LiveGroup
from lbgroup.live_map import MapMember, MemberState, Meter, colours_of, service_word

COLOURS = colours_of(MEMBERS)
_STATE_WORDS = {
    MemberState.STARTING: "starts",
    MemberState.LEAVING: "gets SIGTERM",
    MemberState.LEFT: "has left",
    MemberState.KILLED: "gets SIGKILL",
    MemberState.FAILED: "ended by itself",
}


@dataclass(frozen=True, slots=True)
class Note:
    """An event. `kind`: act, life (of a process), member (what it reports), move or bad."""

    at_s: float
    kind: str
    text: str


class DemoModel:
    """`rows`: messages of the input. `spans`: which member each queue's messages were delivered to, from when on."""

    def __init__(self, title: str, *, rows: int, spec: GroupSpec, engine: Engine) -> None:
        self.title = title
        self.rows = rows
        self.now_s = 0.0
        self.started_at_us = 0
        self.act: Act | None = None
        self.act_number = 0
        self.states = dict.fromkeys(MEMBERS, MemberState.WAITING)
        self.delivered = Meter()
        self.rewinds = 0
        self.inversions = 0
        self.moves: list[Mapping[str, Any]] = []
        self.kills: list[Kill] = []
        self.notes: list[Note] = []
        self.spans: dict[int, list[tuple[float, str]]] = {number: [] for number in range(spec.queue_count)}
        self.group = LiveGroup(spec, engine)
        self._queue_meters = {number: Meter() for number in self.spans}
        self._member_meters = {name: Meter() for name in MEMBERS}

    @property
    def description(self) -> Description:
        return self.group.description

    @property
    def word(self) -> str:
        """The unit that one member serves alone: queue or partition."""
        return service_word(self.description)

    @property
    def map_members(self) -> list[MapMember]:
        return [
            MapMember(name, COLOURS[name], self.states[name], meter.count, meter.rate(self.now_s))
            for name, meter in self._member_meters.items()
        ]

    @property
    def queue_rates(self) -> dict[int, float]:
        return {number: meter.rate(self.now_s) for number, meter in self._queue_meters.items()}

    @property
    def share(self) -> float:
        """Share of the input that has been delivered, once each: 0 to 1."""
        return min(1.0, max(0, self.delivered.count - self.rewinds) / self.rows) if self.rows else 1.0

    def note(self, kind: str, text: str) -> None:
        self.notes.append(Note(self.now_s, kind, text))

    def begins(self, act: Act) -> None:
        self.act = act
        self.act_number += 1
        self.note("act", f"{self.act_number}. {act.title}")

    def on_process_state(self, name: str, state: MemberState, *, at_us: int = 0, text: str = "") -> None:
        """A member's process started, was signalled or ended; `text` in place of the usual words."""
        if state is MemberState.KILLED:
            self.kills.append(Kill(name, self.now_s, at_us))
        if state is not MemberState.LEAVING:
            self.group.forget(name)
        self.states[name] = state
        self.note("life", f"{name} {text or _STATE_WORDS[state]}")

    def on_message(self, message: Message) -> None:
        """A message of the members' exchange."""
        name = message.sender.name
        match message:
            case Gone(_, dead):
                self.note("member", f"{name} noticed that {dead.name} is gone")
            case Move(_, queue, to) if name in self.states:
                self.note("member", f"{name} hands queue {queue} to {self.group.name_of(to)}")
            # The last words of a dead member must not bring it back.
            case Beat() if name in self.states and self.states[name].is_running:
                self.group.on_report(message)
                if self.states[name] is MemberState.STARTING:
                    self.states[name] = MemberState.LIVE
                    self.note("member", f"{name} is a member, index {message.index}")

    def validated(self, event: Mapping[str, Any]) -> None:
        """An event of `lbg validate --json`."""
        match event.get("event"), event.get("kind"):
            case "progress", _:
                self._progress(event)
            case "queue_moved", _:
                self._moved(event)
            case "sequence_error", "inversion":
                order = f"expected {event['expected']}, got {event['received']}"
                self.note("bad", f"ORDER ERROR: key {event['key']} {order}")
            case "session_error", kind:
                self.note("bad", f"SESSION ERROR: {kind}: session {event['session']} {event['sequence']}")

    def _progress(self, event: Mapping[str, Any]) -> None:
        self.rewinds, self.inversions = event["rewinds"], event["inversions"]
        self.delivered.read(event["delivered"], self.now_s)
        for number, meter in self._queue_meters.items():
            meter.read(event["per_queue"].get(str(number), 0), self.now_s)
        for name, meter in self._member_meters.items():
            meter.read(event["per_member"].get(name, 0), self.now_s)
        for number, name in event.get("holders", {}).items():
            self._holds(int(number), name, self.now_s)

    def _moved(self, event: Mapping[str, Any]) -> None:
        self.moves.append(event)
        self._holds(event["queue"], event["now_name"], (event["at_us"] - self.started_at_us) / 1e6)
        cause = "crash" if any(is_crash(event, kill, self.moves) for kill in self.kills) else "planned"
        route = f"{self.word} {event['queue']}: {event['was_name']} → {event['now_name']}"
        self.note("move", f"{route}, {event['waited_us'] / 1000:.1f} ms ({cause})")

    def _holds(self, queue: int, member: str, at_s: float) -> None:
        spans = self.spans[queue]
        if not spans or spans[-1][1] != member:
            spans.append((at_s, member))
