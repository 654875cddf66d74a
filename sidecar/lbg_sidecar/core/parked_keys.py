"""Parking of keys: a poisoned message and all later ones of its key go to the parking queue, in order.

docs/adr/0065-parked-keys-are-a-log.md has the protocol. A message is parked by its copy, the confirm, its entry, the
confirm, and the ack once the entry is read in the stream: in front of it may be one that voids the copy. The set of
parked keys is that of the stream, and in front of it the messages whose entries are on their way: those end with their
attachment.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lbg_core.group.member_state import ParkingState
from lbg_core.group.parked_keys import BarrierEntry, Entry, KeyState, ParkedKeys, ParkEntry, SettleEntry
from lbg_core.group.sequences import MessageIdentity
from lbg_sidecar.core.barriers import Barrier, Barriers
from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome
from lbg_sidecar.core.dispatcher import ParkingBounds, Turn, WhenExhausted
from lbg_sidecar.core.effects import Done, Failure, ParkCopy, ParkedKeysUnread, RecordEntry
from lbg_sidecar.core.key_moves import NOT_COPYABLE, KeyMoves
from lbg_sidecar.core.message_states import Event, Hold, State
from lbg_sidecar.core.part import Context, Part

WAITS_S = 1.0
"""Until a message that cannot be parked is judged again: the bounds are reached, or it has no sequence number."""

WAITS_SHORTLY_S = 0.1
"""Until a message is judged again that waits for the last ones of its key that are released."""

ENDS_WITHIN_S = 10.0
"""A message of a released key waits for those that are released as long as the last one of them came within this time.
Else it is parked: who releases them may be gone."""


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


class Parking(Part):
    def __init__(self, context: Context, bounds: ParkingBounds, key_moves: KeyMoves) -> None:
        super().__init__(context)
        self.bounds = bounds
        self.keys = ParkedKeys()
        self.is_read = False
        """True if all that was in the stream when this connection began has been read."""
        self._barriers = Barriers(self._lanes, Hold.PARKED_KEYS, self._write_barrier, self._new_id)
        self._key_moves = key_moves
        self._released_at: dict[str, float] = {}
        """By key, when a released message came beside its queue."""
        self._pending: dict[str, dict[InFlight, _Pending]] = {}
        """By key, messages whose entries are not in the stream."""
        self._by_copy: dict[str, _Pending] = {}

    # Activation

    def activated(self, attachment: Attachment, first: InFlight, now: float) -> None:
        """Starts nothing until a barrier that is written now is read."""
        self._barriers.hold(attachment, now)

    def read(self, entries: Sequence[Entry], now: float) -> None:
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
                    self._complete(pending)
                if self.is_read:
                    self._settle_processed(entry.key, entry.identity)

    def tick(self, now: float) -> None:
        if self._barriers.tick(now) and (barrier := self._barriers.due) is not None:
            self._effects.append(ParkedKeysUnread(self._barriers.queues, now - barrier.since))

    def next_due(self, now: float) -> float:
        return self._barriers.next_due

    def disconnected(self, now: float) -> None:
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
        is_ours = self._key_moves.serving(identity[1]) is not None
        if identity in self._processed and is_ours and self.keys.is_parked(key, identity):
            self.settle(key, identity)

    # Messages on their turn

    def beside(self, hash_: int) -> Attachment | None:
        """The attachment for released copies of this hash, which come over the mailbox; None if they are not to be
        delivered here now."""
        serving = self._key_moves.serving(hash_)
        if serving is None or serving.closed or serving.holds:
            return None
        if serving.beside is None:
            serving.beside = Attachment(serving.queue, serving.epoch)
            serving.beside.beside_of = serving
        return serving.beside

    def deliver(self, in_flight: InFlight, now: float) -> None:
        """A released copy came to the mailbox, for an attachment of `beside`."""
        attachment = in_flight.attachment
        is_held = any(one.identity == in_flight.identity for one in attachment.ack_window.all_unacked())
        if in_flight.key is not None and not is_held:
            self._released_at = {one: at for one, at in self._released_at.items() if now < at + ENDS_WITHIN_S}
            self._released_at[in_flight.key] = now
            self._dispatcher.deliver(attachment, [in_flight], now)

    def turn(self, in_flight: InFlight, now: float) -> Turn:
        """A message of a parked key is parked as well, or waits."""
        judgement = self.judge(in_flight, now)
        is_parked = self.is_parked(in_flight)
        is_copy, running = in_flight.attachment.beside_of is not None, self._lanes.running
        # A copy waits for a call of its key, from the queue; a message from there for all copies of its key.
        if (is_parked or judgement is Judgement.DELIVER) and (
            any(one.key == in_flight.key for one in running) if is_copy else _has_copies(in_flight)
        ):
            judgement = Judgement.WAIT_SHORTLY
        if is_copy and not (is_parked and judgement is Judgement.DELIVER):
            # Not its turn: its copy is still in the parking queue, and comes again.
            self._dispatcher.release(in_flight)
            return Turn.LATER
        match judgement:
            case Judgement.DELIVER:
                return Turn.CALL
            case Judgement.PARK if in_flight.is_copyable:
                self.park(in_flight, is_exhausted=False)
            case Judgement.PARK:
                self._dispatcher.refuse(in_flight, NOT_COPYABLE)
            case Judgement.WAIT:
                self._lanes.delay(in_flight, now + WAITS_S)
            case Judgement.WAIT_SHORTLY:
                self._lanes.delay(in_flight, now + WAITS_SHORTLY_S)
        return Turn.LATER

    def exhausted(self, in_flight: InFlight, reason: str) -> bool:
        key, is_known = in_flight.key, in_flight.identity is not None and in_flight.is_copyable
        if self._dispatcher.rules.when_exhausted is not WhenExhausted.PARK:
            return False
        if key is None or not is_known or not (self.is_parked(in_flight) or self.has_room(key)):
            return False
        in_flight.reason = reason
        self.park(in_flight, is_exhausted=True)
        return True

    def settles(self, in_flight: InFlight, outcome: Outcome) -> bool:
        """A message of the set is acknowledged when the stream has that it is settled."""
        if in_flight.state is State.FORWARDING or not self.is_parked(in_flight):
            return False
        assert in_flight.key is not None
        assert in_flight.identity is not None
        if outcome is Outcome.ACK:
            self._processed.add(in_flight.identity)
        in_flight.settles_as = outcome
        self._lanes.move(in_flight, Event.SETTLE)
        self.settle(in_flight.key, in_flight.identity, in_flight)
        return True

    def ended_in_vain(self, in_flight: InFlight) -> None:
        if self.is_parked(in_flight) and in_flight.identity is not None:
            self.settle(in_flight.key or "", in_flight.identity)

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
        lately = self._released_at.get(in_flight.key or "", float("-inf")) + ENDS_WITHIN_S
        return _has_copies(in_flight) or now < lately

    def state(self, key: str) -> KeyState:
        state = self.keys.state(key)
        pending = self._pending.get(key)
        if pending is None or state is KeyState.PARKED:
            return state
        is_released = all(self.keys.is_released(key, one.entry.cause) for one in pending.values())
        return KeyState.RELEASED if is_released else KeyState.PARKED

    def has_room(self, key: str | None) -> bool:
        """True if a message of this key may be parked; None: of another key than those that are."""
        keys, bounds = self.keys, self.bounds
        return (
            keys.messages < bounds.messages
            and keys.size_bytes < bounds.size_bytes
            and ((key is not None and keys.state(key) is not KeyState.FREE) or len(keys) < bounds.keys)
        )

    def is_parked(self, in_flight: InFlight) -> bool:
        """True if this message is in the set: it is to be settled before it is acknowledged."""
        key, identity = in_flight.key, in_flight.identity
        return key is not None and identity is not None and self.keys.is_parked(key, identity)

    def is_done(self, in_flight: InFlight) -> bool:
        return in_flight.identity is not None and self.keys.is_settled(in_flight.identity)

    def park(self, in_flight: InFlight, *, is_exhausted: bool) -> None:
        """Begins to park a message. `is_exhausted`: its attempts are used up, which is a cause of its own.

        Its lane goes on at once: what is behind it is parked behind it, in the order of these effects.
        """
        key, identity = in_flight.key, in_flight.identity
        assert key is not None
        assert identity is not None
        cause = self._new_id() if is_exhausted else self._cause(key)
        published_us = in_flight.published_at_us
        entry = ParkEntry(key, identity, in_flight.size, cause, self._new_id(), published_us)
        pending = _Pending(entry, in_flight)
        self._pending.setdefault(key, {})[in_flight] = pending
        self._copy(pending)
        self._lanes.move(in_flight, Event.PARK)
        if is_exhausted:
            self._dispatcher.report(Failure.PARKED, in_flight)

    def confirmed(self, in_flight: InFlight) -> bool:
        """Writes its entry when the parking queue has the copy. Also of a message in the set: its former copy may be of
        a release, and its entry of a cause that was released."""
        if in_flight.state is not State.PARKING:
            return False
        pending = self._pending[in_flight.key or ""][in_flight]
        self._effects.append(RecordEntry(pending.entry, in_flight))
        return True

    def recorded(self, in_flight: InFlight) -> None:
        if in_flight.state is State.SETTLING:
            self._dispatcher.settle(in_flight, in_flight.settles_as)
        elif in_flight.state is State.PARKING:
            pending = self._pending[in_flight.key or ""][in_flight]
            pending.is_confirmed = True
            self._complete(pending)

    def _complete(self, pending: _Pending) -> None:
        """Settles a message whose entry is confirmed and read. A copy that is void by then is made again."""
        if not (pending.is_confirmed and pending.is_read):
            return
        if self.keys.is_void(pending.entry.copy):
            del self._by_copy[pending.entry.copy]
            pending.entry = replace(pending.entry, copy=self._new_id())
            pending.is_confirmed = pending.is_read = False
            self._copy(pending)
            return
        self._forget(pending.in_flight)
        self._dispatcher.settle(pending.in_flight, Outcome.PARKED)

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

    def closing(self, attachment: Attachment) -> None:
        """Its messages come again, here or elsewhere, and are judged then. Of released copies those that are recorded
        as settled need no acknowledgement."""
        for in_flight in attachment.underway:
            self._forget(in_flight)
        if attachment.beside_of is not None:
            window = attachment.ack_window
            if done := [*window.take(), *window.pop_scattered(len(window.scattered))]:
                self._effects.append(Done(tuple(done), settled=True))

    def report_fields(self) -> Mapping[str, Any]:
        keys, is_full = self.keys, not self.has_room(None)
        state = (self.is_read, len(keys), keys.messages, keys.size_bytes, is_full, keys.oldest_us)
        return {"parking": ParkingState(*state)}

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


def _has_copies(in_flight: InFlight) -> bool:
    """True if released copies of its key are here, beside its queue."""
    beside = in_flight.attachment.beside
    return beside is not None and in_flight.lane in beside.lanes
