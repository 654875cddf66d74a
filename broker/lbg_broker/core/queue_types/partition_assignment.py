"""Assignment of partitions to consumers, through joins, leaves, delays and handoffs.

The machine gets binds, unbinds and the time; it never gets a message. After every step it compares
what is with what should be, so the order of events needs no rules of its own: while the two differ the rebalance
timer runs, and when they agree again, because the number of consumers is what it was, it is stopped and nothing moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

Owner = TypeVar("Owner")


def fair_loads(partitions: int, flows: int) -> list[int]:
    """The loads of so many flows, largest first. Flows beyond the number of partitions have none."""
    if not flows:
        return []
    base, rest = divmod(partitions, flows)
    return [base + 1] * rest + [base] * (flows - rest)


def balanced(owners: Sequence[Owner | None], flows: Sequence[Owner]) -> list[Owner]:
    """For each partition the flow it should have, given the one it has (None: none of `flows`).

    The larger shares go to those that have most, so no more moves than any other fair choice needs; among equals to
    those that came first. A flow gives up its highest partitions.
    """
    loads = Counter(owner for owner in owners if owner is not None)
    by_load = sorted(flows, key=lambda flow: -loads[flow])
    room = dict(zip(by_load, fair_loads(len(owners), len(flows)), strict=True))
    result: list[Owner | None] = []
    for owner in owners:
        if owner is not None and room[owner]:
            room[owner] -= 1
            result.append(owner)
        else:
            result.append(None)
    takers = iter([flow for flow in flows for _ in range(room[flow])])
    return [next(takers) if owner is None else owner for owner in result]


class PartitionStatus(StrEnum):
    """The four statuses of «Message Distribution With Partitioned Queues»."""

    READY = "Ready"
    PAUSED = "Paused"
    UNASSIGNED = "Unassigned"
    UNBOUND = "Unbound"


class RebalanceStatus(StrEnum):
    """Of the whole queue. HoldDown: the rebalance timer runs. Rebalancing: partitions are being handed off."""

    READY = "Ready"
    HOLD_DOWN = "HoldDown"
    REBALANCING = "Rebalancing"


@dataclass(eq=False, slots=True)
class Slot:
    """One consumer's part in the mapping. It outlives the loss of its consumer until the rebalance timer expires."""

    tag: str
    bound: bool = True
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Handoff:
    """A partition on its way: nothing of it is delivered before its unsettled messages are settled, or until
    `deadline`. `stays`: the successor is the owner, whose answer to a recall comes first."""

    successor: Slot
    deadline: float
    stays: bool = False


