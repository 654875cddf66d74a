"""`ExclusiveMember`: a member whose group shares its queues out among its members."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lbg_core.client.errors import NotFound, channel_closed
from lbg_core.group.members_protocol import (
    Beat,
    Handover,
    Identity,
    KeysMove,
    Knowledge,
    KnowledgeRequest,
    Message,
    Move,
    QueueReport,
    QueueState,
    Reattached,
    Repartition,
)
from lbg_sidecar.core.delivery import Attachment, InFlight, Processed
from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.effects import Effect, LiveSet, Post, Reconnect, Reread, StandingBy
from lbg_sidecar.core.handoff import Handoffs
from lbg_sidecar.core.key_moves import KeyMoves
from lbg_sidecar.core.member_core import TICK_S, MemberCore
from lbg_sidecar.core.parked_keys import Parking
from lbg_sidecar.core.queue_bindings import RESTS_S, BalancingRules, Binding, Bindings
from lbg_sidecar.core.queue_consumers import REPEATS_S, QueueReports, Sweep
from lbg_sidecar.core.rebalance import Balancer, HoldDown, SuccessorBinding
from lbg_sidecar.core.roster import JOINS_S, Roster
from lbg_sidecar.core.stall_watchdog import Watchdog
from lbg_sidecar.core.status_report import description, own_state, status_report
from lbg_sidecar.core.takeover import Takeovers
from lbg_sidecar.core.timings import Timings

CONSUMED_FOR_S = 30.0
"""For so long a member consumes a queue that is neither its primary nor backed up by it, unless it serves it."""


class MessageHandler:
    def __init__(
        self,
        rules: BalancingRules,
        roster: Roster,
        effects: list[Effect],
        *,
        handoffs: Handoffs,
        takeovers: Takeovers,
        successor_binding: SuccessorBinding,
        watchdog: Watchdog,
        holddown: HoldDown,
        processed: Processed,
        bindings: Bindings,
        reports: QueueReports,
        key_moves: KeyMoves,
        view_changed: Callable[[float], None],
        new_id: Callable[[], str],
        served: Callable[[], tuple[QueueState, ...]],
    ) -> None:
        self._new_id = new_id
        self._served = served
        self._key_moves = key_moves
        self._bindings = bindings
        self._reports = reports
        self._view_changed = view_changed
        self._rules = rules
        self._roster = roster
        self._effects = effects
        self._handoffs = handoffs
        self._takeovers = takeovers
        self._successor_binding = successor_binding
        self._watchdog = watchdog
        self._holddown = holddown
        self._processed = processed
        self._live: frozenset[int] = frozenset()
        self._observed: frozenset[int] | None = None
        self._proof = ""  # that answers to a knowledge request have; empty while the queues do not change

    def message(self, message: Message, now: float) -> None:
        self._effects.extend(self._roster.receive(message, now))
        match message:
            case Move():
                self._announced(message, now)
            case Reattached():
                self._handoffs.answered(message, now)
            case QueueReport():
                self._report_received(message.sender, message.queues, now)
            case Handover():
                if self._takeovers.is_proved(message):
                    self._processed.merge(message.positions, queues=(message.queue,))
                self._takeovers.handover_received(message, now)
            case KnowledgeRequest():
                self._knowledge_requested(message)
            case Knowledge():
                self._knowledge_received(message)
            case Repartition():
                self._repartition(message)
            case KeysMove(move=move):
                self._key_moves.follow(move)
            case _:
                pass
        if self._roster.conflict:
            self._roster.conflict = False
            self._effects.append(Reconnect("another member claimed the same index"))
        self.observe(now)

    def observe(self, now: float) -> None:
        """Checks for a change of the live set."""
        roster = self._roster
        live = roster.live
        if live is self._observed and now < self._bindings.view.due:
            return  # since then nothing has changed, and no time has come
        self._observed = live
        if live != self._live:
            self._live = live
            self._effects.append(LiveSet(live))
            self._handoffs.live_changed(roster.peers, now)
            self._takeovers.live_changed(roster.peers, now)
        if roster.me is not None:
            self._holddown.observe(live, now)
            if self._bindings.view.observe(live, now):
                self._view_changed(now)

    def _report_received(self, sender: Identity, states: Iterable[QueueState], now: float) -> None:
        self._watchdog.report_received(sender, states, now)
        for state in states:
            binding = self._bindings.bound.get(state.queue)
            if state.active and binding is not None and binding.active:
                # Both count themselves as active.
                self._reports.add(state.queue, now, to=sender.index, after_s=REPEATS_S)

    def _repartition(self, message: Repartition) -> None:
        me, count = self._roster.me, self._rules.queue_count
        if me is None:
            return
        if message.done:
            self._proof = ""
            if message.queues != count or self._key_moves.is_record_due:
                self._key_moves.is_record_due = False
                had = f", and had {count}" if message.queues != count else " now"
                self._effects.append(Reread(f"the group has {message.queues} queues{had}"))
            return
        self._proof = self._new_id()
        self._effects.append(Post(KnowledgeRequest(me, self._proof)))

    def _knowledge_requested(self, request: KnowledgeRequest) -> None:
        """Answers with the queues that this member serves, and what it processed of them."""
        me, states = self._roster.me, self._served()
        if me is None or request.sender.incarnation == me.incarnation or not states:
            return
        to = request.sender.index
        self._effects.append(Post(QueueReport(me, states), to=to))
        for state in states:
            positions = self._processed.of_queue(state.queue)
            if positions.streams:
                self._effects.append(Post(Knowledge(me, positions, request.proof), to=to))

    def _knowledge_received(self, knowledge: Knowledge) -> None:
        """Counts from a live member that received the request in its mailbox, about queues that its reports claim."""
        peer = self._roster.peers.get(knowledge.sender.index)
        is_proved = self._proof and knowledge.proof == self._proof
        if is_proved and peer is not None and peer.identity == knowledge.sender:
            queues = [queue for queue in peer.served if not self._is_served_here(queue)]
            self._processed.merge(knowledge.positions, queues=queues)

    def _is_served_here(self, queue: int) -> bool:
        """True if this member is the active consumer, as deliveries show: then nobody else is."""
        binding = self._bindings.bound.get(queue)
        return binding is not None and binding.active

    def _announced(self, move: Move, now: float) -> None:
        me = self._roster.me
        is_own = me is not None and move.sender.incarnation == me.incarnation
        if me is None or is_own or move.queue >= self._rules.queue_count:
            return
        proof = ""
        if move.to == me.index and not self._is_served_here(move.queue):
            proof = self._takeovers.announced(move, now)
        self._successor_binding.announced(move, me, now, proof=proof)


TICK_MOVING_S = 0.25
"""While queues are moved, consumers of other queues closed and attached, or queues perhaps stalled."""

ALONE_RESTS_S = 1.5
"""For a directory to arrive, at a member whose index shows that there are others, or were."""

REATTACH_AFTER_S = 0.1
"""Delay before a member that handed a queue over, or stepped aside, subscribes again behind the successor."""


class ExclusiveMember(MemberCore):
    def __init__(
        self,
        name: str,
        *,
        balancing: BalancingRules,
        rules: Rules,
        timings: Timings,
        uniform: Callable[[], float],
        incarnation: Callable[[], str],
        former: MemberCore | None = None,
    ) -> None:
        super().__init__(
            name,
            balancing=balancing,
            rules=rules,
            timings=timings,
            uniform=uniform,
            incarnation=incarnation,
            former=former,
        )
        self.handoffs = Handoffs(
            self.bindings,
            self.dispatcher,
            self.roster,
            self.effects,
            uniform=uniform,
            state_of=self._queue_state,
        )
        self._ack_scheduler.moving = self.handoffs.moves
        self.parking: Parking | None = None
        if rules.parking is not None:
            self.parking = Parking(
                rules.parking,
                self.dispatcher.processed,
                self.dispatcher.lanes,
                self.effects,
                new_id=incarnation,
                serving=lambda hash_: self.bindings.serving(self._queue_of(hash_)),
            )
        self.dispatcher.parking = self.parking
        self.key_moves = self.dispatcher.key_moves = KeyMoves(
            self.effects,
            self.dispatcher.processed,
            self.dispatcher.lanes,
            new_id=incarnation,
            me=self._identity,
            settle=self._settle_fence,
            resize=self.reshape,
            fit=self._consume_opened,
        )
        self.bindings.may_consume = self.key_moves.may_consume
        self.handoffs.may_hand_over = self.key_moves.may_hand_over
        self.takeovers = Takeovers(
            self.rules, self.handoffs, self.roster, self.dispatcher.lanes, self.effects, new_id=incarnation
        )
        self.balancer = Balancer(
            self.bindings,
            self.handoffs,
            self.roster,
            is_coming=self.takeovers.is_announced,
            uniform=uniform,
        )
        self.watchdog = Watchdog(
            self.bindings,
            self.handoffs,
            self.takeovers,
            self.roster,
            self.effects,
            self.dispatcher.counts,
            uniform=uniform,
        )
        self.handoffs.settled = lambda: self.balancer.holddown.settled
        self._successor_binding = SuccessorBinding(self.bindings, self.roster, self.effects, want=self._want)
        self.bindings.is_held = self._awaits_view
        self._sweep = Sweep(self.bindings, self.roster, uniform=uniform)
        self._reports = QueueReports(self.bindings, self.roster)
        self._also_wanted: dict[int, float] = {}
        self._joined_at = 0.0
        self._stands_by = False
        self._message_handler = MessageHandler(
            self.rules,
            self.roster,
            self.effects,
            handoffs=self.handoffs,
            takeovers=self.takeovers,
            successor_binding=self._successor_binding,
            watchdog=self.watchdog,
            holddown=self.balancer.holddown,
            processed=self.dispatcher.processed,
            bindings=self.bindings,
            reports=self._reports,
            key_moves=self.key_moves,
            view_changed=self._view_changed,
            new_id=incarnation,
            served=lambda: tuple(map(self._queue_state, self._active_bindings())),
        )

    # The connection

    def connected(self, index: int, now: float) -> None:
        if self._join(index, now):
            self.handoffs.may_abandon = True
        self.balancer.joined(now)
        self._sweep.joined(now)
        self._joined_at = now
        self.bindings.view.reset(self.roster.live)
        self._view_changed(now)
        if self.leaving is None:
            self.bindings.attach_due(now)
        self._after(now)

    def disconnected(self, now: float) -> None:
        self.handoffs.moves.clear()
        self._disconnect()
        self.takeovers.disconnected()
        self.balancer.disconnected()
        self.watchdog.disconnected()
        self._reports.disconnected()
        self._sweep.due = float("inf")
        self._also_wanted.clear()
        if self.parking is not None:
            self.parking.disconnected()
        self.key_moves.disconnected(now)
        self._after(now)

    # Another number of queues

    def reshape(self, queue_count: int, now: float) -> None:
        """The group has so many queues now. Attachments to those that remain are not touched. A queue beyond the new
        number is consumed, by who consumes it now, until it is deleted."""
        if queue_count == self.rules.queue_count:
            return
        self.bindings.reshape(queue_count)
        self._also_wanted = {
            queue: until for queue, until in self._also_wanted.items() if queue < queue_count
        }
        self.handoffs.reshaped()
        self.balancer.reshaped()
        if self.roster.me is not None:
            self._sweep.reshaped(now)
        self._view_changed(now)
        self._report_standing_by()
        self.roster.changed(now)
        if self.roster.me is not None and self.leaving is None:
            self.bindings.attach_due(now)
        self._after(now)

    # The members exchange

    def message(self, message: Message, now: float) -> None:
        self._suspects_received(message, now)
        self._message_handler.message(message, now)

    # Queues

    def attached(self, attachment: Attachment, now: float) -> None:
        binding = self.bindings.attached(attachment)
        if binding is None:
            return
        self._successor_binding.attached(binding)
        me = self.roster.me
        if me is not None and self.rules.primaries(self.bindings.view.live)[binding.queue] == me.index:
            self._reports.add(binding.queue, now)
        if not binding.quiet:
            self.roster.changed(now)
        binding.quiet = False
        if self.leaving is None:
            self.bindings.attach_due(now)

    def closed(self, attachment: Attachment, now: float) -> None:
        binding = self.bindings.closed(attachment, now)
        if binding is None:
            return
        if not binding.quiet:
            self.roster.changed(now)
        if self.handoffs.closed(binding, now) or binding.answers:
            # A quorum queue carries out one command after another: it should be busy with the successor now.
            binding.attach_due = now + REATTACH_AFTER_S
        self._successor_binding.closed(binding)
        if self.leaving is None:
            self.bindings.attach_due(now)
        self._after(now)

    def refused(self, attachment: Attachment, code: int, why: str) -> bool:
        return isinstance(channel_closed(code, why), NotFound) and self._surplus_deleted(attachment)

    def cancelled(self, attachment: Attachment) -> bool:
        return self._surplus_deleted(attachment)

    def _surplus_deleted(self, attachment: Attachment) -> bool:
        """True for a surplus queue, whose end is no failure."""
        if attachment.queue not in self.bindings.surplus:
            return False
        self.bindings.surplus_deleted(attachment.queue)
        return True

    def deliver(self, attachment: Attachment, arrivals: list[InFlight], now: float) -> None:
        if attachment.closed:
            return
        binding = self.bindings.all[attachment.queue]
        if not binding.active:
            self.bindings.activate(binding, now)
            self.takeovers.activated(binding, now, redelivered=arrivals[0].redelivered)
            self._reports.add(attachment.queue, now)
        if not attachment.delivered:
            if self.parking is not None:
                self.parking.activated(attachment, now)
            self.key_moves.activated(attachment, now)
        self.dispatcher.deliver(attachment, arrivals, now)

    def ready_counted(self, queue: int, ready: int | None, consumers: int | None, now: float) -> None:
        if queue in self.bindings.bound:
            self.watchdog.ready_counted(queue, ready, now)
        if self._sweep.counted(queue, consumers, now):
            self._want(queue, now)

    def flush(self, now: float) -> float:
        due = super().flush(now)
        self.key_moves.pass_fences(now)
        if self.handoffs.moves:
            self.handoffs.flushed(now)
        return due

    def _call_ended(self, attachment: Attachment, now: float) -> None:
        self.handoffs.call_ended(attachment, now)

    # Time

    def _tick(self, now: float) -> None:
        self.handoffs.tick(now)
        self.takeovers.tick(now)
        if self.parking is not None:
            self.parking.tick(now)
        self.key_moves.tick(now)
        if self.roster.me is not None and self.leaving is None:
            self._drop_unwanted(now)
            self.bindings.attach_due(now)
            self.watchdog.tick(now)
            self.effects.extend(self._sweep.tick(now))
            self._post(self._reports.tick(now, self._queue_state))
        self.balancer.rests(now)

    def next_due(self, now: float) -> float:
        due = super().next_due(now)
        if self.handoffs.moves:
            due = min(due, self.handoffs.next_due)
        if self.takeovers.waits:
            due = min(due, self.takeovers.next_due)
        if self.parking is not None:
            due = min(due, self.parking.next_due)
        due = min(due, self.key_moves.next_due)
        rests_at = self.balancer.holddown.due
        if rests_at is not None:
            due = min(due, rests_at, now + TICK_MOVING_S)
        if self.roster.me is None or self._presence.why is not None:
            return due
        # Queues are counted at the ticks that there are: one wake-up for both.
        return min(due, self._reports.due, self.bindings.view.due)

    def content(self) -> Beat:
        return status_report(self)

    def describe(self, now: float) -> dict[str, Any]:
        return description(self, now)

    # Keys that move between queues

    def _identity(self) -> tuple[int, str] | None:
        me = self.roster.me
        return None if me is None else (me.index, me.incarnation)

    def _queue_of(self, hash_: int) -> int:
        """The queue that delivers messages of this hash now."""
        return self.key_moves.serves(hash_, self.rules.queue_count)

    def _settle_fence(self, fence: InFlight) -> None:
        self.dispatcher.settle_fence(fence)
        self._ack_scheduler.settled(fence.attachment)

    def _consume_opened(self, now: float) -> None:
        """A queue may be consumed from now on that is this member's."""
        self._fit_wanted()
        if self.roster.me is not None and self.leaving is None:
            self.bindings.attach_due(now)

    # Inside

    def _view_changed(self, now: float) -> None:
        """Consume the queues that follow from the new live set. What others back up now is closed after the delay."""
        if now - self._joined_at < JOINS_S:
            is_first = self.roster.me is not None and self.roster.me.index == 0
            is_alone = len(self.bindings.view.live) == 1 and not is_first
            self.bindings.rests_at = now + (ALONE_RESTS_S if is_alone else RESTS_S)
        self._fit_wanted()
        if self.roster.me is not None:
            self._reports.live_changed(self.roster.me.index, self.bindings.view.live, now)
            self._sweep.live_changed(now)

    def _awaits_view(self) -> bool:
        """True for a newcomer that does not know the others, or only since a moment ago: alone it would consume queues
        that are not its own, and of many members that start together each the same."""
        me, view = self.roster.me, self.bindings.view
        if me is None or me.index == 0 or len(view.live) > 1:
            return False
        return self.roster.awaits_directory or view.due < float("inf")

    def _fit_wanted(self) -> None:
        me = self.roster.me
        if me is not None:
            consumed = self.rules.consumed(me.index, self.bindings.view.live)
            self.bindings.want([*consumed, *self._also_wanted, *self.bindings.surplus])

    def _want(self, queue: int, now: float) -> None:
        """A queue that has no consumer, or that is to come here, though that does not follow from the live set. One
        that was counted before it was deleted is not of the group any more."""
        if queue >= self.rules.queue_count and queue not in self.bindings.all.used:
            return
        self._also_wanted[queue] = now + CONSUMED_FOR_S
        self._fit_wanted()
        if self.leaving is None:
            self.bindings.attach_due(now)

    def _drop_unwanted(self, now: float) -> None:
        if any(until <= now for until in self._also_wanted.values()):
            self._also_wanted = {queue: until for queue, until in self._also_wanted.items() if until > now}
            self._fit_wanted()

    def _report_standing_by(self) -> None:
        """Reports once that this member is one of those beyond the number of queues."""
        me = self.roster.me
        at_work = set(self.rules.primaries(self.balancer.holddown.settled)) - {None}
        stands_by = me is not None and me.index not in at_work and len(at_work) == self.rules.queue_count
        if stands_by and not self._stands_by:
            self.effects.append(StandingBy(self.rules.queue_count, len(at_work)))
        self._stands_by = stands_by

    def _queue_state(self, binding: Binding) -> QueueState:
        return own_state(self, binding)

    def _active_bindings(self) -> list[Binding]:
        return [
            binding
            for binding in self.bindings.own()
            if binding.active and binding.queue < self.rules.queue_count
        ]

    def _leave(self, now: float) -> None:
        self.handoffs.may_abandon = False
        self._report_before_leave(now)
        super()._leave(now)

    def _report_before_leave(self, now: float) -> None:
        """Reports the queues that are served here to those that get them: they are handed over by one that has left."""
        me, served = self.roster.me, self._active_bindings()
        if me is None or not served:
            return
        live = self.bindings.view.live - {me.index}
        primaries = self.rules.primaries(live)
        for binding in served:
            self._reports.add(binding.queue, now, to=primaries[binding.queue])
        self._post(self._reports.tick(self._reports.due, self._queue_state))

    def _after(self, now: float) -> None:
        """Not after each message: every member reports every change to every other, and the next tick is near."""
        self._message_handler.observe(now)
        if self.balancer.holddown.tick(now):
            self._report_standing_by()
        if self._presence.is_handing_over:
            if self.balancer.leave(now, by=self._presence.empty_by) or self._presence.is_overdue(now):
                self._report_empty()
        elif self.leaving is None and self.roster.me is not None:
            self.balancer.balance(now)
        self.step_s = TICK_MOVING_S if self.balancer.has_work or self.watchdog.has_doubts else TICK_S
