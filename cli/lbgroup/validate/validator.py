"""Validator of a group's deliveries: order, completeness, moves, overlaps and sessions.

Pure. An overlap is of the delivery that started later, once. Messages of one member may arrive after later ones of
another: deliveries that ended long before the latest start of a key are forgotten, so memory does not grow with
messages.

Completeness is checked in every mode. Order is checked by key, in mode Sessions by the numbers of each session instead;
moves of queues and shards are there only where a queue, or a partition, has one consumer at a time.

`Validator.observe` returns the findings of one republished message; `report` sums up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lbg_core.group import EXCLUSIVE, PARTITIONED, SESSIONS, OrderChecker, SessionChecker
from lbg_core.group.order_checker import Kind, Lost, Place, Verdict
from lbgroup.validate.republished import Republished


@dataclass(slots=True)
class QueueMoved:
    """A queue is delivered to another member than before.

    `pause_us`: last delivery there to first delivery here. `waited_us`: how long the first message was held up by
    that; less than the pause where it was published during it. Of the queue's messages since, `redelivered` were
    marked so by the broker (the member before had them, unsettled), and `repeated` had been delivered before.
    """

    queue: int
    was: int
    now: int
    was_name: str
    now_name: str
    at_us: int
    pause_us: int
    waited_us: int
    redelivered: int = 0
    repeated: int = 0

    def __str__(self) -> str:
        pause_ms = self.pause_us / 1000
        return f"queue moved: {self.queue} was {self.was_name}, now {self.now_name}, pause {pause_ms:.1f} ms"


@dataclass(frozen=True, slots=True)
class MovePauses:
    """Nearest-rank percentiles in microseconds; all None without a move."""

    count: int
    p50_us: int | None
    p90_us: int | None
    p99_us: int | None
    max_us: int | None

    @classmethod
    def of(cls, values_us: Sequence[int]) -> MovePauses:
        ordered = sorted(values_us)
        if not ordered:
            return cls(0, None, None, None, None)

        def rank(percent: int) -> int:
            return ordered[-(-len(ordered) * percent // 100) - 1]

        return cls(len(ordered), rank(50), rank(90), rank(99), ordered[-1])


@dataclass(slots=True)
class _Holder:
    """Member that receives a queue's messages now, and the move to it."""

    member: int
    name: str
    last_at_us: int
    move: QueueMoved | None = None


@dataclass(slots=True)
class QueueMoveTracker:
    """Tracks the member that gets each queue's messages, and every move."""

    moves: list[QueueMoved] = field(default_factory=list)
    _now: dict[int, _Holder] = field(default_factory=dict)

    @property
    def names(self) -> dict[int, str]:
        return {queue: holder.name for queue, holder in sorted(self._now.items())}

    def observe(self, message: Republished, *, repeated: bool) -> QueueMoved | None:
        """Record the member; returns a move if it is another one than before."""
        moved = self._observe(message)
        if (latest := self._now[message.queue].move) is not None:
            latest.redelivered += message.redelivered
            latest.repeated += repeated
        return moved

    def _observe(self, message: Republished) -> QueueMoved | None:
        at_us = message.delivered_at_us
        holder = self._now.get(message.queue)
        if holder is None:
            self._now[message.queue] = _Holder(message.member, message.member_name, at_us)
            return None
        if (holder.member, holder.name) == (message.member, message.member_name):
            holder.last_at_us = max(holder.last_at_us, at_us)
            return None
        pause_us = at_us - holder.last_at_us
        held_up_us = pause_us if message.published_at_us is None else at_us - message.published_at_us
        move = QueueMoved(
            queue=message.queue,
            was=holder.member,
            now=message.member,
            was_name=holder.name,
            now_name=message.member_name,
            at_us=at_us,
            pause_us=pause_us,
            waited_us=max(0, min(pause_us, held_up_us)),
        )
        self.moves.append(move)
        self._now[message.queue] = _Holder(message.member, message.member_name, at_us, move)
        return move


LATE_US = 120_000_000
"""So much later than another of its key may a delivery arrive and still be compared with it: more than a call takes by
default and a member needs to publish."""

SPANS_OF_A_KEY = 256
"""Most deliveries remembered of a key: overlapping ones are close to each other."""


@dataclass(frozen=True, slots=True)
class KeyOverlap:
    """A delivery that the application of `member` had while that of another had one of its key. `uncertain`: the skew
    of their clocks may explain it."""

    publisher: str
    key: str
    hash: int
    seq: int
    member: int
    member_name: str
    other_member: int
    other_member_name: str
    at_us: int
    uncertain: bool

    def __str__(self) -> str:
        doubt = " (uncertain: within the skew of their clocks)" if self.uncertain else ""
        return (
            f"overlap: key {self.key!r} of hash {self.hash}: {self.seq} of publisher {self.publisher} began at member "
            f"{self.member} {self.member_name} while the key was with member {self.other_member} "
            f"{self.other_member_name}{doubt}"
        )


