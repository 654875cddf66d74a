"""Rebalancing: rebalance delay, and the moves and releases that are due and started.

Waiting consumers are first in, first out, and each wrong one in between costs a hop (docs/internals/rabbitmq.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lbg_core.group import STATIC
from lbg_core.group.member_state import Identity, Rebalance, Status
from lbg_core.group.members_protocol import Message, Move, Reattached
from lbg_sidecar.core.binding import Binding, Phase
from lbg_sidecar.core.effects import Post, StandingBy
from lbg_sidecar.core.handoff import REATTACH_AFTER_S, Handoffs
from lbg_sidecar.core.part import NEVER, Context, Part
from lbg_sidecar.core.peer import Peer
from lbg_sidecar.core.queue_bindings import GIVE_BACK_AT
from lbg_sidecar.core.queue_consumers import WantedQueues
from lbg_sidecar.core.roster import LEAVE
from lbg_sidecar.core.takeover import Takeovers


def is_behind(binding: Binding, peer: Peer) -> bool:
    """True if this member waits behind `peer`: it attached after the other had reported to be attached.

    By the last report: the peer may have attached anew since.
    """
    attached_at = peer.attached_at.get(binding.queue)
    return attached_at is not None and binding.attached_at > attached_at


class SuccessorBinding(Part):
    """Places of this member's consumers when other members hand queues over."""

    def __init__(self, context: Context, wanted: WantedQueues, takeovers: Takeovers) -> None:
        super().__init__(context)
        self._wanted = wanted
        self._takeovers = takeovers

    def handlers(self) -> Mapping[type[Message], Callable[[Any, float], None]]:
        return {Move: self.announced}

    def announced(self, move: Move, now: float) -> None:
        """Another member hands a queue over: makes way, unless it comes to this one.

        The successor is attached by then. Who attached after its report of that is behind it.
        """
        me = self._roster.me
        is_own = me is not None and move.sender.incarnation == me.incarnation
        if me is None or is_own or move.queue >= self._rules.queue_count:
            return
        binding = self._bindings.all[move.queue]
        if move.to == me.index:
            # It comes to this member, which answers when the broker has its consumer.
            proof = "" if binding.active else self._takeovers.announced(move, now)
            if binding.phase is Phase.ATTACHED:
                self._answer(me, binding, move.sender.index, move.move, proof)
            else:
                binding.arrivals.append((move.sender.index, move.move, proof))
                self._wanted.want(binding.queue, now)
            return
        if binding.active:
            # Deliveries on a live channel prove that this member is the active one: the mover's channel is closed.
            return
        successor = self._roster.peers.get(move.to)
        reported = None if successor is None else successor.queues.get(move.queue)
        is_present = (
            reported is not None and reported.epoch == move.epoch and reported.status is not Status.UNBOUND
        )
        if binding.phase in (Phase.ATTACHING, Phase.ATTACHED) and not (
            successor and is_present and is_behind(binding, successor)
        ):
            binding.answers.append((move.sender.index, move.move))
            self._bindings.detach(binding)
        elif binding.phase is Phase.DETACHING:
            binding.answers.append((move.sender.index, move.move))
        else:
            self._answer(me, binding, move.sender.index, move.move)

    def attached(self, binding: Binding, now: float) -> None:
        me = self._roster.me
        if me is not None:
            for mover, move, proof in binding.arrivals:
                self._answer(me, binding, mover, move, proof)
        binding.arrivals.clear()

    def closed(self, binding: Binding, now: float) -> None:
        """This member does not wait for the queue now."""
        me = self._roster.me
        if binding.answers:
            binding.attach_due = now + REATTACH_AFTER_S
        if me is not None:
            for mover, move in binding.answers:
                self._answer(me, binding, mover, move)
        binding.answers.clear()

    def _answer(self, me: Identity, binding: Binding, mover: int, move: str, proof: str = "") -> None:
        self._effects.append(Post(Reattached(me, binding.queue, move, proof, binding.epoch), to=mover))


REATTACH_AT_ONCE = 8
"""Waiting consumers that are cancelled and attached again at the same time; more would be a burst on the broker."""

