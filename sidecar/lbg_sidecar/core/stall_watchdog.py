"""Stall watchdog: re-attaches a queue that has messages for this member and delivers none.

A consumer can be stuck while its connection lives: a channel that is half dead, an activation that got lost, a
member on the wrong side of a healed partition. The broker reports none of these: they show only as messages that wait
at the broker while nothing is delivered and nothing is in flight here. So where this member should be served and is
idle, it counts the messages of the queue now and then. Everything in here is a hint: a count that failed has no effect,
and a wrong one closes a channel with nothing at work in it, whose messages come again in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lbg_core.group.member_state import Progress
from lbg_core.group.members_protocol import Message, QueueReport
from lbg_sidecar.core.binding import Binding, Phase
from lbg_sidecar.core.effects import CountReady, Stalled, Superseded
from lbg_sidecar.core.handoff import Handoffs
from lbg_sidecar.core.part import NEVER, Context, Part
from lbg_sidecar.core.takeover import Takeovers
from lbg_sidecar.core.timings import spread

TICK_DOUBTS_S = 0.25
"""While queues are perhaps stalled."""

COUNT_INTERVAL_S = 5.0
"""Between two counts of a queue that delivers nothing and was empty at the last count."""

SOON_COUNTS = 3
"""After so many counts in a row that found the queue empty, the interval doubles with each."""

COUNT_INTERVAL_MAX_S = 30.0
"""A consumer gets stuck in a change or under load as a rule, and is found by the first counts. A group at rest
asks nothing else of the broker."""

INTERVAL_DOUBLES_AT_MOST = 3

RECOUNT_INTERVAL_S = 2.0
"""Between two counts of a queue that had messages. A failover of a quorum queue is over by the third count."""

COUNTS_TO_ACT = 3
"""Counts in a row with waiting messages, not fewer each time, and no delivery in between."""

PATIENCE_DOUBLES_AT_MOST = 3
"""Times that the number of counts doubles, after restarts that did not help: at last one restart in 48 s."""

OVERLAP_S = 1.5
"""Another member gets deliveries of a queue for this long, while this member counts as
active and gets none."""


@dataclass(slots=True)
class Watched:
    """One queue. `delivered`: the count at the last progress; `stalled_counts`, `empty_counts` and `restarts` are in a
    row."""

    delivered: int = 0
    quiet_since: float = 0.0
    count_due: float = 0.0
    is_counting: bool = False
    ready: int = 0
    stalled_counts: int = 0
    empty_counts: int = 0
    restarts: int = 0
    rests: bool = False  # this member need not be served, and nothing was counted since


@dataclass(frozen=True, slots=True)
class Rival:
    """Another member that reports to serve a queue of ours, and both delivery counts when that began."""

    incarnation: str
    theirs: int
    ours: int
    began_at: float


class Watchdog(Part):
    def __init__(self, context: Context, handoffs: Handoffs, takeovers: Takeovers) -> None:
        super().__init__(context)
        self._handoffs = handoffs
        self._takeovers = takeovers
        self._counts = self._dispatcher.counts
        self._watched: defaultdict[int, Watched] = defaultdict(Watched)
        self._rivals: dict[int, Rival] = {}
        self._due = 0.0
        self._rounds: dict[float, float] = {}  # by interval, when its next round is due
        self.has_doubts = False
        """True while a queue has messages that are not delivered, by the last count, or had."""

    def handlers(self) -> Mapping[type[Message], Callable[[Any, float], None]]:
        return {QueueReport: self._report_received}

    def next_due(self, now: float) -> float:
        return now + TICK_DOUBTS_S if self.has_doubts else NEVER

    def queue_fields(self, binding: Binding) -> Mapping[str, Any]:
        return {"progress": Progress.STALLED} if self.is_stalled(binding.queue) else {}

    def is_stalled(self, queue: int) -> bool:
        """True if its channel was closed because it delivered nothing, and its messages still wait by the last
        count."""
        return queue in self._watched and self._watched[queue].restarts > 0

    def tick(self, now: float) -> None:
        me = self._roster.me
        if me is None or not self.takes_part or now < self._due:
            return
        self._due = now + 0.4
        primaries = self._bindings.rules.primaries(self._bindings.view.live)
        self.has_doubts = False
        for queue, binding in self._bindings.bound.items():
            watched = self._watched[queue]
            is_primary = primaries[queue] == me.index
            if watched.rests and not binding.active and not is_primary:
                continue
            if watched.restarts or watched.stalled_counts:
                self.has_doubts = True
            elif (
                now < watched.count_due
                and not watched.rests
                and binding.delivered_in_all == watched.delivered
            ):
                continue
            if not self._should_serve(binding, is_primary=is_primary):
                if not watched.rests:
                    self._rest(watched, now)
                    watched.rests = True
                continue
            if watched.rests:
                self._rest(watched, now)
                continue
            is_count_due = now >= watched.count_due and not watched.is_counting
            may_be_elsewhere = not binding.active and (watched.restarts or is_count_due)
            if may_be_elsewhere and self._is_claimed(binding.queue, now):
                watched.restarts = 0
                self._rest(watched, now)
            elif not self._is_quiet(binding, watched):
                self._progressed(binding, watched, now)
            elif is_count_due:
                watched.is_counting = True
                self._effects.append(CountReady(binding.queue))

    def _is_claimed(self, queue: int, now: float) -> bool:
        """True if another member reported that it serves the queue, or hands it over to this one."""
        return self._takeovers.is_announced(queue, now) or any(
            peer.claims_now(queue, now) for peer in self._roster.served.reporters(queue)
        )

    def counted(self, queue: int, ready: int | None, consumers: int | None, now: float) -> None:
        watched, binding = self._watched[queue], self._bindings.bound.get(queue)
        watched.is_counting = False
        if binding is None:
            return
        if ready is None or queue in self._handoffs.moves or not self._is_quiet(binding, watched):
            watched.stalled_counts = 0
            watched.count_due = self._next_round(watched, now)
            return
        # Fewer than before: another consumer gets them, even without a report.
        watched.stalled_counts = watched.stalled_counts + 1 if ready and ready >= watched.ready else 0
        watched.ready = ready
        self.has_doubts |= watched.stalled_counts > 0
        if not ready:  # another consumer got all of it, and this member need not receive a report
            watched.restarts = 0
        if ready:
            watched.empty_counts = 0
            watched.count_due = now + spread(RECOUNT_INTERVAL_S, self._uniform)
        else:
            watched.count_due = self._next_round(watched, now)
            watched.empty_counts += 1
        if watched.stalled_counts >= COUNTS_TO_ACT << min(watched.restarts, PATIENCE_DOUBLES_AT_MOST):
            self._act(binding, watched, now)

    def _report_received(self, report: QueueReport, now: float) -> None:
        """Another member serves a queue that this one counts as its own: the member that gets deliveries is active."""
        sender = report.sender
        peer = self._roster.peers.get(sender.index)
        if peer is None or peer.identity != sender:
            return
        for state in report.queues:
            queue = state.queue
            binding, rival = self._bindings.bound.get(queue), self._rivals.get(queue)
            if not state.active or binding is None or not binding.active:
                continue
            ours = binding.delivered_in_all
            if rival is None or rival.incarnation != sender.incarnation or rival.ours != ours:
                self._rivals[queue] = Rival(sender.incarnation, state.delivered, ours, now)
            elif state.delivered > rival.theirs and now - rival.began_at >= OVERLAP_S:
                del self._rivals[queue]
                if binding.phase is Phase.ATTACHED and queue not in self._handoffs.moves:
                    self._counts.overlaps += 1
                    cut_off = self._bindings.detach(binding)
                    self._effects.append(Superseded(queue, sender.index, cut_off))

    def disconnected(self, now: float) -> None:
        """Forgets open counts: their answers were lost with the connection."""
        self._rivals.clear()
        for watched in self._watched.values():
            watched.is_counting = False
            watched.stalled_counts = 0

    def _should_serve(self, binding: Binding, *, is_primary: bool) -> bool:
        if binding.phase is not Phase.ATTACHED or binding.queue in self._handoffs.moves:
            return False
        return binding.active or is_primary

    def _is_quiet(self, binding: Binding, watched: Watched) -> bool:
        """Nothing came, nothing is at work, and the broker may deliver: neither a slow application nor a blocked
        key that fills the window."""
        attachment = binding.attachment
        return (
            attachment is not None
            and binding.phase is Phase.ATTACHED
            and binding.delivered_in_all == watched.delivered
            and not attachment.is_at_work
            and attachment.ack_window.unacked < attachment.prefetch
        )

    def _progressed(self, binding: Binding, watched: Watched, now: float) -> None:
        if binding.delivered_in_all != watched.delivered:
            watched.delivered = binding.delivered_in_all
            watched.restarts = 0
        self._rest(watched, now)

    def _rest(self, watched: Watched, now: float) -> None:
        watched.rests = False
        watched.quiet_since = now
        watched.stalled_counts = watched.empty_counts = watched.ready = 0
        watched.count_due = now + spread(RECOUNT_INTERVAL_S, self._uniform)

    def _act(self, binding: Binding, watched: Watched, now: float) -> None:
        """Attach anew. Where another member's consumer is stuck in front of this one, that member receives the
        primary's new epoch, and steps behind it (`Balancer`)."""
        watched.stalled_counts = 0
        watched.restarts += 1
        self.has_doubts = True
        self._counts.stalls += 1
        quiet_s = now - max(watched.quiet_since, binding.attached_at)
        self._effects.append(Stalled(binding.queue, watched.ready, quiet_s))
        self._bindings.detach(binding)

    def _next_round(self, watched: Watched, now: float) -> float:
        """Time of the next count of all queues that deliver nothing for as long: they are counted together, in one
        write."""
        doublings = min(max(0, watched.empty_counts - SOON_COUNTS + 1), INTERVAL_DOUBLES_AT_MOST)
        interval_s = min(COUNT_INTERVAL_S * 2**doublings, COUNT_INTERVAL_MAX_S)
        if self._rounds.get(interval_s, now) - now < interval_s / 2:
            self._rounds[interval_s] = now + spread(interval_s, self._uniform)
        return self._rounds[interval_s]