@dataclass(slots=True, eq=False)
class _Span:
    """`is_reported`: an overlap of it is; `is_certain`: one that no clock explains."""

    message: Republished
    started_us: int
    finished_us: int
    is_reported: bool = False
    is_certain: bool = False

    @property
    def place(self) -> tuple[int, str]:
        return self.started_us, self.message.incarnation

    @property
    def holder(self) -> tuple[int, str]:
        return self.message.member, self.message.incarnation


@dataclass(slots=True)
class Overlaps:
    """`count`: overlaps that no clock explains, `uncertain`: the others. `untimed`: messages with a key, and without
    the times of their calls."""

    skew_us: int = 0
    count: int = 0
    uncertain: int = 0
    untimed: int = 0
    _spans: dict[str, list[_Span]] = field(default_factory=dict)

    def observe(self, message: Republished) -> list[KeyOverlap]:
        """Overlaps that one message reveals. Without a key it has no order, and overlaps nothing."""
        if message.key is None:
            return []
        if message.started_at_us is None or message.finished_at_us is None:
            self.untimed += 1
            return []
        if message.finished_at_us <= message.started_at_us:
            return []
        span = _Span(message, message.started_at_us, message.finished_at_us)
        of_key = self._spans.setdefault(message.key, [])
        overlaps = [
            overlap
            for other in of_key
            if other.holder != span.holder
            and other.started_us < span.finished_us
            and span.started_us < other.finished_us
            and (overlap := self._overlap(*_in_order(other, span))) is not None
        ]
        of_key.append(span)
        latest_us = max(one.started_us for one in of_key)
        of_key[:] = [one for one in of_key if one.finished_us > latest_us - LATE_US][-SPANS_OF_A_KEY:]
        return overlaps

    def _overlap(self, first: _Span, later: _Span) -> KeyOverlap | None:
        """None where as much was reported of the later one before."""
        shift_us = min(first.finished_us - later.started_us, later.finished_us - first.started_us)
        is_explained = first.message.incarnation != later.message.incarnation and shift_us <= self.skew_us
        if later.is_certain or (later.is_reported and is_explained):
            return None
        if later.is_reported:
            self.uncertain -= 1
        later.is_reported, later.is_certain = True, not is_explained
        self.uncertain += is_explained
        self.count += not is_explained
        message, other = later.message, first.message
        assert message.key is not None
        return KeyOverlap(
            publisher=message.publisher,
            key=message.key,
            hash=message.hash_,
            seq=message.seq,
            member=message.member,
            member_name=message.member_name,
            other_member=other.member,
            other_member_name=other.member_name,
            at_us=later.started_us,
            uncertain=is_explained,
        )


def _in_order(one: _Span, other: _Span) -> tuple[_Span, _Span]:
    """Of two that began at once the later is chosen as the pipeline does, so that both report the same one."""
    return (one, other) if one.place <= other.place else (other, one)


MOST_ERRORS = 1000


@dataclass(frozen=True, slots=True)
class SessionError:
    """A message that is not where a session should have it. `kind`: inversion (after a later one of its session),
    two_places (assigned before, in another session or under another number), renumbered (its number was another
    message's). `expected` is the lowest number of this session that would have been in order."""

    kind: str
    session: str
    sequence: int
    expected: int
    publisher: str
    hash: int
    received: int
    member_name: str

    def __str__(self) -> str:
        return (
            f"session error: {self.kind}: session {self.session!r}: number {self.sequence}, expected "
            f"{self.expected} :: message {self.received} of hash {self.hash}, publisher {self.publisher}, member "
            f"{self.member_name}"
        )


@dataclass(slots=True)
class Sessions:
    """Checks of sessions so far."""

    checker: SessionChecker = field(default_factory=SessionChecker)
    counts: Counter[Place] = field(default_factory=Counter)
    unnumbered: int = 0
    errors: list[SessionError] = field(default_factory=list)

    @property
    def are_sound(self) -> bool:
        return not (self.unnumbered or self.counts[Place.TWO_PLACES] or self.counts[Place.RENUMBERED])

    def observe(self, message: Republished, *, repeated: bool) -> SessionError | None:
        if message.session is None or message.sequence is None:
            self.unnumbered += 1
            return None
        verdict = self.checker.observe(message.session, message.sequence, repeated=repeated)
        self.counts[verdict.place] += 1
        if verdict.place in (Place.OK, Place.REWIND):
            return None
        error = SessionError(
            kind=verdict.place.value,
            session=message.session,
            sequence=message.sequence,
            expected=verdict.expected,
            publisher=message.publisher,
            hash=message.hash_,
            received=message.seq,
            member_name=message.member_name,
        )
        if len(self.errors) < MOST_ERRORS:
            self.errors.append(error)
        return error

    def report(self) -> dict[str, Any]:
        """For a report as JSON: the last number of each session, and the errors."""
        return {
            "last_numbers": self.checker.highest,
            "in_two_places": self.counts[Place.TWO_PLACES],
            "renumbered": self.counts[Place.RENUMBERED],
            "unnumbered": self.unnumbered,
            "errors": [asdict(error) for error in self.errors],
        }


