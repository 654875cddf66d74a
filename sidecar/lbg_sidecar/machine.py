"""A member of a group, whole, as a pure machine: what happens goes in with the time, effects come out.

No asyncio, sockets or clock in here. The shell feeds it, runs `effects` in order after each input, and reports what
came of them. The broker alone decides who gets messages (DESIGN.md section 1); what this machine owes is that it
calls the application only while its attachment lives, one call at a time in a lane, and acknowledges what is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .balancing.balancer import Balancer
from .balancing.bindings import Bindings
from .balancing.handoffs import Handoffs
from .balancing.hearing import Hearing
from .balancing.rules import BalancingRules
from .balancing.takeovers import Takeovers
from .balancing.watchdog import Watchdog
from .balancing.yielding import Yielding
from .consuming.acknowledging import Acknowledging
from .consuming.consumption import Consumption, Next, Rules
from .consuming.held import Attachment, Held
from .consuming.positions import Processed
from .effects import Abort, DeadLetter, Done, Effect, Exit, Poisoned, Republish, StoodDown, TimedOut
from .membership.messages import Message
from .membership.presence import Presence, Stage
from .membership.roster import Post, Roster, Timings
from .reporting import beat_content, description
from .verdict import Verdict

REATTACH_AFTER_S = 0.1
"""Who moved a queue, or made way for a move, comes back behind the successor when the move is over."""


class MemberMachine:
    def __init__(
        self,
        name: str,
        *,
        balancing: BalancingRules,
        rules: Rules,
        timings: Timings,
        uniform: Callable[[], float],
        incarnation: Callable[[], str],
    ) -> None:
        self.name = name
        self.effects: list[Effect] = []
        self.rules = balancing
        processed = Processed(queue_count=balancing.queue_count)
        self.consumption = Consumption(rules, processed, uniform)
        self.consumption.fenced = True
        self.bindings = Bindings(balancing, self.consumption, self.effects, uniform=uniform)
        self.roster = Roster(
            timings, uniform=uniform, content=lambda: beat_content(self), incarnation=incarnation
        )
        self.handoffs = Handoffs(self.bindings, self.consumption, self.roster, self.effects, uniform=uniform)
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
            processed=processed,
        )
        self._acknowledging = Acknowledging(
            interval_s=balancing.ack_interval_s, moving=self.handoffs.moves, effects=self.effects
        )
        self._presence = Presence()
        self._lost = 0  # what was at work when the connection went, while there is none
        self._forced_before: int | None = None  # the count when it was asked to leave

    @property
    def leaving(self) -> str | None:
        """Why this member gives its queues away, or holds none; None while it takes part."""
        return self._presence.why

    # The connection

    def connected(self, index: int, now: float) -> None:
        """The mailbox of `index` is declared, bound and consumed: take part."""
        self.consumption.fenced = False
        self._lost = 0
        if self._presence.joined():
            self.handoffs.gives_up = True
            self.roster.stay()
        self._post(self.roster.join(index, self.name, now))
        self.balancer.joined(now)
        if self.leaving is None:
            self.bindings.attach_due(now)
        self._after(now)

    def disconnected(self, now: float) -> None:
        """A connection is lost, or must be taken for lost. Nothing is dispatched or acknowledged from here on."""
        self.consumption.fenced = True
        self.handoffs.moves.clear()
        self._lost = self.bindings.lost()
        self.roster.part()
        self.takeovers.parted()
        self.balancer.parted()
        self.watchdog.parted()
        self._after(now)

    # The members exchange

    def message(self, message: Message, now: float) -> None:
        self._hearing.message(message, now)

    def returned(self, message: Message, to: int, now: float) -> None:
        """A message to one member came back."""
        self._post(self.roster.returned(message, to, now))
        self._after(now)

    # Queues

    def attached(self, attachment: Attachment, now: float) -> None:
        binding = self.bindings.attached(attachment)
        if binding is not None:
            if not binding.quiet:
                self.roster.changed(now)
            binding.quiet = False

    def closed(self, attachment: Attachment, now: float) -> None:
        """The attachment's channel is closed, or never came to be; both ways nothing more comes from it."""
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

    def timed_out(self, attachment: Attachment, timeout_s: float) -> None:
        """The broker closed the channel because a delivery was held for longer than it allows; `closed` follows."""
        self.effects.append(TimedOut(attachment.queue, timeout_s, self.bindings.consumer_timeout_s))
        self.bindings.consumer_timeout_s = min(self.bindings.consumer_timeout_s, timeout_s)

    def deliver(self, attachment: Attachment, arrivals: list[Held], now: float) -> None:
        if attachment.closed:
            return
        binding = self.bindings.all[attachment.queue]
        if not binding.active:
            self.takeovers.activated(binding, now, redelivered=arrivals[0].redelivered)
        self.consumption.deliver(attachment, arrivals, now)

    def looked(self, queue: int, ready: int | None, now: float) -> None:
        """So many messages wait in the queue; None when the broker could not be asked."""
        self.watchdog.looked(queue, ready, now)
        self._after(now)

    # Calls

    def take(self, now: float) -> Held | None:
        """The next call to make, or None. Every call taken must be reported to `end`."""
        held = self.consumption.take(now)
        if self.consumption.repeats_in:
            for attachment in self.consumption.repeats_in:
                self._acknowledging.settled(attachment)
            self.consumption.repeats_in.clear()
        return held

    def end(self, held: Held, verdict: Verdict, now: float) -> None:
        attachment = held.attachment
        what = self.consumption.end(held, verdict, now)
        if attachment.closed:
            self.effects.append(Done((held,), settled=False))
            return
        if what is Next.DEAD_LETTER:
            self.effects.append(DeadLetter(held))
        elif what is Next.REPUBLISH:
            self.effects.append(Republish(held))
        elif what is Next.WARN:
            self.effects.append(
                Poisoned(attachment.queue, held.key, held.identity, held.attempts, held.reason)
            )
        elif not attachment.unacked_listed:
            self._acknowledging.settled(attachment)
        if attachment.frozen:
            self.handoffs.call_ended(attachment, now)

    def confirmed(self, held: Held, what: Next, now: float) -> None:
        """The broker has the dead letter or the republished message."""
        attachment = held.attachment
        if attachment.closed:
            return
        self.consumption.confirmed(held, what)
        self._acknowledging.settled(attachment)
        if attachment.frozen:
            self.handoffs.call_ended(attachment, now)

    def flush(self, now: float) -> float:
        """Acknowledge what is due; returns when the next ack will be, or infinity."""
        return self._acknowledging.flush(now)

    # Time

    def tick(self, now: float) -> None:
        if self._presence.stage is Stage.GONE:
            return
        self._post(self.roster.tick(now))
        self.consumption.lanes.wake(now)
        late = self.consumption.overdue(now)
        if late:
            self.effects.append(Abort(tuple(late)))
        self.handoffs.tick(now)
        self.takeovers.tick(now)
        if self.roster.me is not None and self.leaving is None:
            self.bindings.attach_due(now)
            self.watchdog.tick(now)
        self._after(now)

    def next_due(self, now: float) -> float:
        """When to tick next at the latest."""
        soon = now + (0.1 if self.consumption.running else 0.25)
        wake = self.consumption.lanes.next_due()
        due = min(soon, self.handoffs.next_due, self.takeovers.next_due, soon if wake is None else wake)
        return due if self.roster.me is None else min(due, self.roster.next_due, self.bindings.next_due)

    def stop(self, why: str, now: float) -> None:
        """Leave: hand over every queue, then exit. When the grace period is over, or it is asked again, whatever is at
        work is cut off, and the broker's answers to the closes are waited for only a moment."""
        if self._forced_before is None:
            self._forced_before = self.consumption.counts.forced
        if self._presence.stop(why, now, grace_s=self.rules.shutdown_grace_s):
            self._leave()
        self._after(now)

    @property
    def delivered_again(self) -> int:
        """Of a member that leaves: how many messages that were at work it could not wait for, or lost with its last
        connection. Others get them."""
        if self._forced_before is None:
            return 0
        return self.consumption.counts.forced - self._forced_before + self._lost

    def stand_down(self, why: str, now: float) -> None:
        """Hand over every queue, because the application cannot take messages: `StoodDown` when that is done. What it
        has in hand gets the time of a handoff to end. The next `connected` joins again."""
        if self._presence.stand_down(why, now, within_s=self.rules.max_handoff_s):
            self._leave()
            self._after(now)

    def describe(self, now: float) -> dict[str, Any]:
        """What this member is and does, for a view, as plain data."""
        return description(self, now)

    # Inside

    def _leave(self) -> None:
        self.handoffs.gives_up = False
        self._post(self.roster.leave())

    def _post(self, posts: list[Post]) -> None:
        self.effects.extend(posts)

    def _after(self, now: float) -> None:
        """Something happened here, or time passed: see what is to be done about the queues.

        Not after each message: every member hears of every change from every other, and a tick is never far.
        """
        self._hearing.observe(now)
        self.balancer.holddown.tick(now)
        if self._presence.is_giving_away:
            if self.balancer.leave(now, by=self._presence.empty_by) or self._presence.is_overdue(now):
                is_gone = self._presence.emptied() is Stage.GONE
                self.effects.append(Exit() if is_gone else StoodDown())
        elif self.leaving is None and self.roster.me is not None:
            self.balancer.balance(now)
