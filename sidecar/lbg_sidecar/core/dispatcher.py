"""Dispatcher: everything between a delivery and its ack, for all attachments of a member."""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from lbg_broker.client.backoff import Backoff
from lbg_sidecar.core.delivery import Attachment, Identity, InFlight, Outcome, Processed, SessionPosition
from lbg_sidecar.core.lanes import Lanes
from lbg_sidecar.core.limits import CallLimit
from lbg_sidecar.message import Kind, Verdict

RETRY_JITTER = 0.2
RETRY = Backoff(max_s=30.0, jitter=RETRY_JITTER)


class WhenExhausted(enum.StrEnum):
    """`block`: it is tried on, at the longest interval, and its key waits behind it. `dead-letter`: it goes to the
    group's dead letters, and its key goes on."""

    BLOCK = "block"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, slots=True)
class PoisonedMessage:
    """For a view. `key` and `id` are None where no publisher of ours stamped it; `since_s`: so long ago its attempts
    were used up here, or found to be: a member that takes a queue over finds it with its own first attempt."""

    key: str | None
    id: str | None
    attempts: int
    since_s: float
    reason: str


LISTED_MAX = 20
REASON_MAX_CHARS = 200


def poisoned_messages(attachment: Attachment, now: float) -> list[PoisonedMessage]:
    """Those that this attachment holds, the oldest first, at most `LISTED_MAX` of them."""
    return [
        PoisonedMessage(
            key=held.key,
            id="-".join(map(str, held.identity)) if held.identity is not None else None,
            attempts=held.attempts,
            since_s=now - since,
            reason=held.reason[:REASON_MAX_CHARS],
        )
        for held, since in itertools.islice(attachment.poisoned.items(), LISTED_MAX)
    ]


class Order(enum.StrEnum):
    """Scope of the order: the messages of a key, or all of a queue."""

    KEY = "key"
    QUEUE = "queue"


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