CUT_OFF_AT = 0.75
"""Of the broker's consumer timeout: what has not drained by then is cut off, before the broker does it."""

PAUSED_WITHIN = 0.5
"""Of the time in which a leaving member hands over its queues: by then every handoff has begun, whatever the
application does. A move that waits for a slow call makes room for the next one."""

BALANCE_EVERY_S = 0.25
"""While calls run there are more ticks than that."""

CLOSES_WITHIN_S = 2.0
"""Time over which a member closes its consumers of queues that others back up now, after the rebalance delay."""

STEP_BEHIND_WITHIN = 0.6
"""Of the rebalance delay: the rest is for reports of it."""


TICK_MOVING_S = 0.25
"""While queues are moved, and consumers of other queues closed and attached."""


class Balancer(Part):
    def __init__(self, context: Context, handoffs: Handoffs, takeovers: Takeovers) -> None:
        super().__init__(context)
        self.release_due = NEVER
        """Time of the next releases of the assignment Static."""
        self.reasons: dict[int, str] = {}
        """Of the next move of a queue, where that is not a rebalance."""
        self._handoffs = handoffs
        self._is_coming = takeovers.is_announced
        """True if a queue is handed over to this member now: its consumer must keep its place then."""
        self._stands_by = False
        self._to_release: set[int] = set()
        self._balanced_at = float("-inf")
        self._may_rest = False
        self._has_releases = False
        self._inspected: tuple[object, ...] | None = None
        """State in which the last inspection of all queues found nothing to do; None if it found something."""
        self._releases: list[Binding] = []
        self._releases_of: tuple[object, ...] | None = None
        """State of which those are the due releases."""
        self._unacked_due = float("-inf")
        self._unacked_limit_s = 0.0

    def connected(self, now: float) -> None:
        self.release_due = now + self._release_in_s()

    def disconnected(self, now: float) -> None:
        self._to_release.clear()
        self.reasons.clear()

    def reshaped(self, now: float) -> None:
        """None that is gone is released, and what belongs elsewhere is due."""
        self._to_release = {queue for queue in self._to_release if queue < self._rules.queue_count}
        self._may_rest = False
        self._report_standing_by()

    def after(self, now: float) -> None:
        """Not after each message: every member reports every change to every other, and the next tick is near."""
        if self._bindings.holddown.tick(now):
            self._report_standing_by()
        if self._presence.is_handing_over:
            self._leave(now, late=now >= self._presence.empty_by)
        elif self.takes_part:
            self.balance(now)

    def next_due(self, now: float) -> float:
        if not self.has_work:
            return NEVER
        rests_at = self._bindings.holddown.due
        return min(now + TICK_MOVING_S, NEVER if rests_at is None else rests_at)

    def report_fields(self) -> Mapping[str, Any]:
        return {"rebalance": self.status}

    def _report_standing_by(self) -> None:
        """Reports once that this member is one of those beyond the number of queues."""
        me, queue_count = self._roster.me, self._rules.queue_count
        at_work = set(self._rules.primaries(self._bindings.holddown.settled)) - {None}
        stands_by = me is not None and me.index not in at_work and len(at_work) == queue_count
        if stands_by and not self._stands_by:
            self._effects.append(StandingBy(queue_count, len(at_work)))
        self._stands_by = stands_by

    @property
    def status(self) -> Rebalance:
        if self._bindings.holddown.due is not None:
            return Rebalance.HOLD_DOWN
        return Rebalance.REBALANCING if self._handoffs.moves or self._to_release else Rebalance.READY

    @property
    def has_work(self) -> bool:
        """True while queues are moved, released, or closed because others back them up."""
        return self._has_releases or self.status is not Rebalance.READY

    def tick(self, now: float) -> None:
        """The next `balance` belongs to a tick: without work it has nothing to do, so shortly after the last one."""
        self._may_rest = now < self._balanced_at + BALANCE_EVERY_S and not self.has_work

    def balance(self, now: float) -> None:
        """Goes through all queues once."""
        me = self._roster.me
        if self._may_rest or me is None:
            self._may_rest = False
            return
        self._balanced_at = now
        if now >= self._unacked_due or self._bindings.consumer_timeout_s != self._unacked_limit_s:
            self._release_unacked(now)
        if self._rules.assignment == STATIC:
            self._release_secondaries(me, now)
            return
        state = self._state(me)
        if state == self._inspected:
            return
        if state != self._releases_of:
            self._releases = list(self._due_releases(me))
            self._releases_of = state
        has_work = self._step_behind_primaries(now)
        if self._bindings.holddown.due is None:
            has_work |= self._close_unwanted(now)
            has_work |= self._move(me, now)
        self._inspected = None if has_work else state
        self._has_releases = any(one.release_due is not None for one in self._bindings.bound.values())

    def _state(self, me: Identity) -> tuple[object, ...]:
        """All that decides, beside the time, whether an inspection of the queues finds something to do."""
        bindings, holddown = self._bindings, self._bindings.holddown
        settled = holddown.settled if holddown.due is None else None
        return me.index, settled, bindings.view.live, bindings.changes, self._roster.reports

    def _release_unacked(self, now: float) -> None:
        """Releases queues whose deliveries wait for too long. The next one cannot be due before the oldest that waits
        now would be."""
        for binding in self._unacked_too_long(now, share=GIVE_BACK_AT):
            if binding.queue not in self._handoffs.moves and now >= binding.move_due:
                self._handoffs.start(binding, None, "held for half of the consumer timeout", now)
        for binding in self._unacked_too_long(now, share=CUT_OFF_AT):
            self._handoffs.cut_off(binding, "held for three quarters of the consumer timeout", now)
        self._unacked_limit_s = self._bindings.consumer_timeout_s
        attached = (one.attachment for one in self._bindings.bound.values() if one.attachment is not None)
        oldest = (one.ack_window.oldest for one in attached)
        since = min((one.received_at for one in oldest if one is not None), default=now)
        self._unacked_due = min(since, now) + self._unacked_limit_s * GIVE_BACK_AT

    def _unacked_too_long(self, now: float, *, share: float) -> Iterator[Binding]:
        """Queues whose oldest unacknowledged delivery has waited for this share of the broker's consumer timeout.

        Closing the channel returns it in order before the broker closes the channel with an error.
        """
        limit_s = self._bindings.consumer_timeout_s * share
        for binding in list(self._bindings.bound.values()):
            if binding.active and binding.phase is Phase.ATTACHED:
                assert binding.attachment is not None
                oldest = binding.attachment.ack_window.oldest
                if oldest is not None and now - oldest.received_at > limit_s:
                    yield binding

    def _leave(self, now: float, *, late: bool) -> None:
        """Hands every queue over, if it is `late` at any price."""
        rules, moves = self._rules, self._handoffs.moves
        primaries = rules.primaries(self._roster.live)
        within_s = PAUSED_WITHIN * min(rules.shutdown_grace_s, rules.max_handoff_s)
        turn_s = within_s * rules.moves_at_once / rules.queue_count
        for binding in list(self._bindings.bound.values()):
            if binding.phase is Phase.DETACHING or binding.queue in moves:
                continue
            if not binding.active or late:
                self._bindings.detach(binding)
            elif self._handoffs.under_way(now, except_drains_of_s=turn_s) < rules.moves_at_once:
                to = primaries[binding.queue]
                self._handoffs.start(binding, to if to in self._roster.peers else None, LEAVE, now)
        if late:
            self._handoffs.force(now)

    def _move(self, me: Identity, now: float) -> bool:
        """True if a queue that this member serves belongs to another.

        One that it serves by chance stays for the rebalance delay, and one whose handoff was abandoned until its
        `move_due`. A successor has to be live.
        """
        primaries, moves = self._rules.primaries(self._bindings.holddown.settled), self._handoffs.moves
        misplaced: list[tuple[Binding, int]] = []
        for binding in self._bindings.bound.values():
            to = primaries[binding.queue]
            if to is None or to == me.index:
                binding.put_off = 0
                self.reasons.pop(binding.queue, None)
            elif binding.active:
                misplaced.append((binding, to))
        for binding, to in misplaced:
            due = max(binding.activated_at + self._rules.rebalance_delay_s, binding.move_due)
            has_way = to in self._roster.peers and binding.phase is not Phase.DETACHING
            has_room = len(moves) < self._rules.moves_at_once and binding.queue not in moves
            if now >= due and has_way and has_room:
                self._handoffs.start(binding, to, self.reasons.pop(binding.queue, "rebalance"), now)
        return bool(misplaced)

    def _close_unwanted(self, now: float) -> bool:
        """Ends consumers of queues that other members serve and back up since the last change of the live set. True if
        there are any."""
        unwanted = [
            binding
            for binding in self._bindings.bound.values()
            if binding.phase is Phase.ATTACHED
            and not binding.active
            and not self._bindings.is_wanted(binding.queue)
        ]
        room = self._room() if unwanted else 0
        for binding in unwanted:
            if binding.answers or self._is_coming(binding.queue, now):
                continue
            if binding.release_due is None:
                binding.release_due = now + CLOSES_WITHIN_S * self._uniform()
            if now >= binding.release_due and room > 0:
                room -= 1
                self._bindings.detach(binding)
        return bool(unwanted)

    def _due_releases(self, me: Identity) -> Iterator[Binding]:
        """Queues where this member waits and may stand in front of the primary.

        A consumer detects by a delivery that it is active, so an idle queue may have any member at its head; and a move
        takes one hop only if its successor, as a rule the primary, is next. Attaching behind it once is enough.
        """
        primaries, peers = self._rules.primaries(self._bindings.view.live), self._roster.peers
        for queue, binding in self._bindings.bound.items():
            to = primaries[queue]
            if binding.active or to is None or to == me.index or binding.phase is not Phase.ATTACHED:
                continue
            peer = peers.get(to)
            state = peer.queues.get(queue) if peer is not None else None
            if peer is None or state is None or state.status is Status.UNBOUND or peer.claims(queue):
                continue
            if not is_behind(binding, peer):
                yield binding

    def _step_behind_primaries(self, now: float) -> bool:
        """Make room for primaries while the rebalance delay runs, so that a move finds its way clear.

        Spread over most of the delay: every member does it for every queue that changes hands. True if this member is
        in front of a primary.
        """
        due = self._releases
        releases = {binding for binding in due if not self._is_coming(binding.queue, now)}
        if self._has_releases:
            for binding in self._bindings.bound.values():
                if binding not in releases and self._bindings.is_wanted(binding.queue):
                    binding.release_due = None
        room = self._room() if releases else 0
        for binding in [one for one in due if one in releases]:
            if binding.release_due is None:
                binding.release_due = (
                    now + STEP_BEHIND_WITHIN * self._rules.rebalance_delay_s * self._uniform()
                )
            if now >= binding.release_due and room > 0:
                room -= 1
                binding.release_due = None
                self._bindings.detach(binding)
        return bool(due)

    def _release_secondaries(self, me: Identity, now: float) -> None:
        """The release of "Sticky Load Balancing" (consumer group clients), a few queues at a time."""
        if now >= self.release_due:
            self.release_due = now + self._release_in_s()
            if self._roster.peers:  # alone, this member would only get them back
                self._to_release = set(range(self._rules.queue_count))
        primaries = self._rules.primaries(self._bindings.view.live)
        for binding in self._bindings.bound.values():
            if primaries[binding.queue] == me.index or not self._roster.peers:
                binding.put_off = 0
        if not self._to_release:
            return
        moves = self._handoffs.moves
        room = self._room()
        for queue in sorted(self._to_release):
            binding = self._bindings.all[queue]
            if primaries[queue] == me.index or queue in moves or binding.phase is Phase.DETACHING:
                self._to_release.discard(queue)
            elif binding.active:
                if len(moves) < self._rules.moves_at_once and now >= binding.move_due:
                    self._to_release.discard(queue)
                    self._handoffs.start(binding, None, "release", now)
            elif binding.phase is Phase.ATTACHED and room > 0:
                room -= 1
                self._to_release.discard(queue)
                self._bindings.detach(binding)

    def _room(self) -> int:
        bound = self._bindings.bound.values()
        return REATTACH_AT_ONCE - sum(binding.phase is Phase.DETACHING for binding in bound)

    def _release_in_s(self) -> float:
        return self._rules.release_interval_s * (0.9 + 0.2 * self._uniform())
