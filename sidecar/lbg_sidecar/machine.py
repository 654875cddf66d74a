"""A member of a group whose queues the members share out among themselves: one active consumer a queue, handed over
by hints (DESIGN.md section 1). What happens goes in with the time, effects come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .balancing.balancer import Balancer
from .balancing.handoffs import Handoffs
from .balancing.hearing import Hearing
from .balancing.rules import BalancingRules
from .balancing.takeovers import Takeovers
from .balancing.watchdog import Watchdog
from .balancing.yielding import Yielding
from .consuming.consumption import Rules
from .consuming.held import Attachment, Held
from .membership.messages import BeatContent, Message
from .membership.roster import Timings
from .participating import Participant
from .reporting import beat_content, description

REATTACH_AFTER_S = 0.1
"""Who moved a queue, or made way for a move, comes back behind the successor when the move is over."""


class MemberMachine(Participant):
    def __init__(
        self,
        name: str,
        *,
        balancing: BalancingRules,
        rules: Rules,
        timings: Timings,
        uniform: Callable[[], float],
        incarnation: Callable[[], str],
        former: Participant | None = None,
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
        self.handoffs = Handoffs(self.bindings, self.consumption, self.roster, self.effects, uniform=uniform)
        self._acknowledging.moving = self.handoffs.moves
        self.takeovers = Takeovers(
            balancing, self.handoffs, self.roster, self.consumption.lanes, self.effects
        )
        self.balancer = Balancer(self.bindings, self.handoffs, self.roster, uniform=uniform)
        self.watchdog = Watchdog(
            self.bindings,
            self.handoffs,
            self.takeovers,
            self.roster,
            self.effects,
            self.consumption.counts,
            uniform=uniform,
        )
        self._yielding = Yielding(self.bindings, self.roster, self.effects)
        self._hearing = Hearing(
            balancing,
            self.roster,
            self.effects,
            handoffs=self.handoffs,
            takeovers=self.takeovers,
            yielding=self._yielding,
            watchdog=self.watchdog,
            holddown=self.balancer.holddown,
            processed=self.consumption.processed,
        )

    # The connection

    def connected(self, index: int, now: float) -> None:
        if self._join(index, now):
            self.handoffs.gives_up = True
        self.balancer.joined(now)
        if self.leaving is None:
            self.bindings.attach_due(now)
        self._after(now)

    def disconnected(self, now: float) -> None:
        self.handoffs.moves.clear()
        self._part()
        self.takeovers.parted()
        self.balancer.parted()
        self.watchdog.parted()
        self._after(now)

    # The members exchange

    def message(self, message: Message, now: float) -> None:
        self._hearing.message(message, now)

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
        self._yielding.closed(binding)
        if self.leaving is None and now >= binding.attach_due:
            self.bindings.attach(binding, now)
        self._after(now)

    def refused(self, attachment: Attachment, code: int, why: str) -> bool:
        return False

    def cancelled(self, attachment: Attachment) -> bool:
        return False

    def deliver(self, attachment: Attachment, arrivals: list[Held], now: float) -> None:
        if attachment.closed:
            return
        binding = self.bindings.all[attachment.queue]
        if not binding.active:
            self.takeovers.activated(binding, now, redelivered=arrivals[0].redelivered)
        self.consumption.deliver(attachment, arrivals, now)

    def looked(self, queue: int, ready: int | None, now: float) -> None:
        self.watchdog.looked(queue, ready, now)
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

    def _leave(self, now: float) -> None:
        self.handoffs.gives_up = False
        super()._leave(now)

    def _after(self, now: float) -> None:
        """Not after each message: every member hears of every change from every other, and a tick is never far."""
        self._hearing.observe(now)
        self.balancer.holddown.tick(now)
        if self._presence.is_giving_away:
            if self.balancer.leave(now, by=self._presence.empty_by) or self._presence.is_overdue(now):
                self._gave_all_away()
        elif self.leaving is None and self.roster.me is not None:
            self.balancer.balance(now)
