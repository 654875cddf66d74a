"""Moves of keys between separate queues while messages come in: the change, the entries of its stream, and the state
that they add up to.

docs/adr/0071-keys-move-between-queues.md has the protocol. Each hash that gets another queue goes there over a staging
queue: messages of queue `a` that are there before the cut are served by it, later ones wait in the staging queue until
`a` has passed its cut, and then in queue `b` until the staging queue has passed its own. A cut is a *fence*, a message
in the queue itself. The entries are in the stream `lbg.G.moves`, whose order decides: an entry may come twice or late.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, get_args

from lbg_core.counted_nouns import counted
from lbg_core.group.json_codec import EntryCodec
from lbg_core.group.sequences import StreamRuns

_ID_BYTES = 8


@dataclass(frozen=True)
class KeyMove:
    """A change of the number of queues from `old` to `new`. `id`: of this change, among all of the group; it begins
    with both numbers, so that whoever reads the record knows the queues that there are without the stream.

    While it lasts the group has `queue_count` queues: the old ones and the new ones, which have the same numbers, and
    behind them the staging queues, one for each old queue that hashes leave.
    """

    id: str
    old: int
    new: int
    hash_count: int

    @classmethod
    def between(cls, old: int, new: int, hash_count: int) -> KeyMove:
        """A change that nobody has begun yet."""
        return cls(f"{old}-{new}-{secrets.token_hex(_ID_BYTES)}", old, new, hash_count)

    @classmethod
    def of_id(cls, id_: str, hash_count: int) -> KeyMove | None:
        """The change that the record states by its id; None for an id of another form."""
        numbers = id_.split("-")[:2]
        if len(numbers) < 2 or not all(one.isascii() and one.isdecimal() for one in numbers):
            return None
        old, new = map(int, numbers)
        return cls(id_, old, new, hash_count) if 1 <= min(old, new) <= max(old, new) <= hash_count else None

    @cached_property
    def staging(self) -> dict[int, int]:
        """Numbers of the staging queues, by the old queue whose hashes they take."""
        first = max(self.old, self.new)
        sources = sorted({hash_ % self.old for hash_ in self.hashes})
        return {source: first + place for place, source in enumerate(sources)}

    @cached_property
    def sources(self) -> dict[int, int]:
        """The other way round: old queues, by the number of their staging queue."""
        return {staging: source for source, staging in self.staging.items()}

    @property
    def hashes(self) -> Iterable[int]:
        """Those that get another queue."""
        return (hash_ for hash_ in range(self.hash_count) if self.moves(hash_))

    def moves(self, hash_: int) -> bool:
        return hash_ % self.old != hash_ % self.new

    @property
    def queue_count(self) -> int:
        return max(self.old, self.new) + len(self.staging)

    def queues_of(self, hash_: int) -> tuple[int, ...]:
        """Queues that may have messages of this hash, in the order in which it passes them."""
        old, new = hash_ % self.old, hash_ % self.new
        return (old,) if old == new else (old, self.staging[old], new)

    def leaves(self, hash_: int, queue: int) -> bool:
        """True if messages of this hash leave the queue by its fence."""
        return self.moves(hash_) and queue in self.queues_of(hash_)[:2]


def _is_possible(move: KeyMove) -> KeyMove:
    if min(move.old, move.new) < 1 or max(move.old, move.new) > move.hash_count:
        raise ValueError(
            f"no change of {move.old} to {counted(move.new, 'queue')} of "
            f"{counted(move.hash_count, 'hash', 'hashes')} is possible"
        )
    return move


@dataclass(frozen=True, slots=True)
class BeginEntry:
    """The change begins: members take part in it from here on."""

    move: Annotated[KeyMove, _is_possible]


@dataclass(frozen=True, slots=True)
class JoinEntry:
    """The member with this identity has read that the change began."""

    index: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class BarrierEntry:
    """A reader of it has read all that was confirmed before it was written. `queues`: those that its writer serves from
    now on."""

    id: str
    queues: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PassEntry:
    """Queue `queue` has passed its fence: no message of the hashes that leave it is unsettled there. `by`: id of the
    barrier of who serves the queue; the entry counts while that is the latest one of the queue. `streams`: numbers of
    these hashes that were processed."""

    move: str
    queue: int
    by: str
    streams: tuple[StreamRuns, ...] = ()


@dataclass(frozen=True, slots=True)
class NumbersEntry:
    """Numbers that were processed, of hashes that leave queue `queue`, by a member that hands it over next."""

    move: str
    queue: int
    streams: tuple[StreamRuns, ...]


@dataclass(frozen=True, slots=True)
class EndEntry:
    """Every hash is led to its new queue, and every fence is passed."""

    move: str


Entry = BeginEntry | JoinEntry | BarrierEntry | PassEntry | NumbersEntry | EndEntry


KEY_MOVE_ENTRIES = EntryCodec[Entry]("key moves", get_args(Entry))
"""Their JSON."""


class Turn(enum.Enum):
    """Decision on a message of a hash in a queue."""

    DELIVER = enum.auto()
    HOLD = enum.auto()
    """Earlier ones of its hash may be unsettled in another queue."""
    FORWARD = enum.auto()
    """It came behind the fence: it goes to the queue to which its hash went."""


@dataclass
class KeyMoveState:
    """State of a group's change, from the entries of its stream. `move` is None before the first one begins."""

    move: KeyMove | None = None
    passed: dict[int, PassEntry] = field(default_factory=dict)
    joined: set[tuple[int, str]] = field(default_factory=set)
    """Index and incarnation of the members that take part."""
    serves: dict[int, str] = field(default_factory=dict)
    """By queue, id of the latest barrier of a member that serves it. What a former one writes late has no effect."""
    is_ended: bool = False

    def apply(self, entry: Entry) -> bool:
        """True if the entry changed something."""
        move = self.move
        match entry:
            case BeginEntry(begun):
                if move is not None and move.id == begun.id:
                    return False
                self.move, self.is_ended = begun, False
                self.passed.clear()
                self.joined.clear()
            case JoinEntry(index, incarnation):
                self.joined.add((index, incarnation))
            case PassEntry(move_id, queue, by):
                if move is None or move_id != move.id or queue in self.passed or self.serves.get(queue) != by:
                    return False
                self.passed[queue] = entry
            case NumbersEntry(move_id):
                return move is not None and move_id == move.id
            case EndEntry(move_id):
                if move is None or move_id != move.id or self.is_ended:
                    return False
                self.is_ended = True
            case BarrierEntry(id_, queues):
                self.serves.update(dict.fromkeys(queues, id_))
                return bool(queues)
        return True

    @property
    def queue_count(self) -> int | None:
        """Queues that the group has by this; None before any change began."""
        if self.move is None:
            return None
        return self.move.new if self.is_ended else self.move.queue_count

    def queues_of(self, hash_: int) -> tuple[int, ...]:
        """Queues that may have messages of this hash."""
        assert self.move is not None
        return (hash_ % self.move.new,) if self.is_ended else self.move.queues_of(hash_)

    def delivers(self, hash_: int) -> int:
        """The queue that delivers messages of this hash, as far as it is known."""
        queues = self.queues_of(hash_)
        return next((queue for queue in queues[:-1] if queue not in self.passed), queues[-1])

    def is_open(self, queue: int) -> bool:
        """True if the queue may be consumed from: a staging queue once its old queue has passed its fence."""
        move = self.move
        if move is None or self.is_ended or queue not in move.sources:
            return True
        return move.sources[queue] in self.passed

    def turn(self, hash_: int, queue: int) -> Turn:
        """The decision on a message of this hash that the queue delivers."""
        move = self.move
        if move is None or self.is_ended or not move.moves(hash_):
            return Turn.DELIVER
        old, staging, new = move.queues_of(hash_)
        if not self.is_open(queue):
            return Turn.HOLD  # a consumer of a queue that had the number of this staging queue before
        if queue in (old, staging):
            return Turn.FORWARD if queue in self.passed else Turn.DELIVER
        return Turn.DELIVER if queue != new or staging in self.passed else Turn.HOLD

    def forwards_to(self, hash_: int) -> int:
        """The queue for a message that came behind the fence of its own."""
        assert self.move is not None
        _, staging, new = self.move.queues_of(hash_)
        return new if staging in self.passed else staging