@dataclass(frozen=True, slots=True)
class SequenceError:
    """A message out of sequence. `kind` is rewind (delivered again) or inversion (after a later one of its key).

    `expected` is the lowest number of this key that would have been in order, of the publisher's later epoch
    `expected_of` where that is not None.
    """

    kind: str
    publisher: str
    key: str | None
    hash: int
    expected: int
    received: int
    queue: int
    member: int
    member_name: str
    redelivered: bool
    at_us: int
    expected_of: str | None = None

    def __str__(self) -> str:
        return (
            f"sequence error: {self.kind}: key {self.key!r} of hash {self.hash}: expected {self.expected}"
            f"{f' of its later epoch {self.expected_of}' if self.expected_of else ''}, received "
            f"{self.received}{' (redelivered)' if self.redelivered else ''} :: queue {self.queue}, "
            f"member {self.member} {self.member_name}, publisher {self.publisher}"
        )


@dataclass(frozen=True, slots=True)
class ShardMoved:
    """A hash is delivered to another member than before."""

    hash: int
    queue: int
    was: int
    now: int
    pause_us: int

    def __str__(self) -> str:
        return (
            f"shard moved: hash {self.hash} (queue {self.queue}) was member {self.was}, now member {self.now}, "
            f"pause {self.pause_us / 1000:.1f} ms"
        )


Finding = SequenceError | ShardMoved | QueueMoved | SessionError | KeyOverlap

EVENTS: Mapping[type[Finding], str] = {
    SequenceError: "sequence_error",
    ShardMoved: "shard_moved",
    QueueMoved: "queue_moved",
    SessionError: "session_error",
    KeyOverlap: "overlap",
}
"""Names of findings in JSON."""


