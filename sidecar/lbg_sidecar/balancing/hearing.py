"""What the other members say, given to each part that it concerns."""

from __future__ import annotations

from ..consuming.positions import Processed
from ..effects import Effect, LiveSet, Reconnect
from ..membership.messages import Beat, Handover, Knowledge, Message, Move, Reattached, Repartition
from ..membership.roster import Post, Roster
from .handoffs import Handoffs
from .holddown import HoldDown
from .rules import BalancingRules
from .takeovers import Takeovers
from .watchdog import Watchdog
from .yielding import Yielding


class Hearing:
    def __init__(
        self,
        rules: BalancingRules,
        roster: Roster,
        effects: list[Effect],
        *,
        handoffs: Handoffs,
        takeovers: Takeovers,
        yielding: Yielding,
        watchdog: Watchdog,
        holddown: HoldDown,
        processed: Processed,
    ) -> None:
        self._rules = rules
        self._roster = roster
        self._effects = effects
        self._handoffs = handoffs
        self._takeovers = takeovers
        self._yielding = yielding
        self._watchdog = watchdog
        self._holddown = holddown
        self._processed = processed
        self._live: frozenset[int] = frozenset()

    def message(self, message: Message, now: float) -> None:
        self._effects.extend(self._roster.receive(message, now))
        match message:
            case Move():
                self._announced(message, now)
            case Reattached():
                self._handoffs.answered(message, now)
            case Beat():
                self._watchdog.heard(message, now)
            case Handover():
                self._processed.merge(message.positions)
                self._takeovers.told(message, now)
            case Knowledge(positions=positions):
                self._processed.merge(positions)
            case Repartition():
                self._repartition(message)
            case _:
                pass
        if self._roster.conflict:
            self._roster.conflict = False
            self._effects.append(Reconnect("another member claimed the same index"))
        self.observe(now)

    def observe(self, now: float) -> None:
        """Who is live may have changed."""
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
            if message.queues != count:
                # Nothing is held or on its way now, so that coming back to other queues costs nothing.
                self._effects.append(Reconnect(f"the group has {message.queues} queues, and had {count}"))
            return
        for queue in range(count):
            positions = self._processed.of_queue(queue)
            if positions.streams:
                self._effects.append(Post(Knowledge(me, positions)))

    def _announced(self, move: Move, now: float) -> None:
        me = self._roster.me
        is_own = me is not None and move.sender.incarnation == me.incarnation
        if me is None or is_own or move.queue >= self._rules.queue_count:
            return
        self._yielding.announced(move, me, now)
        if move.to == me.index:
            self._takeovers.announced(move, now)
