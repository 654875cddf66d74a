"""Dispatcher: everything between a delivery and its ack, for all attachments of a member."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from lbg_core.client.backoff import Backoff
from lbg_core.counted_nouns import counted
from lbg_sidecar.core.acks import Unacked
from lbg_sidecar.core.delivery import Attachment, Extended, InFlight, Outcome, Processed, Retry
from lbg_sidecar.core.effects import (
    Abort,
    CallFailed,
    DeadLetter,
    Done,
    Effect,
    Failure,
    Republish,
    Requeue,
)
from lbg_sidecar.core.hooks import Hooks
from lbg_sidecar.core.lanes import Lanes
from lbg_sidecar.core.message_states import Event, State
from lbg_sidecar.message import AFTER_MAX_S, Kind, Verdict

LONG_WAIT_S = 60.0
"""A longer wait that an application asks for is reported: its key waits too."""

RETRY_JITTER = 0.2
RETRY = Backoff(max_s=30.0, jitter=RETRY_JITTER)


class WhenExhausted(enum.StrEnum):
    """Rule for a message whose attempts are used up. `block`: it is retried at the longest interval, and its key waits.
    `dead-letter`: it goes to the group's dead letters, and its key goes on. `park`: it goes to the group's parking
    queue, and all later messages of its key after it."""

    BLOCK = "block"
    DEAD_LETTER = "dead-letter"
    PARK = "park"


class Order(enum.StrEnum):
    """Scope of the order: the messages of a key, or all of a queue."""

    KEY = "key"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class ParkingBounds:
    """Bounds of the group's parked messages. Beyond them nothing is parked, and keys block."""

    keys: int = 1000
    messages: int = 100_000
    size_bytes: int = 256_000_000


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of processing messages; `MemberSettings` explains each value."""

    concurrency: int = 16
    order: Order = Order.KEY
    call_timeout_s: float = 30.0
    max_attempts: int = 10
    when_exhausted: WhenExhausted = WhenExhausted.BLOCK
    backoff: Backoff = RETRY
    republish: bool = False
    parking: ParkingBounds | None = None
    """None: the group has no parking queue."""


@dataclass(slots=True)
class Counts:
    """Counts since the member started.

    `given_back`: messages that had not begun when the broker recalled them for another member. `taken`: messages at
    work when the handoff time ended: they are delivered again. `forced`: messages at work (called, on the way to a
    confirm, or done and not to be acknowledged in time) when a close could not wait for them: they are delivered again.
    `aborted`: calls that ended without effect, their channel gone. `poisoned`: messages whose attempts were used up,
    and which are retried. `parked`: messages that went to the parking queue.

    `stalls`: how often this member attached anew to a queue that had messages and delivered none. `overlaps`:
    how often another member served a queue that this one counted as its own. `calls`: that have ended, in whatever way;
    `busy_us`: how long they took together, in microseconds. `during_standstill`: calls that still ran when the process
    turned out to have stood still for longer than a heartbeat.
    """

    delivered: int = 0
    acked: int = 0
    retried: int = 0
    repeats_dropped: int = 0
    dead_lettered: int = 0
    timed_out: int = 0
    aborted: int = 0
    given_back: int = 0
    taken: int = 0
    forced: int = 0
    poisoned: int = 0
    parked: int = 0
    stalls: int = 0
    overlaps: int = 0
    calls: int = 0
    busy_us: int = 0
    during_standstill: int = 0


CONFIRMED_AS = {
    State.REFUSED: Outcome.DEAD,
    State.FORWARDING: Outcome.FORWARDED,
    State.REPUBLISHING: Outcome.ACK,
}
"""Outcome of a message when the broker has confirmed what became of it."""

NOT_PROCESSED = frozenset((Outcome.REPEAT, Outcome.PARKED, Outcome.FORWARDED))
"""Outcomes that say nothing, or nothing new, about what was processed."""

MEASURED_EVERY = 8
"""Calls until the service time is computed again: it is the percentile of 256 of them."""


class Turn(enum.Enum):
    """Decision about a message on its turn. `LATER`: it is not called now, and others go on. `ALONE`: it waits for the
    calls that run, and no other starts before it."""

    CALL = enum.auto()
    LATER = enum.auto()
    ALONE = enum.auto()


class MessageHooks:
    """Events of messages, at which parts decide or count."""

    def arrived(self, arrivals: list[InFlight], now: float) -> list[InFlight]:
        """The broker delivered these. Returns those that are to be called in their turn."""
        return arrivals

    def may_take(self) -> bool:
        """False while no call may start."""
        return True

    def is_done(self, in_flight: InFlight) -> bool:
        """True for a message that was processed before, as far as this part remembers."""
        return False

    def turn(self, in_flight: InFlight, now: float) -> Turn:
        """It is the turn of this message. Where it is not called, the part has moved it to another state."""
        return Turn.CALL

    def called(self, in_flight: InFlight) -> None:
        """Its call begins."""

    def ended(self, in_flight: InFlight, verdict: Verdict, now: float) -> None:
        """Its call has ended, in whatever way, and its next state is decided."""

    def held_back(self, in_flight: InFlight, verdict: Verdict, now: float) -> float:
        """Its application reports that no call of the group can succeed. Returns the time of its next call."""
        return now

    def ended_in_vain(self, in_flight: InFlight) -> None:
        """The application processed it, and it is not this member's any more."""

    def exhausted(self, in_flight: InFlight, reason: str) -> bool:
        """Its attempts are used up. True if the part has moved it to another state."""
        return False

    def settles(self, in_flight: InFlight, outcome: Outcome) -> bool:
        """It is to be settled with this outcome. True if the part will do it, when that is recorded."""
        return False

    def confirmed(self, in_flight: InFlight) -> bool:
        """The broker has what was published of it. True if that does not settle it."""
        return False

    def settled(self, in_flight: InFlight) -> None:
        """It has its outcome, and is acknowledged from now on."""

    def closing(self, attachment: Attachment) -> None:
        """The channel of this attachment is gone, or about to be."""