class PartitionAssignment:
    """Assignment of a queue's partitions to slots.

    `has_unsettled`: deliveries of a partition are not settled. `is_awaited`: some of them were requested back from
    their consumer, which has not answered yet, or are of a consumer that was cancelled.

    `total` and `forced` count handoffs: partitions that left a flow that was there, or were waited for, and those of
    them that hit the limit.
    """

    def __init__(
        self,
        count: int,
        *,
        delay_s: float,
        handoff_s: float,
        has_unsettled: Callable[[int], bool],
        is_awaited: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.owners: list[Slot | None] = [None] * count
        self.flows: list[Slot] = []
        """Those that are bound, in the order they came."""
        self.rebalance_at: float | None = None
        """Time at which the rebalance timer expires; None while it does not run."""
        self.total = 0
        self.forced = 0
        self._delay_s = delay_s
        self._handoff_s = handoff_s
        self._has_unsettled = has_unsettled
        self._is_awaited = is_awaited
        self._away: list[Slot] = []
        self._handoffs: dict[int, _Handoff] = {}

    # --- for views ---------------------------------------------------------------------------------------------

    @property
    def status(self) -> RebalanceStatus:
        if self._handoffs:
            return RebalanceStatus.REBALANCING
        return RebalanceStatus.READY if self._is_settled() else RebalanceStatus.HOLD_DOWN

    def status_of(self, partition: int) -> PartitionStatus:
        owner = self.owners[partition]
        if owner is None:
            return PartitionStatus.UNASSIGNED
        if not owner.bound:
            return PartitionStatus.UNBOUND
        return PartitionStatus.PAUSED if partition in self._handoffs else PartitionStatus.READY

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """The partitions that are paused until their unsettled messages are settled."""
        return tuple(self._handoffs)

    @property
    def next_at(self) -> float | None:
        """Time at which `ring` has something to do; None if never."""
        times = [handoff.deadline for handoff in self._handoffs.values()]
        if self.rebalance_at is not None:
            times.append(self.rebalance_at)
        return min(times, default=None)

    def deliverable(self, flow: Slot) -> list[int]:
        """The partitions of a bound flow that it gets messages of now."""
        return [partition for partition in flow.partitions if partition not in self._handoffs]

    def assigned(self) -> list[tuple[str, list[int]]]:
        """For every flow that has partitions its tag and them: what `recall` takes after a restart."""
        return [(flow.tag, list(flow.partitions)) for flow in (*self.flows, *self._away) if flow.partitions]

    # --- what happens ------------------------------------------------------------------------------------------

    def recall(self, assigned: Iterable[tuple[str, Sequence[int]]]) -> None:
        """After a restart: whose partitions these were. None of the flows is bound; the first `ring` starts the
        timer."""
        for tag, partitions in assigned:
            flow = Slot(tag, bound=False)
            self._away.append(flow)
            for partition in partitions:
                self._assign(partition, flow)

    def bind(self, tag: str, now: float, *, claimed: Sequence[int] | None = None) -> Slot:
        """A consumer comes. `claimed`: the partitions it had, as it reports; None: no report."""
        flow = self._returning(tag, claimed)
        if flow is None:
            flow = Slot(tag)
        else:
            self._away.remove(flow)
            flow.tag, flow.bound = tag, True
            for partition in flow.partitions:
                if self._has_unsettled(partition):
                    self._handoffs[partition] = _Handoff(flow, now + self._handoff_s)
        self.flows.append(flow)
        self._review(now)
        return flow

    def unbind(self, flow: Slot, now: float) -> None:
        """A consumer goes; what it has stays its own until the timer expires. What was on its way to another goes
        on, and what was on its way to it stays where it is."""
        self.flows.remove(flow)
        flow.bound = False
        for partition, handoff in list(self._handoffs.items()):
            if handoff.successor is flow:
                self._stay(partition, handoff)
            elif self.owners[partition] is flow:
                self._assign(partition, handoff.successor)
        if flow.partitions:
            self._away.append(flow)
        self._review(now)

    def drained(self, partition: int) -> None:
        """All messages of a paused partition are settled."""
        self.total += 1
        self._assign(partition, self._handoffs.pop(partition).successor)

    def answered(self) -> bool:
        """A consumer has answered a recall: its own partitions need not wait for the rest. False if none of them
        did."""
        stay = [
            partition
            for partition, handoff in self._handoffs.items()
            if handoff.stays and not self._is_awaited(partition)
        ]
        for partition in stay:
            self.drained(partition)
        return bool(stay)

    def ring(self, now: float) -> list[int]:
        """Does what is due; returns the partitions that are handed over though their former consumer has unsettled
        messages of them: the handoff time ended, and those are to be reassigned."""
        if self.rebalance_at is not None and now >= self.rebalance_at:
            self._rebalance(now)
        forced = [partition for partition, handoff in self._handoffs.items() if handoff.deadline <= now]
        for partition in forced:
            self.forced += 1
            self.drained(partition)
        self._review(now)
        return forced

    def resize(self, count: int, now: float) -> None:
        """More partitions behind those there are, or the highest of them gone."""
        for partition in range(count, len(self.owners)):
            self._assign(partition, None)
            self._handoffs.pop(partition, None)
        del self.owners[count:]
        self.owners += [None] * (count - len(self.owners))
        self._away = [flow for flow in self._away if flow.partitions]
        self._review(now)

    # --- inside ------------------------------------------------------------------------------------------------

    def _returning(self, tag: str, claimed: Sequence[int] | None) -> Slot | None:
        """The lost flow whose place a consumer takes: the one with most of the partitions it names, or of its tag."""
        if claimed is None:
            return next((flow for flow in self._away if flow.tag == tag), None)
        named = frozenset(claimed)
        best = max(self._away, key=lambda flow: len(named.intersection(flow.partitions)), default=None)
        return best if best is not None and not named.isdisjoint(best.partitions) else None

    def _review(self, now: float) -> None:
        if self._is_settled():
            self.rebalance_at = None
        elif self.rebalance_at is None:
            self.rebalance_at = now + self._delay_s

    def _is_settled(self) -> bool:
        """True if every partition is where it should be, or on its way there."""
        if self._away:
            return False
        loads = dict.fromkeys(self.flows, 0)
        for flow in self._expected():
            if flow is not None:
                loads[flow] += 1
        return sorted(loads.values(), reverse=True) == fair_loads(len(self.owners), len(loads))

    def _expected(self) -> list[Slot | None]:
        """The owners as they are when all handoffs are done."""
        expected = list(self.owners)
        for partition, handoff in self._handoffs.items():
            expected[partition] = handoff.successor
        return expected

    def _rebalance(self, now: float) -> None:
        """Share the partitions out among those that are there."""
        self.rebalance_at = None
        for flow in self._away:
            for partition in list(flow.partitions):
                self._assign(partition, None)
        self._away.clear()
        if not self.flows:
            return
        for partition, target in enumerate(balanced(self._expected(), self.flows)):
            self._move(partition, target, now)

    def _move(self, partition: int, target: Slot, now: float) -> None:
        owner, handoff = self.owners[partition], self._handoffs.get(partition)
        if owner is target:
            if handoff is not None and handoff.successor is not owner:
                self._stay(partition, handoff)
            return
        if self._has_unsettled(partition):
            deadline = now + self._handoff_s if handoff is None else handoff.deadline
            self._handoffs[partition] = _Handoff(target, deadline)
            if owner is None:
                self._assign(partition, target)
        else:
            self.total += owner is not None
            self._assign(partition, target)
            self._handoffs.pop(partition, None)

    def _stay(self, partition: int, handoff: _Handoff) -> None:
        """A partition stays with its owner after all. Recalled messages that return to it, and those of a cancelled
        consumer, must not be overtaken by later deliveries: so these are waited for."""
        owner = self.owners[partition]
        if owner is not None and owner.bound and self._is_awaited(partition):
            handoff.successor, handoff.stays = owner, True
        else:
            del self._handoffs[partition]

    def _assign(self, partition: int, flow: Slot | None) -> None:
        former = self.owners[partition]
        if former is not None:
            former.partitions.remove(partition)
        self.owners[partition] = flow
        if flow is not None:
            flow.partitions.append(partition)
