"""Out of the way of other members' moves: who waits before the successor of a queue goes behind it, and says so.

Waiting consumers are first in, first out, and each wrong one in between costs a hop (DESIGN.md, "RabbitMQ facts").
"""

from __future__ import annotations

from ..effects import Effect
from ..membership.messages import Identity, Move, Reattached
from ..membership.roster import Post, Roster
from .binding import Binding, Phase
from .bindings import Bindings
from .planning import is_behind

MOVE_OVER_AFTER_S = 0.5
"""After its announcement, a move and the re-attaching that belongs to it are over, as a rule."""


class Yielding:
    def __init__(self, bindings: Bindings, roster: Roster, effects: list[Effect]) -> None:
        self._bindings = bindings
        self._roster = roster
        self._effects = effects
        self._moved_at: dict[int, float] = {}  # queue -> when a move of it was last announced

    def announced(self, move: Move, me: Identity, now: float) -> None:
        """Another member gives a queue away: make way, unless it comes to this one."""
        moved_at = self._moved_at.get(move.queue, float("-inf"))
        self._moved_at[move.queue] = now
        binding = self._bindings.all[move.queue]
        if move.to == me.index:
            return
        if binding.active:
            # Deliveries on a live channel prove that this member is the active one: the mover's is gone.
            return
        successor = self._roster.peers.get(move.to)
        # What the successor told after the last move of this queue is still true: nobody re-attaches otherwise.
        is_known = successor is not None and successor.told_at > moved_at + MOVE_OVER_AFTER_S
        if binding.phase is Phase.ATTACHED and not (successor and is_known and is_behind(binding, successor)):
            binding.answers.append((move.sender.index, move.move))
            binding.quiet = True
            self._bindings.detach(binding)
        elif binding.phase is Phase.DETACHING:
            binding.answers.append((move.sender.index, move.move))
        else:
            # Behind the successor already, or not attached, or only just attaching.
            self._answer(me, binding, move.sender.index, move.move)

    def closed(self, binding: Binding) -> None:
        """The channel of a queue is gone: nothing of this member waits for it now."""
        me = self._roster.me
        if me is not None:
            for mover, move in binding.answers:
                self._answer(me, binding, mover, move)
        binding.answers.clear()

    def _answer(self, me: Identity, binding: Binding, mover: int, move: str) -> None:
        self._effects.append(Post(Reattached(me, binding.queue, move), to=mover))
