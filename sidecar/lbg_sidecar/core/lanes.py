"""Lanes: the messages of a key one after another, different keys at the same time.

All attachments of a member share one `concurrency`. The caller takes messages with `take`, decides about each in the
same step, and reports the end of each call with `move`, however it ended: a call that was aborted holds its slot and
its lane until it has really ended. So no two calls of one lane overlap inside a member, not even across a lost channel.

The states are those of `message_states`. `Lanes` changes them, and nothing else does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush

from lbg_core.group.sequences import MessageIdentity
from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome
from lbg_sidecar.core.message_states import (
    IS_FIRST,
    IS_RUNNING,
    IS_UNDERWAY,
    NEXT,
    NO_HOLD,
    Event,
    Hold,
    IllegalTransitionError,
    State,
)


class Lanes:
    """`running` are the calls at work, in order of start; `awaiting` and `delayed` the messages of these states, the
    latter with the number of the delay; `republishing` the identities of those of state REPUBLISHING."""

    def __init__(self, *, concurrency: int) -> None:
        self.concurrency = concurrency
        self.running: dict[InFlight, None] = {}
        self.awaiting: dict[InFlight, None] = {}
        self.republishing: dict[MessageIdentity, None] = {}
        self._rota: deque[Attachment] = deque()  # attachments with something ready, each once
        self.delayed: dict[InFlight, int] = {}
        self._due: list[tuple[float, int, InFlight]] = []
        """By time, delays with their numbers; also of messages that are delayed no more, or anew."""
        self._delays = 0
        self.after_call: dict[InFlight, list[InFlight]] = {}
        """By call through a closed attachment that has not ended: what waits for it."""

    # Messages

    def admit(self, attachment: Attachment, arrivals: Iterable[InFlight]) -> None:
        """Queue deliveries in the order they came. A delivery with lane None is in no order."""
        if attachment.closed:
            return
        lanes = attachment.lanes
        for in_flight in arrivals:
            lane = in_flight.lane
            if lane in lanes:
                self.move(in_flight, Event.QUEUE)
                continue
            if lane is not None:
                lanes[lane] = None
            self.move(in_flight, Event.ADMIT)

    def take(self) -> InFlight | None:
        """The next message that may start, or None: of each queue in turn the oldest of those that may, so that one
        frame acknowledges what is done, and a crash repeats little.

        The caller decides what becomes of it before it does anything else: a call, or what another event makes of
        `State.TAKEN`."""
        rota = self._rota
        while rota and len(self.running) < self.concurrency:
            attachment = rota[0]
            ready = attachment.ready
            if not ready:
                rota.popleft()
                attachment.listed = False
                continue
            rota.rotate(-1)
            _, _, in_flight = heappop(ready)
            in_flight.state = State.TAKEN  # as `move` does, and faster
            if self.after_call and self._call_before(in_flight) is not None:
                self.move(in_flight, Event.WAIT)
                continue
            if in_flight.tag > attachment.highest:
                attachment.highest = in_flight.tag
            return in_flight
        return None

    def _call_before(self, in_flight: InFlight) -> InFlight | None:
        """A call of its lane through a closed attachment: of any queue, as keys move and queues are renumbered. Where
        all of a queue is one lane, of this queue or of its hash."""
        queue, lane, hash_ = in_flight.attachment.queue, in_flight.lane, in_flight.hash_
        for call in self.after_call:
            if call.lane == lane and (
                lane or call.attachment.queue == queue or (hash_ is not None and call.hash_ == hash_)
            ):
                return call
        return None

    def put_back(self, in_flight: InFlight) -> None:
        """Undoes the last `take`: it is the next again."""
        self.move(in_flight, Event.PUT_BACK)
        self._leave_ready(in_flight)
        heappush(in_flight.attachment.ready, (0, in_flight.tag, in_flight))
        self._rota.rotate(1)

    @property
    def available(self) -> bool:
        """True if `take` would probably return a message."""
        return bool(self._rota) and len(self.running) < self.concurrency

    def delay(self, in_flight: InFlight, due: float) -> None:
        """Its turn is again at `due`; the lane waits until then."""
        self.move(in_flight, Event.DELAY)
        heappush(self._due, (due, self.delayed[in_flight], in_flight))

    def wake(self, now: float) -> None:
        """It is the turn of what was delayed until `now`."""
        while (due := self.next_due()) is not None and due <= now:
            self.move(heappop(self._due)[2], Event.TURN)

    def next_due(self) -> float | None:
        delayed = self._due
        while delayed and self.delayed.get(delayed[0][2]) != delayed[0][1]:
            heappop(delayed)
        return delayed[0][0] if delayed else None

    def move(self, in_flight: InFlight, event: Event) -> None:
        """Changes a message's state, and lets its lane go on where it is not the first any more.

        Raises IllegalTransitionError.
        """
        move = _MOVES[in_flight.state][event]
        if move is None:
            raise IllegalTransitionError(
                f"{event.name} of a message that is {in_flight.state.name}: {in_flight}"
            )
        in_flight.state, leave, enter, ends_turn = move
        if leave is not None:
            leave(self, in_flight)
        if enter is not None:
            enter(self, in_flight)
        if ends_turn and not in_flight.attachment.closed and (lane := in_flight.lane) is not None:
            lanes = in_flight.attachment.lanes
            if waiting := lanes[lane]:
                self.move(waiting[0], Event.TURN)
            else:
                del lanes[lane]

    def _enter_ready(self, in_flight: InFlight) -> None:
        attachment = in_flight.attachment
        holds = attachment.holds
        if holds is not NO_HOLD and (holds is not Hold.DRAIN or in_flight.tag > attachment.limit):
            attachment.shelved.append(in_flight)
            return
        # One that is retried goes behind all that are here: its key is not to keep others waiting.
        place = attachment.delivered + 1 if in_flight.calls else in_flight.tag
        heappush(attachment.ready, (place, in_flight.tag, in_flight))
        if not attachment.listed:
            attachment.listed = True
            self._rota.append(attachment)

    def _leave_ready(self, in_flight: InFlight) -> None:
        attachment = in_flight.attachment
        ready = attachment.ready
        if ready and ready[0][-1] is in_flight:
            heappop(ready)
            return
        number = next((number for number, (*_, one) in enumerate(ready) if one is in_flight), None)
        if number is None:
            attachment.shelved.remove(in_flight)
        else:
            del ready[number]
            heapify(ready)

    def _enter_behind(self, in_flight: InFlight) -> None:
        lanes, lane = in_flight.attachment.lanes, in_flight.lane
        waiting = lanes[lane]
        if waiting is None:
            lanes[lane] = deque((in_flight,))
        else:
            waiting.append(in_flight)

    def _leave_behind(self, in_flight: InFlight) -> None:
        waiting = in_flight.attachment.lanes.get(in_flight.lane)
        if waiting is not None:  # its attachment is open
            waiting.remove(in_flight)

    def _enter_after_call(self, in_flight: InFlight) -> None:
        call = self._call_before(in_flight)
        assert call is not None
        self.after_call[call].append(in_flight)

    def _leave_after_call(self, in_flight: InFlight) -> None:
        for waiting in self.after_call.values():
            if in_flight in waiting:
                waiting.remove(in_flight)

    def _enter_running(self, in_flight: InFlight) -> None:
        self.running[in_flight] = in_flight.attachment.running[in_flight] = None

    def _leave_running(self, in_flight: InFlight) -> None:
        attachment = in_flight.attachment
        del self.running[in_flight], attachment.running[in_flight]
        if attachment.closed:
            for waiting in self.after_call.pop(in_flight, ()):
                self.move(waiting, Event.TURN)

    def _enter_delayed(self, in_flight: InFlight) -> None:
        self._delays += 1
        self.delayed[in_flight] = self._delays

    def _leave_delayed(self, in_flight: InFlight) -> None:
        del self.delayed[in_flight]

    def _enter_awaiting(self, in_flight: InFlight) -> None:
        self.awaiting[in_flight] = None

    def _leave_awaiting(self, in_flight: InFlight) -> None:
        del self.awaiting[in_flight]

    def _enter_underway(self, in_flight: InFlight) -> None:
        in_flight.attachment.underway[in_flight] = None

    def _leave_underway(self, in_flight: InFlight) -> None:
        del in_flight.attachment.underway[in_flight]

    def _enter_republishing(self, in_flight: InFlight) -> None:
        in_flight.attachment.underway[in_flight] = None
        if in_flight.identity is not None:
            self.republishing[in_flight.identity] = None

    def _leave_republishing(self, in_flight: InFlight) -> None:
        del in_flight.attachment.underway[in_flight]
        if in_flight.identity is not None:
            self.republishing.pop(in_flight.identity, None)  # another key may have it, too

    def _enter_done(self, in_flight: InFlight) -> None:
        attachment = in_flight.attachment
        if attachment.retries:
            attachment.retries.pop(in_flight, None)
        if attachment.poisoned:
            attachment.poisoned.pop(in_flight, None)

    def _enter_gone(self, in_flight: InFlight) -> None:
        self._enter_done(in_flight)
        if in_flight.outcome is None:
            in_flight.outcome = Outcome.RELEASED

    # Attachments

    def hold(self, attachment: Attachment, why: Hold) -> None:
        """Start nothing of it until `let_go`; of one that is drained only what is older than what was started.

        Only so can everything that was started be acknowledged with the rest before the channel closes: a message
        that waits in its lane is a gap in front of what was delivered after it and is done.
        """
        if why is Hold.DRAIN:
            attachment.limit = attachment.highest
        self._held_by(attachment, attachment.holds | why)
        if attachment.beside is not None:
            self.hold(attachment.beside, why)

    def let_go(self, attachment: Attachment, why: Hold) -> None:
        self._held_by(attachment, attachment.holds & ~why)
        if attachment.beside is not None:
            self.let_go(attachment.beside, why)

    def _held_by(self, attachment: Attachment, holds: Hold) -> None:
        attachment.holds = holds
        waiting, attachment.ready = [*(one for *_, one in attachment.ready), *attachment.shelved], []
        attachment.shelved.clear()
        for in_flight in waiting:
            self._enter_ready(in_flight)

    def close(self, attachment: Attachment, unacked: Collection[InFlight]) -> list[InFlight]:
        """Forgets what this attachment holds: `unacked`, and calls without effect. Returns the calls that still run:
        abort them, then report their end."""
        attachment.closed = True
        attachment.lanes.clear()
        running = list(attachment.running)
        for in_flight in running:
            if in_flight.lane is not None:
                self.after_call[in_flight] = []
            self.move(in_flight, Event.CLOSE)
        for in_flight in unacked:
            if not in_flight.is_called:
                self.move(in_flight, Event.CLOSE)
        return running


_Change = Callable[[Lanes, InFlight], None]

_INDEXES: dict[State, tuple[_Change | None, _Change | None]] = {
    **{state: (Lanes._enter_underway, Lanes._leave_underway) for state in State if IS_UNDERWAY[state]},
    State.READY: (Lanes._enter_ready, Lanes._leave_ready),
    State.BEHIND: (Lanes._enter_behind, Lanes._leave_behind),
    State.AFTER_CALL: (Lanes._enter_after_call, Lanes._leave_after_call),
    State.CALLED: (Lanes._enter_running, Lanes._leave_running),
    State.LAST_CALL: (Lanes._enter_running, Lanes._leave_running),
    State.DELAYED: (Lanes._enter_delayed, Lanes._leave_delayed),
    State.AWAITING: (Lanes._enter_awaiting, Lanes._leave_awaiting),
    State.REPUBLISHING: (Lanes._enter_republishing, Lanes._leave_republishing),
    State.DONE: (Lanes._enter_done, None),
    State.GONE: (Lanes._enter_gone, None),
    State.ABANDONED: (Lanes._enter_gone, Lanes._leave_running),
}
"""Changes of the indexes when a message enters a state, and leaves it."""


def _move(state: State, event: Event) -> tuple[State, _Change | None, _Change | None, bool] | None:
    new = NEXT[state][event]
    if new is None:
        return None
    enter, _ = _INDEXES.get(new, (None, None))
    _, leave = _INDEXES.get(state, (None, None))
    if IS_RUNNING[state] and IS_RUNNING[new]:  # it holds its slot
        leave, enter = None, None if new is State.LAST_CALL else enter
    return new, leave, enter, IS_FIRST[state] and not IS_FIRST[new]


_MOVES = tuple(tuple(_move(state, event) for event in Event) for state in State)
"""By state and event: the new state, the changes of the indexes, and whether the lane goes on."""
