"""`MemberCore`: the part of a member that every mode has.

It has an index, is in the live set, calls the application, acknowledges what is done, leaves and stands down. No
asyncio, sockets or clock in here. The shell feeds it, runs `effects` in order after each input, and reports what came
of them. The broker alone decides who gets messages (docs/assignment.md); what a machine owes is that it calls the
application only while its attachment lives, one call at a time in a lane, and acknowledges what is done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from dataclasses import replace
from typing import Any

from lbg_core.group.key_moves import Entry as KeyMoveEntry
from lbg_core.group.members_protocol import (
    ANSWER_PREFIX,
    Beat,
    HeldState,
    Hello,
    Message,
    Peek,
    Skip,
    SkipOutcome,
    Skipped,
    Suspected,
    SuspectReport,
    Takeover,
    Watch,
)
from lbg_core.group.parked_keys import Entry
from lbg_sidecar.core.acks import AckScheduler
from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome, Processed
from lbg_sidecar.core.dispatcher import Dispatcher, NextCall, Rules, held_state
from lbg_sidecar.core.effects import (
    Abort,
    AwaitWill,
    CallFailed,
    DeadLetter,
    Done,
    Effect,
    Exit,
    Failure,
    Paused,
    Poisoned,
    Post,
    Reassigned,
    Recalled,
    Republish,
    Requeue,
    Show,
    StoodDown,
    TimedOut,
    Withdraw,
)
from lbg_sidecar.core.presence import Presence, Stage
from lbg_sidecar.core.queue_bindings import BalancingRules, Bindings, BrokerAssignedAttachments
from lbg_sidecar.core.roster import Roster
from lbg_sidecar.core.status_report import ActivityMonitor, takeover_report
from lbg_sidecar.core.suspects import Suspects
from lbg_sidecar.core.timings import Timings
from lbg_sidecar.message import Kind, Verdict

TICK_LEAVING_S = 0.1
TICK_S = 0.6
"""A little less than between two pings while the live set changes, which are due at the same ticks."""

SHOWN_MAX = 1000
"""Messages in an answer to a peek."""

_NOT_SKIPPED = {
    HeldState.PROCESSED: SkipOutcome.PROCESSED,
    HeldState.PARKING: SkipOutcome.PARKING,
    HeldState.MOVING: SkipOutcome.MOVING,
}
"""Answers about messages in these states; in any other a message is not poisoned, or is skipped."""

_SKIPPED = {Outcome.DEAD: SkipOutcome.DEAD_LETTER, Outcome.ACK: SkipOutcome.PROCESSED}
"""Answers about messages that were to be skipped, by their outcome."""


class MemberCore(ABC):
    """`native`: what is particular to attachments to a queue that the broker shares out; None where members do.
    `former`: the same member while the group had another number of queues, between two connections."""

    moves_keys = False
    """True if the broker moves keys from member to member, and not queues."""

    def __init__(
        self,
        name: str,
        *,
        balancing: BalancingRules,
        rules: Rules,
        timings: Timings,
        uniform: Callable[[], float],
        incarnation: Callable[[], str],
        native: BrokerAssignedAttachments | None = None,
        former: MemberCore | None = None,
    ) -> None:
        self.name = name
        self.effects: list[Effect] = []
        self.rules = balancing = copy(balancing)
        if former is None:
            self.dispatcher = Dispatcher(rules, Processed(queue_count=balancing.queue_count), uniform)
        else:
            self.dispatcher = former.dispatcher
        self.dispatcher.processed.queues_of = lambda hash_: (hash_ % balancing.queue_count,)
        self.dispatcher.fenced = True
        self.bindings = Bindings(balancing, self.dispatcher, self.effects, uniform=uniform, native=native)
        self.roster = Roster(timings, uniform=uniform, content=self.content, incarnation=incarnation)
        self._ack_scheduler = AckScheduler(
            interval_s=balancing.ack_interval_s,
            effects=self.effects,
            frames_are_lost=self.bindings.frames_are_lost,
        )
        self._presence = Presence()
        self.step_s = TICK_S
        """Seconds to the next tick, if nothing is due before."""
        self.activity: ActivityMonitor = ActivityMonitor() if former is None else former.activity
        self._awaited_will: int | None = None
        self._skips: list[
            tuple[InFlight, str]
        ] = []  # messages that are to be dead letters, and whom to answer
        self._lost = 0  # what was at work when the connection went, while there is none
        self._forced_before: int | None = None  # the count when the leave began
        if former is not None:
            self._presence, self._lost, self._forced_before = (
                former._presence,
                former._lost,
                former._forced_before,
            )
            self.bindings.consumer_timeout_s = former.bindings.consumer_timeout_s

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

    @abstractmethod
    def connected(self, index: int, now: float) -> None:
        """The mailbox of `index` is declared, bound and consumed: take part."""

    @abstractmethod
    def disconnected(self, now: float) -> None:
        """A connection is lost, or counts as lost. Nothing is dispatched or acknowledged from here on."""

    def _join(self, index: int, now: float) -> bool:
        """Be in the live set. True for a member that had stood down, and takes part again."""
        self.dispatcher.fenced = False
        self._lost = 0
        self._awaited_will = None
        is_back = self._presence.joined()
        if is_back:
            self.roster.cancel_leave()
        self._post(self.roster.join(index, self.name, now))
        self._report_suspects()
        return is_back

    def _disconnect(self) -> None:
        self.dispatcher.fenced = True
        self._lost = self.bindings.lost()
        self.roster.disconnected()

    # The members exchange

    @abstractmethod
    def message(self, message: Message, now: float) -> None: ...

    def suspected(self, reports: Iterable[Suspected], now: float) -> tuple[Suspected, ...]:
        """These messages were called when the process of a member died. Returns what is known of them here and is
        later."""
        dispatcher = self.dispatcher
        if dispatcher.suspects is None:
            dispatcher.suspects = Suspects(dispatcher.lanes, dispatcher.wait_after)
        later = dispatcher.suspects.merge(reports, now)
        dispatcher.suspects.mark(self._held())
        return later

    def _suspects_received(self, message: Message, now: float) -> None:
        """A member reports suspects, or is new and does not know them yet. A report of one that is not known to be live
        uses up no message's attempts: it is called at least once more."""
        me = self.roster.me
        if me is None or not isinstance(message, SuspectReport | Hello):
            return
        sender = message.sender
        if sender.incarnation == me.incarnation:
            return
        if isinstance(message, Hello):
            self._report_suspects(to=sender.index)
        else:
            peer = self.roster.peers.get(sender.index)
            reports: Iterable[Suspected] = message.suspects
            if peer is None or peer.identity != sender:
                most = self.dispatcher.rules.max_attempts - 1
                reports = [replace(one, attempts=min(one.attempts, most)) for one in reports]
            if later := self.suspected(reports, now):
                self._post_suspects(later, to=sender.index)

    def _report_suspects(self, *, to: int | None = None) -> None:
        suspects = self.dispatcher.suspects
        if suspects is not None and (reports := suspects.report()):
            self._post_suspects(reports, to)

    def _post_suspects(self, reports: Iterable[Suspected], to: int | None = None) -> None:
        if (me := self.roster.me) is not None:
            self.effects.append(Post(SuspectReport(me, tuple(reports)), to=to))

    def _carry_out_take(self) -> None:
        """Carries out the ends of messages whose turn it was."""
        ended, suspects = self.dispatcher.ended_in_take, self.dispatcher.suspects
        if ended:
            for in_flight, action in ended:
                self._carry_out(in_flight, action)
                if action is NextCall.DEAD_LETTER:
                    self._report_call(Failure.REFUSED, in_flight)
            ended.clear()
        if suspects is not None and suspects.outgoing:
            self._post_suspects(suspects.outgoing)
            suspects.outgoing.clear()

    def returned(self, message: Message, to: int, now: float) -> None:
        """A message to one member came back."""
        self._post(self.roster.returned(message, to, now))
        self._after(now)

    def willed(self, index: int, now: float) -> None:
        """The broker delivered the last will of the member with this index: it may be gone."""
        self._post(self.roster.willed(index, now))
        self._after(now)

    def will_watched(self, index: int | None, now: float) -> None:
        """The broker would deliver the last will of the member with this index, and of no other; None: of none."""
        self.roster.will_watched(index, now)

    def pause(self, is_paused: bool, now: float) -> None:
        """Starts no new call from now on, or goes on; calls that run end. The queues stay here."""
        if self.dispatcher.paused != is_paused:
            self.dispatcher.paused = is_paused
            self.roster.changed(now)
            self.effects.append(Paused(is_paused))

    def requested(self, request: Peek | Skip | Watch, group: str, now: float) -> None:
        """A request of an administrator."""
        if isinstance(request, Watch):
            self.roster.status_reports.watch(request.seconds, now)
            if request.keys:
                self.activity.watch(request.seconds, now)
                self.dispatcher.key_counts = self.activity.key_counts
            return
        if isinstance(request, Skip):
            self._skip(request, group)
            return
        held = [
            in_flight
            for in_flight in self._held()
            if request.queue is None or in_flight.queue == request.queue
            if request.key is None or in_flight.key == request.key
            if request.id is None or request.id in (in_flight.id, in_flight.id_in(group))
        ]
        limit = min(request.limit, SHOWN_MAX)
        shown = tuple((in_flight, held_state(in_flight)) for in_flight in held[:limit])
        self.effects.append(Show(request, len(held), shown))

    def taken_over(self, effect: Takeover) -> None:
        """A queue came to this member: report it to who watches, if somebody does."""
        if (me := self.roster.me) is not None:
            self._post([takeover_report(me, effect)])

    def _skip(self, request: Skip, group: str) -> None:
        found = (one for one in self._held() if request.id in (one.id, one.id_in(group)))
        in_flight = next(found, None)
        if in_flight is None:
            self._answer(request.answer, SkipOutcome.NOT_HELD)
            return
        state = held_state(in_flight)
        if state not in (HeldState.POISONED, HeldState.REFUSED):
            self._answer(request.answer, _NOT_SKIPPED.get(state, SkipOutcome.NOT_POISONED))
            return
        self._skips.append((in_flight, request.answer))
        if state is HeldState.REFUSED:
            return  # it was refused before
        if self.dispatcher.skip(in_flight) is NextCall.DEAD_LETTER:
            self.effects.append(DeadLetter(in_flight))
            self._report_call(Failure.REFUSED, in_flight)
        else:
            self._answer(request.answer, SkipOutcome.RUNNING)

    def _answer_skips(self) -> None:
        """Answers for messages that have an outcome now. One that was released may be in its place, a dead letter or
        both: nobody knows."""
        for in_flight, answer in self._skips:
            if in_flight.outcome in _SKIPPED:
                self._answer(answer, _SKIPPED[in_flight.outcome])
        self._skips = [one for one in self._skips if one[0].outcome is None]

    def _answer(self, answer: str, outcome: SkipOutcome) -> None:
        if (me := self.roster.me) is not None:
            self.effects.append(Post(Skipped(me, outcome), to=f"{ANSWER_PREFIX}{answer}"))

    def _held(self) -> Iterator[InFlight]:
        """Messages that this member holds, and has not settled, of each queue in the order of delivery."""
        for binding in self.bindings.own():
            attachment = binding.attachment
            if attachment is not None and not attachment.closed:
                for in_flight in attachment.ack_window.all_unacked():
                    is_open = in_flight.outcome is None and not in_flight.is_over
                    if is_open and not in_flight.ends_session and in_flight.fence is None:
                        yield in_flight

    # Queues

    @abstractmethod
    def attached(self, attachment: Attachment, now: float) -> None:
        """The broker has the consumer."""

    @abstractmethod
    def closed(self, attachment: Attachment, now: float) -> None:
        """The attachment's channel is closed, or never came to be; both ways nothing more comes from it."""

    @abstractmethod
    def refused(self, attachment: Attachment, code: int, why: str) -> bool:
        """The broker refused the consumer (`code`: AMQP 0-9-1, section 1.2); `closed` follows. True if it is logged."""

    @abstractmethod
    def cancelled(self, attachment: Attachment) -> bool:
        """The broker ended the consumer; `closed` follows. True if it is logged."""

    def timed_out(self, attachment: Attachment, timeout_s: float) -> None:
        """The broker closed the channel because a delivery was unacknowledged for too long; `closed` follows."""
        self.effects.append(TimedOut(attachment.queue, timeout_s, self.bindings.consumer_timeout_s))
        self.bindings.consumer_timeout_s = min(self.bindings.consumer_timeout_s, timeout_s)

    @abstractmethod
    def deliver(self, attachment: Attachment, arrivals: list[InFlight], now: float) -> None: ...

    def revoked(self, attachment: Attachment, tags: Collection[int], now: float, *, reassigned: bool) -> None:
        """The broker recalls these deliveries for another member, or, `reassigned`, has delivered them to it. None of
        them starts here from now on. The answer is sent when the effects of this have been run."""
        if attachment.closed:
            return
        if reassigned:
            self._reassigned(attachment, tags)
        else:
            self._recalled(attachment, tags, now)
        self._after(now)

    def _recalled(self, attachment: Attachment, tags: Collection[int], now: float) -> None:
        idle, others = self.dispatcher.recall(attachment, tags)
        if idle:
            self.effects.append(Requeue(attachment, tuple(in_flight.tag for in_flight in idle)))
            self.effects.append(Done(tuple(idle), settled=False))
        self._ack_scheduler.settle_now(attachment, others, now)
        at_work = [in_flight for in_flight in others if in_flight.outcome is None]
        queues = () if self.moves_keys else _queues_of((*idle, *others))
        self.effects.append(Recalled(queues, len(idle), len(at_work)))
        running = tuple(in_flight for in_flight in at_work if in_flight.is_called)
        if running:
            self.effects.append(Withdraw(running, reassigned=False))

    def _reassigned(self, attachment: Attachment, tags: Collection[int]) -> None:
        lost, at_work = self.dispatcher.reassign(attachment, tags)
        running = tuple(in_flight for in_flight in at_work if in_flight.is_called)
        over = tuple(in_flight for in_flight in lost if in_flight not in running)
        if running:
            self.effects.append(Withdraw(running, reassigned=True))
        if over:
            self.effects.append(
                Done(over, settled=False)
            )  # a call that still runs is journalled when it has ended
        if lost:
            self.effects.append(Reassigned(_queues_of(lost), len(at_work)))

    @abstractmethod
    def ready_counted(self, queue: int, ready: int | None, consumers: int | None, now: float) -> None:
        """So many messages wait in the queue, which has so many consumers; None when the count failed. RabbitMQ 3.10
        counts one consumer at most where there is a single active one."""

    # Calls

    def take(self, now: float) -> InFlight | None:
        """The next call to make, or None. Every call taken must be reported to `end`."""
        in_flight = self.dispatcher.take(now)
        if self.dispatcher.repeats_in:
            for attachment in self.dispatcher.repeats_in:
                self._ack_scheduler.settled(attachment)
            self.dispatcher.repeats_in.clear()
        self._carry_out_take()
        return in_flight

    def end(self, in_flight: InFlight, verdict: Verdict, now: float) -> None:
        attachment = in_flight.attachment
        failure = None if verdict.kind is Kind.ACK else _failure(in_flight, verdict)
        action = self.dispatcher.end(in_flight, verdict, now)
        if self.dispatcher.key_moves is not None:
            self.dispatcher.key_moves.call_ended()
        if self.dispatcher.suspects is not None:
            self.dispatcher.suspects.ended(in_flight)
        if in_flight.is_over:
            if action is NextCall.GIVE_BACK:
                self.effects.append(Requeue(attachment, (in_flight.tag,)))
            self.effects.append(Done((in_flight,), settled=False))
        elif self._carry_out(in_flight, action):
            pass
        elif in_flight.is_recalled:
            self._ack_scheduler.settle_now(attachment, (in_flight,), now)
        elif not attachment.unacked_listed:
            self._ack_scheduler.settled(attachment)
        if failure is not None:
            is_dead = action is NextCall.DEAD_LETTER
            self._report_call(Failure.REFUSED if is_dead else failure, in_flight)
        if attachment.paused and not attachment.closed:
            self._call_ended(attachment, now)

    def _carry_out(self, in_flight: InFlight, action: NextCall) -> bool:
        """True if the action has an effect of its own."""
        match action:
            case NextCall.DEAD_LETTER:
                self.effects.append(DeadLetter(in_flight))
            case NextCall.REPUBLISH:
                self.effects.append(Republish(in_flight))
            case NextCall.WARN:
                self.effects.append(
                    Poisoned(
                        in_flight.queue,
                        in_flight.key,
                        in_flight.identity,
                        in_flight.attempts,
                        in_flight.reason,
                    )
                )
            case _:
                return False
        return True

    def confirmed(self, in_flight: InFlight, action: NextCall, now: float) -> None:
        """The broker has the dead letter, the republished message, or the copy in the parking queue."""
        attachment = in_flight.attachment
        if attachment.closed:
            return
        is_settled = self.dispatcher.confirmed(in_flight, action)
        if not is_settled:
            return
        if in_flight.is_recalled and not in_flight.is_over:
            self._ack_scheduler.settle_now(attachment, (in_flight,), now)
        else:
            self._ack_scheduler.settled(attachment)
        if attachment.paused:
            self._call_ended(attachment, now)

    def recorded(self, in_flight: InFlight, entry: Entry, now: float) -> None:
        """The stream of parked keys has this entry of a message."""
        parking = self.dispatcher.parking
        if parking is not None and parking.recorded(in_flight, entry):
            self._recorded(in_flight, now)

    def parked_read(self, entries: Iterable[Entry], now: float) -> None:
        """Entries of the stream of parked keys, in its order, from its first one on with each connection."""
        if self.dispatcher.parking is not None:
            for in_flight in self.dispatcher.parking.read(entries, now):
                self._recorded(in_flight, now)

    def _recorded(self, in_flight: InFlight, now: float) -> None:
        attachment = in_flight.attachment
        self.dispatcher.recorded(in_flight)
        self._carry_out_take()
        if not attachment.closed:
            self._ack_scheduler.settled(attachment)
            if attachment.paused:
                self._call_ended(attachment, now)

    def key_moves_read(self, entries: Iterable[KeyMoveEntry], now: float) -> None:
        """Entries of the stream of a change of the number of queues, in its order."""
        if self.dispatcher.key_moves is not None:
            self.dispatcher.key_moves.read(entries, now)
            self._after(now)

    def key_move_absent(self, now: float) -> None:
        """There is no stream of a change, or none any more."""
        if self.dispatcher.key_moves is not None:
            self.dispatcher.key_moves.absent(now)
            self._after(now)

    def staging_found(self, move: str, is_found: bool, now: float) -> None:
        """The first staging queue of a change whose stream has no first entry was looked for."""
        if self.dispatcher.key_moves is not None:
            self.dispatcher.key_moves.staging_found(move, is_found)
            self._after(now)

    @abstractmethod
    def _call_ended(self, attachment: Attachment, now: float) -> None:
        """Something of an attachment that starts nothing new is over."""

    def flush(self, now: float) -> float:
        """Acknowledge what is due; returns when the next ack will be, or infinity."""
        if self._skips:
            self._answer_skips()
        return self._ack_scheduler.flush(now)

    # Time

    def tick(self, now: float) -> None:
        if self._presence.stage is Stage.GONE:
            return
        self._post(self.roster.tick(now))
        self._await_will(self.roster.awaited_will(now))
        if self.dispatcher.key_counts is not None and self.roster.me is not None:
            self._post(self.activity.report(self.roster.me, now))
            self.dispatcher.key_counts = self.activity.key_counts
        self.dispatcher.lanes.wake(now)
        for in_flight in self.dispatcher.slow(now):
            self._report_call(Failure.SLOW, in_flight)
        late = self.dispatcher.overdue(now)
        if late:
            self.effects.append(Abort(tuple(late)))
        self._tick(now)
        self._after(now)

    @abstractmethod
    def _tick(self, now: float) -> None: ...

    def next_due(self, now: float) -> float:
        """Time of the next tick, at the latest."""
        is_leaving, dispatcher = self._presence.why is not None, self.dispatcher
        due = now + (TICK_LEAVING_S if is_leaving else self.step_s)
        wake = dispatcher.lanes.next_due()
        if wake is not None and wake < due:
            due = wake
        if dispatcher.running and (late_at := dispatcher.next_due) < due:
            due = late_at
        if self.roster.me is None:
            return due
        due = min(due, self.roster.next_due)
        if dispatcher.key_counts is not None:
            due = min(due, self.activity.next_due)
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

    @abstractmethod
    def content(self) -> Beat:
        """This member's status report: of the queues that it consumes or should consume."""

    @abstractmethod
    def describe(self, now: float) -> dict[str, Any]:
        """State of this member as plain data, for a view."""

    # Inside

    def _leave(self, now: float) -> None:
        self._post(self.roster.leave())

    def _await_will(self, index: int | None) -> None:
        if index != self._awaited_will:
            self._awaited_will = index
            self.effects.append(AwaitWill(index))

    def _post(self, posts: list[Post]) -> None:
        self.effects.extend(posts)

    @abstractmethod
    def _after(self, now: float) -> None:
        """After each event and tick: do what is due for the queues."""

    def _report_call(self, kind: Failure, in_flight: InFlight) -> None:
        timeout_s = self.dispatcher.rules.call_timeout_s
        seconds = {Failure.SLOW: timeout_s / 2, Failure.TIMED_OUT: timeout_s}.get(kind, 0.0)
        self.effects.append(
            CallFailed(
                kind,
                in_flight.queue,
                in_flight.key,
                in_flight.identity,
                in_flight.attempts,
                in_flight.reason,
                seconds,
            )
        )

    def _report_empty(self) -> None:
        is_final = self._presence.emptied() is Stage.GONE
        self.effects.append(Exit() if is_final else StoodDown())


def _failure(in_flight: InFlight, verdict: Verdict) -> Failure | None:
    """Failure of a call that ends with this verdict; None for one that has no effect, or fell with another's abort."""
    if in_flight.is_over or verdict.kind is Kind.ACK:
        return None
    if verdict.kind is not Kind.INTERRUPTED:
        return Failure.RETRIED
    return Failure.TIMED_OUT if in_flight.abort_reason is not None else None


def _queues_of(deliveries: Iterable[InFlight]) -> tuple[int, ...]:
    return tuple(sorted({in_flight.queue for in_flight in deliveries}))
