"""Judging what the members of a group republish: the document's validation client ("Sticky Load Balancing"), pure.

Completeness is judged in every mode. Order is judged by key, in mode Sessions by the numbers of each session instead;
moves of queues and shards are there only where a queue, or a partition, has one consumer at a time.

`Validation.observe` takes one republished message and says what is to be told of it; `report` sums up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lbg.moving import Holders, Pauses, QueueMoved
from lbg.overlaps import KeyOverlap, Overlaps
from lbg.republished import Republished
from lbg.validating_sessions import SessionError, Sessions
from lbg_broker.group import EXCLUSIVE, PARTITIONED, SESSIONS, OrderJudge
from lbg_broker.group.order import Kind, Lost, Verdict

KEPT_ERRORS = 1000
"""How many sequence errors, overlaps and lost ranges a report lists; all are counted."""


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


@dataclass(slots=True)
class Validation:
    """All that was judged so far. `mode` is the group's."""

    mode: str = EXCLUSIVE
    judge: OrderJudge = field(default_factory=OrderJudge)
    delivered: int = 0
    rewinds: int = 0
    inversions: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    unreadable: int = 0
    shard_moves: int = 0
    errors: list[SequenceError] = field(default_factory=list)
    sessions: Sessions = field(default_factory=Sessions)
    holders: Holders = field(default_factory=Holders)
    overlaps: Overlaps = field(default_factory=Overlaps)
    overlapping: list[KeyOverlap] = field(default_factory=list)
    per_queue: dict[int, int] = field(default_factory=dict)
    per_member: dict[str, int] = field(default_factory=dict)
    _bounds: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def observe(self, message: Republished, *, seen_before: bool = False) -> list[Finding]:
        """Judge one message. `seen_before`: the broker gave it to the validator before, so a repeat is our own."""
        overlaps = [] if self.mode == SESSIONS or seen_before else self.overlaps.observe(message)
        self.overlapping += overlaps[: KEPT_ERRORS - len(self.overlapping)]
        if message.is_released:
            return [*overlaps]
        return [*overlaps, *self._judge(message, seen_before=seen_before)]

    def _judge(self, message: Republished, *, seen_before: bool) -> list[Finding]:
        verdict = self.judge.observe(
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
        """The final word, ready for JSON. `ok`: nothing lost, nothing inverted, and no key at two members at once."""
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
            "pauses": asdict(Pauses.of([move.pause_us for move in self.holders.moves])),
            "waits": asdict(Pauses.of([move.waited_us for move in self.holders.moves])),
            "moves": [asdict(move) for move in self.holders.moves],
            "lost_ranges": [asdict(one) for one in lost[:KEPT_ERRORS]],
            "sequence_errors": [asdict(error) for error in self.errors],
            "overlapping": [asdict(overlap) for overlap in self.overlapping],
            **({"sessions": self.sessions.report()} if self.mode == SESSIONS else {}),
        }

    def _is_placed(self, message: Republished) -> bool:
        """Whether its queue, or partition, is where its hash says. A message without a key goes to any partition."""
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
        if len(self.errors) < KEPT_ERRORS or kind is Kind.INVERSION:
            self.errors.append(error)
        return error
