"""Handoffs of the active role: announce, pause, drain, release.

Only the active consumer of a queue moves it, so there is one move of a queue at a time. The messages of a move are
hints. Safety comes from the order of its steps: no channel is closed while a call runs (unless a shutdown forces it),
all that is done is acknowledged before the close, and after it the broker delivers the rest, in order, to one other
consumer.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lbg_core.client.backoff import doubled_s
from lbg_core.group import TO_OBSERVERS
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Handover, Message, Move, QueueReport, Reattached
from lbg_sidecar.core.binding import Binding, Phase
from lbg_sidecar.core.delivery import Attachment
from lbg_sidecar.core.effects import HandoffAbandoned, Moved, Post
from lbg_sidecar.core.message_states import Hold
from lbg_sidecar.core.part import NEVER, Context, Part
from lbg_sidecar.core.status_report import queue_state
from lbg_sidecar.core.timings import spread

REATTACH_AFTER_S = 0.1
"""Delay before a member that handed a queue over, or stepped aside, subscribes again behind the successor."""


class Stage(enum.Enum):
    """REQUESTED: the successor attaches, and ANNOUNCED: the others get behind it, while we still dispatch.
    DRAINING: nothing new starts, what runs may end, and what waits in a lane in front of it may run too. What is done
    behind a gap is acknowledged as far as the close has no room for it.
    DETACHING: acknowledged and closing; from here there is no way back.
    """

    REQUESTED = enum.auto()
    ANNOUNCED = enum.auto()
    DRAINING = enum.auto()
    DETACHING = enum.auto()


@dataclass(slots=True)
class Handoff:
    """One handoff. `to` None is a release: the first waiting consumer gets the queue."""

    queue: int
    to: int | None
    why: str
    move: str
    stage: Stage = Stage.REQUESTED
    awaiting: set[int] = field(default_factory=set)
    """Others that may be in front of the successor."""
    proof: str = ""  # of the successor's answer
    deadline: float = 0.0
    halt_at: float = 0.0
    """Of a draining one: from then on nothing starts, also what is older than what was started."""
    paused_at: float = 0.0
    drained_at: float = 0.0
    forced: int = 0


SUCCESSOR_WITHIN_S = 2.0
"""For the successor's answer that it is attached. The queue is served here until then."""

ANNOUNCED_TO_ALL = 32
"""Members of a group in which a move is announced to all where it is not known who consumes the queue: while the live
set changes more than once, members consume queues by earlier views of it, and each that does not step behind may be a
hop on the way. Else those are told that consume it by the present live set or the one before it: to tell all of 16
members doubled the pause (docs/adr/0093-moves-on-rabbitmq.md)."""

SUCCESSOR_OF_LEAVING_WITHIN_S = 0.5
"""The same where the mover leaves: then a standby gets the queue."""

OTHERS_WITHIN_S = 0.5
"""For the others' answers. Where the mover leaves, its `answers_s`."""


