"""Assignment by load: members measure what their queues need, and the coordinator proposes moves.

A proposal decides nothing (docs/adr/0087-exceptions-by-load.md). The active member of a queue writes the queue's
register, tells all, and hands the queue over as it hands over any that is another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lbg_core.group import BY_LOAD, NOWHERE_ELSE, balanced_owners
from lbg_core.group.load_plan import PlannedMove, may_give, moves_of
from lbg_core.group.member_state import Identity, Placement, Rebalance
from lbg_core.group.members_protocol import Load, LoadRequest, Message, Place, Placed
from lbg_sidecar.core.effects import Post
from lbg_sidecar.core.load_meter import MEASURED_S, LoadMeter
from lbg_sidecar.core.part import Context, Part
from lbg_sidecar.core.queue_consumers import WantedQueues
from lbg_sidecar.core.rebalance import Balancer

FRESH_S = 1.5 * MEASURED_S
SETTLES_S = 1.4 * MEASURED_S
"""After a proposal, until the next: its moves end, and most of an interval follows in which nothing moved."""

SEEN_S = 1800.0
"""For so long the coordinator remembers how long calls of a queue took at a member that does not serve it any more."""

LOAD = "load"
"""Reason of a move."""


class ByLoad(Part):
    """`is_frozen`: the number of queues changes, and none moves by load meanwhile."""

    def __init__(
        self,
        context: Context,
        meter: LoadMeter,
        wanted: WantedQueues,
        balancer: Balancer,
        is_frozen: Callable[[], bool],
    ) -> None:
        self._meter, self._wanted, self._balancer, self._is_frozen = meter, wanted, balancer, is_frozen
        self._loads: dict[int, tuple[Load, float]] = {}
        """At the coordinator, of the live members by index, with the times at which they came."""
        self._seen: dict[tuple[str, int], tuple[float, float]] = {}
        """At the coordinator: time of a call, by incarnation and queue, with the time at which it was reported last."""
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
        self._loads.clear()
        self._seen.clear()
        self._last = None

    def assigned(self, now: float) -> None:
        """The group has another assignment."""
        self._followed = None
        self.observed(now)
        if not self._is_on:
            self._loads.clear()
            self._last = None
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

    # Proposing

    def measured(self, now: float) -> None:
        me, meter = self._roster.me, self._meter
        if me is None or meter.queues is None or not self._is_on:
            return
        queues = () if self._dispatcher.paused else meter.queues
        self._last = Load(me, self._dispatcher.rules.concurrency, queues, meter.is_steady)
        if may_give(self._last):
            self._send(now)

    def _send(self, now: float) -> None:
        me, load = self._roster.me, self._last
        coordinator = next(self._roster.candidates(me), None)
        if me is None or load is None or coordinator is None:
            return
        if coordinator == me:
            self._received(load, now)
        else:
            self._effects.append(Post(load, to=coordinator.index))

    def _requested(self, request: LoadRequest, now: float) -> None:
        self._send(now)

    def _received(self, load: Load, now: float) -> None:
        me = self._roster.me
        if me is None or next(self._roster.candidates(me), None) != me or not self._may_move:
            return
        self._loads[load.sender.index] = load, now
        self._see(load, now)
        if now < self._plan_due or self._balancer.status is Rebalance.HOLD_DOWN:
            return
        if self._last is not None:
            self._loads[me.index] = self._last, now
            self._see(self._last, now)
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
        planned = moves_of(
            loads,
            pays_from=self._rules.rebalance_threshold_percent / 100,
            seen=self._service_times(identities),
        )
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

    def _see(self, load: Load, now: float) -> None:
        life = load.sender.incarnation
        self._seen |= {(life, one.queue): (one.service_s, now) for one in load.queues if one.service_s > 0}

    def _service_times(self, identities: Mapping[int, Identity]) -> dict[int, dict[int, float]]:
        """Of live members; what is older is forgotten."""
        indices = {identity.incarnation: index for index, identity in identities.items()}
        since = max((at for _, at in self._seen.values()), default=0.0) - SEEN_S
        self._seen = {one: seen for one, seen in self._seen.items() if one[0] in indices and seen[1] >= since}
        times: dict[int, dict[int, float]] = {}
        for (life, queue), (service_s, _) in self._seen.items():
            times.setdefault(indices[life], {})[queue] = service_s
        return times

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
