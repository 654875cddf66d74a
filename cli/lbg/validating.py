"""Judging what the members of a group republish: the document's validation client ("Sticky Load Balancing"), pure.

`Validation.observe` takes one republished message and says what is to be told of it; `report` sums up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lbg_broker.group import (
    HEADER_DELIVERED_AT,
    HEADER_HASH,
    HEADER_KEY,
    HEADER_MEMBER,
    HEADER_MEMBER_NAME,
    HEADER_PUBLISHER,
    HEADER_QUEUE,
    HEADER_REDELIVERED,
    HEADER_SEQ,
    HEADER_TS,
    OrderJudge,
)
from lbg_broker.group.order import Kind, Lost

KEPT_ERRORS = 1000
"""How many sequence errors and lost ranges a report lists; all are counted."""


class NotRepublished(ValueError):
    """A message without the headers that a republishing member adds; says which is missing or wrong."""


@dataclass(frozen=True, slots=True)
class Republished:
    """What a republished message says of itself; times are microseconds since the epoch."""

    publisher: str
    key: str | None
    hash_: int
    seq: int
    queue: int
    member: int
    member_name: str
    redelivered: bool
    delivered_at_us: int
    published_at_us: int | None
    is_dead_letter: bool = False

    @classmethod
    def of_dead_letter(cls, headers: Mapping[str, Any], routing_key: str, now_us: int) -> Republished:
        """From a message that the application refused; raises NotRepublished. It was delivered as well."""
        _, _, rest = routing_key.partition(".")
        hash_ = rest.partition(".")[0]
        if not hash_.isdecimal():
            raise NotRepublished(f"routing key {routing_key!r} holds no hash")
        stamped = {HEADER_DELIVERED_AT: now_us, **headers, HEADER_HASH: int(hash_)}
        return replace(cls.parse(stamped), is_dead_letter=True)

    @classmethod
    def parse(cls, headers: Mapping[str, Any]) -> Republished:
        """From a message's headers; raises NotRepublished."""
        key, stamped = headers.get(HEADER_KEY), headers.get(HEADER_TS)
        return cls(
            publisher=_text(headers, HEADER_PUBLISHER),
            key=None if key is None else str(key),
            hash_=_number(headers, HEADER_HASH),
            seq=_number(headers, HEADER_SEQ),
            queue=_number(headers, HEADER_QUEUE),
            member=_number(headers, HEADER_MEMBER),
            member_name=str(headers.get(HEADER_MEMBER_NAME) or headers.get(HEADER_MEMBER)),
            redelivered=bool(headers.get(HEADER_REDELIVERED)),
            delivered_at_us=_number(headers, HEADER_DELIVERED_AT),
            published_at_us=stamped if isinstance(stamped, int) else None,
        )


@dataclass(frozen=True, slots=True)
class SequenceError:
    """A message out of sequence. `kind` is rewind (delivered again) or inversion (after a later one of its key).

    `expected` is the lowest number of this key that would have been in order.
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

    def __str__(self) -> str:
        return (
            f"sequence error: {self.kind}: key {self.key!r} of hash {self.hash}: expected {self.expected}, received "
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


@dataclass(slots=True)
class _Holder:
    """Who gets a queue's messages now, and by which move."""

    member: int
    name: str
    last_at_us: int
    move: QueueMoved | None = None


Finding = SequenceError | ShardMoved | QueueMoved


