"""Parking of keys: a poisoned message and all later ones of its key go to the parking queue, in order.

docs/adr/0065-parked-keys-are-a-log.md has the protocol. A message is parked by its copy, the confirm, its entry, the
confirm, and the ack once the entry is read in the stream: in front of it may be one that voids the copy. The set of
parked keys is that of the stream, and in front of it the messages whose entries are on their way: those end with their
attachment.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from lbg_core.group.parked_keys import BarrierEntry, Entry, KeyState, ParkedKeys, ParkEntry, SettleEntry
from lbg_core.group.sequences import MessageIdentity
from lbg_sidecar.core.barriers import Barrier, Barriers
from lbg_sidecar.core.delivery import Attachment, InFlight, Processed
from lbg_sidecar.core.effects import Done, Effect, KeyParked, ParkCopy, ParkedKeysUnread, RecordEntry
from lbg_sidecar.core.lanes import Lanes
from lbg_sidecar.core.message_states import Hold

WAITS_S = 1.0
"""Until a message that cannot be parked is judged again: the bounds are reached, or it has no sequence number."""

WAITS_SHORTLY_S = 0.1
"""Until a message is judged again that waits for the last ones of its key that are released."""

ENDS_WITHIN_S = 10.0
"""A message of a released key waits for those that are released as long as the last one of them came within this time.
Else it is parked: who releases them may be gone."""


@dataclass(frozen=True, slots=True)
class ParkingBounds:
    """Bounds of the group's parked messages. Beyond them nothing is parked, and keys block."""

    keys: int = 1000
    messages: int = 100_000
    size_bytes: int = 256_000_000


class Judgement(enum.Enum):
    DELIVER = enum.auto()
    PARK = enum.auto()
    WAIT = enum.auto()
    """It may neither be delivered nor be parked now."""
    WAIT_SHORTLY = enum.auto()
    """The last messages of its key that are released come now, and it is the next; or one of its key is called."""


@dataclass(slots=True)
class _Pending:
    """A message whose entry is on its way. `is_read`: in the stream, where it can be read before it is confirmed."""

    entry: ParkEntry
    in_flight: InFlight
    is_confirmed: bool = False
    is_read: bool = False


