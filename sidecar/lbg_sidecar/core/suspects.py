"""Suspects: messages whose call ran when a member's process died.

docs/adr/0074-suspects-are-called-alone.md. All of it is a hint: without it a message is called as any other. What ran
with others at one death is called as before: most processes are killed from outside. What ran at the next death, too,
or ran alone, is called while no other call runs, so that a further death says which message was the cause: that is a
failed attempt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Self

from lbg_core.group.member_state import HeldSuspect, Suspected
from lbg_core.group.members_protocol import SUSPECTS_MAX, Hello, Message, SuspectReport
from lbg_core.group.sequences import MessageIdentity
from lbg_sidecar.core.binding import Binding
from lbg_sidecar.core.delivery import InFlight, Outcome, Suspect
from lbg_sidecar.core.dispatcher import Turn
from lbg_sidecar.core.effects import Post
from lbg_sidecar.core.part import Context, Part
from lbg_sidecar.core.status_report import ID_MAX_CHARS, KEY_MAX_CHARS, KEYS_REPORTED_MAX
from lbg_sidecar.message import Verdict

REMEMBERED_S = 3600.0
"""From the last report on, of a suspect that was not delivered here since. Its message may be settled elsewhere."""

WAIT_MIN_S = 2.0
"""Before the call of a suspect that was reported: members that died of it one after another, and start together, report
it to each other first. Without that, three members made twelve calls for three attempts."""


class SuspectReports(Part):
    """Suspects that members report to each other. `known` is made with the first one: until then no message is looked
    up."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.known: Suspects | None = None
        self._context = context

    def resume(self, former: Self) -> None:
        if former.known is not None:
            self.known = Suspects(self._context)
            self.known.resume(former.known)

    def handlers(self) -> Mapping[type[Message], Callable[[Any, float], None]]:
        return {Hello: self._hello_received, SuspectReport: self._report_received}

    def connected(self, now: float) -> None:
        self._report()

    def merge(self, reports: Iterable[Suspected], now: float) -> tuple[Suspected, ...]:
        """These messages were called when the process of a member died. Returns what is known of them here and is
        later."""
        if self.known is None:
            self.known = Suspects(self._context)
        later = self.known.merge(reports, now)
        self.known.mark(self._bindings.held())
        return later

    def _hello_received(self, hello: Hello, now: float) -> None:
        """The sender does not know them yet."""
        if self._roster.me is not None and hello.sender.incarnation != self._roster.me.incarnation:
            self._report(to=hello.sender.index)

    def _report_received(self, report: SuspectReport, now: float) -> None:
        """One of a member that is not known to be live uses up no message's attempts: it is called at least once
        more."""
        me, sender = self._roster.me, report.sender
        if me is None or sender.incarnation == me.incarnation:
            return
        peer = self._roster.peers.get(sender.index)
        reports: Iterable[Suspected] = report.suspects
        if peer is None or peer.identity != sender:
            most = self._dispatcher.rules.max_attempts - 1
            reports = [replace(one, attempts=min(one.attempts, most)) for one in reports]
        if later := self.merge(reports, now):
            self._effects.append(Post(SuspectReport(me, later), to=sender.index))

    def _report(self, *, to: int | None = None) -> None:
        me = self._roster.me
        if me is not None and self.known is not None and (reports := self.known.report()):
            self._effects.append(Post(SuspectReport(me, reports), to=to))


class Suspects(Part):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._known: OrderedDict[MessageIdentity, Suspect] = OrderedDict()
        """The one reported last is the last."""
        self._alone: InFlight | None = None

    def resume(self, former: Self) -> None:
        self._known, self._alone = former._known, former._alone

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

    def arrived(self, arrivals: list[InFlight], now: float) -> list[InFlight]:
        self.mark(arrivals)
        return arrivals

    def may_take(self) -> bool:
        """False while a suspect is called: nothing else starts."""
        return self._alone is None or self._alone.is_aborted

    def turn(self, in_flight: InFlight, now: float) -> Turn:
        """A suspect waits in its lane, or is not called any more."""
        suspect, dispatcher = in_flight.suspect, self._dispatcher
        if suspect is None:
            return Turn.CALL
        dispatcher.count_attempts(in_flight)
        in_flight.earlier = max(in_flight.earlier, suspect.last.attempts - in_flight.calls)
        if (
            in_flight.attempts >= dispatcher.rules.max_attempts
            and in_flight not in in_flight.attachment.poisoned
        ):
            reason = f"member {suspect.last.member} died when it was called"
            if dispatcher.exhaust(in_flight, reason):
                return Turn.LATER
            in_flight.reason = reason
            dispatcher.poison(in_flight, now)
        if not suspect.last.is_called_alone:
            return Turn.CALL
        if suspect.due is None:
            deaths = max(suspect.last.attempts, suspect.last.calls - 1)
            suspect.due = now + max(WAIT_MIN_S, dispatcher.wait_s(deaths))
        if now < suspect.due:
            self._lanes.delay(in_flight, suspect.due)
            return Turn.LATER
        if all(one.is_aborted for one in self._lanes.running):
            return Turn.CALL
        self._lanes.put_back(in_flight)
        return Turn.ALONE

    def called(self, in_flight: InFlight) -> None:
        """Others are told before its call, in case that the process does not survive it."""
        suspect = in_flight.suspect
        if suspect is None or not suspect.last.is_called_alone:
            return
        self._alone = in_flight
        suspect.last = replace(suspect.last, attempts=in_flight.attempts, calls=suspect.last.calls + 1)
        self._post(suspect.last)

    def ended(self, in_flight: InFlight, verdict: Verdict, now: float) -> None:
        """The process lives."""
        suspect, was_alone = in_flight.suspect, self._alone is in_flight
        if was_alone:
            self._alone = None
        if suspect is None:
            return
        if not suspect.last.is_called_alone:
            in_flight.suspect = None
            self._known.pop(suspect.last.identity, None)
        elif was_alone:
            suspect.last = replace(suspect.last, attempts=in_flight.attempts)

    def settled(self, in_flight: InFlight) -> None:
        """Its message is settled. If it is parked, and released later, its attempts are counted from 0."""
        suspect, identity = in_flight.suspect, in_flight.identity
        if suspect is None or identity is None or in_flight.outcome is Outcome.FORWARDED:
            return
        if in_flight.outcome is Outcome.PARKED:
            suspect.last = replace(suspect.last, attempts=0, calls=0, parked=suspect.last.parked + 1)
            suspect.due = None
            self._post(suspect.last)
        else:
            self._known.pop(identity, None)

    def _post(self, suspected: Suspected) -> None:
        if (me := self._roster.me) is not None:
            self._effects.append(Post(SuspectReport(me, (suspected,))))

    def queue_fields(self, binding: Binding) -> Mapping[str, Any]:
        """Those in flight that are called alone; one whose id is too long for a report is left out."""
        if binding.attachment is None:
            return {}
        found = (
            HeldSuspect(
                one.id,
                one.key and one.key[:KEY_MAX_CHARS],
                max(one.attempts, one.suspect.last.attempts) - one.is_called,
                one.suspect.last.member,
            )
            for one in binding.attachment.ack_window.all_unacked()
            if one.suspect is not None and one.suspect.last.is_called_alone
            if one.outcome is None and len(one.id) <= ID_MAX_CHARS
        )
        return {"suspects": tuple(islice(found, KEYS_REPORTED_MAX))}
