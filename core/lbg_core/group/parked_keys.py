"""Parked keys of a group: the entries of the stream `lbg.G.parked`, and the set that they add up to.

The set only grows (docs/adr/0065-parked-keys-are-a-log.md): messages that were parked, less messages that are settled.
Entries may come twice, late, and in any order, but for one that voids copies: it counts for what comes behind it.
"""

from __future__ import annotations

import enum
import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import get_args

from lbg_core.group.json_codec import EntryCodec
from lbg_core.group.sequences import MessageIdentity, SequenceSet, epoch_of


@dataclass(frozen=True, slots=True)
class ParkEntry:
    """A copy of the message is in the parking queue. `cause`: id of the failure for which its key is parked. `copy`: id
    of the copy. `published_us`: since the epoch, 0 where it is unknown; in a snapshot that of the key's oldest."""

    key: str
    identity: MessageIdentity
    size_bytes: int
    cause: str
    copy: str
    published_us: int = 0


@dataclass(frozen=True, slots=True)
class SettleEntry:
    """The message is processed or discarded, for good."""

    key: str
    identity: MessageIdentity


@dataclass(frozen=True, slots=True)
class ReleaseEntry:
    """The key, as far as it was parked for these causes, may be delivered again; or these messages alone."""

    key: str
    causes: tuple[str, ...] = ()
    only: tuple[MessageIdentity, ...] = ()


@dataclass(frozen=True, slots=True)
class VoidEntry:
    """These copies had no entry of theirs: one that comes later has no effect, so they may be deleted."""

    copies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BarrierEntry:
    """A reader of it has read all that was confirmed before it was written."""

    id: str


@dataclass(frozen=True, slots=True)
class MarkEntry:
    """The place of a snapshot: the set as it was here is in the entries of this id that follow."""

    id: str


@dataclass(frozen=True, slots=True)
class SettledEntry:
    """Settled numbers of a publisher and hash, as runs. Of snapshots."""

    publisher: str
    hash_: int
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """A part of the set as it was at the mark of this id, for who reads from there. It changes nothing for others."""

    mark: str
    entries: tuple[ParkEntry | ReleaseEntry | SettledEntry | VoidEntry, ...]
    is_last: bool


Entry = (
    ParkEntry
    | SettleEntry
    | ReleaseEntry
    | VoidEntry
    | BarrierEntry
    | MarkEntry
    | SettledEntry
    | SnapshotEntry
)


PARKED_ENTRIES = EntryCodec[Entry]("parked keys", get_args(Entry))
"""Their JSON."""


class KeyState(enum.StrEnum):
    FREE = "free"
    PARKED = "parked"
    RELEASED = "released"
    """Its messages may be delivered, those in the set first."""


class _Numbers:
    """Sequence numbers of one publisher, hash and key that are in the set, with sizes."""

    __slots__ = ("_heap", "sizes")

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self._heap: list[int] = []

    def add(self, number: int, size_bytes: int) -> None:
        if number not in self.sizes:
            heapq.heappush(self._heap, number)
        self.sizes[number] = size_bytes

    @property
    def lowest(self) -> int:
        heap = self._heap
        while heap[0] not in self.sizes:
            heapq.heappop(heap)
        return heap[0]


@dataclass(slots=True)
class _Key:
    causes: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)
    only: set[MessageIdentity] = field(default_factory=set)
    streams: dict[tuple[str, int], _Numbers] = field(default_factory=dict)
    messages: int = 0
    size_bytes: int = 0
    oldest_us: int = 0
    """Publishing time of the oldest message that was parked, 0 where it is unknown."""
    at_release: int = 0
    """Messages when it was released last."""
    since_release: int = 0
    """Messages that were parked since, while it is released."""

    @property
    def is_released(self) -> bool:
        return self.causes <= self.released


@dataclass(frozen=True, slots=True)
class ParkedKey:
    """A key of the set, for a view and for a release. `first`: the lowest number of each publisher and hash.
    `oldest_us`: publishing time of its oldest message, 0 if unknown."""

    key: str
    is_released: bool
    messages: int
    size_bytes: int
    causes: tuple[str, ...]
    first: tuple[MessageIdentity, ...]
    oldest_us: int = 0

    def age_s(self, now_us: int) -> float | None:
        """Age of its oldest message since it was published; None without that time."""
        return max(0, now_us - self.oldest_us) / 1e6 if self.oldest_us else None


