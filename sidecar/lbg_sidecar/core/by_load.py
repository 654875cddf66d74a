"""Assignment by load: members measure what their queues need, and the coordinator proposes moves.

A proposal decides nothing (docs/adr/0087-exceptions-by-load.md). The active member of a queue writes the queue's
register, tells all, and hands the queue over as it hands over any that is another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from lbg_core.group import BY_LOAD, NOWHERE_ELSE, balanced_owners
from lbg_core.group.members_protocol import (
    COUNT_MAX,
    Load,
    LoadRequest,
    Message,
    Place,
    Placed,
    Placement,
    QueueLoad,
    Rebalance,
)
from lbg_sidecar.core.binding import Binding
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.effects import CountReady, Post
from lbg_sidecar.core.load_plan import MOVES_FROM, PlannedMove, moves_of
from lbg_sidecar.core.part import NEVER, Context, Part
from lbg_sidecar.core.queue_consumers import WantedQueues
from lbg_sidecar.core.rebalance import Balancer
from lbg_sidecar.message import Verdict

MEASURED_S = 5.0
COUNTED_BEFORE_S = 0.5
"""Before the end of an interval, a member with much to do counts what waits in its queues."""

FRESH_S = 1.5 * MEASURED_S
SETTLES_S = 1.4 * MEASURED_S
"""After a proposal, until the next: its moves end, and most of an interval follows in which nothing moved."""

LOAD = "load"
"""Reason of a move."""

CLEARED_S = 10.0
"""Time in which what waits is to be gone, if the member is to count as one that keeps up."""

BEHIND_S = 3.0
BEHIND_CALLS = 20
"""A member falls behind if what waits needs longer than this time, and than so many calls."""

AVERAGED_CALLS = 1600
"""For a member that keeps up the demand of a queue is an average over the time of so many calls: with random arrivals
the member's share is then known to a fortieth."""

AVERAGED_MAX_S = 300.0


class Measured(NamedTuple):
    """A queue in one interval. `running`: calls at a time, on average. `waiting`: messages at its end, by which there
    were `growth_hz` more each second."""

    queue: int
    running: float
    service_s: float
    waiting: int
    growth_hz: float

    @property
    def demand_behind(self) -> float:
        demand = self.running + (self.growth_hz + self.waiting / CLEARED_S) * self.service_s
        return min(max(0.0, demand), COUNT_MAX)


class LoadMeter:
    """Calls of the current interval, by queue."""

    def __init__(self) -> None:
        self.since = 0.0
        self.busy_s: dict[int, float] = {}
        self.calls: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        """At the end of the last interval, as far as it is known. A member that is not busy has all that waits."""
        self.demands: dict[int, float] = {}
        self.averaged_s: dict[int, float] = {}
        """Time of which the demand of a queue is the average."""

    def begin(self, now: float) -> None:
        self.since = now
        self.busy_s.clear()
        self.calls.clear()

    def ran(self, queue: int, started_at: float, now: float) -> None:
        self.busy_s[queue] = self.busy_s.get(queue, 0.0) + now - max(started_at, self.since)


