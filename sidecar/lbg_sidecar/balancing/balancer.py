"""Starts what `planning` asks for, a little at a time: moves, releases, and the last handover of a leaving member."""

from __future__ import annotations

from collections.abc import Callable

from ..membership.messages import Rebalance
from ..membership.roster import Roster
from .binding import Phase
from .bindings import Bindings
from .handoffs import Handoffs
from .holddown import HoldDown
from .planning import held_too_long, moves_wanted, releases_wanted
from .rules import Assignment

REATTACH_AT_ONCE = 8
"""Waiting consumers that are taken away and put behind again at the same time; more would be a burst on the broker."""

GIVE_BACK_AT = 0.5
CUT_OFF_AT = 0.75
"""Of the broker's consumer timeout, after which it closes the channel with an error: from one half on a queue is given
back if it drains; at three quarters what has not drained is cut off, because soon the broker would do it."""

FROZEN_WITHIN = 0.5
"""Of the time that a member gives its queues away in: by then it has begun with all of them, whatever the application
does. A move that waits for a slow call makes room for the next one."""

GET_BEHIND_WITHIN = 0.6
"""Of the rebalance delay: the rest is for beats to tell of it."""


class Balancer:
    def __init__(
        self, bindings: Bindings, handoffs: Handoffs, roster: Roster, *, uniform: Callable[[], float]
    ) -> None:
        self.holddown = HoldDown(bindings.rules.rebalance_delay_s)
        self._rules = bindings.rules
        self._bindings = bindings
        self._handoffs = handoffs
        self._roster = roster
        self._uniform = uniform
        self._release_due = float("inf")
        self._to_release: set[int] = set()

    def joined(self, now: float) -> None:
        self._release_due = now + self._release_in_s()

    def parted(self) -> None:
        self._to_release.clear()

    @property
    def status(self) -> Rebalance:
        if self.holddown.due is not None:
            return Rebalance.HOLD_DOWN
        return Rebalance.REBALANCING if self._handoffs.moves or self._to_release else Rebalance.READY

    def balance(self, now: float) -> None:
        """One look at all queues. Needs a claimed index."""
        for binding in held_too_long(self._bindings, now, share=GIVE_BACK_AT):
            if binding.queue not in self._handoffs.moves and now >= binding.move_due:
                self._handoffs.start(binding, None, "held for half of the consumer timeout", now)
        for binding in held_too_long(self._bindings, now, share=CUT_OFF_AT):
            self._handoffs.cut_off(binding, "held for three quarters of the consumer timeout", now)
        if self._rules.assignment is Assignment.STATIC:
            self._release_secondaries(now)
            return
        self._get_behind(now)
        if self.holddown.due is None:
            self._move(now)

    def leave(self, now: float, *, by: float) -> bool:
        """Give every queue away, from `by` on at any price; True when none is bound any more."""
        bound = [binding for binding in self._bindings.all if binding.attachment is not None]
        moves = self._handoffs.moves
        late = now >= by
        primaries = self._rules.primaries(self._roster.live)
        for binding in bound:
            if binding.phase is Phase.DETACHING or binding.queue in moves:
                continue
            if not binding.active or late:
                self._bindings.detach(binding)
            elif self._handoffs.under_way(now, but_drained_for_s=self._turn_s()) < self._rules.moves_at_once:
                to = primaries[binding.queue]
                is_there = to is not None and not self._roster.is_silent(to, now)
                self._handoffs.start(binding, to if is_there else None, "leave", now)
        if late:
            self._handoffs.force(now)
        return not bound

    def _turn_s(self) -> float:
        rules = self._rules
        within_s = FROZEN_WITHIN * min(rules.shutdown_grace_s, rules.max_handoff_s)
        return within_s * rules.moves_at_once / rules.queue_count

    def _move(self, now: float) -> None:
        primaries = self._rules.primaries(self.holddown.settled)
        moves = self._handoffs.moves
        me = self._roster.me
        for binding in self._bindings.all:
            if me is None or primaries[binding.queue] in (None, me.index):
                binding.put_off = 0
        for binding, to in moves_wanted(self._bindings, self._roster, primaries, now):
            if len(moves) >= self._rules.moves_at_once:
                break
            if binding.queue not in moves:
                self._handoffs.start(binding, to, "rebalance", now)

    def _get_behind(self, now: float) -> None:
        """Make room for primaries while the rebalance delay runs, so that a move finds its way clear.

        Spread over most of the delay: every member does it for every queue that changes hands.
        """
        primaries = self._rules.primaries(self._roster.live)
        wanted = set(releases_wanted(self._bindings, self._roster, primaries))
        room = self._room()
        for binding in self._bindings.all:
            if binding not in wanted:
                binding.release_due = None
                continue
            if binding.release_due is None:
                binding.release_due = (
                    now + GET_BEHIND_WITHIN * self._rules.rebalance_delay_s * self._uniform()
                )
            if now >= binding.release_due and room > 0:
                room -= 1
                binding.release_due = None
                binding.quiet = True
                self._bindings.detach(binding)

    def _release_secondaries(self, now: float) -> None:
        """The document's release ("Sticky Load Balancing", consumer group clients), a few queues at a time."""
        if now >= self._release_due:
            self._release_due = now + self._release_in_s()
            if self._roster.peers:  # alone, this member would only get them back
                self._to_release = set(range(self._rules.queue_count))
        me = self._roster.me
        if not self._to_release or me is None:
            return
        primaries = self._rules.primaries(self._roster.live)
        moves = self._handoffs.moves
        room = self._room()
        for queue in sorted(self._to_release):
            binding = self._bindings.all[queue]
            if primaries[queue] == me.index or queue in moves:
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
        return REATTACH_AT_ONCE - sum(binding.phase is Phase.DETACHING for binding in self._bindings.all)

    def _release_in_s(self) -> float:
        return self._rules.release_interval_s * (0.9 + 0.2 * self._uniform())