class Handoffs(Part):
    """Handoffs of this member's queues. One that does not drain within `drain_s` is abandoned, and the queue stays
    here. While the member hands over all its queues it drains until `force`, and waits for what the next consumer has
    to know as long as for calls that have not begun: half of the longest handoff."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.moves: dict[int, Handoff] = {}
        self._state_of = partial(queue_state, context)
        self._handover_fields = context.hooks.of(Part.handover_fields)
        self._may_hand_over = context.hooks.of(Part.may_hand_over)
        self._started = 0

    def handlers(self) -> Mapping[type[Message], Callable[[Any, float], None]]:
        return {Reattached: self.answered}

    def disconnected(self, now: float) -> None:
        self.moves.clear()

    @property
    def may_abandon(self) -> bool:
        return self._presence.why is None

    def start(self, binding: Binding, to: int | None, why: str, now: float) -> None:
        """Starts the handoff of an active queue to member `to`, or to the first waiting one."""
        me = self._roster.me
        assert me is not None
        assert binding.active
        self._started += 1
        handoff = Handoff(binding.queue, to, why, f"{me.incarnation}-{self._started}")
        self.moves[binding.queue] = handoff
        self._attachment(handoff).is_moving = True
        if to is None:
            self._pause(handoff, now)
        else:
            self._request(handoff, to, me, now)

    def _request(self, handoff: Handoff, to: int, me: Identity, now: float) -> None:
        """The successor first: who gets out of its way attaches again, and has to be behind it."""
        within_s = SUCCESSOR_WITHIN_S if self.may_abandon else SUCCESSOR_OF_LEAVING_WITHIN_S
        handoff.deadline = now + within_s
        if self.may_abandon:
            # The successor believes whoever reported to serve the queue. One that leaves reported it before that.
            state = self._state_of(self._bindings.all[handoff.queue])
            self._effects.append(Post(QueueReport(me, (state,)), to=to))
        self._effects.append(Post(Move(me, handoff.queue, to, handoff.move, handoff.why), to=to))

    def _announce(self, handoff: Handoff, to: int, epoch: int, now: float) -> None:
        me, peers, queue = self._roster.me, self._roster.peers, handoff.queue
        assert me is not None
        within_s = OTHERS_WITHIN_S if self.may_abandon else self._rules.answers_s
        handoff.stage, handoff.deadline = Stage.ANNOUNCED, now + within_s
        message = Move(me, queue, to, handoff.move, handoff.why, epoch)
        views = self._bindings.holddown.views
        if views is None and len(peers) < ANNOUNCED_TO_ALL:
            handoff.awaiting = peers.keys() - {to}
            self._effects.append(Post(message))
        else:
            consumers = self._rules.consumers(queue, self._bindings.view.live)
            for live in views or (self._bindings.holddown.settled,):
                consumers |= self._rules.consumers(queue, live)
            handoff.awaiting = (consumers & peers.keys()) - {to}
            self._effects.append(Post(message, to=tuple(sorted(handoff.awaiting))))
            self._effects.append(Post(message, to=TO_OBSERVERS))
        if not handoff.awaiting:
            self._pause(handoff, now)

    def answered(self, message: Reattached, now: float) -> None:
        """Records that the successor is attached, or that another one is not in front of it any more."""
        handoff = self.moves.get(message.queue)
        if handoff is None or handoff.move != message.move:
            return
        if handoff.stage is Stage.REQUESTED and message.sender.index == handoff.to:
            handoff.proof = message.proof
            self._announce(handoff, handoff.to, message.epoch, now)
        elif handoff.stage is Stage.ANNOUNCED:
            handoff.awaiting.discard(message.sender.index)
            if not handoff.awaiting:
                self._pause(handoff, now)

    def reshaped(self, now: float) -> None:
        """Ends moves of surplus queues, as far as there is a way back: they have no member to move to."""
        for handoff in list(self.moves.values()):
            if handoff.queue >= self._rules.queue_count:
                self._cancel(handoff)

    def live_changed(self, now: float) -> None:
        """Ends waits for members that are gone, and handoffs to them."""
        live = self._roster.peers
        for handoff in list(self.moves.values()):
            handoff.awaiting &= live.keys()
            if handoff.to is not None and handoff.to not in live:
                self._cancel(handoff)
            elif not handoff.awaiting and handoff.stage is Stage.ANNOUNCED:
                self._pause(handoff, now)

    def progressed(self, attachment: Attachment, now: float) -> None:
        handoff = self.moves.get(attachment.queue)
        if handoff is not None and handoff.stage is Stage.DRAINING:
            self._release_if_drained(handoff, self._attachment(handoff), now)

    def flushed(self, now: float) -> None:
        """Acks were sent: of a paused queue perhaps the last that its close has no room for."""
        for handoff in list(self.moves.values()):
            if handoff.stage is Stage.DRAINING:
                self._release_if_drained(handoff, self._attachment(handoff), now)

    def closed(self, binding: Binding, now: float) -> None:
        """Ends the move of a queue. A quorum queue carries out one command after another: it should be busy with the
        successor now."""
        handoff = self.moves.pop(binding.queue, None)
        if handoff is None or handoff.stage is not Stage.DETACHING:
            return
        if handoff.to is not None:
            binding.attach_due = now + REATTACH_AFTER_S
        drain_s, close_s = handoff.drained_at - handoff.paused_at, now - handoff.drained_at
        self._effects.append(Moved(handoff.queue, handoff.to, handoff.why, drain_s, close_s, handoff.forced))

    def cut_off(self, binding: Binding, why: str, now: float) -> None:
        """Releases a queue to the first waiting consumer now, drained or not; a move stops waiting for calls."""
        if binding.queue not in self.moves:
            self.start(binding, None, why, now)
        handoff = self.moves[binding.queue]
        if handoff.stage is not Stage.DETACHING:
            handoff.why = why
        self._force(handoff, now)

    def force(self, now: float) -> None:
        """Carry out every move now, drained or not."""
        for handoff in list(self.moves.values()):
            self._force(handoff, now)

    def _force(self, handoff: Handoff, now: float) -> None:
        if handoff.stage in (Stage.REQUESTED, Stage.ANNOUNCED):
            self._pause(handoff, now)
        if handoff.stage is Stage.DRAINING:
            self._release(handoff, now)

    def tick(self, now: float) -> None:
        for handoff in list(self.moves.values()):
            if handoff.stage is Stage.DRAINING and now >= handoff.halt_at:
                handoff.halt_at = float("inf")
                self._lanes.hold(self._attachment(handoff), Hold.HALT)
                self.progressed(self._attachment(handoff), now)
            if now < handoff.deadline or handoff.stage is Stage.DETACHING:
                continue
            if handoff.stage is Stage.REQUESTED:
                self._successor_is_late(handoff, now)
            elif handoff.stage is Stage.ANNOUNCED:
                self._pause(handoff, now)  # it may take more hops
            elif self.may_abandon:
                self._abandon(handoff, now)
            else:
                handoff.deadline = float("inf")

    def _successor_is_late(self, handoff: Handoff, now: float) -> None:
        """Without its answer a move may end nowhere."""
        if self.may_abandon:
            binding = self._bindings.all[handoff.queue]
            binding.move_due = now + spread(self._rules.rebalance_delay_s, self._uniform)
            self._cancel(handoff)
        else:
            handoff.to = None
            self._pause(handoff, now)

    def under_way(self, now: float, *, except_drains_of_s: float) -> int:
        """Number of handoffs, except those that have drained for at least `except_drains_of_s`."""
        return sum(
            handoff.stage is not Stage.DRAINING or now - handoff.paused_at < except_drains_of_s
            for handoff in self.moves.values()
        )

    def queue_fields(self, binding: Binding) -> Mapping[str, Any]:
        if not binding.put_off:
            return {}
        return {"put_off": binding.put_off, "next_drain_s": self.drain_s}

    @property
    def drain_s(self) -> float:
        """Seconds that the next handoff of any queue may wait for the application: twice as long after each that was
        put off in vain, until a call that began before would have been aborted (docs/adr/0044)."""
        put_off = max((binding.put_off for binding in self._bindings.bound.values()), default=0)
        longest_s = self._rules.max_handoff_s + self._dispatcher.longest_call_s
        return doubled_s(self._rules.max_handoff_s, longest_s, put_off)

    def next_due(self, now: float) -> float:
        due = NEVER
        for move in self.moves.values():
            if move.stage in (Stage.REQUESTED, Stage.ANNOUNCED):
                due = min(due, move.deadline)
            elif move.stage is Stage.DRAINING:
                due = min(due, move.deadline, move.halt_at)
        return due

    def _pause(self, handoff: Handoff, now: float) -> None:
        attachment = self._attachment(handoff)
        handoff.stage = Stage.DRAINING
        handoff.paused_at = now
        handoff.deadline = now + self.drain_s
        handoff.halt_at = now + self._rules.max_handoff_s / 2
        self._lanes.hold(attachment, Hold.HALT if self._dispatcher.paused else Hold.DRAIN)
        self._dispatcher.unacked.changed(attachment)
        self._reports.changed(now)
        self._release_if_drained(handoff, attachment, now)

    def _release_if_drained(self, handoff: Handoff, attachment: Attachment, now: float) -> None:
        if self._bindings.is_drained(attachment):
            is_late = not self.may_abandon and handoff.halt_at == float("inf")
            if all(may(attachment, now) for may in self._may_hand_over) or is_late:
                self._release(handoff, now)

    def _release(self, handoff: Handoff, now: float) -> None:
        handoff.stage = Stage.DETACHING
        handoff.drained_at = now
        me = self._roster.me
        assert me is not None
        if handoff.to is not None:
            positions = self._processed.of_queue(handoff.queue)
            waiting = self._attachment(handoff).ack_window.oldest is not None
            paused_s = now - handoff.paused_at
            fields = dict[str, Any]()
            for handover_fields in self._handover_fields:
                fields |= handover_fields(self._attachment(handoff))
            message = Handover(
                me, handoff.queue, handoff.move, positions, paused_s, waiting, handoff.proof, **fields
            )
            self._effects.append(Post(message, to=handoff.to))
        handoff.forced = self._bindings.detach(self._bindings.all[handoff.queue])

    def _abandon(self, handoff: Handoff, now: float) -> None:
        attachment = self._attachment(handoff)
        binding = self._bindings.all[handoff.queue]
        stood_s = now - handoff.paused_at
        binding.put_off += 1
        self._bindings.changes += 1
        # It works for as long as it stood still, so that a call that never ends costs it half of its time at most.
        binding.move_due = now + spread(max(self._rules.rebalance_delay_s, stood_s), self._uniform)
        running = len(attachment.running)
        self._effects.append(
            HandoffAbandoned(
                handoff.queue, handoff.to, handoff.why, running, stood_s, binding.put_off, self.drain_s
            )
        )
        self._cancel(handoff)

    def _cancel(self, handoff: Handoff) -> None:
        if handoff.stage is Stage.DETACHING:
            return
        del self.moves[handoff.queue]
        self._attachment(handoff).is_moving = False
        self._dispatcher.unacked.changed(self._attachment(handoff))
        if handoff.stage is Stage.DRAINING:
            self._lanes.let_go(self._attachment(handoff), Hold.DRAIN | Hold.HALT)

    def _attachment(self, handoff: Handoff) -> Attachment:
        binding = self._bindings.all[handoff.queue]
        assert binding.attachment is not None
        assert binding.phase is not Phase.DETACHING
        return binding.attachment
