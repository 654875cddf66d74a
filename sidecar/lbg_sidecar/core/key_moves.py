"""Keys that move between the queues of a group while it runs: a member's part of it.

docs/adr/0071-keys-move-between-queues.md has the protocol, `lbg_core.group.key_moves` the state. A member reads the
stream of the change, has the staging queues among its own, and consumes one of them when its old queue has passed its
fence. It passes a fence when no message of the hashes that leave the queue is unsettled in its attachment. What it
believes of the change can be late: then messages wait.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lbg_core.group.key_moves import (
    BarrierEntry,
    BeginEntry,
    EndEntry,
    Entry,
    JoinEntry,
    KeyMove,
    KeyMoveState,
    NumbersEntry,
    PassEntry,
)
from lbg_core.group.key_moves import Turn as KeyTurn
from lbg_core.group.member_state import Positions
from lbg_core.group.members_protocol import KeysMove, Message
from lbg_core.group.sequences import StreamRuns
from lbg_sidecar.core.barriers import AGAIN_S, Barrier, Barriers
from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome
from lbg_sidecar.core.dispatcher import Turn
from lbg_sidecar.core.effects import FindStaging, FollowKeyMove, Forward, RecordKeyMove
from lbg_sidecar.core.message_states import Event, Hold
from lbg_sidecar.core.part import NEVER, Context, Part
from lbg_sidecar.core.queue_consumers import WantedQueues
from lbg_sidecar.message import Verdict

NOT_COPYABLE = "its headers leave no room for those of a copy, and its key is parked or goes to another queue"


@dataclass(slots=True)
class _Written:
    """An entry about a queue: it is written again until it `is_read`, while the attachment is open. `fences`: those
    that are settled then."""

    attachment: Attachment
    entry: PassEntry | NumbersEntry
    sent_at: float
    fences: list[InFlight] = field(default_factory=list)
    is_read: bool = False


class KeyMoves(Part):
    def __init__(self, context: Context, wanted: WantedQueues) -> None:
        super().__init__(context)
        self.state = KeyMoveState()
        self.followed: str | None = None
        """Id of the change whose stream is being read over this connection."""
        self.is_unbegun = False
        """The stream of the change that is followed has no first entry, and no staging queue is there: until the entry
        comes, nothing has begun."""
        self.is_record_due = False
        """A change has ended, and the group's record was not read since."""
        self._wanted = wanted
        self._queues_of = self._processed.queues_of
        self._fences: dict[Attachment, list[InFlight]] = {}
        """Those that came and are not passed yet. A queue may have several, of a command that was killed."""
        self._passing: dict[int, _Written] = {}
        """Fences of which the entry is written, by queue: none of its leaving messages starts any more."""
        self._behind_calls = False
        """Some of the messages that are held wait for calls that run here."""
        self._calls_before: set[InFlight] = set()
        """Those that have run since before the number of queues changed last."""
        self._barriers = Barriers(self._lanes, Hold.KEY_MOVES, self._write_barrier, self._new_id)
        self._barrier_of: dict[Attachment, str] = {}
        """Of attachments that serve their queue: id of the barrier that was read since then."""
        self._numbers: dict[int, _Written] = {}
        """Of queues that are handed over, by queue."""
        self._serve_due: dict[Attachment, float] = {}
        """Attachments whose barrier is not the latest one of their queue, and the time at which they write another."""
        self._join_due = 0.0

    def handlers(self) -> Mapping[type[Message], Callable[[Any, float], None]]:
        return {KeysMove: lambda message, _now: self.follow(message.move)}

    # The stream

    def follow(self, id_: str) -> None:
        """This change is on its way: the record has it, or an announcement, or a fence."""
        if self.followed is None and not (self._is_of(id_) and self.state.is_ended):
            self.followed = id_
            # What is known of an earlier one says nothing about the stream of this one.
            self.state = KeyMoveState()
            self._effects.append(FollowKeyMove(True))

    def absent(self, now: float) -> None:
        """The change is over, or was taken back."""
        move = self.state.move
        if move is not None and not self.state.is_ended:
            self.state = KeyMoveState()
            self._wanted.reshape(move.old, now)
        self._finish()

    def read(self, entries: Sequence[Entry], now: float) -> None:
        for entry in entries:
            is_change = self.state.apply(entry)
            if isinstance(entry, BarrierEntry):
                self._barrier_seen(entry, now)
            elif is_change:
                self._changed(entry, now)
        self.flushed(now)

    def _is_of(self, id_: str | None) -> bool:
        return self.state.move is not None and self.state.move.id == id_

    def _changed(self, entry: Entry, now: float) -> None:
        if not self._is_of(self.followed):
            return  # of an earlier change
        match entry:
            case BeginEntry():
                self.is_unbegun = False
                self._processed.queues_of = self.state.queues_of
                self._resize_to_state(now)
                self._release_awaiting()
                self._join(now)
            case PassEntry(_, queue, _, streams):
                self._processed.merge(Positions(streams), queues=(queue,))
                self._release_awaiting()
                self._wanted.fit(now)
                self._passed(queue)
            case NumbersEntry(_, queue, streams):
                self._processed.merge(Positions(streams), queues=(queue,))
                numbers = self._numbers.get(queue)
                if numbers is not None and numbers.entry == entry:
                    numbers.is_read = True
            case EndEntry():
                self._end(now)
            case _:
                pass

    def _join(self, now: float) -> None:
        entry = self._unread_join
        if entry is not None and now >= self._join_due:
            self._join_due = now + AGAIN_S
            self._effects.append(RecordKeyMove(entry))

    @property
    def _unread_join(self) -> JoinEntry | None:
        """The entry by which this member takes part, until the stream has it: one for each incarnation, of which it
        gets another one when the others found it gone."""
        me = self._roster.me
        if me is None or not self._is_of(self.followed) or (me.index, me.incarnation) in self.state.joined:
            return None
        return JoinEntry(me.index, me.incarnation)

    def _end(self, now: float) -> None:
        """Nothing waits for anything any more; fences that are here come from before."""
        self._resize_to_state(now)
        self._finish()
        self.is_record_due = True
        self._effects.append(FollowKeyMove(False))

    def _finish(self) -> None:
        self.followed = None
        self._release_awaiting()
        for fences in (*self._fences.values(), *(one.fences for one in self._passing.values())):
            self._settle_all(fences)
        self._clear()

    def _resize_to_state(self, now: float) -> None:
        count = self.state.queue_count
        assert count is not None
        self._wanted.reshape(count, now)

    def disconnected(self, now: float) -> None:
        """The stream is read anew with the next connection, if the record has a change then."""
        state = self.state
        if state.move is not None and not state.is_ended:
            self._wanted.reshape(state.move.old, now)
        self.state = KeyMoveState()
        self._clear()

    def _clear(self) -> None:
        self.followed = None
        self.is_unbegun = False
        self._processed.queues_of = self._queues_of
        self._join_due = 0.0
        self._fences.clear()
        self._passing.clear()
        self._numbers.clear()
        self._serve_due.clear()
        self._barriers.end()
        self._barrier_of.clear()

    # Activation

    def activated(self, attachment: Attachment, first: InFlight, now: float) -> None:
        """Starts nothing until a barrier that is written now is read: the former consumer may have passed the fence."""
        if self.followed is not None:
            self._barriers.hold(attachment, now)

    def _write_barrier(self, barrier: Barrier) -> None:
        self._effects.append(RecordKeyMove(BarrierEntry(barrier.id, barrier.queues)))

    def _barrier_seen(self, entry: BarrierEntry, now: float) -> None:
        if not self._barriers.is_due(entry.id):
            # Perhaps a late one of a former consumer: if this member serves the queue then, it writes that again.
            for attachment, id_ in list(self._barrier_of.items()):
                if attachment.queue in entry.queues and id_ != entry.id:
                    del self._barrier_of[attachment]
                    self._serve_due[attachment] = now + AGAIN_S
            return
        if self.followed is not None and not self._is_of(self.followed):
            if self.state.move is not None:
                self._superseded()
                return
            move = KeyMove.of_id(self.followed, sys.maxsize)
            if move is not None:
                self._effects.append(FindStaging(move.id, max(move.old, move.new)))
        for attachment in self._barriers.passed(now):
            self._barrier_of[attachment] = entry.id

    def staging_found(self, id_: str, is_found: bool) -> None:
        """The first staging queue of this change was looked for, after its stream was read."""
        if id_ != self.followed or is_found or self._is_of(id_):
            return
        if self._fences:
            self._superseded()
            return
        self.is_unbegun = True
        self._release_awaiting()

    def _superseded(self) -> None:
        """The change that is followed was over before this stream began: what led to it was a fence of it, left in a
        queue. Follows that of the stream, if there is one."""
        later = None if self.state.is_ended else self.state.move
        self._finish()
        self._effects.append(FollowKeyMove(False))
        if later is not None:
            self.follow(later.id)

    def _serve(self, attachment: Attachment, now: float) -> None:
        """Writes that this member serves the queue. An entry by which it passed under an earlier barrier may have no
        effect."""
        self._serve_due.pop(attachment, None)
        passing = self._passing.get(attachment.queue)
        if passing is not None and passing.attachment is attachment:
            del self._passing[attachment.queue]
            self._fences[attachment] = passing.fences + self._fences.get(attachment, [])
            self._release_awaiting()
        self._barriers.add(attachment, now)

    def tick(self, now: float) -> None:
        self._barriers.tick(now)
        for written in (self._passing, self._numbers):
            for one in written.values():
                if not one.is_read and now >= one.sent_at + AGAIN_S:
                    one.sent_at = now
                    self._effects.append(RecordKeyMove(one.entry))
        self._join(now)
        for attachment, due in list(self._serve_due.items()):
            if now >= due:
                self._serve(attachment, now)

    def closing(self, attachment: Attachment) -> None:
        """Forgets its fences, with what was written of them: its successor passes them anew."""
        for by_attachment in (self._fences, self._barrier_of, self._serve_due):
            by_attachment.pop(attachment, None)
        for written in (self._passing, self._numbers):
            if (one := written.get(attachment.queue)) is not None and one.attachment is attachment:
                del written[attachment.queue]

    def next_due(self, now: float) -> float:
        if self.followed is None:
            return NEVER
        written = (*self._passing.values(), *self._numbers.values())
        written_due = (one.sent_at + AGAIN_S for one in written if not one.is_read)
        join_due = NEVER if self._unread_join is None else self._join_due
        return min(self._barriers.next_due, join_due, *self._serve_due.values(), *written_due)

    def may_consume(self, queue: int) -> bool:
        """False for a staging queue whose old queue has not passed its fence."""
        return self.state.is_open(queue)

    def serving(self, hash_: int) -> Attachment | None:
        """The attachment by which this member serves the queue that delivers messages of this hash, if it does."""
        state = self.state
        is_moving = state.move is not None and not state.is_ended
        queue = state.delivers(hash_) if is_moving else hash_ % self._rules.queue_count
        return self._bindings.serving(queue)

    # Messages on their turn

    def turn(self, in_flight: InFlight, now: float) -> Turn:
        """It may wait for others of its hash in another queue, or go there: one that cannot be copied is refused."""
        turn = self._turn(in_flight)
        if turn is KeyTurn.DELIVER:
            if not self._is_called_elsewhere(in_flight):
                return Turn.CALL
            turn = KeyTurn.HOLD
            self._behind_calls = True
        if turn is KeyTurn.HOLD:
            self._lanes.move(in_flight, Event.AWAIT)
        elif not in_flight.is_copyable:
            self._dispatcher.refuse(in_flight, NOT_COPYABLE)
        else:
            assert in_flight.hash_ is not None
            self._lanes.move(in_flight, Event.FORWARD)
            self._effects.append(Forward(in_flight, self.state.forwards_to(in_flight.hash_)))
        return Turn.LATER

    def reshaped(self, now: float) -> None:
        self._calls_before = set(self._lanes.running)

    def ended(self, in_flight: InFlight, verdict: Verdict, now: float) -> None:
        self._calls_before.discard(in_flight)
        if self._behind_calls:
            self._behind_calls = False
            self._release_awaiting()

    def _is_called_elsewhere(self, in_flight: InFlight) -> bool:
        """True if a call for its hash runs here that came through another queue: of a consumer that the broker has
        replaced, and which does not know it yet."""
        calls = self._calls_before if self.followed is None else self._lanes.running
        return bool(calls) and any(
            one.hash_ == in_flight.hash_ and one.attachment.queue != in_flight.attachment.queue
            for one in calls
        )

    def _turn(self, in_flight: InFlight) -> KeyTurn:
        hash_, queue, move = in_flight.hash_, in_flight.attachment.queue, self.state.move
        if hash_ is None:
            return KeyTurn.DELIVER
        if self.followed is not None and not self._is_of(self.followed):
            # How far the change is, is not known yet.
            return KeyTurn.DELIVER if self.is_unbegun else KeyTurn.HOLD
        if move is None:
            return KeyTurn.DELIVER
        if queue in self._passing and move.leaves(hash_, queue) and queue not in self.state.passed:
            return KeyTurn.HOLD
        return self.state.turn(hash_, queue)

    def _release_awaiting(self) -> None:
        for in_flight in list(self._lanes.awaiting):
            if self._turn(in_flight) is not KeyTurn.HOLD:
                self._lanes.move(in_flight, Event.TURN)

    # Handoffs

    def may_hand_over(self, attachment: Attachment, now: float) -> bool:
        """True once the stream has the numbers that were processed of hashes that leave this queue, which is paused.

        A message that was routed while its hash had two bindings comes from the next queue too, and is known by its
        number there: by whoever serves that queue, and whoever passes the fence of this one.
        """
        state, queue = self.state, attachment.queue
        move = state.move
        if move is None or state.is_ended or move.id != self.followed or queue in state.passed:
            return True
        streams = self._leaving(move, queue)
        if not streams:
            return True
        numbers = self._numbers.get(queue)
        if numbers is None or set(numbers.entry.streams) != set(streams):
            numbers = _Written(attachment, NumbersEntry(move.id, queue, streams), now)
            self._numbers[queue] = numbers
            self._effects.append(RecordKeyMove(numbers.entry))
        return numbers.is_read

    def _leaving(self, move: KeyMove, queue: int) -> tuple[StreamRuns, ...]:
        return tuple(one for one in self._processed.of_queue(queue).streams if move.leaves(one[1], queue))

    # Fences

    def arrived(self, arrivals: list[InFlight], now: float) -> list[InFlight]:
        """Returns the messages of publishers."""
        fences = [in_flight for in_flight in arrivals if in_flight.fence is not None]
        for fence in fences:
            self._lanes.move(fence, Event.FENCE)
            self._fence_delivered(fence, now)
        return [one for one in arrivals if one.fence is None] if fences else arrivals

    def _fence_delivered(self, fence: InFlight, now: float) -> None:
        attachment, id_ = fence.attachment, fence.fence or ""
        self.follow(id_)
        if self.followed != id_:  # of a change that is over
            self._dispatcher.settle(fence, Outcome.FENCE)
            return
        self.is_unbegun = False
        self._fences.setdefault(attachment, []).append(fence)
        attachment.acks_soon = True
        self._dispatcher.unacked.changed(attachment)
        if attachment not in self._barrier_of and attachment not in self._barriers:
            self._serve(attachment, now)

    def flushed(self, now: float) -> None:
        """Passes the fences in front of which nothing is left, after each look at what is to be acknowledged."""
        if not self._fences:
            return
        state = self.state
        for attachment, fences in list(self._fences.items()):
            if state.move is not None and (by := self._barrier_of.get(attachment)) is not None:
                self._pass(attachment, fences, state.move, by, now)

    def _pass(
        self, attachment: Attachment, fences: list[InFlight], move: KeyMove, by: str, now: float
    ) -> None:
        queue = attachment.queue
        if move.id != self.followed:
            return
        if queue in self.state.passed:
            del self._fences[attachment]
            self._settle_all(fences)
            return
        passing = self._passing.get(queue)
        if passing is not None and passing.attachment is attachment:
            del self._fences[attachment]
            passing.fences += fences
            return
        if any(one.hash_ is not None and move.leaves(one.hash_, queue) for one in attachment.unacked):
            return
        del self._fences[attachment]
        for fence in fences:
            self._lanes.move(fence, Event.PASS)
        entry = PassEntry(move.id, queue, by, self._leaving(move, queue))
        self._passing[queue] = _Written(attachment, entry, now, fences)
        self._effects.append(RecordKeyMove(entry))

    def _passed(self, queue: int) -> None:
        """Settles the fences now that their entry is read."""
        passing = self._passing.pop(queue, None)
        if passing is not None:
            self._settle_all(passing.fences)

    def _settle_all(self, fences: list[InFlight]) -> None:
        for fence in fences:
            fence.attachment.acks_soon = False
            if not fence.is_over:
                self._dispatcher.settle(fence, Outcome.FENCE)
