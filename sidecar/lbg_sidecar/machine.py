"""A member of a group, whole, as a pure machine: what happens goes in with the time, effects come out.

No asyncio, sockets or clock in here. The shell feeds it, runs `effects` in order after each input, and reports what
came of them. The broker alone decides who gets messages (DESIGN.md section 1); what this machine owes is that it
calls the application only while its attachment lives, one call at a time in a lane, and acknowledges what is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .balancing.balancer import Balancer
from .balancing.binding import Binding, Phase
from .balancing.bindings import Bindings
from .balancing.handoffs import Handoffs
from .balancing.planning import is_behind
from .balancing.rules import BalancingRules
from .balancing.takeovers import Takeovers
from .balancing.watchdog import Watchdog
from .consuming.consumption import Consumption, Next, Rules
from .consuming.held import Attachment, Held
from .consuming.positions import Processed
from .effects import (
    Abort,
    Ack,
    DeadLetter,
    Done,
    Effect,
    Exit,
    LiveSet,
    Poisoned,
    Reconnect,
    Republish,
    StoodDown,
    TimedOut,
)
from .membership.messages import Beat, Handover, Message, Move, Reattached
from .membership.roster import Post, Roster, Timings
from .reporting import beat_content, description
from .verdict import Verdict

SINGLE_ACK_AFTER_S = 0.25
SINGLE_ACKS_AT_ONCE = 4
"""What is done behind a message that is not (a slow call, a key that waits for its retry) is acknowledged singly once
it has waited this long, this many in one ack interval. So a blocked key fills the prefetch window with its own
messages only, and a crash repeats what was done lately, not all that was done since."""


REATTACH_AFTER_S = 0.1
"""Who moved a queue, or made way for a move, comes back behind the successor when the move is over."""

MOVE_OVER_AFTER_S = 0.5
"""After its announcement, a move and the re-attaching that belongs to it are over, as a rule."""


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
        self.takeovers = Takeovers(balancing, self.handoffs, self.consumption.lanes, self.effects)
        self.balancer = Balancer(self.bindings, self.handoffs, self.roster, uniform=uniform)
        self.watchdog = Watchdog(
            self.bindings,
            self.handoffs,
            self.roster,
            self.effects,
            self.consumption.counts,
            uniform=uniform,
        )
        self.leaving: str | None = None
        self._stands_down = False
        self._is_down = False
        self._leave_by = float("inf")
        self._exited = False
        self._live: frozenset[int] = frozenset()
        self._unacked: list[Attachment] = []
        self._moved_at: dict[int, float] = {}  # queue -> when a move of it was last announced

    # The connection

    def connected(self, index: int, now: float) -> None:
        """The mailbox of `index` is declared, bound and consumed: take part."""
        self.consumption.fenced = False
        if self._is_down:
            self._stand_up()
        self._post(self.roster.join(index, self.name, now))
        self.balancer.joined(now)
        if self.leaving is None:
            self.bindings.attach_due(now)
        self._after(now)

    def disconnected(self, now: float) -> None:
        """A connection is lost, or must be taken for lost. Nothing is dispatched or acknowledged from here on."""
        self.consumption.fenced = True
        self.handoffs.moves.clear()
        self.bindings.lost()
        self.roster.part()
        self.takeovers.parted()
        self.balancer.parted()
        self.watchdog.parted()
        self._after(now)

    # The members exchange

    def message(self, message: Message, now: float) -> None:
        self._post(self.roster.receive(message, now))
        match message:
            case Move():
                self._make_way(message, now)
            case Reattached():
                self.handoffs.answered(message, now)
            case Beat():
                self.watchdog.heard(message, now)
            case Handover():
                self.consumption.processed.merge(message.positions)
                self.takeovers.told(message, now)
            case _:
                pass
        if self.roster.conflict:
            self.roster.conflict = False
            self.effects.append(Reconnect("another member claimed the same index"))
        self._observe(now)

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
        me = self.roster.me
        if not binding.quiet:
            self.roster.changed(now)
        if self.handoffs.closed(binding, now) or binding.answers:
            # A quorum queue carries out one command after another: it should be busy with the successor now.
            binding.attach_due = now + REATTACH_AFTER_S
        for mover, move in binding.answers:
            if me is not None:
                self.effects.append(Post(Reattached(me, binding.queue, move), to=mover))
        binding.answers.clear()
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
            self._activated(binding, now)
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
                self._settled(attachment)
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
            self._settled(attachment)
        if attachment.frozen:
            self.handoffs.call_ended(attachment, now)

    def confirmed(self, held: Held, what: Next, now: float) -> None:
        """The broker has the dead letter or the republished message."""
        attachment = held.attachment
        if attachment.closed:
            return
        self.consumption.confirmed(held, what)
        self._settled(attachment)
        if attachment.frozen:
            self.handoffs.call_ended(attachment, now)

    def flush(self, now: float) -> float:
        """Acknowledge what is due; returns when the next ack will be, or infinity.

        The first of a quiet queue at once, then one cumulative frame an interval or a quarter of the window. While
        a queue is being moved its acks wait for the one before the close, unless the window runs dry: RabbitMQ may
        discard acks that a closing channel has queued (DESIGN.md, "RabbitMQ facts").
        """
        if not self._unacked:
            return float("inf")
        due = float("inf")
        still = []
        for attachment in self._unacked:
            settling = attachment.settling
            if attachment.closed or not (settling.prefix or settling.scattered):
                attachment.unacked_listed = False
                continue
            still.append(attachment)
            if attachment.queue in self.handoffs.moves:
                if settling.unacked * 4 >= attachment.prefetch * 3:
                    self._ack(attachment, now)
                continue
            at = attachment.acked_at + self.rules.ack_interval_s
            if now >= at or len(settling.prefix) * 4 >= attachment.prefetch:
                self._ack(attachment, now)
                at = now + self.rules.ack_interval_s
            if settling.prefix:
                due = min(due, at)
            elif settling.scattered:
                finished_at = next(iter(settling.scattered)).finished_at or now
                due = min(due, max(at, finished_at + SINGLE_ACK_AFTER_S))
        self._unacked = still
        return due

    # Time

    def tick(self, now: float) -> None:
        if self._exited:
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
        """Leave: hand over every queue, then exit; at the latest when the grace period is over, or when asked again."""
        if self.leaving is None:
            self._leave(why, now)
            self._leave_by = now + self.rules.shutdown_grace_s
        elif self._stands_down:
            self._stands_down = self._is_down = False
            self.leaving = why
        else:
            self._leave_by = now
        self._after(now)

    def stand_down(self, why: str, now: float) -> None:
        """Hand over every queue, because the application cannot take messages: `StoodDown` when that is done. What it
        has in hand gets the time of a handoff to end. The next `connected` joins again."""
        if self.leaving is None:
            self._stands_down = True
            self._leave(why, now)
            self._leave_by = now + self.rules.max_handoff_s
            self._after(now)

    def describe(self, now: float) -> dict[str, Any]:
        """What this member is and does, for a view, as plain data."""
        return description(self, now)

    # Inside

    def _leave(self, why: str, now: float) -> None:
        self.leaving = why
        self.handoffs.forced = True
        self._post(self.roster.leave())

    def _stand_up(self) -> None:
        self._stands_down = self._is_down = False
        self.leaving = None
        self.handoffs.forced = False
        self.roster.stay()

    def _post(self, posts: list[Post]) -> None:
        self.effects.extend(posts)

    def _ack(self, attachment: Attachment, now: float) -> None:
        settling = attachment.settling
        done = settling.take()
        if done:
            self.effects.append(Ack(attachment, done[-1].tag))
        singly = settling.take_scattered(SINGLE_ACKS_AT_ONCE, done_before=now - SINGLE_ACK_AFTER_S)
        for held in singly:
            self.effects.append(Ack(attachment, held.tag, multiple=False))
        if done or singly:
            attachment.acked_at = now
            self.effects.append(Done((*done, *singly), settled=True))

    def _settled(self, attachment: Attachment) -> None:
        if not attachment.unacked_listed:
            attachment.unacked_listed = True
            self._unacked.append(attachment)

    def _activated(self, binding: Binding, now: float) -> None:
        queue = binding.queue
        binding.active = True
        binding.activated_at = now
        me = self.roster.me
        assert me is not None
        former = self.takeovers.activated(binding, now)
        # Somebody who said it was active and did not say that it would stop may be gone, and so may the primary.
        suspects = [index for index, peer in self.roster.peers.items() if peer.claims(queue)]
        primary = self.rules.primaries(self.roster.live)[queue]
        if former is None and primary is not None and primary != me.index:
            suspects.append(primary)
        if former is not None and self.takeovers.is_waiting(queue):
            suspects.append(former)  # it said that it would tell something first
        for index in suspects:
            self._post(self.roster.suspect(index, now))
        self.roster.changed(now)

    def _make_way(self, move: Move, now: float) -> None:
        me = self.roster.me
        if me is None or move.sender.incarnation == me.incarnation or move.queue >= self.rules.queue_count:
            return
        binding = self.bindings.all[move.queue]
        moved_at, self._moved_at[move.queue] = self._moved_at.get(move.queue, float("-inf")), now
        if move.to == me.index:
            self.takeovers.announced(move, now)
            return
        if binding.active:
            # Deliveries on a live channel prove that this member is the active one: the mover's is gone.
            return
        successor = self.roster.peers.get(move.to)
        # What the successor told after the last move of this queue is still true: nobody re-attaches otherwise.
        is_known = successor is not None and successor.told_at > moved_at + MOVE_OVER_AFTER_S
        if binding.phase is Phase.ATTACHED and not (successor and is_known and is_behind(binding, successor)):
            binding.answers.append((move.sender.index, move.move))
            binding.quiet = True
            self.bindings.detach(binding)
        elif binding.phase is Phase.DETACHING:
            binding.answers.append((move.sender.index, move.move))
        else:
            # Behind the successor already, or not attached, or only just attaching.
            self._post([Post(Reattached(me, move.queue, move.move), to=move.sender.index)])

    def _observe(self, now: float) -> None:
        """Who is live may have changed."""
        live = self.roster.live
        if live != self._live:
            self._live = live
            self.effects.append(LiveSet(live))
            self.handoffs.live_changed(self.roster.peers, now)
            self.takeovers.live_changed(self.roster.peers, now)
        if self.roster.me is not None:
            self.balancer.holddown.observe(live, now)

    def _after(self, now: float) -> None:
        """Something happened here, or time passed: see what is to be done about the queues.

        Not after each message: every member hears of every change from every other, and a tick is never far.
        """
        self._observe(now)
        self.balancer.holddown.tick(now)
        if self.leaving is not None:
            if self._exited or self._is_down or not self.balancer.leave(now, by=self._leave_by):
                return
            if self._stands_down:
                self._is_down = True
                self.effects.append(StoodDown())
            else:
                self._exited = True
                self.effects.append(Exit())
        elif self.roster.me is not None:
            self.balancer.balance(now)
