"""Dispatcher: everything between a delivery and its ack, for all attachments of a member."""

from __future__ import annotations

import enum
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from lbg_core.client.backoff import Backoff
from lbg_core.group.members_protocol import HeldState
from lbg_sidecar.core.delivery import (
    Attachment,
    InFlight,
    Outcome,
    Processed,
    Retry,
    SessionPosition,
)
from lbg_sidecar.core.key_moves import KeyMoves
from lbg_sidecar.core.lanes import Lanes
from lbg_sidecar.core.limits import CallLimit
from lbg_sidecar.core.message_states import IS_UNDERWAY, NEXT, Event, State
from lbg_sidecar.core.parked_keys import WAITS_S, WAITS_SHORTLY_S, Judgement, Parking, ParkingBounds
from lbg_sidecar.core.suspects import Suspects, Turn
from lbg_sidecar.message import AFTER_MAX_S, Kind, Verdict

NOT_COPYABLE = "its headers leave no room for those of a copy, and its key is parked or goes to another queue"

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


@dataclass(frozen=True, slots=True)
class PoisonedMessage:
    """A poisoned message for a view. `key` and `id` are None without a publisher's stamp. `since_s`: time since its
    attempts were used up here; after a takeover, since this member's first attempt."""

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
            key=in_flight.key,
            id="-".join(map(str, in_flight.identity)) if in_flight.identity is not None else None,
            attempts=in_flight.attempts,
            since_s=now - since,
            reason=in_flight.reason[:REASON_MAX_CHARS],
        )
        for in_flight, since in itertools.islice(attachment.poisoned.items(), LISTED_MAX)
    ]


_HELD_STATES = {
    State.REFUSED: HeldState.REFUSED,
    State.FORWARDING: HeldState.MOVING,
    State.PARKING: HeldState.PARKING,
    State.SETTLING: HeldState.PROCESSED,
    State.REPUBLISHING: HeldState.PROCESSED,
}


def held_state(in_flight: InFlight) -> HeldState:
    """State of a message whose outcome is open. Requests are answered by it."""
    if (found := _HELD_STATES.get(in_flight.state)) is not None:
        return found
    if in_flight in in_flight.attachment.poisoned:
        return HeldState.POISONED
    if in_flight.is_called:
        return HeldState.RUNNING
    return HeldState.RETRYING if in_flight.calls else HeldState.WAITING


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
    how often another member served a queue that this one counted as its own.
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


COUNTED_KEYS_MAX = 512
COUNTED_KEYS_KEPT = 256


