"""A group as the console observes it: its members' messages, its snapshots, its timeline. No I/O.

`now_s` is seconds since the epoch on a clock that only rises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lbg_console.timeline import Event, Timeline
from lbg_core.admin.describe import Description
from lbg_core.admin.observations import REPORTED_FOR_S, Change, GroupRow, Observations
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Subject
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.group.errors import MessageError
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Activity, Beat, Changes, Gone, Leave, Message, Move
from lbg_core.group.message_codec import decode

SILENT_S = 3.0
"""Members that are asked report every second, 1.2 s apart at most. One that is silent for longer stands still, or is
cut off."""

PROBED_AFTER_S = 1.5
"""A member that is silent for longer is asked for: its mailbox is there, or it is gone."""

PROBED_MAX = 32
"""Members of a group that somebody looks at that are all asked for; in larger ones the others are soonest."""

FORGET_S = 60.0
"""A silent member whose mailbox could not be asked for is forgotten."""

SOLVED_S = 20.0
"""A problem is over when it was not seen for so long: one that is near its limit comes again."""

SETTLED_S = 5.0
"""Members that are seen in the first seconds were there before."""

KEYS_S = 3.0
KEYS_MAX = 5
LEFT_MAX = 64


@dataclass(slots=True)
class Sighting:
    """A member's last status report, its bytes, and when it came."""

    body: bytes
    beat: Beat
    at_s: float

    @property
    def name(self) -> str:
        return self.beat.name

    @property
    def incarnation(self) -> str:
        return self.beat.incarnation


