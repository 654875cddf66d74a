"""Order and completeness of deliveries, per publisher and key, and per session.

"Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers": a message is never given to two consumers,
and the order of one consumer is kept; between consumers there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from lbg_core.group.sequences import SequenceSet, epoch_of


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
    """Verdict on one observed message.

    `expected` is the lowest sequence number that would have been in order for this key: one more than the highest
    seen. Other keys of the same hash have numbers in between, so a higher one is in order too. `expected_of`: the
    publisher whose number that is, where a later epoch of the received one's has been seen; else None.
    """

    kind: Kind
    expected: int
    received: int
    move: Move | None = None
    expected_of: str | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """Sequence numbers `first` to `last` of `publisher` and `hash_` never came."""

    publisher: str
    hash_: int
    first: int
    last: int


_NOTHING = (-1, -1)


class _Stream:
    """Numbers seen of one publisher and hash: every one. And of all its epochs the latest message of each key, as
    the beginning of its epoch and its number."""

    __slots__ = ("began_us", "highest", "numbers", "publishers")

    def __init__(
        self, began_us: int, highest: dict[str, tuple[int, int]], publishers: dict[int, str]
    ) -> None:
        self.numbers = SequenceSet()
        self.began_us = began_us
        self.highest = highest
        self.publishers = publishers


class OrderChecker:
    """Judges deliveries one by one, in the order in which they are observed.

    Memory grows with the number of keys and of holes, not with the messages.
    """

    def __init__(self) -> None:
        self.observed = 0
        self.rewinds = 0
        self.inversions = 0
        self.moves = 0
        self._streams: dict[tuple[str, int], _Stream] = {}
        self._histories: dict[tuple[str, int], tuple[dict[str, tuple[int, int]], dict[int, str]]] = {}
        """By history and hash: the latest message of each key, and the publisher of each epoch."""
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
        """Checks one delivery: `member` got it at `at_us`. A message without a key has no order to break. `is_placed`:
        it came to this member because of its hash, so that it shows the member of the shard."""
        self.observed += 1
        stream = self._streams.get((publisher, hash_)) or self._open(publisher, hash_)
        number = stream.began_us, seq
        highest = _NOTHING if key is None else stream.highest.get(key, _NOTHING)
        if not stream.numbers.add(seq):
            self.rewinds += 1
            kind = Kind.REWIND
        elif number < highest:
            self.inversions += 1
            kind = Kind.INVERSION
        else:
            kind = Kind.OK
            if key is not None:
                stream.highest[key] = number
        expected, expected_of = highest[1] + 1, None
        if highest[0] > stream.began_us:
            expected_of = stream.publishers[highest[0]]
        elif highest[0] < stream.began_us:
            expected = 0
        if not is_placed:
            return Verdict(kind, expected, seq, None, expected_of)
        shard = self._shards.get(hash_)
        if shard is None:
            self._shards[hash_] = [member, at_us]
            return Verdict(kind, expected, seq, None, expected_of)
        move = None
        if shard[0] != member:
            self.moves += 1
            move = Move(hash_, shard[0], member, at_us - shard[1], at_us)
            shard[0] = member
        shard[1] = at_us
        return Verdict(kind, expected, seq, move, expected_of)

    def _open(self, publisher: str, hash_: int) -> _Stream:
        history, began_us = epoch_of(publisher)
        highest, publishers = self._histories.setdefault((history, hash_), ({}, {}))
        publishers[began_us] = publisher
        stream = self._streams[publisher, hash_] = _Stream(began_us, highest, publishers)
        return stream

    @property
    def distinct(self) -> int:
        """Number of different messages observed."""
        return self.observed - self.rewinds

    def lost(self, expected: Mapping[str, Mapping[int, int]]) -> list[Lost]:
        """Messages missing against `expected`: publisher -> hash -> the number its next message would have."""
        lost = []
        for publisher, by_hash in expected.items():
            for hash_, next_seq in by_hash.items():
                stream = self._streams.get((publisher, hash_))
                holes = (stream.numbers if stream else SequenceSet()).holes(next_seq)
                lost += [Lost(publisher, hash_, first, last) for first, last in holes]
        return lost


class Place(Enum):
    """Place of a message in its session, beside whether the message itself was seen before."""

    OK = "ok"
    REWIND = "rewind"
    """Seen before under the same number of the same session: delivered again, as after a crash."""
    INVERSION = "inversion"
    """Seen for the first time after a later one of its session."""
    TWO_PLACES = "two_places"
    """Seen before in another session, or under another number: it was delivered twice."""
    RENUMBERED = "renumbered"
    """Its number was that of another message."""


@dataclass(frozen=True, slots=True)
class SessionVerdict:
    """`expected` is the lowest number that would have been in order."""

    place: Place
    expected: int


class _Session:
    __slots__ = ("highest", "numbers")

    def __init__(self) -> None:
        self.numbers = SequenceSet()
        self.highest = 0


class SessionChecker:
    """Memory grows with the sessions and their holes, not with the messages."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}

    @property
    def highest(self) -> dict[str, int]:
        """The highest number that was seen of each session."""
        return {name: one.highest for name, one in sorted(self._sessions.items())}

    def observe(self, session: str, sequence: int, *, repeated: bool) -> SessionVerdict:
        """`repeated`: the message itself, by publisher, hash and sequence there, was seen before."""
        one = self._sessions.setdefault(session, _Session())
        expected = one.highest + 1
        is_new = one.numbers.add(sequence)
        one.highest = max(one.highest, sequence)
        if repeated:
            place = Place.TWO_PLACES if is_new else Place.REWIND
        elif not is_new:
            place = Place.RENUMBERED
        else:
            place = Place.INVERSION if sequence < expected else Place.OK
        return SessionVerdict(place, expected)
