"""Takeovers: queues that come to this member, and the positions that their former members reported.

A member that hands a queue over sends the positions to its successor just before it closes its channel, over another
connection: so the first deliveries may come before them. They wait for the positions, because without them the
successor would process messages again (a copy that a publisher sent twice, calls that a leave cut off): for
as long as a handoff may take, and only while the former member lives. A busy broker delivers one connection's messages
long before another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lbg_core.group.members_protocol import ACTIVITY, Activity, Handover, Message, Move, Takeover
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.effects import Post
from lbg_sidecar.core.handoff import OTHERS_WITHIN_S, SUCCESSOR_WITHIN_S
from lbg_sidecar.core.message_states import Hold
from lbg_sidecar.core.part import NEVER, Context, Part
from lbg_sidecar.core.roster import LEAVE, LOST, UNSERVED

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
    proved: Handover | None = None


@dataclass(slots=True)
class Waiting:
    """First deliveries that wait for the handover, at most until `due`."""

    attachment: Attachment
    incoming: IncomingQueue
    since: float
    due: float


class Takeovers(Part):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._incoming: dict[int, IncomingQueue] = {}
        self._waiting: dict[int, Waiting] = {}
        self._announced_moves: dict[int, tuple[int, str, str]] = {}
        """By queue, the latest to this member: mover, id and proof."""
        self._on_taken = context.hooks.of(Part.taken_over)

    def handlers(self) -> Mapping[type[Message], Callable[[Any, float], None]]:
        return {Handover: self._handover_received}

    def announced(self, move: Move, now: float) -> str:
        """The active member of a queue announces to hand it over to us. Returns the proof for the answer, which only
        the owner of the mover's mailbox receives; empty if no handover from there would count.

        It counts from a live member whose reports claim the queue, and from one that leaves, which is in no live set.
        """
        rules, peer = self._rules, self._roster.peers.get(move.sender.index)
        has_left = peer is None or peer.identity.incarnation != move.sender.incarnation
        if not (has_left or (peer is not None and peer.serves(move.queue))):
            return ""
        leaves = has_left or move.why == LEAVE  # which may be known later, by way of the coordinator
        limits_s = (
            SUCCESSOR_WITHIN_S + OTHERS_WITHIN_S + (rules.shutdown_grace_s if leaves else rules.max_handoff_s)
        )
        self._incoming[move.queue] = IncomingQueue(
            move.sender.index, move.why, move.move, now + limits_s + LATE_S, leaves=leaves
        )
        index, id_, proof = self._announced_moves.get(move.queue, (None, "", ""))
        if (index, id_) != (move.sender.index, move.move):
            proof = self._new_id()
            self._announced_moves[move.queue] = (move.sender.index, move.move, proof)
        return proof

    def _handover_received(self, handover: Handover, now: float) -> None:
        """It has released the queue. Its positions count if it announced this move of the queue to this member, however
        long ago, and received the answer in its mailbox.

        The announcement was sent before, over the same channel and so into the same mailbox.
        """
        announced = self._announced_moves.get(handover.queue)
        is_proved = announced == (handover.sender.index, handover.move, handover.proof)
        if is_proved:
            self._processed.merge(handover.positions, queues=(handover.queue,))
        incoming = self._incoming.get(handover.queue)
        if incoming is None:
            waiting = self._waiting.get(handover.queue)
            incoming = waiting.incoming if waiting is not None else None
        if incoming is None or incoming.former != handover.sender.index:
            return
        if incoming.move == handover.move:
            incoming.handover_at, incoming.waited = now, handover.waiting
            incoming.paused_s = handover.paused_s
            incoming.proved = handover if is_proved else None
            self._resume(handover.queue, now)

    def activated(self, attachment: Attachment, first: InFlight, now: float) -> None:
        queue = attachment.queue
        former = self._receive(attachment, now, redelivered=first.redelivered)
        for index in self._suspects(queue, former):
            self._membership.suspect(index, now)
        self._reports.changed(now)

    def live_changed(self, now: float) -> None:
        """Ends the wait for members that are gone; one that leaves is in no live set, and still reports."""
        for queue, waiting in list(self._waiting.items()):
            if waiting.incoming.former not in self._roster.peers and not waiting.incoming.leaves:
                self._resume(queue, now)

    def tick(self, now: float) -> None:
        for queue, waiting in list(self._waiting.items()):
            if now >= waiting.due:
                self._resume(queue, now)

    def next_due(self, now: float) -> float:
        return min((waiting.due for waiting in self._waiting.values()), default=NEVER)

    def is_announced(self, queue: int, now: float) -> bool:
        """True if another member announced to hand it over to us, and has not released it yet."""
        incoming = self._incoming.get(queue)
        return incoming is not None and incoming.handover_at is None and now <= incoming.until

    def disconnected(self, now: float) -> None:
        self._incoming.clear()
        self._waiting.clear()
        self._announced_moves.clear()

    def _suspects(self, queue: int, former: int | None) -> list[int]:
        """Members that reported to be active, and the primary: they may be gone."""
        me = self._roster.me
        assert me is not None
        suspects = [index for index, peer in self._roster.peers.items() if peer.claims(queue)]
        primary = self._rules.primaries(self._bindings.view.live)[queue]
        if former is None and primary is not None and primary != me.index:
            suspects.append(primary)
        if former is not None and queue in self._waiting:
            suspects.append(former)  # it would have sent its handover first
        return suspects

    def _receive(self, attachment: Attachment, now: float, *, redelivered: bool) -> int | None:
        """Returns the member that announced to hand the queue over to us, if any did."""
        queue = attachment.queue
        incoming = self._incoming.pop(queue, None)
        if incoming is None or (incoming.handover_at is None and now > incoming.until):
            former, why = self._roster.served.last_server(queue)
            if why == UNSERVED and redelivered:
                why = LOST  # by a member that was gone before its first message arrived here
            self._report(Takeover(queue, former, why, planned=False, pause_s=None))
            self._tell(attachment, former, why, None, now)
            return None
        within_s = max(self._rules.answers_s, self._rules.max_handoff_s)
        self._waiting[queue] = Waiting(attachment, incoming, now, now + within_s)
        if incoming.handover_at is not None:
            self._resume(queue, now)
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
        self._report(Takeover(queue, incoming.former, incoming.why, planned=True, pause_s=pause_s))
        self._tell(attachment, incoming.former, incoming.why, incoming.proved, now)
        if not attachment.closed:
            self._lanes.let_go(attachment, Hold.TAKEOVER)

    def _tell(
        self, attachment: Attachment, former: int | None, why: str, handover: Handover | None, now: float
    ) -> None:
        for taken_over in self._on_taken:
            taken_over(attachment, former, why, handover, now)

    def _report(self, effect: Takeover) -> None:
        """For the log, and for who watches, without a request: a member that has just joined takes queues over before
        the next request comes."""
        self._effects.append(effect)
        if (me := self._roster.me) is not None:
            self._effects.append(Post(Activity(me, takeover=effect), to=ACTIVITY))
