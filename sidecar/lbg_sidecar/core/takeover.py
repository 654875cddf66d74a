"""Takeovers: queues that come to this member, and what their givers reported.

A mover tells its successor the positions of a queue just before it closes its channel, over another connection: so
the first deliveries may come before them. They wait for the positions, because what the successor does not know to be
processed it would process again (a copy that a publisher sent twice, what could not be acknowledged in time): for as
long as a handoff may take, and only while the mover lives. A busy broker delivers one connection's messages long before
another's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lbg_sidecar.core.delivery import Attachment
from lbg_sidecar.core.effects import Effect, TakenOver
from lbg_sidecar.core.handoff import Handoffs, Stage
from lbg_sidecar.core.lanes import Lanes
from lbg_sidecar.core.protocol import Handover, Move
from lbg_sidecar.core.queue_bindings import BalancingRules, Binding
from lbg_sidecar.core.roster import LOST, UNSERVED, Roster

LATE_S = 1.0
"""An announced move that is not over this long after its limits never came to be."""


@dataclass(slots=True)
class IncomingQueue:
    """A queue that was announced to us. `told_at` is when its handover came; None until then."""

    former: int
    why: str
    move: str
    until: float
    leaves: bool = False
    told_at: float | None = None
    paused_s: float = 0.0
    waited: bool = True


@dataclass(slots=True)
class Waiting:
    """First deliveries that wait for the handover, at most until `due`."""

    attachment: Attachment
    coming: IncomingQueue
    since: float
    due: float


class Takeovers:
    def __init__(
        self,
        rules: BalancingRules,
        handoffs: Handoffs,
        roster: Roster,
        lanes: Lanes,
        effects: list[Effect],
    ) -> None:
        self._rules = rules
        self._handoffs = handoffs
        self._roster = roster
        self._lanes = lanes
        self._effects = effects
        self._incoming: dict[int, IncomingQueue] = {}
        self._waiting: dict[int, Waiting] = {}

    def announced(self, move: Move, now: float) -> None:
        """The active member of a queue says that it will give it to us."""
        rules = self._rules
        has_left = move.sender.index not in self._roster.peers
        limits_s = rules.answers_s + (rules.shutdown_grace_s if has_left else rules.max_handoff_s)
        self._incoming[move.queue] = IncomingQueue(
            move.sender.index, move.why, move.move, now + limits_s + LATE_S, leaves=has_left
        )

    def told(self, handover: Handover, now: float) -> None:
        """It has let go of the queue; what it had processed is merged already."""
        coming = self._incoming.get(handover.queue)
        if coming is None:
            waiting = self._waiting.get(handover.queue)
            coming = waiting.coming if waiting is not None else None
        if coming is not None and coming.move == handover.move:
            coming.told_at, coming.paused_s, coming.waited = now, handover.paused_s, handover.waiting
            self._go_on(handover.queue, now)

    def activated(self, binding: Binding, now: float, *, redelivered: bool) -> None:
        """The first deliveries of a queue are here: this member is the active consumer. `redelivered`: the first of
        them was with somebody before."""
        binding.active = True
        binding.activated_at = now
        former = self._receive(binding, now, redelivered=redelivered)
        for index in self._suspects(binding.queue, former):
            self._effects.extend(self._roster.suspect(index, now))
        self._roster.changed(now)

    def live_changed(self, live: Collection[int], now: float) -> None:
        """Stops waiting for members that are gone; one that leaves is in no live set, and still reports."""
        for queue, waiting in list(self._waiting.items()):
            if waiting.coming.former not in live and not waiting.coming.leaves:
                self._go_on(queue, now)

    def tick(self, now: float) -> None:
        for queue, waiting in list(self._waiting.items()):
            if now >= waiting.due:
                self._go_on(queue, now)

    @property
    def next_due(self) -> float:
        return min((waiting.due for waiting in self._waiting.values()), default=float("inf"))

    def is_coming(self, queue: int, now: float) -> bool:
        """Somebody gives it to us, and has not let go of it yet."""
        coming = self._incoming.get(queue)
        return coming is not None and coming.told_at is None and now <= coming.until

    def parted(self) -> None:
        self._incoming.clear()
        self._waiting.clear()

    def _suspects(self, queue: int, former: int | None) -> list[int]:
        """Members that reported to be active and not to stop, and the primary: they may be gone."""
        me = self._roster.me
        assert me is not None
        suspects = [index for index, peer in self._roster.peers.items() if peer.claims(queue)]
        primary = self._rules.primaries(self._roster.live)[queue]
        if former is None and primary is not None and primary != me.index:
            suspects.append(primary)
        if former is not None and queue in self._waiting:
            suspects.append(former)  # it said that it would tell something first
        return suspects

    def _receive(self, binding: Binding, now: float, *, redelivered: bool) -> int | None:
        """Returns who announced to give the queue to us, if anybody did."""
        coming = self._incoming.pop(binding.queue, None)
        if coming is None or (coming.told_at is None and now > coming.until):
            former, why = self._roster.last_server(binding.queue)
            if why == UNSERVED and redelivered:
                why = LOST  # by somebody who was gone before we heard of it
            self._effects.append(TakenOver(binding.queue, former, why, planned=False, pause_s=None))
            return None
        attachment = binding.attachment
        assert attachment is not None
        within_s = max(self._rules.answers_s, self._rules.max_handoff_s)
        waiting = Waiting(attachment, coming, now, now + within_s)
        self._waiting[binding.queue] = waiting
        if coming.told_at is not None:
            self._go_on(binding.queue, now)
        else:
            self._lanes.hold(attachment)
        return coming.former

    def _go_on(self, queue: int, now: float) -> None:
        waiting = self._waiting.pop(queue, None)
        if waiting is None:
            return
        coming, attachment = waiting.coming, waiting.attachment
        pause_s = None
        if coming.told_at is not None and (coming.waited or coming.told_at >= waiting.since):
            pause_s = coming.paused_s + now - min(coming.told_at, waiting.since)
        self._effects.append(TakenOver(queue, coming.former, coming.why, planned=True, pause_s=pause_s))
        handoff = self._handoffs.moves.get(queue)
        is_frozen_again = handoff is not None and handoff.stage is not Stage.ANNOUNCED
        if attachment.frozen and not attachment.closed and not is_frozen_again:
            self._lanes.thaw(attachment)