class Dispatcher:
    """Deliveries in, calls out; the end of each call in, acks out. `effects`: those of the member."""

    def __init__(self, rules: Rules, processed: Processed, uniform: Callable[[], float]) -> None:
        self.rules = rules
        self.processed = processed
        self.effects: list[Effect] = []
        self.lanes = Lanes(concurrency=rules.concurrency)
        self.counts = Counts()
        self.is_cut_off = False
        """No call may start: the connection is lost, or may be."""
        self.paused = False
        """No call may start: the group is paused."""
        self.running = self.lanes.running
        self.unacked = Unacked()
        self._durations: deque[float] = deque(maxlen=256)
        self._unmeasured = 0
        self._service_time_s: float | None = None
        self._uniform = uniform
        self._deliveries = 0
        self.use(Hooks())

    def use(self, hooks: Hooks) -> None:
        """Calls these parts from now on."""
        self._arrived = hooks.of(MessageHooks.arrived)
        self._may_take = hooks.of(MessageHooks.may_take)
        self._is_done = hooks.of(MessageHooks.is_done)
        self._turns = hooks.of(MessageHooks.turn)
        self._called = hooks.of(MessageHooks.called)
        self._ended = hooks.of(MessageHooks.ended)
        self._held_back = hooks.of(MessageHooks.held_back)
        self._ended_in_vain = hooks.of(MessageHooks.ended_in_vain)
        self._exhausted = hooks.of(MessageHooks.exhausted)
        self._settles = hooks.of(MessageHooks.settles)
        self._confirmed = hooks.of(MessageHooks.confirmed)
        self._settled = hooks.of(MessageHooks.settled)
        self._closing = hooks.of(MessageHooks.closing)

    def deliver(self, attachment: Attachment, arrivals: list[InFlight], now: float) -> None:
        """Messages that the broker delivered, in order. Ignored for an attachment that is closed."""
        if attachment.closed:
            return
        by_key = self.rules.order is Order.KEY
        number = self._deliveries
        for in_flight in arrivals:
            in_flight.received_at = now
            in_flight.number = number
            number += 1
            # A message without a key is its own lane, so that its duplicate waits for it.
            in_flight.lane = (
                (in_flight.key if in_flight.key is not None else in_flight.identity) if by_key else ""
            )
        self._deliveries = number
        attachment.delivered += len(arrivals)
        self.counts.delivered += len(arrivals)
        attachment.ack_window.delivered(arrivals)
        for arrived in self._arrived:
            arrivals = arrived(arrivals, now)
        self.lanes.admit(attachment, arrivals)

    def take(self, now: float) -> InFlight | None:
        """The next call to make. What was processed before is dropped here, on its turn."""
        lanes = self.lanes
        while not (self.is_cut_off or self.paused):
            for may_take in self._may_take:
                if not may_take():
                    return None
            in_flight = lanes.take()
            if in_flight is None:
                return None
            if (outcome := self._outcome_without_call(in_flight)) is not None:
                self._conclude(in_flight, outcome)
                continue
            decision = Turn.CALL
            for turn in self._turns:
                if (decision := turn(in_flight, now)) is not Turn.CALL:
                    break
            if decision is Turn.CALL:
                self.count_attempts(in_flight)
                in_flight.calls += 1
                in_flight.started_at = now
                in_flight.is_slow = False
                if in_flight.extended is not None:
                    in_flight.extended = None
                if in_flight.first_started_at is None:
                    in_flight.first_started_at = now
                lanes.move(in_flight, Event.CALL)
                for called in self._called:
                    called(in_flight)
                return in_flight
            if decision is Turn.ALONE:
                return None
        return None

    def count_attempts(self, in_flight: InFlight) -> None:
        """Adds the attempts of former consumers, before the first call here."""
        if not in_flight.calls and in_flight.identity is not None:
            in_flight.earlier = max(in_flight.earlier, self.processed.attempts(in_flight.identity))

    def _outcome_without_call(self, in_flight: InFlight) -> Outcome | None:
        """The outcome of a message that is not delivered to the application, else None."""
        identity = in_flight.identity
        is_repeat = identity is not None and (
            identity in self.processed or identity in self.lanes.republishing
        )
        for is_done in self._is_done:
            is_repeat = is_repeat or is_done(in_flight)
        if is_repeat:
            self.counts.repeats_dropped += 1
            return Outcome.REPEAT
        return Outcome.END if in_flight.ends_session else None

    def extend(
        self, in_flight: InFlight, seconds: float, now: float, *, until: float, progress: str | None = None
    ) -> float:
        """The application asks for so many seconds from now on for a call that runs. Returns the seconds that are left:
        `until` at the latest, and never fewer than before; 0 if the call is over, or is to be aborted. Safe in a thread
        other than the loop's."""
        if not in_flight.is_called or in_flight.is_aborted:
            return 0.0
        limit_s = max(self._limit_s(in_flight), min(now + seconds, until) - in_flight.started_at)
        if progress is None and in_flight.extended is not None:
            progress = in_flight.extended.progress
        in_flight.extended = Extended(limit_s, progress or "")
        return max(0.0, in_flight.started_at + limit_s - now)

    def _limit_s(self, in_flight: InFlight) -> float:
        extended = in_flight.extended
        return self.rules.call_timeout_s if extended is None else extended.limit_s

    @property
    def longest_call_s(self) -> float:
        """After so long every call that runs is aborted at the latest, whenever it began."""
        return max(map(self._limit_s, self.running), default=self.rules.call_timeout_s)

    def end(self, in_flight: InFlight, verdict: Verdict, now: float) -> None:
        """Ends a call that was taken: exactly once for each, aborted ones too."""
        in_flight.finished_at = now
        lasted_s = now - in_flight.started_at
        self._durations.append(lasted_s)
        self._unmeasured += 1
        self.counts.calls += 1
        self.counts.busy_us += int(lasted_s * 1e6)
        attachment = in_flight.attachment
        attachment.calls += 1
        attachment.busy_s += lasted_s
        kind = verdict.kind
        if retries := attachment.retries:
            retries.pop(in_flight, None)
        if in_flight.is_over:
            self._end_in_vain(in_flight, kind)
        elif kind is Kind.ACK:
            self._ack(in_flight)
        elif kind is Kind.DROP:
            self.refuse(in_flight, verdict.reason)
        elif in_flight.state is State.LAST_CALL:
            in_flight.reason = in_flight.abort_reason or verdict.reason or in_flight.reason
            in_flight.abort_reason = None
            self.refuse(in_flight, _skip_reason(in_flight))
        elif verdict.is_of_group and in_flight.abort_reason is None:
            in_flight.calls -= 1
            in_flight.reason = verdict.reason
            due = max((held_back(in_flight, verdict, now) for held_back in self._held_back), default=now)
            if in_flight.is_recalled:
                self._requeue(in_flight)
            else:
                self.lanes.delay(in_flight, due)
        elif kind is Kind.INTERRUPTED and in_flight.abort_reason is None:
            # It fell with another's abort, or did not reach the application: not this message's failure.
            in_flight.calls -= 1
            in_flight.reason = verdict.reason or in_flight.reason
            if in_flight.is_recalled:
                self._requeue(in_flight)
            else:
                self.lanes.delay(in_flight, now + (verdict.after_s or 0.0))
                self.lanes.wake(now)
        else:
            self._fail(in_flight, verdict, now)
        for ended in self._ended:
            ended(in_flight, verdict, now)

    def _end_in_vain(self, in_flight: InFlight, kind: Kind) -> None:
        """If it was processed it can no longer be acknowledged, and is dropped when it comes again."""
        if kind is not Kind.ACK:
            self.counts.aborted += 1
        elif in_flight.identity is not None and not self.rules.republish:
            self.processed.add(in_flight.identity)
            for ended_in_vain in self._ended_in_vain:
                ended_in_vain(in_flight)
        self.lanes.move(in_flight, Event.END)
        self.effects.append(Done((in_flight,), settled=False))

    def _ack(self, in_flight: InFlight) -> None:
        for settles in self._settles:
            if settles(in_flight, Outcome.ACK):
                return
        if self.rules.republish:
            self.lanes.move(in_flight, Event.REPUBLISH)
            self.effects.append(Republish(in_flight))
        else:
            self.settle(in_flight, Outcome.ACK)

    def _fail(self, in_flight: InFlight, verdict: Verdict, now: float) -> None:
        failure, reason = Failure.RETRIED, verdict.reason
        if verdict.kind is Kind.INTERRUPTED:
            failure, reason = Failure.TIMED_OUT, in_flight.abort_reason or ""
        in_flight.abort_reason = None
        self.counts.retried += 1
        if in_flight.identity is not None:
            # The former consumer's report of its attempts may arrive after our first attempt.
            in_flight.earlier = max(
                in_flight.earlier, self.processed.take_reported_attempts(in_flight.identity)
            )
        is_exhausted = in_flight.attempts >= self.rules.max_attempts
        if not (is_exhausted and self.exhaust(in_flight, reason)):
            self._retry(in_flight, verdict, reason, now, is_exhausted=is_exhausted)
        if in_flight.state is not State.REFUSED:
            self.report(failure, in_flight)

    def _retry(
        self, in_flight: InFlight, verdict: Verdict, reason: str, now: float, *, is_exhausted: bool
    ) -> None:
        in_flight.reason = reason
        if in_flight.identity is not None:
            self.processed.failed(in_flight.identity, in_flight.attempts)
        if in_flight.is_recalled:
            self._requeue(in_flight)
            return
        attachment, after_s = in_flight.attachment, verdict.after_s
        wait_s = self.wait_s(in_flight.attempts, after_s)
        if verdict.is_unreadable or (after_s is not None and wait_s > LONG_WAIT_S):
            attachment.retries[in_flight] = Retry(verdict.is_unreadable, now + wait_s)
        self.lanes.delay(in_flight, now + wait_s)
        if is_exhausted and in_flight not in attachment.poisoned:
            self.poison(in_flight, now)

    def exhaust(self, in_flight: InFlight, reason: str) -> bool:
        """Parks or refuses a message whose attempts are used up. False if it is to be retried."""
        for exhausted in self._exhausted:
            if exhausted(in_flight, reason):
                return True
        rule = self.rules.when_exhausted
        if rule is WhenExhausted.BLOCK or (rule is WhenExhausted.PARK and in_flight.is_copyable):
            return False
        self.refuse(
            in_flight,
            f"gave up after {counted(in_flight.attempts, 'attempt')}: {reason or 'no reason given'}",
        )
        return True

    def poison(self, in_flight: InFlight, now: float) -> None:
        """Its attempts are used up as of now; it is retried, and its key waits."""
        in_flight.attachment.poisoned[in_flight] = now
        self.counts.poisoned += 1
        self.report(Failure.POISONED, in_flight)

    def refuse(self, in_flight: InFlight, reason: str) -> None:
        """It goes to the dead letters."""
        in_flight.reason = reason
        self.lanes.move(in_flight, Event.REFUSE)
        self._publish_refused(in_flight)

    def _publish_refused(self, in_flight: InFlight) -> None:
        self.effects.append(DeadLetter(in_flight))
        self.report(Failure.REFUSED, in_flight)

    def skip(self, in_flight: InFlight) -> None:
        """Refuses a message whose state is poisoned: now, or at the end of the call that runs, unless that succeeds."""
        self.lanes.move(in_flight, Event.SKIP)
        if not in_flight.is_called:
            in_flight.reason = _skip_reason(in_flight)
            self._publish_refused(in_flight)

    def release(self, in_flight: InFlight) -> None:
        """It is not this member's any more, which has counted no verdict of it."""
        self.unacked.forget(in_flight.attachment, (in_flight,))
        self.lanes.move(in_flight, Event.RELEASE)

    def _requeue(self, in_flight: InFlight) -> None:
        self.release(in_flight)
        self.effects.append(Requeue(in_flight.attachment, (in_flight.tag,)))
        self.effects.append(Done((in_flight,), settled=False))

    def report(self, kind: Failure, in_flight: InFlight) -> None:
        """For the log: a call failed, or its message is refused."""
        timeouts = {Failure.SLOW: self.rules.call_timeout_s / 2, Failure.TIMED_OUT: self._limit_s(in_flight)}
        self.effects.append(
            CallFailed(
                kind,
                in_flight.queue,
                in_flight.key,
                in_flight.identity,
                in_flight.attempts,
                in_flight.reason,
                timeouts.get(kind, 0.0),
            )
        )

    def wait_s(self, failed: int, requested_s: float | None = None) -> float:
        """The wait before the next call of a message that failed so often: what the application requests, else one by
        the number of attempts. A poisoned message waits for the longest at least: else an application that requests a
        second each time would be called each second for ever."""
        backoff = self.rules.backoff
        if requested_s is not None:
            requested_s = min(requested_s, AFTER_MAX_S)  # a callable may ask for an infinite one
        if failed >= self.rules.max_attempts:
            return max(requested_s or 0.0, backoff.longest_s(self._uniform))
        return backoff.delay_s(failed, self._uniform) if requested_s is None else requested_s

    def confirmed(self, in_flight: InFlight) -> None:
        """The broker has the dead letter, the republished or forwarded message, or the copy in the parking queue."""
        if in_flight.is_over:
            return
        for confirmed in self._confirmed:
            if confirmed(in_flight):
                return
        self._conclude(in_flight, CONFIRMED_AS[in_flight.state])

    def _conclude(self, in_flight: InFlight, outcome: Outcome) -> None:
        for settles in self._settles:
            if settles(in_flight, outcome):
                return
        self.settle(in_flight, outcome)

    def settle(self, in_flight: InFlight, outcome: Outcome) -> None:
        """It has this outcome, and is acknowledged with the next flush, or when what is in front of it is done."""
        in_flight.outcome = outcome
        identity = in_flight.identity
        if outcome is Outcome.ACK:
            self.counts.acked += 1
        elif outcome is Outcome.DEAD:
            self.counts.dead_lettered += 1
        elif outcome is Outcome.PARKED:
            self.counts.parked += 1
            if identity is not None:
                self.processed.forget_attempts(identity)
        if identity is not None and outcome not in NOT_PROCESSED:
            self.processed.add(identity)
        self.lanes.move(in_flight, Event.FINISH)
        self.unacked.done(in_flight)
        for settled in self._settled:
            settled(in_flight)

    def close(self, attachment: Attachment) -> tuple[list[InFlight], list[InFlight]]:
        """Forget an attachment whose channel is going: (calls to abort, everything that was never acked)."""
        for closing in self._closing:
            closing(attachment)
        rest = attachment.ack_window.leave()
        running = self.lanes.close(attachment, rest)
        if attachment.beside is None:
            return running, rest
        running_beside, rest_beside = self.close(attachment.beside)
        return running + running_beside, rest + rest_beside

    def tick(self, now: float) -> None:
        """Ends waits that are over, reports slow calls, and aborts those that are too slow."""
        self.lanes.wake(now)
        timeout_s, late = self.rules.call_timeout_s, []
        for in_flight in self.running:  # in order of start
            if in_flight.started_at > now - timeout_s / 2:
                break
            if in_flight.is_abort_requested:
                continue
            if not in_flight.is_slow:
                in_flight.is_slow = True
                if not in_flight.is_over:
                    self.report(Failure.SLOW, in_flight)
            limit_s = self._limit_s(in_flight)
            if in_flight.started_at <= now - limit_s:
                in_flight.abort_reason = f"no verdict within {limit_s:.10g} s"
                self.counts.timed_out += not in_flight.is_over
                late.append(in_flight)
        if late:
            self.effects.append(Abort(tuple(late)))

    @property
    def next_due(self) -> float:
        """Time at which a call will have run for too long: for half of the limit, or all of it."""
        due, timeout_s = float("inf"), self.rules.call_timeout_s
        for in_flight in self.running:  # in order of start
            if in_flight.is_abort_requested:
                continue
            if not in_flight.is_slow:
                return min(due, in_flight.started_at + timeout_s / 2)
            due = min(due, in_flight.started_at + self._limit_s(in_flight))
        return due

    def service_time_s(self) -> float | None:
        """The 99th percentile of the last calls; None while there are too few."""
        if len(self._durations) < 64:
            return None
        if self._unmeasured >= MEASURED_EVERY:
            self._unmeasured = 0
            self._service_time_s = sorted(self._durations)[len(self._durations) * 99 // 100]
        return self._service_time_s


def _skip_reason(in_flight: InFlight) -> str:
    attempts = counted(in_flight.attempts, "attempt")
    return f"skipped by an administrator after {attempts}: {in_flight.reason or 'no reason given'}"
