"""`ExclusiveMember`: a member whose group shares its queues out among its members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lbg_core.counted_nouns import counted
from lbg_core.group import BY_LOAD, Assignment
from lbg_core.group.members_protocol import (
    Knowledge,
    KnowledgeRequest,
    Message,
    QueueReport,
    Repartition,
)
from lbg_sidecar.core.by_load import ByLoad
from lbg_sidecar.core.effects import Post, Reread
from lbg_sidecar.core.handoff import Handoffs
from lbg_sidecar.core.key_moves import KeyMoves
from lbg_sidecar.core.load_meter import LoadMeter
from lbg_sidecar.core.member_core import MemberCore, Setup
from lbg_sidecar.core.parked_keys import Parking
from lbg_sidecar.core.part import Context, Part
from lbg_sidecar.core.queue_consumers import QueueReports, Sweep, WantedQueues
from lbg_sidecar.core.rebalance import Balancer, SuccessorBinding
from lbg_sidecar.core.sequence_audit import SequenceAudit
from lbg_sidecar.core.stall_watchdog import Watchdog
from lbg_sidecar.core.status_report import queue_state
from lbg_sidecar.core.takeover import Takeovers


class Repartitions(Part):
    """Changes of the number of queues with the ingress closed: members tell each other what they processed before."""

    def __init__(self, context: Context, key_moves: KeyMoves) -> None:
        super().__init__(context)
        self._key_moves = key_moves
        self._state_of = partial(queue_state, context)
        self._proof = ""  # that answers to a knowledge request have; empty while the queues do not change

    def handlers(self) -> Mapping[type[Message], Callable[[Any, float], None]]:
        return {
            Repartition: self._announced,
            KnowledgeRequest: self._knowledge_requested,
            Knowledge: self._knowledge_received,
        }

    def _announced(self, message: Repartition, now: float) -> None:
        me, count = self._roster.me, self._rules.queue_count
        if me is None:
            return
        if message.done:
            self._proof = ""
            if message.queues != count or self._key_moves.is_record_due:
                self._key_moves.is_record_due = False
                had = f", and had {count}" if message.queues != count else " now"
                self._effects.append(Reread(f"the group has {counted(message.queues, 'queue')}{had}"))
            return
        self._proof = self._new_id()
        self._effects.append(Post(KnowledgeRequest(me, self._proof)))

    def _knowledge_requested(self, request: KnowledgeRequest, now: float) -> None:
        """Answers with the queues that this member serves, and what it processed of them."""
        me, served = self._roster.me, self._bindings.served()
        if me is None or request.sender.incarnation == me.incarnation or not served:
            return
        to = request.sender.index
        self._effects.append(Post(QueueReport(me, tuple(map(self._state_of, served))), to=to))
        for binding in served:
            positions = self._processed.of_queue(binding.queue)
            if positions.streams:
                self._effects.append(Post(Knowledge(me, positions, request.proof), to=to))

    def _knowledge_received(self, knowledge: Knowledge, now: float) -> None:
        """Counts from a live member that received the request in its mailbox, about queues that its reports claim."""
        peer, bound = self._roster.peers.get(knowledge.sender.index), self._bindings.bound
        is_proved = self._proof and knowledge.proof == self._proof
        if is_proved and peer is not None and peer.identity == knowledge.sender:
            # Of a queue that this member serves, as deliveries show, nobody else is the active consumer.
            queues = [queue for queue in peer.served if not (queue in bound and bound[queue].active)]
            self._processed.merge(knowledge.positions, queues=queues)


class ExclusiveMember(MemberCore):
    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        context = self.context
        SequenceAudit(context)
        self.load_meter = LoadMeter(context)
        self.handoffs = Handoffs(context)
        self.takeovers = Takeovers(context)
        self.wanted = WantedQueues(context)
        self.key_moves = KeyMoves(context, self.wanted)
        if setup.rules.parking is not None:
            Parking(context, setup.rules.parking, self.key_moves)
        SuccessorBinding(context, self.wanted, self.takeovers)
        self.watchdog = Watchdog(context, self.handoffs, self.takeovers)
        Sweep(context, self.wanted)
        QueueReports(context)
        Repartitions(context, self.key_moves)
        self.balancer = Balancer(context, self.handoffs, self.takeovers)
        self._use_loads()
        self.resume(setup.former)

    def reshape(self, queue_count: int, now: float) -> None:
        """The group has so many queues now."""
        self.wanted.reshape(queue_count, now)
        self._after(now)

    def assign(
        self, assignment: Assignment, client_count: int, rebalance_threshold_percent: int, now: float
    ) -> None:
        """The group's queues are assigned to so many members at most by this rule."""
        self.rules.rebalance_threshold_percent = rebalance_threshold_percent
        self.wanted.assign(assignment, client_count, now)
        self._use_loads()
        if (by_load := self.part(ByLoad)) is not None:
            by_load.assigned(now)
        self._after(now)

    def _use_loads(self) -> None:
        """A member whose group is not assigned by load proposes nothing."""
        if self.rules.assignment == BY_LOAD and self.part(ByLoad) is None:
            ByLoad(
                self.context,
                self.load_meter,
                self.wanted,
                self.balancer,
                lambda: self.key_moves.followed is not None,
            )