@dataclass(slots=True)
class Validator:
    """Checks of all messages so far. `mode` is the group's."""

    mode: str = EXCLUSIVE
    checker: OrderChecker = field(default_factory=OrderChecker)
    delivered: int = 0
    rewinds: int = 0
    inversions: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    unreadable: int = 0
    shard_moves: int = 0
    errors: list[SequenceError] = field(default_factory=list)
    sessions: Sessions = field(default_factory=Sessions)
    holders: QueueMoveTracker = field(default_factory=QueueMoveTracker)
    overlaps: Overlaps = field(default_factory=Overlaps)
    overlapping: list[KeyOverlap] = field(default_factory=list)
    per_queue: dict[int, int] = field(default_factory=dict)
    per_member: dict[str, int] = field(default_factory=dict)
    _bounds: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def observe(self, message: Republished, *, seen_before: bool = False) -> list[Finding]:
        """Check one message. `seen_before`: the broker delivered it to the validator before, so a repeat is our own."""
        overlaps = [] if self.mode == SESSIONS or seen_before else self.overlaps.observe(message)
        self.overlapping += overlaps[: MOST_ERRORS - len(self.overlapping)]
        if message.is_released:
            return [*overlaps]
        return [*overlaps, *self._check(message, seen_before=seen_before)]

    def _check(self, message: Republished, *, seen_before: bool) -> list[Finding]:
        verdict = self.checker.observe(
            message.publisher,
            None if self.mode == SESSIONS else message.key,
            message.hash_,
            message.seq,
            message.member,
            message.delivered_at_us,
            is_placed=self._is_placed(message),
        )
        if verdict.kind is Kind.REWIND and seen_before:
            return []
        self._count(message)
        findings: list[Finding] = []
        if verdict.kind is not Kind.OK:
            findings.append(self._out_of_sequence(message, verdict))
        if self.mode == SESSIONS:
            error = self.sessions.observe(message, repeated=verdict.kind is Kind.REWIND)
            if error is not None:
                findings.append(error)
                self.inversions += error.kind == Kind.INVERSION.value
        if not self._is_placed(message):
            return findings
        if verdict.move is not None:
            self.shard_moves += 1
            move = verdict.move
            findings.append(ShardMoved(move.hash_, message.queue, move.was, move.now, move.pause_us))
        moved = self.holders.observe(message, repeated=verdict.kind is Kind.REWIND)
        if moved is not None:
            findings.append(moved)
        return findings

    def lost(self, expected: Mapping[str, Mapping[int, int]] | None) -> list[Lost]:
        """Lost messages: against the publishers' reports or, without them, gaps between messages that came."""
        if expected is not None:
            return self.checker.lost(expected)
        upto: dict[str, dict[int, int]] = {}
        for (publisher, hash_), (_, highest) in self._bounds.items():
            upto.setdefault(publisher, {})[hash_] = highest + 1
        lost = self.checker.lost(upto)
        return [one for one in lost if one.first >= self._bounds[one.publisher, one.hash_][0]]

    def is_complete(self, expected: Mapping[str, Mapping[int, int]]) -> bool:
        return not self.checker.lost(expected)

    def unexpected(self, expected: Mapping[str, Mapping[int, int]] | None) -> int:
        """Streams without a publisher's report, or with messages beyond it."""
        if expected is None:
            return 0
        return sum(
            highest >= expected.get(publisher, {}).get(hash_, 0)
            for (publisher, hash_), (_, highest) in self._bounds.items()
        )

    def progress(self) -> dict[str, Any]:
        """The counts so far, for a live view."""
        return {
            "delivered": self.delivered,
            "rewinds": self.rewinds,
            "inversions": self.inversions,
            "overlaps": self.overlaps.count,
            "redelivered": self.redelivered,
            "dead_lettered": self.dead_lettered,
            "shard_moves": self.shard_moves,
            "queue_moves": len(self.holders.moves),
            "per_queue": dict(sorted(self.per_queue.items())),
            "per_member": dict(sorted(self.per_member.items())),
            "holders": self.holders.names,
        }

    def report(self, group: str, expected: Mapping[str, Mapping[int, int]] | None) -> dict[str, Any]:
        """The final report, ready for JSON. `ok`: nothing lost, nothing inverted, and no key at two members at once."""
        lost = self.lost(expected)
        progress = self.progress()
        duplicated, order_errors = progress.pop("rewinds"), progress.pop("inversions")
        lost_count = sum(one.last - one.first + 1 for one in lost)
        return {
            "group": group,
            "mode": self.mode,
            "ok": not (lost or self.inversions or self.overlaps.count) and self.sessions.are_sound,
            "judged_against": "publishers' reports" if expected is not None else "what arrived",
            "distinct": self.delivered - self.rewinds,
            "lost": lost_count,
            "duplicated": duplicated,
            "order_errors": order_errors,
            "uncertain_overlaps": self.overlaps.uncertain,
            "untimed": self.overlaps.untimed,
            **progress,
            "unexpected_streams": self.unexpected(expected),
            "unreadable": self.unreadable,
            "pauses": asdict(MovePauses.of([move.pause_us for move in self.holders.moves])),
            "waits": asdict(MovePauses.of([move.waited_us for move in self.holders.moves])),
            "moves": [asdict(move) for move in self.holders.moves],
            "lost_ranges": [asdict(one) for one in lost[:MOST_ERRORS]],
            "sequence_errors": [asdict(error) for error in self.errors],
            "overlapping": [asdict(overlap) for overlap in self.overlapping],
            **({"sessions": self.sessions.report()} if self.mode == SESSIONS else {}),
        }

    def _is_placed(self, message: Republished) -> bool:
        """True if its queue, or partition, is where its hash says. A message without a key goes to any partition."""
        return self.mode == EXCLUSIVE or (self.mode == PARTITIONED and message.key is not None)

    def _count(self, message: Republished) -> None:
        self.delivered += 1
        self.redelivered += message.redelivered
        self.dead_lettered += message.is_dead_letter
        self.per_queue[message.queue] = self.per_queue.get(message.queue, 0) + 1
        self.per_member[message.member_name] = self.per_member.get(message.member_name, 0) + 1
        stream = message.publisher, message.hash_
        lowest, highest = self._bounds.get(stream, (message.seq, message.seq))
        self._bounds[stream] = min(lowest, message.seq), max(highest, message.seq)

    def _out_of_sequence(self, message: Republished, verdict: Verdict) -> SequenceError:
        kind = verdict.kind
        if kind is Kind.REWIND:
            self.rewinds += 1
        else:
            self.inversions += 1
        error = SequenceError(
            kind=kind.value,
            publisher=message.publisher,
            key=message.key,
            hash=message.hash_,
            expected=verdict.expected,
            expected_of=verdict.expected_of,
            received=message.seq,
            queue=message.queue,
            member=message.member,
            member_name=message.member_name,
            redelivered=message.redelivered,
            at_us=message.delivered_at_us,
        )
        # An inversion must not be crowded out by the harmless rewinds of a crash.
        if len(self.errors) < MOST_ERRORS or kind is Kind.INVERSION:
            self.errors.append(error)
        return error
