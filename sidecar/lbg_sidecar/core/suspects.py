"""Suspects: messages whose call ran when a member's process died.

docs/adr/0074-suspects-are-called-alone.md. All of it is a hint: without it a message is called as any other. What ran
with others at one death is called as before: most processes are killed from outside. What ran at the next death, too,
or ran alone, is called while no other call runs, so that a further death says which message was the cause: that is a
failed attempt.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace

from lbg_core.group.members_protocol import SUSPECTS_MAX, Suspected
from lbg_core.group.sequences import MessageIdentity
from lbg_sidecar.core.delivery import InFlight, Outcome, Suspect
from lbg_sidecar.core.lanes import Lanes

REMEMBERED_S = 3600.0
"""From the last report on, of a suspect that was not delivered here since. Its message may be settled elsewhere."""

WAIT_MIN_S = 2.0
"""Before the call of a suspect that was reported: members that died of it one after another, and start together, report
it to each other first. Without that, three members made twelve calls for three attempts."""


class Turn(enum.Enum):
    """Decision about a suspect on its turn. `LATER`: its time has not come, and others go on. `ALONE`: it waits for the
    calls that run, and no other starts before it."""

    CALL = enum.auto()
    LATER = enum.auto()
    ALONE = enum.auto()


class Suspects:
    """`wait_s` gives the wait before the next call by the number of failed attempts, or of deaths."""

    def __init__(self, lanes: Lanes, wait_s: Callable[[int], float]) -> None:
        self._lanes = lanes
        self._wait_s = wait_s
        self._known: OrderedDict[MessageIdentity, Suspect] = OrderedDict()
        """The one reported last is the last."""
        self._alone: InFlight | None = None
        self.outgoing: list[Suspected] = []
        """For the other members."""

    def report(self) -> tuple[Suspected, ...]:
        return tuple(one.last for one in self._known.values())

    def merge(self, reports: Iterable[Suspected], now: float) -> tuple[Suspected, ...]:
        """Reports of another member, or of a former process. Returns what is known here of the same suspects and is
        later."""
        known = self._known
        later = []
        for one in reports:
            suspect = known.get(one.identity)
            if suspect is None:
                known[one.identity] = Suspect(one, None, now)
            elif one.order > suspect.last.order:
                former = suspect.last.attempts if one.parked == suspect.last.parked else 0
                suspect.last = replace(one, attempts=max(one.attempts, former))
                suspect.due, suspect.reported_at = None, now
                known.move_to_end(one.identity)
            elif one.order < suspect.last.order:
                later.append(suspect.last)
        while known and (
            len(known) > SUSPECTS_MAX or next(iter(known.values())).reported_at < now - REMEMBERED_S
        ):
            known.popitem(last=False)
        return tuple(later)

    def mark(self, arrivals: Iterable[InFlight]) -> None:
        """Messages that were delivered, or were here when a report came."""
        known = self._known
        for in_flight in arrivals:
            if in_flight.identity is not None and in_flight.identity in known:
                in_flight.suspect = known[in_flight.identity]

    @property
    def runs_alone(self) -> bool:
        """True while a suspect is called: nothing else starts."""
        return self._alone is not None and not self._alone.is_aborted

    def turn(self, in_flight: InFlight, now: float) -> Turn:
        suspect = in_flight.suspect
        assert suspect is not None
        if not suspect.last.is_called_alone:
            return Turn.CALL
        if suspect.due is None:
            deaths = max(suspect.last.attempts, suspect.last.calls - 1)
            suspect.due = now + max(WAIT_MIN_S, self._wait_s(deaths))
        if now < suspect.due:
            self._lanes.delay(in_flight, suspect.due)
            return Turn.LATER
        if all(one.is_aborted for one in self._lanes.running):
            return Turn.CALL
        self._lanes.put_back(in_flight)
        return Turn.ALONE

    def started(self, in_flight: InFlight) -> None:
        """Its call begins. Others are told before, in case that the process does not survive it."""
        suspect = in_flight.suspect
        assert suspect is not None
        last = suspect.last
        if not last.is_called_alone:
            return
        self._alone = in_flight
        suspect.last = replace(last, attempts=in_flight.attempts, calls=last.calls + 1)
        self.outgoing.append(suspect.last)

    def ended(self, in_flight: InFlight) -> None:
        """Its call has ended, in whatever way, and the process lives."""
        suspect = in_flight.suspect
        if suspect is None:
            return
        if not suspect.last.is_called_alone:
            in_flight.suspect = None
            self._known.pop(suspect.last.identity, None)
        elif self._alone is in_flight:
            self._alone = None
            suspect.last = replace(suspect.last, attempts=in_flight.attempts)

    def settled(self, in_flight: InFlight) -> None:
        """Its message is settled. If it is parked, and released later, its attempts are counted from 0."""
        suspect, identity = in_flight.suspect, in_flight.identity
        if suspect is None or identity is None or in_flight.outcome is Outcome.FORWARDED:
            return
        if in_flight.outcome is Outcome.PARKED:
            suspect.last = replace(suspect.last, attempts=0, calls=0, parked=suspect.last.parked + 1)
            suspect.due = None
            self.outgoing.append(suspect.last)
        else:
            self._known.pop(identity, None)
