"""Timeline of a group: who served each queue, what happened, and samples of its rate and its lag. No I/O.

All times are seconds since the epoch. The memory of it is bounded: `SPANS_MAX` for each queue, `EVENTS_MAX` and
`SAMPLES_MAX` for each group, about 10 kB a queue and 250 kB a group at most.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

KEPT_S = 3600.0
SPANS_MAX = 120
"""Of a queue: one for each release of assignment `Static` in an hour."""

EVENTS_MAX = 500
SAMPLE_S = 5.0
SAMPLES_MAX = int(KEPT_S / SAMPLE_S)
COLUMNS = ("rate", "publish_rate", "ready", "unacked", "oldest_s", "members", "dead_letters")

UNSERVED_AFTER_S = 3.0
"""A queue counts as unserved after so long without a server that is known, unless its server has crashed: the
successor is known from its first delivery on."""

PLANNED, CRASH = "planned", "crash"


@dataclass(frozen=True, slots=True)
class Span:
    """A queue from `at_s` on, until the next span: served by `member`, or by nobody. `cause`: planned, crash or
    empty."""

    at_s: float
    member: str | None
    cause: str = ""
    pause_s: float | None = None

    def to_json(self, until_s: float | None) -> dict[str, Any]:
        return {
            "from": milliseconds(self.at_s),
            "to": None if until_s is None else milliseconds(until_s),
            "member": self.member,
            "cause": self.cause,
            "pause_s": self.pause_s,
        }


@dataclass(frozen=True, slots=True)
class Event:
    """`kind`: moved, unserved, joined, left, crashed, paused, resumed, ingress_paused, ingress_resumed, problem, solved
    or act. `fields`: of its kind."""

    id: int
    at_s: float
    kind: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "at": milliseconds(self.at_s),
            "kind": self.kind,
            "text": self.text,
            **self.fields,
        }


class Samples:
    """The last hour of a group's rate and lag; NaN for what was unknown."""

    def __init__(self) -> None:
        self._at = array("d")
        self._columns = {name: array("d") for name in COLUMNS}
        self.due_s = 0.0

    def add(self, at_s: float, values: dict[str, float | None]) -> dict[str, Any]:
        """The sample, for an event."""
        self.due_s = at_s + SAMPLE_S
        self._at.append(at_s)
        for name, column in self._columns.items():
            value = values[name]
            column.append(math.nan if value is None else value)
        if len(self._at) >= 2 * SAMPLES_MAX:
            for column in (self._at, *self._columns.values()):
                del column[:-SAMPLES_MAX]
        return {"at": milliseconds(at_s), **values}

    def to_json(self, from_s: float, to_s: float) -> dict[str, list[Any]]:
        oldest = self._at[-SAMPLES_MAX:][0] if self._at else 0.0
        places = [place for place, at in enumerate(self._at) if max(from_s, oldest) <= at <= to_s]
        return {
            "at": [milliseconds(self._at[place]) for place in places],
            **{
                name: [None if math.isnan(column[place]) else column[place] for place in places]
                for name, column in self._columns.items()
            },
        }


class Timeline:
    """`since_s`: nothing is known before it."""

    def __init__(self, since_s: float) -> None:
        self.samples = Samples()
        self._since_s = since_s
        self._spans: dict[int, deque[Span]] = {}
        self._unserved: dict[int, float] = {}
        """Queues whose server is not known, and since when."""
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._ids = count(1)

    def serve(self, queue: int, member: str | None, now_s: float, *, is_crash: bool = False) -> Event | None:
        """The queue is served by `member`, or by nobody that is known. `is_crash`: its server has just crashed. Returns
        an event where nobody serves it from now on."""
        spans = self._spans.setdefault(queue, deque(maxlen=SPANS_MAX))
        last = spans[-1] if spans else None
        if member is not None:
            self._unserved.pop(queue, None)
            if last is None or last.member != member:
                cause = CRASH if last is not None and last.cause == CRASH and last.member is None else ""
                spans.append(Span(now_s, member, cause))
            return None
        if last is not None and last.member is None:
            return None
        since_s = self._unserved.setdefault(queue, now_s)
        if not is_crash and last is not None and now_s < since_s + UNSERVED_AFTER_S:
            return None
        del self._unserved[queue]
        cause = CRASH if is_crash else ""
        spans.append(Span(since_s, None, cause))
        if last is None:
            return None
        return self.add(
            "unserved", f"queue {queue} is served by nobody", since_s, queue=queue, member=None, cause=cause
        )

    def moved(
        self,
        queue: int,
        member: str,
        now_s: float,
        text: str,
        *,
        former: str | None,
        is_planned: bool | None,
        pause_s: float | None,
        within_s: float,
    ) -> Event:
        """Another member serves the queue. One that was seen within `within_s` is completed: a member reports a move,
        and the broker shows it."""
        self.serve(queue, member, now_s)
        spans = self._spans[queue]
        # A queue that nobody served before is taken over without a plan, too.
        unplanned = CRASH if former is not None else spans[-1].cause
        cause = {None: spans[-1].cause, True: PLANNED, False: unplanned}[is_planned]
        spans[-1] = replace(spans[-1], cause=cause, pause_s=pause_s)
        fields = {"queue": queue, "member": member, "former": former, "cause": cause, "pause_s": pause_s}
        for place in range(len(self._events) - 1, -1, -1):
            seen = self._events[place]
            if seen.at_s < now_s - within_s:
                break
            if seen.kind == "moved" and (seen.fields["queue"], seen.fields["member"]) == (queue, member):
                self._events[place] = replace(seen, text=text, fields=fields)
                return self._events[place]
        return self.add("moved", text, now_s, **fields)

    def add(self, kind: str, text: str, now_s: float, **fields: Any) -> Event:
        event = Event(next(self._ids), now_s, kind, text, fields)
        self._events.append(event)
        return event

    def forget_queues(self, numbers: Container[int]) -> None:
        """The group has these queues now, and no others."""
        for number in [one for one in self._spans if one not in numbers]:
            del self._spans[number]
            self._unserved.pop(number, None)

    def last(self, kind: str, since_s: float) -> Event | None:
        """The last event of this kind since then."""
        found = (one for one in reversed(self._events) if one.kind == kind)
        event = next(found, None)
        return event if event is not None and event.at_s >= since_s else None

    def to_json(self, now_s: float, from_s: float | None = None, to_s: float | None = None) -> dict[str, Any]:
        """All that is kept between the two; None: from an hour ago, and to now."""
        begin = max(now_s - KEPT_S, from_s or 0.0)
        end = now_s if to_s is None else min(to_s, now_s)
        return {
            "from": milliseconds(begin),
            "to": milliseconds(end),
            "at": milliseconds(now_s),
            "known_from": milliseconds(max(self._since_s, now_s - KEPT_S)),
            "queues": [
                {
                    "number": queue,
                    "known_from": milliseconds(max(spans[0].at_s, self._since_s) if spans else now_s),
                    "spans": list(_spans_json(spans, begin, end)),
                }
                for queue, spans in sorted(self._spans.items())
            ],
            "events": [one.to_json() for one in self._events if begin <= one.at_s <= end],
            "samples": self.samples.to_json(begin, end),
        }


def _spans_json(spans: deque[Span], begin: float, end: float) -> Iterator[dict[str, Any]]:
    listed = list(spans)
    for place, span in enumerate(listed):
        until = listed[place + 1].at_s if place + 1 < len(listed) else None
        if span.at_s <= end and (until is None or until > begin):
            yield span.to_json(until)


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