ENDING_MESSAGES = 100
"""Messages of a released key for which later ones wait, rather than be parked and be a further round."""

SETTLED_STREAMS_MAX = 4096
"""Publishers and hashes of which settled numbers are remembered, the latest ones. One that is forgotten only lets a
late entry of a dead member park a message that is done: a release delivers it once more."""

SETTLED_RUNS_MAX = 4096


def _is_earlier_epoch(one: str, other: str) -> bool:
    former, latter = epoch_of(one), epoch_of(other)
    return former.history == latter.history and former.began_us < latter.began_us


class ParkedKeys:
    """The set. `messages` and `size_bytes` are those in it."""

    def __init__(self) -> None:
        self._keys: dict[str, _Key] = {}
        self._settled: OrderedDict[tuple[str, int], SequenceSet] = OrderedDict()
        self._void: set[str] = set()
        self.messages = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._keys)

    @property
    def oldest_us(self) -> int:
        """Publishing time of the oldest message, in microseconds since the epoch; 0 where it is unknown. Settled ones
        of a key count while it has others."""
        return min((one.oldest_us for one in self._keys.values() if one.oldest_us), default=0)

    def apply(self, entry: Entry) -> None:
        match entry:
            case ParkEntry():
                self._park(entry)
            case SettleEntry():
                self._settle(entry)
            case ReleaseEntry(name, causes, only):
                key = self._keys.get(name)
                if key is not None:
                    was_released = key.is_released
                    key.released.update(causes)
                    key.only.update(only)
                    if causes and not was_released:  # each round of a release writes it again
                        key.at_release, key.since_release = key.messages, 0
            case VoidEntry(copies):
                self._void.update(copies)
            case SettledEntry(publisher, hash_, runs):
                settled = self._settled_of((publisher, hash_))
                for first, last in runs:
                    settled.add_run(first, last)
            case BarrierEntry() | MarkEntry() | SnapshotEntry():
                pass

    def state(self, key: str) -> KeyState:
        state = self._keys.get(key)
        if state is None:
            return KeyState.FREE
        return KeyState.RELEASED if state.is_released else KeyState.PARKED

    def cause(self, key: str) -> str | None:
        """A failure for which the key is parked, one that is not released if there is one; None if it is free."""
        state = self._keys.get(key)
        return None if state is None else min(state.causes - state.released or state.causes)

    def is_released(self, key: str, cause: str) -> bool:
        """True if the key may be delivered although it was parked for this cause."""
        state = self._keys.get(key)
        return state is not None and cause in state.released

    def is_parked(self, key: str, identity: MessageIdentity) -> bool:
        """True if this message is in the set."""
        state = self._keys.get(key)
        numbers = None if state is None else state.streams.get(identity[:2])
        return numbers is not None and identity[2] in numbers.sizes

    def is_settled(self, identity: MessageIdentity) -> bool:
        """True if it was in the set once, or was never, and is done."""
        settled = self._settled.get(identity[:2])
        return settled is not None and identity[2] in settled

    def is_ending(self, key: str) -> bool:
        """True if no further message of this key should be parked, so that its release ends: few are left in the set,
        or as many were parked as it had when it was released."""
        state = self._keys.get(key)
        if state is None or not state.is_released:
            return False
        return state.messages <= ENDING_MESSAGES or state.since_release >= state.at_release

    def is_void(self, copy: str) -> bool:
        """True if an entry of this copy has no effect, unless it came before."""
        return copy in self._void

    def may_deliver(self, key: str, identity: MessageIdentity) -> bool:
        """True if the application may get this message now: its key is free, or it is the next of a released key."""
        state = self._keys.get(key)
        if state is None:
            return True
        numbers = state.streams.get(identity[:2])
        if numbers is None or identity[2] > numbers.lowest:
            return False
        if not state.is_released and identity not in state.only:
            return False
        return len(state.streams) == 1 or not any(
            _is_earlier_epoch(publisher, identity[0]) for publisher, _ in state.streams
        )

    def parked(self) -> Iterator[ParkedKey]:
        """All keys, in the order in which they were parked."""
        for name, key in self._keys.items():
            first = tuple((*stream, numbers.lowest) for stream, numbers in key.streams.items())
            causes = tuple(sorted(key.causes))
            yield ParkedKey(name, key.is_released, key.messages, key.size_bytes, causes, first, key.oldest_us)

    def numbers(self, key: str) -> Iterator[MessageIdentity]:
        """Messages of this key, rising for each publisher and hash."""
        state = self._keys.get(key)
        for stream, numbers in state.streams.items() if state is not None else ():
            for number in sorted(numbers.sizes):
                yield (*stream, number)

    def snapshot(
        self, copies: RecordedCopies
    ) -> Iterator[ParkEntry | ReleaseEntry | SettledEntry | VoidEntry]:
        """Entries that make this set, in their order, of an empty one. `copies`: those of its messages."""
        for name, key in self._keys.items():
            first_cause, *more_causes = sorted(key.causes)
            parks = [
                ParkEntry(name, (*stream, number), numbers.sizes[number], first_cause, copy, key.oldest_us)
                for stream, numbers in key.streams.items()
                for number in sorted(numbers.sizes)
                for copy in copies.of((*stream, number))
            ]
            yield from parks
            yield from (replace(parks[0], cause=cause) for cause in more_causes)
            yield ReleaseEntry(name, tuple(sorted(key.released)), tuple(sorted(key.only)))
        for stream, settled in self._settled.items():
            yield SettledEntry(*stream, tuple(settled.runs()))
        if self._void:
            yield VoidEntry(tuple(sorted(self._void)))

    def _park(self, entry: ParkEntry) -> None:
        if entry.copy in self._void or self.is_settled(entry.identity):
            return
        key = self._keys.setdefault(entry.key, _Key())
        key.causes.add(entry.cause)
        numbers = key.streams.setdefault(entry.identity[:2], _Numbers())
        number = entry.identity[2]
        if number in numbers.sizes:
            return
        numbers.add(number, entry.size_bytes)
        key.oldest_us = min((us for us in (key.oldest_us, entry.published_us) if us), default=0)
        key.messages += 1
        key.since_release += key.is_released
        key.size_bytes += entry.size_bytes
        self.messages += 1
        self.size_bytes += entry.size_bytes

    def _settle(self, entry: SettleEntry) -> None:
        settled = self._settled_of(entry.identity[:2])
        settled.add(entry.identity[2])
        settled.forget(SETTLED_RUNS_MAX)
        self._remove(entry.key, entry.identity)

    def _settled_of(self, stream: tuple[str, int]) -> SequenceSet:
        settled = self._settled.get(stream)
        if settled is None:
            if len(self._settled) >= SETTLED_STREAMS_MAX:
                self._settled.popitem(last=False)
            settled = self._settled[stream] = SequenceSet()
        else:
            self._settled.move_to_end(stream)
        return settled

    def _remove(self, name: str, identity: MessageIdentity) -> None:
        key = self._keys.get(name)
        numbers = None if key is None else key.streams.get(identity[:2])
        if key is None or numbers is None or identity[2] not in numbers.sizes:
            return
        size_bytes = numbers.sizes.pop(identity[2])
        key.messages -= 1
        key.size_bytes -= size_bytes
        self.messages -= 1
        self.size_bytes -= size_bytes
        if not numbers.sizes:
            del key.streams[identity[:2]]
        if not key.streams:
            del self._keys[name]


class RecordedCopies:
    """Ids of the copies that have an entry, of the messages in a set. A copy that has none may get it until it is void,
    or belongs to a message that is settled."""

    def __init__(self) -> None:
        self._copies: dict[MessageIdentity, set[str]] = {}

    def applied(self, entry: Entry, keys: ParkedKeys) -> None:
        """`keys` is the set with this entry."""
        match entry:
            case ParkEntry(key, identity, copy=copy) if keys.is_parked(key, identity):
                if not keys.is_void(copy):
                    self._copies.setdefault(identity, set()).add(copy)
            case SettleEntry(identity=identity):
                self._copies.pop(identity, None)
            case _:
                pass

    def has(self, identity: MessageIdentity, copy: str) -> bool:
        return copy in self._copies.get(identity, ())

    def of(self, identity: MessageIdentity) -> list[str]:
        return sorted(self._copies.get(identity, ()))