@dataclass(slots=True)
class Counts:
    """Since the member started.

    `given_back`: messages that were not begun when the broker wanted them back for another member. `taken`: messages at
    work when its time for that ended: they are delivered again.
    `forced`: messages at work (called, on the way to a confirm, or done and not to be acknowledged in time) when a
    close could not wait for them: they are delivered again. `aborted`: calls that ended without effect, their
    channel gone. `poisoned`: messages whose attempts were used up, and which are tried on.

    `stalls`: how often a queue that had messages and gave none was attached to anew. `overlaps`: how
    often another member turned out to serve a queue that this one thought it served.
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
    stalls: int = 0
    overlaps: int = 0


class NextCall(enum.Enum):
    """Action that the end of a call requires."""

    NOTHING = enum.auto()
    DEAD_LETTER = enum.auto()
    REPUBLISH = enum.auto()
    GIVE_BACK = enum.auto()
    """The broker wants it back, and it is not done."""
    WARN = enum.auto()
    """Its attempts are used up as of now; it is tried on, and somebody should know."""


class Dispatcher:
    """Deliveries in, calls out; the end of each call in, acks out."""

    def __init__(self, rules: Rules, processed: Processed, uniform: Callable[[], float]) -> None:
        self.rules = rules
        self.processed = processed
        self.lanes = Lanes(concurrency=rules.concurrency)
        self.counts = Counts()
        self.fenced = False
        """No call may start: the connection is lost, or may be."""
        self.running: dict[InFlight, None] = {}
        self.repeats_in: list[Attachment] = []
        """Attachments of which `take` dropped repeats since this was last emptied: their acks may be due."""
        self.session: SessionPosition | None = None
        self.limit: CallLimit | None = None
        """Of an application in which calls may wait unseen, where the broker takes messages back; None: no limit but
        the concurrency."""
        self._durations: deque[float] = deque(maxlen=256)
        self._awaiting: dict[
            Identity, None
        ] = {}  # republished, not confirmed: done by the app, not yet by us
        self._uniform = uniform
        self._deliveries = 0

    def deliver(self, attachment: Attachment, arrivals: list[InFlight], now: float) -> None:
        """Messages that the broker delivered, in order. Ignored for an attachment that is closed."""
        if attachment.closed:
            return
        by_key = self.rules.order is Order.KEY
        number = self._deliveries
        for held in arrivals:
            held.received_at = now
            held.number = number
            number += 1
            # A message without a key is its own lane, so that its duplicate waits for it.
            held.lane = (held.key if held.key is not None else held.identity) if by_key else ""
        self._deliveries = number
        attachment.delivered += len(arrivals)
        self.counts.delivered += len(arrivals)
        attachment.ack_window.delivered(arrivals)
        self.lanes.admit(attachment, arrivals)

    def take(self, now: float) -> InFlight | None:
        """The next call to make. What was processed before is dropped here, on its turn."""
        lanes = self.lanes
        while not self.fenced:
            held = lanes.take()
            if held is None:
                return None
            identity = held.identity
            if (without_call := self._outcome_without_call(held)) is not None:
                self._settle(held, without_call)
                lanes.finish(held)
                self.repeats_in.append(held.attachment)
                continue
            if not held.calls and identity is not None:
                held.earlier = self.processed.attempts(identity)
            held.calls += 1
            held.started_at = now
            if held.first_started_at is None:
                held.first_started_at = now
            self.running[held] = None
            if self.limit is not None:
                self.limit.began(held)
            return held
        return None

    def expect_move(self, is_expected: bool) -> None:
        """True if the broker may soon want messages back."""
        if self.limit is not None:
            self.limit.expects_move = is_expected
            self.lanes.concurrency = self.limit.size

    def _outcome_without_call(self, held: InFlight) -> Outcome | None:
        """Of what the application is not to be given."""
        identity, session = held.identity, self.session
        if (identity is not None and (identity in self.processed or identity in self._awaiting)) or (
            session is not None and session.covers(held)
        ):
            self.counts.repeats_dropped += 1
            return Outcome.REPEAT
        return Outcome.END if held.ends_session else None

    def end(self, held: InFlight, verdict: Verdict, now: float) -> NextCall:
        """A call that was taken has ended; report each exactly once, aborted ones too."""
        del self.running[held]
        held.finished_at = now
        self._durations.append(now - held.started_at)
        kind = verdict.kind
        limit = self.limit
        if limit is not None:
            if kind is Kind.INTERRUPTED:
                limit.dropped(held)
            else:
                limit.ended(held, now - held.started_at, now)
            self.lanes.concurrency = limit.size
        if kind is Kind.ACK:
            return self._acked(held)
        if held.is_over:
            self.counts.aborted += 1
            self.lanes.finish(held)
            return NextCall.NOTHING
        if kind is Kind.DROP:
            return self._refused(held, verdict.reason)
        reason, after_s = verdict.reason, verdict.after_s
        if kind is Kind.INTERRUPTED:
            if held.abort_reason is None:  # it fell with another's abort: not this message's failure
                held.calls -= 1
                if held.is_recalled:
                    return self._given_back(held)
                self.lanes.delay(held, now)
                self.lanes.wake(now)
                return NextCall.NOTHING
            reason, held.abort_reason = held.abort_reason, None
        self.counts.retried += 1
        if held.identity is not None:
            # The former consumer's report of its attempts may arrive after our first attempt.
            held.earlier = max(held.earlier, self.processed.take_reported_attempts(held.identity))
        is_exhausted = held.attempts >= self.rules.max_attempts
        if is_exhausted and self.rules.when_exhausted is WhenExhausted.DEAD_LETTER:
            return self._refused(
                held, f"gave up after {held.attempts} attempts: {reason or 'no reason given'}"
            )
        held.reason = reason
        if held.identity is not None:
            self.processed.failed(held.identity, held.attempts)
        if held.is_recalled:
            return self._given_back(held)
        self.lanes.delay(held, now + self._wait_s(held, after_s, is_exhausted=is_exhausted))
        poisoned = held.attachment.poisoned
        if not is_exhausted or held in poisoned:
            return NextCall.NOTHING
        poisoned[held] = now
        self.counts.poisoned += 1
        return NextCall.WARN

    def _given_back(self, held: InFlight) -> NextCall:
        """A call that has ended and is to be made again is another member's to make."""
        self.lanes.finish(held)
        self._release(held.attachment, [held])
        return NextCall.GIVE_BACK

    def _release(self, attachment: Attachment, released: list[InFlight]) -> None:
        """They are the broker's again; this member has counted no verdict of them."""
        attachment.ack_window.forget(frozenset(released))
        for held in released:
            if held.outcome is None:
                held.outcome = Outcome.RELEASED
            attachment.poisoned.pop(held, None)

    def recall(self, attachment: Attachment, tags: Collection[int]) -> tuple[list[InFlight], list[InFlight]]:
        """The broker wants these deliveries back. Returns those that were not begun, which are forgotten here, and
        those that are at work or done, which are to be settled as soon as they can be."""
        idle: list[InFlight] = []
        others: list[InFlight] = []
        for held in _of_tags(attachment, tags):
            (others if self._is_at_work(held) or held.outcome is not None else idle).append(held)
        self.lanes.withdraw(attachment, frozenset(idle))
        self._release(attachment, idle)
        for held in others:
            held.is_recalled = True
        self.counts.given_back += len(idle)
        return idle, others

    def take_back(
        self, attachment: Attachment, tags: Collection[int]
    ) -> tuple[list[InFlight], list[InFlight]]:
        """The broker has given these deliveries to another consumer. Returns all that were not acknowledged, and those
        of them that are at work."""
        gone = _of_tags(attachment, tags)
        at_work = [held for held in gone if self._is_at_work(held)]
        idle = frozenset(held for held in gone if held not in at_work and held.outcome is None)
        self.lanes.withdraw(attachment, idle)
        self._release(attachment, gone)
        for held in gone:
            held.is_taken = True
            if held in attachment.parked:
                self.lanes.unpark(held)
            if held in attachment.unconfirmed:
                del attachment.unconfirmed[held]
                if held.identity is not None:
                    del self._awaiting[held.identity]
        self.counts.taken += len(at_work)
        return gone, at_work

    def _is_at_work(self, held: InFlight) -> bool:
        """Inside the application, or on its way to a confirm."""
        attachment = held.attachment
        return held in attachment.running or held in attachment.parked or held in attachment.unconfirmed

    def _wait_s(self, held: InFlight, requested_s: float | None, *, is_exhausted: bool) -> float:
        """The wait that the application asks for, else one by the number of attempts. A poisoned message waits for the
        longest at least: an application that says "in a second" each time would be asked each second for ever."""
        backoff = self.rules.backoff
        if is_exhausted:
            return max(requested_s or 0.0, backoff.longest_s(self._uniform))
        return requested_s if requested_s is not None else backoff.delay_s(held.attempts, self._uniform)

    def _acked(self, held: InFlight) -> NextCall:
        attachment = held.attachment
        if held.is_over:
            # It was processed, though it can no longer be acknowledged: it is dropped when it comes again.
            if held.identity is not None and not self.rules.republish:
                self.processed.add(held.identity)
                if self.session is not None:
                    self.session.done(held)
            self.lanes.finish(held)
            return NextCall.NOTHING
        if not self.rules.republish:
            self._settle(held, Outcome.ACK)
            self.lanes.finish(held)
            return NextCall.NOTHING
        attachment.unconfirmed[held] = None
        if held.identity is not None:
            self._awaiting[held.identity] = None
        self.lanes.finish(held)
        return NextCall.REPUBLISH

    def _refused(self, held: InFlight, reason: str) -> NextCall:
        held.reason = reason
        self.lanes.park(held)
        return NextCall.DEAD_LETTER

    def confirmed(self, held: InFlight, action: NextCall) -> None:
        """The broker has the dead letter, or the republished message: now it may be acked here."""
        attachment = held.attachment
        if held.is_over:
            return
        if action is NextCall.DEAD_LETTER:
            self._settle(held, Outcome.DEAD)
            self.lanes.unpark(held)
        else:
            del attachment.unconfirmed[held]
            if held.identity is not None:
                del self._awaiting[held.identity]
            self._settle(held, Outcome.ACK)

    def _settle(self, held: InFlight, outcome: Outcome) -> None:
        held.outcome = outcome
        if outcome is Outcome.ACK:
            self.counts.acked += 1
        elif outcome is Outcome.DEAD:
            self.counts.dead_lettered += 1
        if held.identity is not None and outcome is not Outcome.REPEAT:
            self.processed.add(held.identity)
        attachment = held.attachment
        if attachment.poisoned:
            attachment.poisoned.pop(held, None)
        ack_window = attachment.ack_window
        ack_window.done(held)
        if self.session is not None and ack_window.prefix:
            self.session.done(ack_window.prefix[-1])

    def close(self, attachment: Attachment) -> tuple[list[InFlight], list[InFlight]]:
        """Forget an attachment whose channel is going: (calls to abort, everything that was never acked)."""
        running = self.lanes.close(attachment)
        attachment.poisoned.clear()
        for held in attachment.unconfirmed:
            if held.identity is not None:
                del self._awaiting[held.identity]
        rest = attachment.ack_window.leave()
        for held in rest:
            if held.outcome is None:
                held.outcome = Outcome.RELEASED
        return running, rest

    def overdue(self, now: float) -> list[InFlight]:
        """Calls that have run longer than the limit and are not being aborted yet; they are marked as timed out."""
        late = []
        started_before = now - self.rules.call_timeout_s
        for held in self.running:  # in order of start
            if held.started_at > started_before:
                break
            if held.abort_reason is None and not held.is_over:
                held.abort_reason = f"no verdict within {self.rules.call_timeout_s:g} s"
                self.counts.timed_out += 1
                late.append(held)
        return late

    def service_time_s(self) -> float | None:
        """The 99th percentile of the last calls; None before there were enough to say."""
        if len(self._durations) < 64:
            return None
        return sorted(self._durations)[len(self._durations) * 99 // 100]


def _of_tags(attachment: Attachment, tags: Collection[int]) -> list[InFlight]:
    tag_set = frozenset(tags)
    return [held for held in attachment.ack_window.all_unacked() if held.tag in tag_set]