@dataclass(frozen=True, slots=True)
class Pauses:
    """Nearest-rank percentiles in microseconds; all None without a move."""

    count: int
    p50_us: int | None
    p90_us: int | None
    p99_us: int | None
    max_us: int | None

    @classmethod
    def of(cls, values_us: Sequence[int]) -> Pauses:
        ordered = sorted(values_us)
        if not ordered:
            return cls(0, None, None, None, None)

        def rank(percent: int) -> int:
            return ordered[-(-len(ordered) * percent // 100) - 1]

        return cls(len(ordered), rank(50), rank(90), rank(99), ordered[-1])


@dataclass(slots=True)
class Validation:
    """All that was judged so far."""

    judge: OrderJudge = field(default_factory=OrderJudge)
    delivered: int = 0
    rewinds: int = 0
    inversions: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    unreadable: int = 0
    shard_moves: int = 0
    errors: list[SequenceError] = field(default_factory=list)
    queue_moves: list[QueueMoved] = field(default_factory=list)
    per_queue: dict[int, int] = field(default_factory=dict)
    per_member: dict[str, int] = field(default_factory=dict)
    _holders: dict[int, _Holder] = field(default_factory=dict)
    _bounds: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def observe(self, message: Republished, *, seen_before: bool = False) -> list[Finding]:
        """Judge one message. `seen_before`: the broker gave it to the validator before, so a repeat is our own."""
        verdict = self.judge.observe(
            message.publisher,
            message.key,
            message.hash_,
            message.seq,
            message.member,
            message.delivered_at_us,
        )
        if verdict.kind is Kind.REWIND and seen_before:
            return []
        self._count(message)
        findings: list[Finding] = []
        if verdict.kind is not Kind.OK:
            findings.append(self._out_of_sequence(message, verdict.kind, verdict.expected))
        if verdict.move is not None:
            self.shard_moves += 1
            move = verdict.move
            findings.append(ShardMoved(move.hash_, message.queue, move.was, move.now, move.pause_us))
        if (moved := self._held(message)) is not None:
            findings.append(moved)
        if (latest := self._holders[message.queue].move) is not None:
            latest.redelivered += message.redelivered
            latest.repeated += verdict.kind is Kind.REWIND
        return findings

    def lost(self, expected: Mapping[str, Mapping[int, int]] | None) -> list[Lost]:
        """What never came: against what publishers say they sent or, without that, between what did come."""
        if expected is not None:
            return self.judge.lost(expected)
        upto: dict[str, dict[int, int]] = {}
        for (publisher, hash_), (_, highest) in self._bounds.items():
            upto.setdefault(publisher, {})[hash_] = highest + 1
        found = self.judge.lost(upto)
        return [one for one in found if one.first >= self._bounds[one.publisher, one.hash_][0]]

    def is_complete(self, expected: Mapping[str, Mapping[int, int]]) -> bool:
        return not self.judge.lost(expected)

    def unexpected(self, expected: Mapping[str, Mapping[int, int]] | None) -> int:
        """Streams that nobody reports to have published, or that go on after what is reported."""
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
            "redelivered": self.redelivered,
            "dead_lettered": self.dead_lettered,
            "shard_moves": self.shard_moves,
            "queue_moves": len(self.queue_moves),
            "per_queue": dict(sorted(self.per_queue.items())),
            "per_member": dict(sorted(self.per_member.items())),
            "holders": {queue: holder.name for queue, holder in sorted(self._holders.items())},
        }

    def report(self, group: str, expected: Mapping[str, Mapping[int, int]] | None) -> dict[str, Any]:
        """The final word, ready for JSON. `ok`: nothing lost and nothing inverted."""
        lost = self.lost(expected)
        progress = self.progress()
        duplicated, order_errors = progress.pop("rewinds"), progress.pop("inversions")
        lost_count = sum(one.last - one.first + 1 for one in lost)
        return {
            "group": group,
            "ok": not lost and not self.inversions,
            "judged_against": "publishers' reports" if expected is not None else "what arrived",
            "distinct": self.delivered - self.rewinds,
            "lost": lost_count,
            "duplicated": duplicated,
            "order_errors": order_errors,
            **progress,
            "unexpected_streams": self.unexpected(expected),
            "unreadable": self.unreadable,
            "pauses": asdict(Pauses.of([move.pause_us for move in self.queue_moves])),
            "waits": asdict(Pauses.of([move.waited_us for move in self.queue_moves])),
            "moves": [asdict(move) for move in self.queue_moves],
            "lost_ranges": [asdict(one) for one in lost[:KEPT_ERRORS]],
            "sequence_errors": [asdict(error) for error in self.errors],
        }

    def _count(self, message: Republished) -> None:
        self.delivered += 1
        self.redelivered += message.redelivered
        self.dead_lettered += message.is_dead_letter
        self.per_queue[message.queue] = self.per_queue.get(message.queue, 0) + 1
        self.per_member[message.member_name] = self.per_member.get(message.member_name, 0) + 1
        stream = message.publisher, message.hash_
        lowest, highest = self._bounds.get(stream, (message.seq, message.seq))
        self._bounds[stream] = min(lowest, message.seq), max(highest, message.seq)

    def _out_of_sequence(self, message: Republished, kind: Kind, expected: int) -> SequenceError:
        if kind is Kind.REWIND:
            self.rewinds += 1
        else:
            self.inversions += 1
        error = SequenceError(
            kind=kind.value,
            publisher=message.publisher,
            key=message.key,
            hash=message.hash_,
            expected=expected,
            received=message.seq,
            queue=message.queue,
            member=message.member,
            member_name=message.member_name,
            redelivered=message.redelivered,
        )
        # An inversion must not be crowded out by the harmless rewinds of a crash.
        if len(self.errors) < KEPT_ERRORS or kind is Kind.INVERSION:
            self.errors.append(error)
        return error

    def _held(self, message: Republished) -> QueueMoved | None:
        """Note who got the message; a move where that is another member than before."""
        at_us = message.delivered_at_us
        holder = self._holders.get(message.queue)
        if holder is None:
            self._holders[message.queue] = _Holder(message.member, message.member_name, at_us)
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
        self.queue_moves.append(move)
        self._holders[message.queue] = _Holder(message.member, message.member_name, at_us, move)
        return move


def _text(headers: Mapping[str, Any], name: str) -> str:
    value = headers.get(name)
    if not isinstance(value, str):
        raise NotRepublished(f"header {name} is {'missing' if value is None else 'not text'}")
    return value


def _number(headers: Mapping[str, Any], name: str) -> int:
    value = headers.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise NotRepublished(f"header {name} is {'missing' if value is None else 'not a number'}")
    return value
