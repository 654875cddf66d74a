"""Judging deliveries: order per (publisher, key), completeness per (publisher, hash), shard moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from .sequences import SequenceSet


class Kind(Enum):
    OK = "ok"
    REWIND = "rewind"
    """Seen before: delivered again, as after a crash. A duplicate, not an order error."""
    INVERSION = "inversion"
    """Seen for the first time after a later one of its key: the order error."""


@dataclass(frozen=True, slots=True)
class Move:
    """A shard, that is a hash, went from member to member.

    `pause_us` is the time from its last delivery there to its first one here.
    """

    hash_: int
    was: int
    now: int
    pause_us: int
    at_us: int


@dataclass(slots=True)
class Verdict:
    """What one observation says.

    `expected` is the lowest sequence number that would have been in order for this key: one more than the highest
    seen. Other keys of the same hash have numbers in between, so a higher one is in order too.
    """

    kind: Kind
    expected: int
    received: int
    move: Move | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """Sequence numbers `first` to `last` of `publisher` and `hash_` never came."""

    publisher: str
    hash_: int
    first: int
    last: int


class _Stream:
    """What was seen of one publisher and hash: every number, and the highest of each key."""

    __slots__ = ("highest", "seen")

    def __init__(self) -> None:
        self.seen = SequenceSet()
        self.highest: dict[str, int] = {}


class OrderJudge:
    """Judges deliveries one by one, in the order in which they are observed.

    Memory grows with the number of keys and of holes, not with the messages.
    """

    def __init__(self) -> None:
        self.observed = 0
        self.rewinds = 0
        self.inversions = 0
        self.moves = 0
        self._streams: dict[tuple[str, int], _Stream] = {}
        self._shards: dict[int, list[int]] = {}
        """By hash: the member that had it last, and when."""

    def observe(
        self,
        publisher: str,
        key: str | None,
        hash_: int,
        seq: int,
        member: int,
        at_us: int,
        *,
        is_placed: bool = True,
    ) -> Verdict:
        """Judge one delivery: `member` got it at `at_us`. A message without a key has no order to break. `is_placed`:
        it came to this member because of its hash, so that it says who has the shard."""
        self.observed += 1
        stream = self._streams.get((publisher, hash_))
        if stream is None:
            stream = self._streams[publisher, hash_] = _Stream()
        highest = -1 if key is None else stream.highest.get(key, -1)
        if not stream.seen.add(seq):
            self.rewinds += 1
            kind = Kind.REWIND
        elif seq < highest:
            self.inversions += 1
            kind = Kind.INVERSION
        else:
            kind = Kind.OK
            if key is not None:
                stream.highest[key] = seq
        if not is_placed:
            return Verdict(kind, highest + 1, seq)
        shard = self._shards.get(hash_)
        if shard is None:
            self._shards[hash_] = [member, at_us]
            return Verdict(kind, highest + 1, seq)
        move = None
        if shard[0] != member:
            self.moves += 1
            move = Move(hash_, shard[0], member, at_us - shard[1], at_us)
            shard[0] = member
        shard[1] = at_us
        return Verdict(kind, highest + 1, seq, move)

    @property
    def distinct(self) -> int:
        """How many different messages were observed."""
        return self.observed - self.rewinds

    def lost(self, expected: Mapping[str, Mapping[int, int]]) -> list[Lost]:
        """What is missing against `expected`: publisher -> hash -> the number its next message would have."""
        lost = []
        for publisher, by_hash in expected.items():
            for hash_, next_seq in by_hash.items():
                stream = self._streams.get((publisher, hash_))
                holes = (stream.seen if stream else SequenceSet()).holes(next_seq)
                lost += [Lost(publisher, hash_, first, last) for first, last in holes]
        return lost
