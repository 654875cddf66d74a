"""Takeovers: queues that come to this member, and the positions that their former members reported.

A member that hands a queue over sends the positions to its successor just before it closes its channel, over another
connection: so the first deliveries may come before them. They wait for the positions, because without them the
successor would process messages again (a copy that a publisher sent twice, calls that a leave cut off): for
as long as a handoff may take, and only while the former member lives. A busy broker delivers one connection's messages
long before another's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from lbg_core.group.members_protocol import Handover, Move, Takeover
from lbg_sidecar.core.delivery import Attachment
from lbg_sidecar.core.effects import Effect
from lbg_sidecar.core.handoff import Handoffs
from lbg_sidecar.core.lanes import Lanes
from lbg_sidecar.core.message_states import Hold
from lbg_sidecar.core.queue_bindings import BalancingRules, Binding
from lbg_sidecar.core.roster import LOST, UNSERVED, Roster

LATE_S = 1.0
"""An announced move that is not over this long after its limits never came to be."""


@dataclass(slots=True)
class IncomingQueue:
    """A queue that was announced to us. `handover_at` is when its handover came; None until then."""

    former: int
    why: str
    move: str
    until: float
    leaves: bool = False
    handover_at: float | None = None
    paused_s: float = 0.0
    waited: bool = True


@dataclass(slots=True)
class Waiting:
    """First deliveries that wait for the handover, at most until `due`."""

    attachment: Attachment
    incoming: IncomingQueue
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
        *,
        new_id: Callable[[], str],
    ) -> None:
        self._rules = rules
        self._handoffs = handoffs
        self._roster = roster
        self._lanes = lanes
        self._effects = effects
        self._incoming: dict[int, IncomingQueue] = {}
        self._waiting: dict[int, Waiting] = {}
        self._new_id = new_id
        self._announced_moves: dict[int, tuple[int, str, str]] = {}
        """By queue, the latest to this member: mover, id and proof."""

    def announced(self, move: Move, now: float) -> str:
        """The active member of a queue announces to hand it over to us. Returns the proof for the answer, which only
        the owner of the mover's mailbox receives; empty if no handover from there would count.

        It counts from a live member whose reports claim the queue, and from one that leaves, which is in no live set.
        """
        rules, peer = self._rules, self._roster.peers.get(move.sender.index)
        has_left = peer is None or peer.identity.incarnation != move.sender.incarnation
        if not (has_left or (peer is not None and peer.serves(move.queue))):
            return ""
        limits_s = rules.answers_s + (rules.shutdown_grace_s if has_left else rules.max_handoff_s)
        self._incoming[move.queue] = IncomingQueue(
            move.sender.index, move.why, move.move, now + limits_s + LATE_S, leaves=has_left
        )
        index, id_, proof = self._announced_moves.get(move.queue, (None, "", ""))
        if (index, id_) != (move.sender.index, move.move):
            proof = self._new_id()
            self._announced_moves[move.queue] = (move.sender.index, move.move, proof)
        return proof

    def is_proved(self, handover: Handover) -> bool:
        """True if its sender announced this move of the queue to this member, however long ago, and received the answer
        in its mailbox.

        The announcement was sent before, over the same channel and so into the same mailbox.
        """
        announced = self._announced_moves.get(handover.queue)
        return announced == (handover.sender.index, handover.move, handover.proof)

    def handover_received(self, handover: Handover, now: float) -> None:
        """It has released the queue; the positions that it sent are merged already, if they count."""
        incoming = self._incoming.get(handover.queue)
        if incoming is None:
            waiting = self._waiting.get(handover.queue)
            incoming = waiting.incoming if waiting is not None else None
        if incoming is None or incoming.former != handover.sender.index:
            return
        if incoming.move == handover.move:
            incoming.handover_at, incoming.paused_s, incoming.waited = (
                now,
                handover.paused_s,
                handover.waiting,
            )
            self._resume(handover.queue, now)

    def activated(self, binding: Binding, now: float, *, redelivered: bool) -> None:
        """Receives the first deliveries of a queue: this member is the active consumer. `redelivered`: the first of
        them was delivered before."""
        former = self._receive(binding, now, redelivered=redelivered)
        for index in self._suspects(binding.queue, former):
            self._effects.extend(self._roster.suspect(index, now))
        self._roster.changed(now)

    def live_changed(self, live: Collection[int], now: float) -> None:
        """Ends the wait for members that are gone; one that leaves is in no live set, and still reports."""
        for queue, waiting in list(self._waiting.items()):
            if waiting.incoming.former not in live and not waiting.incoming.leaves:
                self._resume(queue, now)

    def tick(self, now: float) -> None:
        for queue, waiting in list(self._waiting.items()):
            if now >= waiting.due:
                self._resume(queue, now)

    @property
    def next_due(self) -> float:
        return min((waiting.due for waiting in self._waiting.values()), default=float("inf"))

    @property
    def waits(self) -> bool:
        """True while deliveries wait for a handover."""
        return bool(self._waiting)

    def is_announced(self, queue: int, now: float) -> bool:
        """True if another member announced to hand it over to us, and has not released it yet."""
        incoming = self._incoming.get(queue)
        return incoming is not None and incoming.handover_at is None and now <= incoming.until

    def disconnected(self) -> None:
        self._incoming.clear()
        self._waiting.clear()
        self._announced_moves.clear()

    def _suspects(self, queue: int, former: int | None) -> list[int]:
        """Members that reported to be active, and the primary: they may be gone."""
        me = self._roster.me
        assert me is not None
        suspects = [index for index, peer in self._roster.peers.items() if peer.claims(queue)]
        primary = self._rules.primaries(self._handoffs.view.live)[queue]
        if former is None and primary is not None and primary != me.index:
            suspects.append(primary)
        if former is not None and queue in self._waiting:
            suspects.append(former)  # it would have sent its handover first
        return suspects

    def _receive(self, binding: Binding, now: float, *, redelivered: bool) -> int | None:
        """Returns the member that announced to hand the queue over to us, if any did."""
        incoming = self._incoming.pop(binding.queue, None)
        if incoming is None or (incoming.handover_at is None and now > incoming.until):
            former, why = self._roster.last_server(binding.queue)
            if why == UNSERVED and redelivered:
                why = LOST  # by a member that was gone before its first message arrived here
            self._effects.append(Takeover(binding.queue, former, why, planned=False, pause_s=None))
            return None
        attachment = binding.attachment
        assert attachment is not None
        within_s = max(self._rules.answers_s, self._rules.max_handoff_s)
        waiting = Waiting(attachment, incoming, now, now + within_s)
        self._waiting[binding.queue] = waiting
        if incoming.handover_at is not None:
            self._resume(binding.queue, now)
        else:
            self._lanes.hold(attachment, Hold.TAKEOVER)
        return incoming.former

    def _resume(self, queue: int, now: float) -> None:
        waiting = self._waiting.pop(queue, None)
        if waiting is None:
            return
        incoming, attachment = waiting.incoming, waiting.attachment
        pause_s = None
        if incoming.handover_at is not None and (incoming.waited or incoming.handover_at >= waiting.since):
            pause_s = incoming.paused_s + now - min(incoming.handover_at, waiting.since)
        self._effects.append(Takeover(queue, incoming.former, incoming.why, planned=True, pause_s=pause_s))
        if not attachment.closed:
            self._lanes.let_go(attachment, Hold.TAKEOVER)