class Parking:
    """`serving` is the attachment that serves
    the queue of a hash, if this member does."""

    def __init__(
        self,
        bounds: ParkingBounds,
        processed: Processed,
        lanes: Lanes,
        effects: list[Effect],
        *,
        new_id: Callable[[], str],
        serving: Callable[[int], Attachment | None],
    ) -> None:
        self.bounds = bounds
        self.keys = ParkedKeys()
        self.is_read = False
        """True if all that was in the stream when this connection began has been read."""
        self._processed = processed
        self._effects = effects
        self._new_id = new_id
        self._barriers = Barriers(lanes, Hold.PARKED_KEYS, self._write_barrier, new_id)
        self._serving = serving
        self._released_at: dict[str, float] = {}
        """By key, when a released message came beside its queue."""
        self._pending: dict[str, dict[InFlight, _Pending]] = {}
        """By key, messages whose entries are not in the stream."""
        self._by_copy: dict[str, _Pending] = {}

    # Activation

    def activated(self, attachment: Attachment, now: float) -> None:
        """The first delivery of an attachment: it starts nothing until a barrier that is written now is read."""
        self._barriers.hold(attachment, now)

    def read(self, entries: Iterable[Entry], now: float) -> list[InFlight]:
        """Entries of the stream, in its order. Returns messages that are parked now."""
        parked = []
        for entry in entries:
            if isinstance(entry, BarrierEntry):
                if self._barriers.is_due(entry.id):
                    self._barrier_read(now)
                continue
            self.keys.apply(entry)
            if isinstance(entry, ParkEntry):
                pending = self._by_copy.get(entry.copy)
                if pending is not None:
                    pending.is_read = True
                    if self._completes(pending):
                        parked.append(pending.in_flight)
                if self.is_read:
                    self._settle_processed(entry.key, entry.identity)
        return parked

    def tick(self, now: float) -> None:
        if self._barriers.tick(now) and (barrier := self._barriers.due) is not None:
            self._effects.append(ParkedKeysUnread(self._barriers.queues, now - barrier.since))

    @property
    def next_due(self) -> float:
        return self._barriers.next_due

    def disconnected(self) -> None:
        """The set is read anew with the next connection: an entry without a confirm is there, or its message comes
        again."""
        self.keys = ParkedKeys()
        self.is_read = False
        self._pending.clear()
        self._by_copy.clear()
        self._barriers.end()

    def _write_barrier(self, barrier: Barrier) -> None:
        self._effects.append(RecordEntry(BarrierEntry(barrier.id)))

    def _barrier_read(self, now: float) -> None:
        self.is_read = True
        for one in list(self.keys.parked()):
            for identity in list(self.keys.numbers(one.key)):
                self._settle_processed(one.key, identity)
        self._barriers.passed(now)

    def _settle_processed(self, key: str, identity: MessageIdentity) -> None:
        """A late entry of a member that is gone, of a message that was processed since."""
        is_ours = self._serving(identity[1]) is not None
        if identity in self._processed and is_ours and self.keys.is_parked(key, identity):
            self.settle(key, identity)

    # Messages on their turn

    def beside(self, hash_: int) -> Attachment | None:
        """The attachment for released copies of this hash, which come over the mailbox; None if they are not to be
        delivered here now."""
        serving = self._serving(hash_)
        if serving is None or serving.closed or serving.holds:
            return None
        if serving.beside is None:
            serving.beside = Attachment(serving.queue, serving.epoch)
            serving.beside.beside_of = serving
        return serving.beside

    def close_beside(self, beside: Attachment) -> None:
        """Ends it. Messages that are recorded as settled need no acknowledgement."""
        done = [*beside.ack_window.take(), *beside.ack_window.pop_scattered(len(beside.ack_window.scattered))]
        if done:
            self._effects.append(Done(tuple(done), settled=True))

    def released(self, key: str, now: float) -> None:
        """A released copy of this key came."""
        self._released_at = {one: at for one, at in self._released_at.items() if now < at + ENDS_WITHIN_S}
        self._released_at[key] = now

    def judge(self, in_flight: InFlight, now: float) -> Judgement:
        key, identity = in_flight.key, in_flight.identity
        if key is None:
            return Judgement.DELIVER
        state = self.state(key)
        if state is KeyState.FREE:
            return Judgement.DELIVER
        if identity is None:
            return Judgement.WAIT
        if self._may_deliver(key, identity):
            return Judgement.DELIVER
        if self.keys.is_ending(key) and self._is_coming(in_flight, now):
            return Judgement.WAIT_SHORTLY
        # Of a released key all is parked: else the release would wait for room, and room for the release.
        if state is KeyState.RELEASED or self.is_parked(in_flight) or self.has_room(key):
            return Judgement.PARK
        return Judgement.WAIT

    def _is_coming(self, in_flight: InFlight, now: float) -> bool:
        """True if released copies of its key are here, or came lately."""
        beside = in_flight.attachment.beside
        if beside is not None and in_flight.lane in beside.lanes:
            return True
        return now < self._released_at.get(in_flight.key or "", float("-inf")) + ENDS_WITHIN_S

    def state(self, key: str) -> KeyState:
        state = self.keys.state(key)
        pending = self._pending.get(key)
        if pending is None or state is KeyState.PARKED:
            return state
        is_released = all(self.keys.is_released(key, one.entry.cause) for one in pending.values())
        return KeyState.RELEASED if is_released else KeyState.PARKED

    def has_room(self, key: str) -> bool:
        """True if a message of this key may be parked."""
        keys, bounds = self.keys, self.bounds
        return (
            keys.messages < bounds.messages
            and keys.size_bytes < bounds.size_bytes
            and (keys.state(key) is not KeyState.FREE or len(keys) < bounds.keys)
        )

    @property
    def is_full(self) -> bool:
        """True if no message of another key may be parked."""
        keys, bounds = self.keys, self.bounds
        return (
            keys.messages >= bounds.messages
            or keys.size_bytes >= bounds.size_bytes
            or len(keys) >= bounds.keys
        )

    def is_parked(self, in_flight: InFlight) -> bool:
        """True if this message is in the set: it is to be settled before it is acknowledged."""
        key, identity = in_flight.key, in_flight.identity
        return key is not None and identity is not None and self.keys.is_parked(key, identity)

    def is_settled(self, identity: MessageIdentity) -> bool:
        return self.keys.is_settled(identity)

    def park(self, in_flight: InFlight, *, is_poisoned: bool) -> None:
        """Begins to park a message. `is_poisoned`: its attempts are used up, which is a cause of its own."""
        key, identity = in_flight.key, in_flight.identity
        assert key is not None
        assert identity is not None
        cause = self._new_id() if is_poisoned else self._cause(key)
        pending = _Pending(ParkEntry(key, identity, in_flight.size, cause, self._new_id()), in_flight)
        self._pending.setdefault(key, {})[in_flight] = pending
        self._copy(pending)
        if is_poisoned:
            self._effects.append(
                KeyParked(in_flight.queue, key, identity, in_flight.attempts, in_flight.reason)
            )

    def copied(self, in_flight: InFlight) -> None:
        """The parking queue has the copy: now its entry is written. Also of a message in the set: its former copy may
        be of a release, and its entry of a cause that was released."""
        pending = self._pending[in_flight.key or ""][in_flight]
        self._effects.append(RecordEntry(pending.entry, in_flight))

    def recorded(self, in_flight: InFlight, entry: Entry) -> bool:
        """The stream has the entry. True if the message may be acknowledged now."""
        if not isinstance(entry, ParkEntry):
            return True
        pending = self._by_copy.get(entry.copy)
        if pending is None:
            return False
        pending.is_confirmed = True
        return self._completes(pending)

    def _completes(self, pending: _Pending) -> bool:
        """True once the entry is confirmed and read. A copy that is void by then is made again."""
        if not (pending.is_confirmed and pending.is_read):
            return False
        if self.keys.is_void(pending.entry.copy):
            del self._by_copy[pending.entry.copy]
            pending.entry = replace(pending.entry, copy=self._new_id())
            pending.is_confirmed = pending.is_read = False
            self._copy(pending)
            return False
        self._forget(pending.in_flight)
        return True

    def _copy(self, pending: _Pending) -> None:
        self._by_copy[pending.entry.copy] = pending
        self._effects.append(ParkCopy(pending.in_flight, pending.entry.copy))

    def settle(self, key: str, identity: MessageIdentity, in_flight: InFlight | None = None) -> None:
        """A message of the set is processed, which is true whether the stream gets the entry or not."""
        entry = SettleEntry(key, identity)
        if in_flight is not None and in_flight.attachment.beside_of is not None:
            self._released_at[key] = in_flight.finished_at or 0.0
        self.keys.apply(entry)
        self._effects.append(RecordEntry(entry, in_flight))

    def closed(self, parked: Iterable[InFlight]) -> None:
        """The channel of these messages is gone: they come again, here or elsewhere, and are judged then."""
        for in_flight in parked:
            self._forget(in_flight)

    def _forget(self, in_flight: InFlight) -> None:
        key = in_flight.key or ""
        of_key = self._pending.get(key, {})
        pending = of_key.pop(in_flight, None)
        if pending is not None:
            del self._by_copy[pending.entry.copy]
            if not of_key:
                del self._pending[key]

    def _cause(self, key: str) -> str:
        pending = self._pending.get(key)
        if self.keys.state(key) is not KeyState.PARKED and pending:
            return next(reversed(pending.values())).entry.cause
        return self.keys.cause(key) or self._new_id()

    def _may_deliver(self, key: str, identity: MessageIdentity) -> bool:
        pending = self._pending.get(key)
        if pending is None:
            return self.keys.may_deliver(key, identity)
        if self.state(key) is KeyState.PARKED and self.keys.state(key) is not KeyState.PARKED:
            return False
        identities = (one.entry.identity for one in pending.values())
        is_behind = any(one[:2] == identity[:2] and one[2] < identity[2] for one in identities)
        return not is_behind and self.keys.may_deliver(key, identity)