class KeyCounts:
    """Counts of messages by key, for a report of the most frequent ones: when there are too many, the rarest half is
    forgotten."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, key: str) -> None:
        counts = self._counts
        counts[key] = counts.get(key, 0) + 1
        if len(counts) > COUNTED_KEYS_MAX:
            self._counts = dict(self.most(COUNTED_KEYS_KEPT))

    def most(self, count: int) -> list[tuple[str, int]]:
        """The keys with most messages, at most so many, with the number of each; the most frequent first."""
        return heapq.nsmallest(count, self._counts.items(), key=lambda one: (-one[1], one[0]))


class NextCall(enum.Enum):
    """Action that the end of a call requires."""

    NOTHING = enum.auto()
    DEAD_LETTER = enum.auto()
    REPUBLISH = enum.auto()
    PARK = enum.auto()
    """Its effects are there: it goes to the parking queue, or is settled there."""
    FORWARD = enum.auto()
    """It goes to the queue to which its hash went."""
    GIVE_BACK = enum.auto()
    """The broker recalled it, and it is not done."""
    WARN = enum.auto()
    """Its attempts are used up as of now; it is retried, and logged."""


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


class Dispatcher:
    """Deliveries in, calls out; the end of each call in, acks out."""

    def __init__(self, rules: Rules, processed: Processed, uniform: Callable[[], float]) -> None:
        self.rules = rules
        self.processed = processed
        self.lanes = Lanes(concurrency=rules.concurrency)
        self.counts = Counts()
        self.fenced = False
        """No call may start: the connection is lost, or may be."""
        self.paused = False
        """No call may start: the group is paused."""
        self.running = self.lanes.running
        self.repeats_in: list[Attachment] = []
        """Attachments of which `take` dropped repeats since this was last emptied: their acks may be due."""
        self.session: SessionPosition | None = None
        self.key_counts: KeyCounts | None = None
        """Of the messages that are processed; None while nobody watches."""
        self.parking: Parking | None = None
        """Parked keys; None where the group has no parking queue."""
        self.key_moves: KeyMoves | None = None
        """Keys that move between queues; None where queues are not shared out among members."""
        self.suspects: Suspects | None = None
        """Messages that may have ended a member's process; None while there are none."""
        self.ended_in_take: list[tuple[InFlight, NextCall]] = []
        """Messages that `take` found to be over, and what that requires, since this was last emptied: suspects whose
        attempts are used up, and messages that would have to be copied, and cannot."""
        self.limit: CallLimit | None = None
        """Limit of the calls of an application in which calls may wait unseen, in a mode whose broker recalls messages;
        None: the concurrency alone."""
        self._durations: deque[float] = deque(maxlen=256)
        self._unmeasured = 0
        self._service_time_s: float | None = None
        self._uniform = uniform
        self._deliveries = 0

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
        if self.suspects is not None:
            self.suspects.mark(arrivals)
        attachment.delivered += len(arrivals)
        self.counts.delivered += len(arrivals)
        attachment.ack_window.delivered(arrivals)
        if self.key_moves is not None:
            arrivals = self.key_moves.without_fences(arrivals, now)
        self.lanes.admit(attachment, arrivals)

    def deliver_released(self, in_flight: InFlight, now: float) -> None:
        """A released copy that came to the mailbox, for an attachment of `Parking.beside`."""
        attachment, parking = in_flight.attachment, self.parking
        is_held = any(one.identity == in_flight.identity for one in attachment.ack_window.all_unacked())
        if parking is not None and in_flight.key is not None and not is_held:
            parking.released(in_flight.key, now)
            self.deliver(attachment, [in_flight], now)

    def take(self, now: float) -> InFlight | None:
        """The next call to make. What was processed before is dropped here, on its turn."""
        lanes, suspects = self.lanes, self.suspects
        while not (self.fenced or self.paused):
            if suspects is not None and suspects.runs_alone:
                return None
            in_flight = lanes.take()
            if in_flight is None:
                return None
            identity = in_flight.identity
            if (without_call := self._outcome_without_call(in_flight)) is not None:
                if self._is_parked(in_flight):
                    self._settle_parked(in_flight, without_call)
                    continue
                self._settle(in_flight, without_call)
                self.repeats_in.append(in_flight.attachment)
                continue
            if self.key_moves is not None and not self.key_moves.may_start(in_flight, self._refuse_in_take):
                continue
            if self.parking is not None and not self._may_call(in_flight, self.parking, now):
                continue
            if not in_flight.calls and identity is not None:
                in_flight.earlier = max(in_flight.earlier, self.processed.attempts(identity))
            if suspects is not None and in_flight.suspect is not None:
                turn = self._suspect_turn(in_flight, suspects, now)
                if turn is Turn.ALONE:
                    return None
                if turn is not Turn.CALL:
                    continue
            in_flight.calls += 1
            in_flight.started_at = now
            in_flight.is_slow = False
            if in_flight.first_started_at is None:
                in_flight.first_started_at = now
            lanes.move(in_flight, Event.CALL)
            if suspects is not None and in_flight.suspect is not None:
                suspects.started(in_flight)
            if self.limit is not None:
                self.limit.began(in_flight)
            return in_flight
        return None

    def _suspect_turn(self, in_flight: InFlight, suspects: Suspects, now: float) -> Turn:
        """Decides about a suspect that was taken. A later one waits in its lane, or is not called any more."""
        suspect = in_flight.suspect
        assert suspect is not None
        in_flight.earlier = max(in_flight.earlier, suspect.last.attempts - in_flight.calls)
        if in_flight.attempts >= self.rules.max_attempts and in_flight not in in_flight.attachment.poisoned:
            reason = f"member {suspect.last.member} died when it was called"
            action = self._exhausted(in_flight, reason)
            if action is NextCall.NOTHING:
                in_flight.reason = reason
                action = self._poison(in_flight, now)
            self.ended_in_take.append((in_flight, action))
            if action is not NextCall.WARN:
                return Turn.LATER
        return suspects.turn(in_flight, now)

    def _refuse_in_take(self, in_flight: InFlight) -> None:
        self.ended_in_take.append((in_flight, self._refused(in_flight, NOT_COPYABLE)))

    def expect_move(self, is_expected: bool) -> None:
        """True if the broker may soon recall messages."""
        if self.limit is not None:
            self.limit.expects_move = is_expected
            self.lanes.concurrency = self.limit.size

    def _outcome_without_call(self, in_flight: InFlight) -> Outcome | None:
        """The outcome of a message that is not delivered to the application, else None."""
        identity, session = in_flight.identity, self.session
        is_repeat = identity is not None and (
            identity in self.processed
            or identity in self.lanes.republishing
            or (self.parking is not None and self.parking.is_settled(identity))
        )
        if is_repeat or (session is not None and session.covers(in_flight)):
            self.counts.repeats_dropped += 1
            return Outcome.REPEAT
        return Outcome.END if in_flight.ends_session else None

    def end(self, in_flight: InFlight, verdict: Verdict, now: float) -> NextCall:
        """Ends a call that was taken: exactly once for each, aborted ones too."""
        in_flight.finished_at = now
        self._durations.append(now - in_flight.started_at)
        self._unmeasured += 1
        kind = verdict.kind
        retries = in_flight.attachment.retries
        if retries:
            retries.pop(in_flight, None)
        limit = self.limit
        if limit is not None:
            if kind is Kind.INTERRUPTED:
                limit.dropped(in_flight)
            else:
                limit.ended(in_flight, now - in_flight.started_at, now)
            self.lanes.concurrency = limit.size
        if in_flight.is_over:
            self._ended_without_effect(in_flight, kind)
            return NextCall.NOTHING
        if kind is Kind.ACK:
            return self._acked(in_flight)
        if kind is Kind.DROP:
            return self._refused(in_flight, verdict.reason)
        if in_flight.state is State.LAST_CALL:
            in_flight.reason = in_flight.abort_reason or verdict.reason or in_flight.reason
            in_flight.abort_reason = None
            return self._refused(in_flight, _skip_reason(in_flight))
        reason, after_s = verdict.reason, verdict.after_s
        if kind is Kind.INTERRUPTED:
            if in_flight.abort_reason is None:  # it fell with another's abort: not this message's failure
                in_flight.calls -= 1
                if in_flight.is_recalled:
                    return self._requeued(in_flight)
                self.lanes.delay(in_flight, now)
                self.lanes.wake(now)
                return NextCall.NOTHING
            reason, in_flight.abort_reason = in_flight.abort_reason, None
        self.counts.retried += 1
        if in_flight.identity is not None:
            # The former consumer's report of its attempts may arrive after our first attempt.
            in_flight.earlier = max(
                in_flight.earlier, self.processed.take_reported_attempts(in_flight.identity)
            )
        is_exhausted = in_flight.attempts >= self.rules.max_attempts
        if is_exhausted and (action := self._exhausted(in_flight, reason)) is not NextCall.NOTHING:
            return action
        in_flight.reason = reason
        if in_flight.identity is not None:
            self.processed.failed(in_flight.identity, in_flight.attempts)
        if in_flight.is_recalled:
            return self._requeued(in_flight)
        wait_s = self._wait_s(in_flight, after_s, is_exhausted=is_exhausted)
        if verdict.is_unreadable or (after_s is not None and wait_s > LONG_WAIT_S):
            retries[in_flight] = Retry(verdict.is_unreadable, now + wait_s)
        self.lanes.delay(in_flight, now + wait_s)
        if not is_exhausted or in_flight in in_flight.attachment.poisoned:
            return NextCall.NOTHING
        return self._poison(in_flight, now)

    def _exhausted(self, in_flight: InFlight, reason: str) -> NextCall:
        """Parks or refuses a message whose attempts are used up; `NOTHING` if it is to be retried."""
        if self.rules.when_exhausted is WhenExhausted.PARK and self._can_park(in_flight):
            in_flight.reason = reason
            self._park(in_flight, is_poisoned=True)
            return NextCall.PARK
        is_refused = self.rules.when_exhausted is WhenExhausted.PARK and not in_flight.is_copyable
        if self.rules.when_exhausted is WhenExhausted.DEAD_LETTER or is_refused:
            return self._refused(
                in_flight, f"gave up after {in_flight.attempts} attempts: {reason or 'no reason given'}"
            )
        return NextCall.NOTHING

    def _poison(self, in_flight: InFlight, now: float) -> NextCall:
        in_flight.attachment.poisoned[in_flight] = now
        self.counts.poisoned += 1
        return NextCall.WARN

    def _requeued(self, in_flight: InFlight) -> NextCall:
        """It is the broker's again, or another member's to call; this member has counted no verdict of it."""
        in_flight.attachment.ack_window.forget((in_flight,))
        self.lanes.move(in_flight, Event.RELEASE)
        return NextCall.GIVE_BACK

    def recall(self, attachment: Attachment, tags: Collection[int]) -> tuple[list[InFlight], list[InFlight]]:
        """Recalls deliveries for the broker. Returns those that had not begun, which are forgotten here, and those at
        work or done, which are to be settled as soon as possible."""
        idle: list[InFlight] = []
        others: list[InFlight] = []
        for in_flight in _of_tags(attachment, tags):
            is_idle = NEXT[in_flight.state][Event.RECALL] is not None
            (idle if is_idle else others).append(in_flight)
        attachment.ack_window.forget(frozenset(idle))
        for in_flight in idle:
            self.lanes.move(in_flight, Event.RECALL)
        for in_flight in others:
            in_flight.is_recalled = True
        self.counts.given_back += len(idle)
        return idle, others

    def reassign(
        self, attachment: Attachment, tags: Collection[int]
    ) -> tuple[list[InFlight], list[InFlight]]:
        """Withdraws deliveries that the broker has reassigned to another consumer. Returns all unacknowledged ones, and
        those of them at work."""
        lost = _of_tags(attachment, tags)
        at_work = [one for one in lost if one.is_called or IS_UNDERWAY[one.state]]
        attachment.ack_window.forget(frozenset(lost))
        for in_flight in lost:
            self.lanes.move(in_flight, Event.REASSIGN)
        self.counts.taken += len(at_work)
        return lost, at_work

    def _wait_s(self, in_flight: InFlight, requested_s: float | None, *, is_exhausted: bool) -> float:
        """The wait that the application requests, else one by the number of attempts. A poisoned message waits for the
        longest at least: else an application that requests a second each time would be called each second for ever."""
        backoff = self.rules.backoff
        if requested_s is not None:
            requested_s = min(requested_s, AFTER_MAX_S)  # a callable may ask for an infinite one
        if is_exhausted:
            return max(requested_s or 0.0, backoff.longest_s(self._uniform))
        return requested_s if requested_s is not None else backoff.delay_s(in_flight.attempts, self._uniform)

    def wait_after(self, failed: int) -> float:
        """The wait before the next call of a message that failed so often, where the application requests none."""
        backoff = self.rules.backoff
        is_exhausted = failed >= self.rules.max_attempts
        return backoff.longest_s(self._uniform) if is_exhausted else backoff.delay_s(failed, self._uniform)

    def _ended_without_effect(self, in_flight: InFlight, kind: Kind) -> None:
        """If it was processed it can no longer be acknowledged, and is dropped when it comes again."""
        if kind is not Kind.ACK:
            self.counts.aborted += 1
        elif in_flight.identity is not None and not self.rules.republish:
            self.processed.add(in_flight.identity)
            if self.session is not None:
                self.session.done(in_flight)
            if self.parking is not None and self.parking.is_parked(in_flight):
                self.parking.settle(in_flight.key or "", in_flight.identity)
        self.lanes.move(in_flight, Event.END)

    def _acked(self, in_flight: InFlight) -> NextCall:
        if self._is_parked(in_flight):
            assert in_flight.identity is not None
            self.processed.add(in_flight.identity)
            self._settle_parked(in_flight, Outcome.ACK)
            return NextCall.PARK
        if not self.rules.republish:
            self._settle(in_flight, Outcome.ACK)
            return NextCall.NOTHING
        self.lanes.move(in_flight, Event.REPUBLISH)
        return NextCall.REPUBLISH

    def _refused(self, in_flight: InFlight, reason: str) -> NextCall:
        in_flight.reason = reason
        self.lanes.move(in_flight, Event.REFUSE)
        return NextCall.DEAD_LETTER

    def skip(self, in_flight: InFlight) -> NextCall:
        """Refuses a message whose state is poisoned: now, or at the end of the call that runs, unless that succeeds."""
        self.lanes.move(in_flight, Event.SKIP)
        if in_flight.is_called:
            return NextCall.NOTHING
        in_flight.reason = _skip_reason(in_flight)
        return NextCall.DEAD_LETTER

    def settle_fence(self, fence: InFlight) -> None:
        self._settle(fence, Outcome.FENCE)

    def _is_parked(self, in_flight: InFlight) -> bool:
        return self.parking is not None and self.parking.is_parked(in_flight)

    def _can_park(self, in_flight: InFlight) -> bool:
        key = in_flight.key
        return (
            self.parking is not None
            and key is not None
            and in_flight.identity is not None
            and in_flight.is_copyable
            and self.parking.has_room(key)
        )

    def _may_call(self, in_flight: InFlight, parking: Parking, now: float) -> bool:
        """False for a message of a parked key: it is parked as well, or waits."""
        judgement = parking.judge(in_flight, now)
        is_parked = parking.is_parked(in_flight)
        if is_parked and any(one.key == in_flight.key for one in self.running):
            # The queue and the mailbox deliver messages of one released key.
            judgement = Judgement.WAIT_SHORTLY
        if in_flight.attachment.beside_of is not None and not (is_parked and judgement is Judgement.DELIVER):
            # Not its turn: its copy is still in the parking queue, and comes again.
            self._requeued(in_flight)
            return False
        if judgement is Judgement.PARK and not in_flight.is_copyable:
            self._refuse_in_take(in_flight)
        elif judgement is Judgement.PARK:
            self._park(in_flight, is_poisoned=False)
        elif judgement is Judgement.WAIT:
            self.lanes.delay(in_flight, now + WAITS_S)
        elif judgement is Judgement.WAIT_SHORTLY:
            self.lanes.delay(in_flight, now + WAITS_SHORTLY_S)
        return judgement is Judgement.DELIVER

    def _park(self, in_flight: InFlight, *, is_poisoned: bool) -> None:
        """Its lane goes on at once: what is behind it is parked behind it, in the order of these effects."""
        assert self.parking is not None
        self.parking.park(in_flight, is_poisoned=is_poisoned)
        self.lanes.move(in_flight, Event.PARK)

    def _settle_parked(self, in_flight: InFlight, outcome: Outcome) -> None:
        """A parked message is done: it is acknowledged when the stream has that."""
        assert self.parking is not None
        assert in_flight.key is not None
        assert in_flight.identity is not None
        in_flight.settles_as = outcome
        self.lanes.move(in_flight, Event.SETTLE)
        self.parking.settle(in_flight.key, in_flight.identity, in_flight)

    def recorded(self, in_flight: InFlight) -> None:
        """The stream has the entry of a message: now it may be acked here."""
        if not in_flight.is_over:
            is_parked = in_flight.state is State.PARKING
            self._settle(in_flight, Outcome.PARKED if is_parked else in_flight.settles_as)

    def confirmed(self, in_flight: InFlight, action: NextCall) -> bool:
        """The broker has the dead letter, the republished message, or the copy in the parking queue. True if it may be
        acked here now."""
        if in_flight.is_over:
            return True
        if action is NextCall.PARK:
            assert self.parking is not None
            self.parking.copied(in_flight)
            return False
        if action is NextCall.DEAD_LETTER and self._is_parked(in_flight):
            self._settle_parked(in_flight, Outcome.DEAD)
            return False
        self._settle(in_flight, CONFIRMED_AS[in_flight.state])
        return True

    def _settle(self, in_flight: InFlight, outcome: Outcome) -> None:
        in_flight.outcome = outcome
        if outcome is Outcome.ACK:
            self.counts.acked += 1
            if self.key_counts is not None and in_flight.key is not None:
                self.key_counts.add(in_flight.key)
        elif outcome is Outcome.DEAD:
            self.counts.dead_lettered += 1
        elif outcome is Outcome.PARKED:
            self.counts.parked += 1
            if in_flight.identity is not None:
                self.processed.forget_attempts(in_flight.identity)
        if self.suspects is not None:
            self.suspects.settled(in_flight)
        if in_flight.identity is not None and outcome not in NOT_PROCESSED:
            self.processed.add(in_flight.identity)
        self.lanes.move(in_flight, Event.FINISH)
        ack_window = in_flight.attachment.ack_window
        ack_window.done(in_flight)
        if self.session is not None and ack_window.prefix:
            self.session.done(ack_window.prefix[-1])

    def close(self, attachment: Attachment) -> tuple[list[InFlight], list[InFlight]]:
        """Forget an attachment whose channel is going: (calls to abort, everything that was never acked)."""
        if self.parking is not None:
            self.parking.closed(attachment.underway)
        rest = attachment.ack_window.leave()
        running = self.lanes.close(attachment, rest)
        if attachment.beside is not None:
            assert self.parking is not None
            self.parking.close_beside(attachment.beside)
            running_beside, rest_beside = self.close(attachment.beside)
            return running + running_beside, rest + rest_beside
        return running, rest

    def overdue(self, now: float) -> list[InFlight]:
        """Calls that have run longer than the limit and are not being aborted yet; they are marked as timed out."""
        late = []
        started_before = now - self.rules.call_timeout_s
        for in_flight in self.running:  # in order of start
            if in_flight.started_at > started_before:
                break
            if in_flight.abort_reason is None and not in_flight.is_over:
                in_flight.abort_reason = f"no verdict within {self.rules.call_timeout_s:g} s"
                self.counts.timed_out += 1
                late.append(in_flight)
        return late

    def slow(self, now: float) -> list[InFlight]:
        """Calls that have run for half of the limit, each once."""
        started_before = now - self.rules.call_timeout_s / 2
        found = []
        for in_flight in self.running:  # in order of start
            if in_flight.started_at > started_before:
                break
            if not in_flight.is_slow and in_flight.abort_reason is None and not in_flight.is_over:
                in_flight.is_slow = True
                found.append(in_flight)
        return found

    @property
    def next_due(self) -> float:
        """Time at which a call will have run for too long: for half of the limit, or all of it."""
        due, timeout_s = float("inf"), self.rules.call_timeout_s
        for in_flight in self.running:  # in order of start
            if in_flight.abort_reason is not None or in_flight.is_over:
                continue
            if not in_flight.is_slow:
                return min(due, in_flight.started_at + timeout_s / 2)
            due = min(due, in_flight.started_at + timeout_s)
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
    return f"skipped by an administrator after {in_flight.attempts} attempts: {in_flight.reason or 'no reason given'}"


def _of_tags(attachment: Attachment, tags: Collection[int]) -> list[InFlight]:
    tag_set = frozenset(tags)
    return [in_flight for in_flight in attachment.ack_window.all_unacked() if in_flight.tag in tag_set]
