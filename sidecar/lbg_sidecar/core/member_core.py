"""`MemberCore`: a member, as far as every mode has it: its presence, its calls, and the parts that it passes events to.

It has an index, is in the live set, calls the application, acknowledges what is done, leaves and stands down. No
asyncio, sockets or clock in here. The shell feeds it, runs `effects` in order after each input, and reports what came
of them. The broker alone decides who gets messages (docs/internals/assignment.md); what a machine owes is that it
calls the application only while its attachment lives, one call at a time in a lane, and acknowledges what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar

from lbg_core.group import TO_OBSERVERS
from lbg_core.group.members_protocol import Beat, Message
from lbg_sidecar.core.acks import AckScheduler
from lbg_sidecar.core.call_breaker import CallBreaker
from lbg_sidecar.core.delivery import Attachment, InFlight, Processed
from lbg_sidecar.core.dispatcher import Dispatcher, Rules
from lbg_sidecar.core.effects import (
    AwaitWill,
    Exit,
    LiveSet,
    Paused,
    Post,
    StoodDown,
    TimedOut,
)
from lbg_sidecar.core.finished import FinishedMessages
from lbg_sidecar.core.hooks import Hooks
from lbg_sidecar.core.membership import Membership
from lbg_sidecar.core.message_states import NO_HOLD, State
from lbg_sidecar.core.pace_meter import PaceMeter
from lbg_sidecar.core.part import Context, Part
from lbg_sidecar.core.presence import Presence, Stage
from lbg_sidecar.core.queue_bindings import (
    GIVE_BACK_AT,
    BalancingRules,
    Bindings,
    BrokerAssignedAttachments,
)
from lbg_sidecar.core.report_schedule import ReportSchedule
from lbg_sidecar.core.requests import Requests
from lbg_sidecar.core.roster import Roster
from lbg_sidecar.core.status_report import ActivityMonitor, description_of, status_report
from lbg_sidecar.core.suspects import SuspectReports
from lbg_sidecar.core.timings import Timings
from lbg_sidecar.message import Verdict

Kind = TypeVar("Kind", bound=Part)

TICK_LEAVING_S = 0.1
TICK_S = 0.6
"""A little less than between two pings while the live set changes, which are due at the same ticks."""


@dataclass(frozen=True, slots=True)
class Setup:
    """`incarnation` returns an id that nobody has, `uniform` a number from 0 up to 1. `former`: the same member while
    the group had another number of queues, between two connections."""

    name: str
    _: KW_ONLY
    balancing: BalancingRules
    rules: Rules
    timings: Timings
    uniform: Callable[[], float]
    incarnation: Callable[[], str]
    former: MemberCore | None = None


class MemberCore:
    """`native`: what is particular to attachments to a queue that the broker shares out; None where members do."""

    def __init__(self, setup: Setup, *, native: BrokerAssignedAttachments | None = None) -> None:
        former, timings, uniform = setup.former, setup.timings, setup.uniform
        self.name = setup.name
        self.rules = balancing = copy(setup.balancing)
        hooks = Hooks()
        self._presence: Presence = Presence() if former is None else former._presence
        if former is None:
            self.dispatcher = Dispatcher(setup.rules, Processed(queue_count=balancing.queue_count), uniform)
        else:
            self.dispatcher = former.dispatcher
        self.dispatcher.use(hooks)
        self.dispatcher.processed.queues_of = lambda hash_: (hash_ % balancing.queue_count,)
        self.dispatcher.is_cut_off = True
        self.effects = self.dispatcher.effects
        self.roster = Roster(timings)
        self.membership = Membership(
            self.roster, timings, self.effects, uniform=uniform, new_id=setup.incarnation
        )
        self.bindings = Bindings(
            balancing, self.dispatcher, self.membership, self._presence, uniform=uniform, native=native
        )
        self._reports = ReportSchedule(timings, uniform)
        self._acks = AckScheduler(
            self.dispatcher.unacked,
            self.effects,
            frames_are_lost=self.bindings.frames_are_lost,
        )
        self.context = Context(
            balancing,
            timings,
            hooks,
            self.dispatcher,
            self.bindings,
            self.membership,
            self._presence,
            self._reports,
            self._acks,
            uniform,
            setup.incarnation,
        )
        self._awaited_will: int | None = None
        self._live: frozenset[int] = frozenset()
        self._lost = 0  # what was at work when the connection went, while there is none
        self._forced_before: int | None = None  # the count when the leave began
        if former is not None:
            self._lost, self._forced_before = former._lost, former._forced_before
            self.bindings.consumer_timeout_s = former.bindings.consumer_timeout_s
        self.suspects = SuspectReports(self.context)
        self.breaker = CallBreaker(self.context)
        self.finished: FinishedMessages = FinishedMessages() if former is None else former.finished
        self.requests = Requests(self.context, ActivityMonitor(self.context), self.finished)
        PaceMeter(self.context, self.finished)
        self._on_observed, self._on_after = hooks.of(Part.observed), hooks.of(Part.after)
        self._on_activated, self._on_progressed = hooks.of(Part.activated), hooks.of(Part.progressed)
        self._on_flushed, self._on_tick = hooks.of(Part.flushed), hooks.of(Part.tick)
        self._dues = hooks.of(Part.next_due)

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(self.context.hooks.parts)

    def part(self, kind: type[Kind]) -> Kind | None:
        """The part of this kind; None if this member has no use for it."""
        return self.context.hooks.find(kind)

    @property
    def leaving(self) -> str | None:
        """Reason for which this member hands its queues over, or has none; None while it takes part."""
        return self._presence.why

    @property
    def delivered_again(self) -> int:
        """Of a member that leaves: how many messages that were at work it could not wait for, or lost with its last
        connection. Others get them."""
        if self._forced_before is None:
            return 0
        return self.dispatcher.counts.forced - self._forced_before + self._lost

    # The connection

    def connected(self, index: int, now: float) -> None:
        """The mailbox of `index` is declared, bound and consumed: takes part, again if it had stood down."""
        self.dispatcher.is_cut_off = False
        self._lost = 0
        self._awaited_will = None
        if self._presence.joined():
            self.roster.leave(False)
        self.membership.join(index, self.name, now)
        self._reports.joined(now)
        for part in self.parts:
            part.connected(now)
        self._leave_if_due(now)
        self.bindings.attach_due(now)
        self._after(now)

    def disconnected(self, now: float) -> None:
        """A connection is lost, or counts as lost. Nothing is dispatched or acknowledged from here on."""
        self.dispatcher.is_cut_off = True
        self._lost = self.bindings.lost()
        self.membership.disconnected()
        for part in self.parts:
            part.disconnected(now)
        self._after(now)

    # The members exchange

    def message(self, message: Message, now: float) -> None:
        self.membership.receive(message, now)
        for handler in self.context.hooks.handlers.get(type(message), ()):
            handler(message, now)
        self._observe(now)

    def returned(self, message: Message, to: int, now: float) -> None:
        """A message to one member came back."""
        self.membership.returned(message, to, now)
        self._after(now)

    def willed(self, index: int, now: float) -> None:
        """The broker delivered the last will of the member with this index: it may be gone."""
        self.membership.willed(index, now)
        self._after(now)

    def will_watched(self, index: int | None, now: float) -> None:
        """The broker would deliver the last will of the member with this index, and of no other; None: of none."""
        self.membership.ring.will_watched(index, now)

    def pause(self, is_paused: bool, now: float) -> None:
        """Starts no new call from now on, or goes on; calls that run end. The queues stay here."""
        if self.dispatcher.paused != is_paused:
            self.dispatcher.paused = is_paused
            self._reports.changed(now)
            self.effects.append(Paused(is_paused))

    # Queues

    def attached(self, attachment: Attachment, now: float) -> None:
        """The broker has the consumer."""
        binding = self.bindings.attached(attachment)
        if binding is None:
            return
        for part in self.parts:
            part.attached(binding, now)
        self._reports.changed(now)
        self.bindings.attach_due(now)

    def closed(self, attachment: Attachment, now: float) -> None:
        """The attachment's channel is closed, or never came to be; both ways nothing more comes from it."""
        binding = self.bindings.closed(attachment, now)
        if binding is None:
            return
        self._reports.changed(now)
        for part in self.parts:
            part.closed(binding, now)
        self.bindings.attach_due(now)
        self._after(now)

    def refused(self, attachment: Attachment, code: int, why: str) -> bool:
        """The broker refused the consumer (`code`: AMQP 0-9-1, section 1.2); `closed` follows. True if it is logged."""
        return any(part.refused(attachment, code, why) for part in self.parts)

    def cancelled(self, attachment: Attachment) -> bool:
        """The broker ended the consumer; `closed` follows. True if it is logged."""
        return any(part.cancelled(attachment) for part in self.parts)

    def timed_out(self, attachment: Attachment, timeout_s: float) -> None:
        """The broker closed the channel because a delivery was unacknowledged for too long; `closed` follows."""
        self.effects.append(TimedOut(attachment.queue, timeout_s, self.bindings.consumer_timeout_s))
        self.bindings.consumer_timeout_s = min(self.bindings.consumer_timeout_s, timeout_s)

    def deliver(self, attachment: Attachment, arrivals: list[InFlight], now: float) -> None:
        if not attachment.delivered and not attachment.closed:
            self.bindings.activate(self.bindings.all[attachment.queue], now)
            for activated in self._on_activated:
                activated(attachment, arrivals[0], now)
        self.dispatcher.deliver(attachment, arrivals, now)

    def revoked(self, attachment: Attachment, tags: Collection[int], now: float, *, reassigned: bool) -> None:
        if not attachment.closed:
            for part in self.parts:
                part.revoked(attachment, tags, now, reassigned=reassigned)
            self._after(now)

    def counted(self, queue: int, ready: int | None, consumers: int | None, now: float) -> None:
        """So many messages wait in the queue, which has so many consumers; None when the count failed. RabbitMQ 3.10
        counts one consumer at most where there is a single active one."""
        for part in self.parts:
            part.counted(queue, ready, consumers, now)

    # Calls

    def take(self, now: float) -> InFlight | None:
        """The next call to make, or None. Every call taken must be reported to `end`."""
        return self.dispatcher.take(now)

    def end(self, in_flight: InFlight, verdict: Verdict, now: float) -> None:
        self.dispatcher.end(in_flight, verdict, now)
        self._progress(in_flight, now)

    def extend(self, in_flight: InFlight, seconds: float, now: float, progress: str | None = None) -> float:
        """As `Dispatcher.extend`, until the message is given back because it is unacknowledged for too long."""
        until = in_flight.received_at + self.bindings.consumer_timeout_s * GIVE_BACK_AT
        return self.dispatcher.extend(in_flight, seconds, now, until=until, progress=progress)

    def confirmed(self, in_flight: InFlight, now: float) -> None:
        """The broker has what was published of a message."""
        if not in_flight.attachment.closed:
            self.dispatcher.confirmed(in_flight)
            self._progress(in_flight, now)

    def _progress(self, in_flight: InFlight, now: float) -> None:
        attachment = in_flight.attachment
        if in_flight.is_recalled and in_flight.state is State.DONE:
            self._acks.settle_now(attachment, (in_flight,), now)
        if attachment.holds is not NO_HOLD:
            self._progressed(attachment, now)

    def _progressed(self, attachment: Attachment, now: float) -> None:
        if attachment.paused and not attachment.closed:
            for progressed in self._on_progressed:
                progressed(attachment, now)

    def flush(self, now: float) -> float:
        """Acknowledge what is due; returns when the next ack will be, or infinity."""
        due = self._acks.flush(now)
        for flushed in self._on_flushed:
            flushed(now)
        return due

    # Streams

    def entries(self, follower: type[Part], entries: Sequence[Any], now: float) -> None:
        """Entries of the stream that this kind of part follows, in its order, from its first one on with each
        connection."""
        if (part := self.part(follower)) is not None:
            part.read(entries, now)
        for binding in list(self.bindings.bound.values()):
            if binding.attachment is not None:
                self._progressed(binding.attachment, now)
        self._after(now)

    def absent(self, follower: type[Part], now: float) -> None:
        """There is no such stream, or none any more."""
        if (part := self.part(follower)) is not None:
            part.absent(now)
        self._after(now)

    def recorded(self, in_flight: InFlight, now: float) -> None:
        """A stream has the entry of this message."""
        for part in self.parts:
            part.recorded(in_flight)
        self._progress(in_flight, now)

    # Time

    def tick(self, now: float) -> None:
        if self._presence.stage is Stage.GONE:
            return
        if self.roster.me is not None:
            horizon = self.membership.ring.horizon(now, self._reports.due)
            is_due = self._reports.due <= horizon and self._reports.takes(report := self.content(), now)
            if is_due and not self.roster.is_leaving:
                self.effects.append(Post(report, to=TO_OBSERVERS))
            self.membership.tick(now, horizon)
        will = self.membership.ring.awaited_will(now)
        if will != self._awaited_will:
            self._awaited_will = will
            self.effects.append(AwaitWill(will))
        self.dispatcher.tick(now)
        for tick in self._on_tick:
            tick(now)
        self.bindings.attach_due(now)
        self._after(now)

    def next_due(self, now: float) -> float:
        """Time of the next tick, at the latest."""
        is_leaving, dispatcher = self._presence.why is not None, self.dispatcher
        due = now + (TICK_LEAVING_S if is_leaving else TICK_S)
        wake = dispatcher.lanes.next_due()
        if wake is not None and wake < due:
            due = wake
        if dispatcher.running and (late_at := dispatcher.next_due) < due:
            due = late_at
        for next_due in self._dues:
            if (part_due := next_due(now)) < due:
                due = part_due
        if self.roster.me is None:
            return due
        due = min(due, self._reports.due, self.membership.next_due)
        return due if is_leaving else min(due, self.bindings.next_due(now))

    def stop(self, why: str, now: float) -> None:
        """Leaves: hands every queue over, then exits. When the grace period is over, or with the second call, running
        calls are cut off, and the wait for the broker's answers to the closes is short."""
        if self._forced_before is None:
            self._forced_before = self.dispatcher.counts.forced
        if self._presence.stop(why, now, grace_s=self.rules.shutdown_grace_s):
            self._leave(now)
        self._after(now)

    def stand_down(self, why: str, now: float) -> None:
        """Hands every queue over, because the application cannot take messages: `StoodDown` when that is done. Its
        running calls get the time of a handoff to end. The next `connected` joins again."""
        if self._presence.stand_down(why, now, within_s=self.rules.max_handoff_s):
            self._leave(now)
            self._after(now)

    # For a view, and for the others

    def content(self) -> Beat:
        """This member's status report: of the queues that it consumes or should consume."""
        return status_report(self.context)

    def describe(self, now: float) -> dict[str, Any]:
        """State of this member as plain data, for a view."""
        return {**description_of(self.context, now), "delivered_again": self.delivered_again}

    # Inside

    def resume(self, former: MemberCore | None) -> None:
        """With the last part made: each continues the one of its kind."""
        if former is not None:
            for part in self.parts:
                if (former_part := former.part(type(part))) is not None:
                    part.resume(former_part)

    def _leave(self, now: float) -> None:
        for part in self.parts:
            part.leaving(now)
        self.membership.leave()

    def _leave_if_due(self, now: float) -> None:
        for part in self.parts:
            if why := part.reason_to_leave():
                self.stop(why, now)

    def _observe(self, now: float) -> None:
        """Checks for a change of the live set."""
        live = self.roster.live
        if live is not self._live and live != self._live:
            self._live = live
            self.effects.append(LiveSet(live))
            for part in self.parts:
                part.live_changed(now)
        for observed in self._on_observed:
            observed(now)

    def _after(self, now: float) -> None:
        """After each event and tick: does what is due for the queues."""
        self._observe(now)
        self._leave_if_due(now)
        for after in self._on_after:
            after(now)
        if self._presence.is_handing_over and (not self.bindings.bound or self._presence.is_overdue(now)):
            is_final = self._presence.emptied() is Stage.GONE
            self.effects.append(Exit() if is_final else StoodDown())