class ByLoad(Part):
    """`is_frozen`: the number of queues changes, and none moves by load meanwhile."""

    def __init__(
        self, context: Context, wanted: WantedQueues, balancer: Balancer, is_frozen: Callable[[], bool]
    ) -> None:
        self._wanted, self._balancer, self._is_frozen = wanted, balancer, is_frozen
        self._meter = LoadMeter()
        self._due = NEVER
        self._count_due = NEVER
        self._ready: dict[int, int] = {}
        self._has_counted = False
        self._loads: dict[int, tuple[Load, float]] = {}
        """At the coordinator, of the live members by index, with the times at which they came."""
        self._plan_due = 0.0
        self._requested_at = float("-inf")
        self._followed: tuple[frozenset[int], int] | None = None
        self._last: Load | None = None
        super().__init__(context)

    def handlers(self) -> Mapping[type[Message], Callable[[Any, float], None]]:
        return {Load: self._received, LoadRequest: self._requested, Place: self._proposed}

    def connected(self, now: float) -> None:
        self.assigned(now)

    def disconnected(self, now: float) -> None:
        self._due = self._count_due = NEVER
        self._loads.clear()
        self._last = None

    def assigned(self, now: float) -> None:
        """The group has another assignment."""
        self._followed = None
        self.observed(now)
        if self._is_on:
            self._begin(now)
        else:
            self._due = self._count_due = NEVER
            self._empty(now)

    @property
    def _is_on(self) -> bool:
        return self._rules.assignment == BY_LOAD

    @property
    def _may_move(self) -> bool:
        return self._is_on and self.takes_part and not self._is_frozen()

    # Registers

    def observed(self, now: float) -> None:
        """Follows the registers, and the members that they name."""
        live, digest = self._roster.live, self._roster.placements.digest
        if self._followed is not None and self._followed[0] is live and self._followed[1] == digest:
            return
        self._followed = live, digest
        exceptions = self._roster.exceptions if self._is_on else NOWHERE_ELSE
        if exceptions != self._rules.exceptions:
            self._rules.exceptions = exceptions
            self._wanted.share_anew(now)

    def reshaped(self, now: float) -> None:
        """Another number of queues has no exceptions."""
        self._empty(now)

    def _empty(self, now: float) -> None:
        """Every member writes the same."""
        placements = self._roster.placements
        held = [one for one in placements.all if one.holder]
        self._roster.place((one._replace(holder="", number=one.number + 1) for one in held), now)

    # Measuring

    def ended(self, in_flight: InFlight, verdict: Verdict, now: float) -> None:
        meter, queue = self._meter, in_flight.attachment.queue
        meter.ran(queue, in_flight.started_at, now)
        meter.calls[queue] = meter.calls.get(queue, 0) + 1

    def counted(self, queue: int, ready: int | None, consumers: int | None, now: float) -> None:
        if ready is not None:
            self._ready[queue] = ready

    def next_due(self, now: float) -> float:
        return min(self._due, self._count_due) if self.takes_part else NEVER

    def tick(self, now: float) -> None:
        if not self.takes_part:
            return
        if now >= self._count_due:
            self._count_due = NEVER
            busy_s = sum(self._meter.busy_s.values())
            busy_from_s = MOVES_FROM * self._dispatcher.rules.concurrency * (now - self._meter.since)
            self._has_counted = busy_s >= busy_from_s
            if self._has_counted:
                self._effects.extend(CountReady(one.queue) for one in self._bindings.served())
        if now >= self._due:
            self._measure(now)
            self._begin(now)

    def _begin(self, now: float) -> None:
        self._meter.begin(now)
        self._ready.clear()
        self._has_counted = False
        self._due, self._count_due = now + MEASURED_S, now + MEASURED_S - COUNTED_BEFORE_S

    def _measure(self, now: float) -> None:
        me, meter = self._roster.me, self._meter
        assert me is not None
        for in_flight in self._dispatcher.running:
            meter.ran(in_flight.attachment.queue, in_flight.started_at, now)
        concurrency = self._dispatcher.rules.concurrency
        seconds, calls = now - meter.since, sum(meter.calls.values())
        measured = [self._of_queue(one, seconds) for one in self._bindings.served()]
        waiting_s = sum(one.waiting * one.service_s for one in measured) / concurrency
        longest_s = max((one.service_s for one in measured), default=0.0)
        if waiting_s > max(BEHIND_S, BEHIND_CALLS * longest_s):
            meter.averaged_s.clear()
            queues = tuple(QueueLoad(one.queue, one.demand_behind, one.service_s) for one in measured)
        else:
            average_s = min(max(seconds, seconds * AVERAGED_CALLS / max(calls, 1)), AVERAGED_MAX_S)
            queues = tuple(
                QueueLoad(one.queue, self._averaged(one, seconds, average_s), one.service_s)
                for one in measured
            )
        meter.waiting = {one.queue: one.waiting for one in measured if self._is_known(one.queue)}
        meter.demands = {one.queue: one.demand for one in queues}
        meter.averaged_s = {queue: one for queue, one in meter.averaged_s.items() if queue in meter.demands}
        self._last = Load(me, concurrency, () if self._dispatcher.paused else queues)
        if sum(meter.demands.values()) >= MOVES_FROM * concurrency:
            self._send(now)

    def _of_queue(self, binding: Binding, seconds: float) -> Measured:
        attachment, queue, meter = binding.attachment, binding.queue, self._meter
        assert attachment is not None
        busy_s, calls = meter.busy_s.get(queue, 0.0), meter.calls.get(queue, 0)
        waiting = attachment.ack_window.unacked + self._ready.get(queue, 0)
        came = waiting - meter.waiting.get(queue, waiting) if self._is_known(queue) else 0
        return Measured(queue, busy_s / seconds, busy_s / calls if calls else 0.0, waiting, came / seconds)

    def _is_known(self, queue: int) -> bool:
        """False for a queue of which the broker was asked without an answer."""
        return queue in self._ready or not self._has_counted

    def _averaged(self, measured: Measured, seconds: float, longest_s: float) -> float:
        meter, queue = self._meter, measured.queue
        so_far_s = meter.averaged_s[queue] = min(meter.averaged_s.get(queue, 0.0) + seconds, longest_s)
        former = meter.demands.get(queue, 0.0)
        return former + (measured.running - former) * min(1.0, seconds / so_far_s)

    def _send(self, now: float) -> None:
        me, load = self._roster.me, self._last
        coordinator = next(self._roster.candidates(me), None)
        if me is None or load is None or coordinator is None:
            return
        if coordinator == me:
            self._received(load, now)
        else:
            self._effects.append(Post(load, to=coordinator.index))

    # Proposing

    def _requested(self, request: LoadRequest, now: float) -> None:
        self._send(now)

    def _received(self, load: Load, now: float) -> None:
        me = self._roster.me
        if me is None or next(self._roster.candidates(me), None) != me or not self._may_move:
            return
        self._loads[load.sender.index] = load, now
        if now < self._plan_due or self._balancer.status is Rebalance.HOLD_DOWN:
            return
        if self._last is not None:
            self._loads[me.index] = self._last, now
        fresh = {index: one for index, (one, at) in self._loads.items() if now - at <= FRESH_S}
        identities = {me.index: me, **{index: one.identity for index, one in self._roster.peers.items()}}
        loads = {
            index: self._without_surplus(fresh[index])
            for index, identity in identities.items()
            if index in fresh and fresh[index].sender == identity
        }
        if len(loads) < len(identities):
            if now - self._requested_at >= MEASURED_S / 2:
                self._requested_at = now
                self._effects.append(Post(LoadRequest(me)))
            return
        planned = moves_of(loads)
        if planned is None:
            return
        self._plan_due = now + SETTLES_S
        self._loads.clear()
        mover, moves = planned
        place = Place(me, identities[mover].incarnation, tuple(self._register(one) for one in moves))
        if mover == me.index:
            self._proposed(place, now)
        else:
            self._effects.append(Post(place, to=mover))

    def _without_surplus(self, load: Load) -> Load:
        """Queues that are too many do not move: members serve them until they are deleted."""
        return replace(load, queues=tuple(one for one in load.queues if one.queue < self._rules.queue_count))

    def _register(self, move: PlannedMove) -> Placement:
        roster = self._roster
        assert roster.me is not None
        identity = roster.me if move.to == roster.me.index else roster.peers[move.to].identity
        is_balanced = balanced_owners(self._rules.queue_count, roster.live)[move.queue] == move.to
        number = roster.placements.number(move.queue)
        return Placement(move.queue, "" if is_balanced else identity.incarnation, number)

    def _proposed(self, place: Place, now: float) -> None:
        me, roster, bound = self._roster.me, self._roster, self._bindings.bound
        if me is None or place.target != me.incarnation or not self._may_move:
            return
        registers = tuple(
            one._replace(number=one.number + 1)
            for one in place.moves
            if one.number == roster.placements.number(one.queue)
            and one.queue in bound
            and bound[one.queue].active
        )
        if registers:
            roster.place(registers, now)
            self._balancer.reasons |= dict.fromkeys((one.queue for one in registers), LOAD)
            self._effects.append(Post(Placed(me, registers)))
            self.observed(now)
