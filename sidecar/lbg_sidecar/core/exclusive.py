"""`ExclusiveMember`: a member whose group shares its queues out among its members."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from lbg_sidecar.core.delivery import Attachment, InFlight, Processed
from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.effects import Effect, LiveSet, Reconnect, StandingBy
from lbg_sidecar.core.handoff import Handoffs
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.core.protocol import (
    Beat,
    BeatContent,
    Handover,
    Knowledge,
    Message,
    Move,
    Reattached,
    Repartition,
)
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.core.rebalance import Balancer, HoldDown, SuccessorBinding
from lbg_sidecar.core.roster import Post, Roster, Timings
from lbg_sidecar.core.stall_watchdog import Watchdog
from lbg_sidecar.core.status_report import beat_content, description
from lbg_sidecar.core.takeover import Takeovers

EARLY_MAX = 64
"""Messages of type `knowledge` that are kept until the change is announced: at most 100 kB each."""


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
    ) -> None:
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
        self._queues_change = False
        self._early: deque[Knowledge] = deque(maxlen=EARLY_MAX)

    def message(self, message: Message, now: float) -> None:
        self._effects.extend(self._roster.receive(message, now))
        match message:
            case Move():
                self._announced(message, now)
            case Reattached():
                self._handoffs.answered(message, now)
            case Beat():
                self._watchdog.heartbeat_received(message, now)
            case Handover():
                if self._takeovers.is_expected(message):
                    self._processed.merge(message.positions, queues=(message.queue,))
                    self._takeovers.handover_received(message, now)
            case Knowledge():
                self._knowledge_received(message)
            case Repartition():
                self._repartition(message)
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
        if live != self._live:
            self._live = live
            self._effects.append(LiveSet(live))
            self._handoffs.live_changed(roster.peers, now)
            self._takeovers.live_changed(roster.peers, now)
        if roster.me is not None:
            self._holddown.observe(live, now)

    def _repartition(self, message: Repartition) -> None:
        me, count = self._roster.me, self._rules.queue_count
        if me is None:
            return
        if message.done:
            self._queues_change = False
            self._early.clear()
            if message.queues != count:
                # Nothing is in flight now, so joining again with other queues repeats nothing.
                self._effects.append(Reconnect(f"the group has {message.queues} queues, and had {count}"))
            return
        self._queues_change = True
        for knowledge in self._early:
            self._believe(knowledge)
        self._early.clear()
        for queue in range(count):
            positions = self._processed.of_queue(queue)
            if positions.streams:
                self._effects.append(Post(Knowledge(me, positions)))

    def _knowledge_received(self, knowledge: Knowledge) -> None:
        """Members send it when the number of queues is about to change: at another time nothing of it is believed.
        It may arrive before the announcement of the change, which has another sender."""
        if self._queues_change:
            self._believe(knowledge)
        else:
            self._early.append(knowledge)

    def _believe(self, knowledge: Knowledge) -> None:
        """A live member is believed about the queues that it served."""
        peer = self._roster.peers.get(knowledge.sender.index)
        if peer is not None and peer.identity == knowledge.sender:
            self._processed.merge(knowledge.positions, queues=peer.served)

    def _announced(self, move: Move, now: float) -> None:
        me = self._roster.me
        is_own = me is not None and move.sender.incarnation == me.incarnation
        if me is None or is_own or move.queue >= self._rules.queue_count:
            return
        self._successor_binding.announced(move, me, now)
        if move.to == me.index:
            self._takeovers.announced(move, now)


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
        self.handoffs = Handoffs(self.bindings, self.dispatcher, self.roster, self.effects, uniform=uniform)
        self._ack_scheduler.moving = self.handoffs.moves
        self.takeovers = Takeovers(balancing, self.handoffs, self.roster, self.dispatcher.lanes, self.effects)
        self.balancer = Balancer(self.bindings, self.handoffs, self.roster, uniform=uniform)
        self.watchdog = Watchdog(
            self.bindings,
            self.handoffs,
            self.takeovers,
            self.roster,
            self.effects,
            self.dispatcher.counts,
            uniform=uniform,
        )
        self._successor_binding = SuccessorBinding(self.bindings, self.roster, self.effects)
        self._stands_by = False
        self._message_handler = MessageHandler(
            balancing,
            self.roster,
            self.effects,
            handoffs=self.handoffs,
            takeovers=self.takeovers,
            successor_binding=self._successor_binding,
            watchdog=self.watchdog,
            holddown=self.balancer.holddown,
            processed=self.dispatcher.processed,
        )

    # The connection

    def connected(self, index: int, now: float) -> None:
        if self._join(index, now):
            self.handoffs.may_abandon = True
        self.balancer.joined(now)
        if self.leaving is None:
            self.bindings.attach_due(now)
        self._after(now)

    def disconnected(self, now: float) -> None:
        self.handoffs.moves.clear()
        self._disconnect()
        self.takeovers.disconnected()
        self.balancer.disconnected()
        self.watchdog.disconnected()
        self._after(now)

    # The members exchange

    def message(self, message: Message, now: float) -> None:
        self._message_handler.message(message, now)

    # Queues

    def attached(self, attachment: Attachment, now: float) -> None:
        binding = self.bindings.attached(attachment)
        if binding is not None:
            if not binding.quiet:
                self.roster.changed(now)
            binding.quiet = False

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
        if self.leaving is None and now >= binding.attach_due:
            self.bindings.attach(binding, now)
        self._after(now)

    def refused(self, attachment: Attachment, code: int, why: str) -> bool:
        return False

    def cancelled(self, attachment: Attachment) -> bool:
        return False

    def deliver(self, attachment: Attachment, arrivals: list[InFlight], now: float) -> None:
        if attachment.closed:
            return
        binding = self.bindings.all[attachment.queue]
        if not binding.active:
            self.takeovers.activated(binding, now, redelivered=arrivals[0].redelivered)
        self.dispatcher.deliver(attachment, arrivals, now)

    def ready_counted(self, queue: int, ready: int | None, now: float) -> None:
        self.watchdog.ready_counted(queue, ready, now)
        self._after(now)

    def _call_ended(self, attachment: Attachment, now: float) -> None:
        self.handoffs.call_ended(attachment, now)

    # Time

    def _tick(self, now: float) -> None:
        self.handoffs.tick(now)
        self.takeovers.tick(now)
        if self.roster.me is not None and self.leaving is None:
            self.bindings.attach_due(now)
            self.watchdog.tick(now)

    def next_due(self, now: float) -> float:
        return min(super().next_due(now), self.handoffs.next_due, self.takeovers.next_due)

    def content(self) -> BeatContent:
        return beat_content(self)

    def describe(self, now: float) -> dict[str, Any]:
        return description(self, now)

    # Inside

    def _report_standing_by(self) -> None:
        """Reports once that this member is one of those beyond the number of queues."""
        me = self.roster.me
        at_work = set(self.rules.primaries(self.balancer.holddown.settled).values()) - {None}
        stands_by = me is not None and me.index not in at_work and len(at_work) == self.rules.queue_count
        if stands_by and not self._stands_by:
            self.effects.append(StandingBy(self.rules.queue_count, len(at_work)))
        self._stands_by = stands_by

    def _leave(self, now: float) -> None:
        self.handoffs.may_abandon = False
        super()._leave(now)

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