class ObservedGroup:
    """`events` of its timeline are appended to `news`, which who shows them empties."""

    def __init__(self, name: str, now_s: float) -> None:
        self.name = name
        self.seen = Observations()
        self.timeline = Timeline(now_s)
        self.news: list[Event] = []
        self.sightings: dict[int, Sighting] = {}
        self.keys: dict[str, tuple[float, Sequence[tuple[str, int]]]] = {}
        """Keys that each member worked on in the last second, by its name."""
        self.reported_at_s = float("-inf")
        self._since_s = now_s
        self._ended: deque[str] = deque(maxlen=LEFT_MAX)
        self._crashed: dict[str, float] = {}
        self._moves: dict[tuple[int, int], float] = {}
        """Handoffs that were announced: queue and index of the successor."""
        self._problems: dict[tuple[Kind, Subject], tuple[float, str]] = {}
        """Time of the last sight of each, and its sentence."""
        self._pauses: dict[str, bool] = {}

    @property
    def row(self) -> GroupRow | None:
        """None until it was described."""
        return self.seen.rows[0] if self.seen.rows else None

    @property
    def beats(self) -> list[Beat]:
        return [one.beat for one in self.sightings.values()]

    def on_message(self, body: bytes, now_s: float) -> bool:
        """A message of a member. True if a member is lost."""
        for sighting in self.sightings.values():
            if sighting.body == body:  # an idle member sends the same bytes every second
                sighting.at_s = self.reported_at_s = now_s
                return False
        try:
            message = decode(body)
        except MessageError:
            return False
        if isinstance(message, Beat):
            self._on_beat(Sighting(body, message, now_s))
        return self._on_message(message, now_s)

    def _on_message(self, message: Message | None, now_s: float) -> bool:
        match message:
            case Leave(sender):
                self._end(sender, now_s, is_crash=False)
            case Gone(_, dead):
                return self._end(dead, now_s, is_crash=True)
            case Changes(left=left, lost=lost):
                for one in left:
                    self._end(one, now_s, is_crash=False)
                return sum(self._end(one, now_s, is_crash=True) for one in lost) > 0
            case Move(_, queue, to):
                self._moves[queue, to] = now_s
        return False

    def _on_beat(self, sighting: Sighting) -> None:
        now_s = sighting.at_s
        self.reported_at_s = now_s
        if sighting.incarnation in self._ended:
            return  # its last words
        index = sighting.beat.index
        known = self.sightings.get(index)
        if known is not None and known.incarnation != sighting.incarnation:
            self._end(known.beat.sender, now_s, is_crash=True)
            known = None
        if known is None and now_s > self._since_s + SETTLED_S:
            self._note("joined", f"{sighting.name} joined", now_s, member=sighting.name)
        self.sightings[index] = sighting

    def on_gone(self, probe: Identity, now_s: float) -> bool:
        """The member's mailbox is not there. True if it counted as live."""
        return self._end(probe, now_s, is_crash=True)

    def _end(self, member: Identity, now_s: float, *, is_crash: bool) -> bool:
        sighting = self.sightings.get(member.index)
        if sighting is None or sighting.incarnation != member.incarnation:
            return False
        del self.sightings[member.index]
        self._ended.append(member.incarnation)
        name = sighting.name
        self.keys.pop(name, None)
        if is_crash:
            self._crashed[name] = now_s
            text = f"{name} is gone: it was killed, or its connection was lost"
            self._note("crashed", text, now_s, member=name)
        else:
            self._note("left", f"{name} left", now_s, member=name)
        return is_crash

    def on_activity(self, activity: Activity, now_s: float) -> None:
        """A report of a watched member: what it works on, or a queue that it took over."""
        self.keys[activity.sender.name] = now_s, activity.keys
        self.seen.report(self.name, activity, now_s)
        if activity.takeover is not None:
            self._on_changes([self.seen.changes[-1]])

    def probes(self, now_s: float, *, is_watched: bool) -> Iterator[Identity]:
        """Members that others may not miss: a lone one, and silent ones; all of a small group that is watched."""
        is_each = len(self.sightings) == 1 or (is_watched and len(self.sightings) <= PROBED_MAX)
        for one in self.sightings.values():
            if is_each or now_s > one.at_s + PROBED_AFTER_S:
                yield one.beat.sender

    def describe(
        self, description: Description, now_s: float, *, now_us: int, waiting_us: int | None
    ) -> None:
        """It is so now."""
        for one in list(self.sightings.values()):
            if now_s > one.at_s + FORGET_S:
                self._end(one.beat.sender, now_s, is_crash=False)
        last = self.seen.changes[-1] if self.seen.changes else None
        waiting = {} if waiting_us is None else {self.name: waiting_us}
        self.seen.look([description], now_s, now_us=now_us, waiting_us=waiting)
        changes = list(self.seen.changes)
        self._on_changes(changes[changes.index(last) + 1 :] if last in changes else changes)
        self._serve(description, now_s)
        self._note_problems(description, now_s)
        self._note_pauses(description, now_s)

    def sample(self, now_s: float) -> dict[str, Any] | None:
        """A point of the charts, if one is due."""
        row = self.row
        if row is None or now_s < self.timeline.samples.due_s:
            return None
        one = row.description
        counts = {"ready": one.ready, "unacked": one.unacked, "dead_letters": one.dead_letters}
        values = {
            "rate": round(row.rate, 1),
            "publish_rate": None if row.published_hz is None else round(row.published_hz, 1),
            **{name: count if isinstance(count, int) else None for name, count in counts.items()},
            "members": None if one.members is UNKNOWN else len(one.members),
            "oldest_s": row.oldest_s,
        }
        return self.timeline.samples.add(now_s, values)

    def keys_of(self, member: str, now_s: float) -> list[tuple[str, int]]:
        at_s, keys = self.keys.get(member, (float("-inf"), ()))
        return list(keys[:KEYS_MAX]) if now_s < at_s + KEYS_S else []

    def note_act(self, text: str, now_s: float) -> None:
        self._note("act", text, now_s)

    def _on_changes(self, changes: Sequence[Change]) -> None:
        for change in changes:
            is_planned = change.is_planned
            if is_planned is None and self._was_announced(change):
                is_planned = True
            if (
                is_planned is None
                and change.former is not None
                and self._has_crashed(change.former, change.at_s)
            ):
                is_planned = False
            event = self.timeline.moved(
                change.number,
                change.server,
                change.at_s,
                change.text,
                former=change.former,
                is_planned=is_planned,
                pause_s=change.pause_s,
                within_s=REPORTED_FOR_S,
            )
            self.news.append(event)

    def _was_announced(self, change: Change) -> bool:
        self._moves = {move: at_s for move, at_s in self._moves.items() if at_s > change.at_s - SETTLED_S}
        indexes = [index for index, one in self.sightings.items() if one.name == change.server]
        return any((change.number, index) in self._moves for index in indexes)

    def _has_crashed(self, name: str, now_s: float) -> bool:
        self._crashed = {one: at_s for one, at_s in self._crashed.items() if at_s > now_s - FORGET_S}
        return name in self._crashed

    def _serve(self, description: Description, now_s: float) -> None:
        if description.services is UNKNOWN or description.members is UNKNOWN:
            return
        for row in description.services:
            member = None if row.member is None else row.member.name
            former = self.seen.server_of(self.name, row.number)
            is_crash = member is None and former is not None and self._has_crashed(former, now_s)
            event = self.timeline.serve(row.number, member, now_s, is_crash=is_crash)
            if event is not None:
                self.news.append(event)
        self.timeline.forget_queues({row.number for row in description.services})

    def _note_problems(self, description: Description, now_s: float) -> None:
        """Figures change all the time, and the member that has a queue: they are the same problems."""
        problems = {
            (one.kind, replace(one.subject, members=()) if one.subject.queue else one.subject): one.sentence(
                one.kind.sentence
            )
            for one in description.faults
        }
        if now_s > self._since_s + SETTLED_S:
            for same in problems.keys() - self._problems.keys():
                self._note("problem", problems[same], now_s)
        self._problems |= {same: (now_s, text) for same, text in problems.items()}
        for same, (seen_s, text) in list(self._problems.items()):
            if seen_s < now_s - SOLVED_S:
                del self._problems[same]
                self._note("solved", f"no more: {text}", now_s)

    def _note_pauses(self, description: Description, now_s: float) -> None:
        states = {"": description.is_paused, "ingress_": description.is_ingress_paused}
        for subject, is_paused in states.items():
            if is_paused is None:
                continue
            before = self._pauses.get(subject)
            self._pauses[subject] = is_paused
            if before is not None and before != is_paused:
                kind = "paused" if is_paused else "resumed"
                what = "ingress" if subject else "consumption"
                self._note(f"{subject}{kind}", f"{what} is {kind}", now_s)

    def _note(self, kind: str, text: str, now_s: float, **fields: Any) -> None:
        self.news.append(self.timeline.add(kind, text, now_s, **fields))
