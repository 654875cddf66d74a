"""Another number of queues where a group's members share separate queues: RabbitMQ, and mode Exclusive everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from lbg_broker.group import Engine, GroupSpec, Names, topology_of
from lbg_broker.group.topology import Binding

from ..actions import Action, Bind, CheckPolicies, DeclareQueue, DeleteQueue, Unbind
from ..admin import BrokerAdmin
from ..errors import StillInUse
from ..members import MemberLine, members_of
from ..observed import UNKNOWN, Observed, QueueSeen
from .draining import Depth
from .ingress import Ingress
from .telling import repartition_announced, repartition_done

TOLD_S = 0.5
"""How long members have to tell each other what they processed, before queues change: they do so at once."""

LATE_S = 10.0
"""Members know a new number within a second of being told, or when they next connect."""

LISTEN_S = 1.3
"""Members send a beat every second, 1.2 s apart at most."""


class SeparateQueues:
    """`is_sampled`: see `drain`."""

    def __init__(self, admin: BrokerAdmin, engine: Engine, names: Names, ingress: Ingress) -> None:
        self.ingress = ingress
        self.is_sampled = engine.is_rabbitmq
        self._admin = admin
        self._engine = engine
        self._names = names

    async def depths(self, *, below: int | None) -> Sequence[Depth]:
        """Of the queues with a number below `below`, or of all that there are."""
        queues = self._numbered(await self._admin.observe(self._names.group))
        return [
            Depth(self._names.queue(number), seen.ready, seen.unacked)
            for number, seen in sorted(queues.items())
            if below is None or number < below
        ]

    async def announce(self, queue_count: int) -> None:
        """Nothing is left to do: let members tell each other what they have done."""
        await self._admin.perform(repartition_announced(self._names, queue_count))
        await asyncio.sleep(TOLD_S)

    async def prepare(self, spec: GroupSpec, *, discard: bool) -> None:
        """Have every queue and binding of `spec`, and no other binding. What comes in from then on is where it belongs.

        Queues that are too many stay until `settle`: members still consume from them.
        """
        for action in restriping(spec, await self._admin.observe(self._names.group, wanted=spec)):
            await self._admin.perform(action)

    async def settle(
        self, spec: GroupSpec, *, discard: bool, timeout_s: float, tell: Callable[[str], None]
    ) -> bool:
        """See that all members know the new number, and remove the queues that are too many, the highest first.

        False when not all members are Ready with it by then. Raises StillInUse when a queue that goes is not empty.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + timeout_s
        while True:
            await self._admin.perform(repartition_done(self._names, spec.queue_count))
            members = members_of(await self._admin.listen(self._names.group, seconds=LISTEN_S))
            is_late = loop.time() >= began + LATE_S
            behind = list(unsettled(members, spec.queue_count, is_late=is_late))
            if not behind or loop.time() >= deadline:
                break
            tell(f"waiting for: {'; '.join(behind)}")
        await self._remove_surplus(spec.queue_count, discard=discard)
        for line in behind:
            tell(f"not waited for any longer: {line}")
        return not behind

    async def _remove_surplus(self, queue_count: int, *, discard: bool) -> None:
        queues = self._numbered(await self._admin.observe(self._names.group))
        for number in sorted((one for one in queues if one >= queue_count), reverse=True):
            await self._admin.perform(DeleteQueue(self._names.queue(number), only_empty=not discard))

    def _numbered(self, observed: Observed) -> dict[int, QueueSeen]:
        stem = self._names.queue(0)[:-1]
        return {
            int(name.removeprefix(stem)): seen if seen is not UNKNOWN else QueueSeen()
            for name, seen in observed.queues.items()
            if seen is not None and name.startswith(stem) and name.removeprefix(stem).isdecimal()
        }


def restriping(spec: GroupSpec, observed: Observed) -> Iterator[Action]:
    """What leads each hash to its queue of `spec`, and to no other. Raises StillInUse where bindings are unknown.

    Nothing may come in meanwhile: there is a moment in which a hash leads to two queues.
    """
    topology = topology_of(spec, observed.engine)
    names = Names(spec.name)
    if observed.bindings is UNKNOWN:
        raise StillInUse(spec.name, ["its bindings could not be read"], remedy="try again")
    for queue in topology.queues:
        if observed.queues.get(queue.name) is None:
            yield DeclareQueue(queue)
    if observed.engine.is_rabbitmq:
        yield CheckPolicies(spec.name, topology)
    wanted = {one for one in topology.bindings if one.exchange == names.exchange}
    missing = [one for one in topology.bindings if one in wanted and one not in observed.bindings]
    for name, of_queue in groupby(missing, key=_queue_of):
        yield Bind(name, tuple(of_queue))
    stem = names.queue(0)[:-1]
    extra = [
        one
        for one in observed.bindings
        if one.exchange == names.exchange and one.queue.startswith(stem) and one not in wanted
    ]
    for name, of_queue in groupby(sorted(extra, key=_order_of), key=_queue_of):
        yield Unbind(name, tuple(of_queue))


def unsettled(members: Sequence[MemberLine], queue_count: int, *, is_late: bool) -> Iterator[str]:
    """Who does not serve so many queues yet, or is not Ready with it. `is_late`: they have had the time for it."""
    hint = " (of an older version? restart it)" if is_late else ""
    for member in members:
        known = {one.queue for one in member.queues}
        if known != set(range(queue_count)):
            yield f"{member.name} still reckons with {len(known)} queues{hint}"
        elif member.rebalance != "Ready":
            yield f"{member.name} is {member.rebalance}"
        elif unbound := [one.queue for one in member.queues if one.status == "Unbound"]:
            yield f"{member.name} has no consumer yet on {len(unbound)} queues"


def _queue_of(binding: Binding) -> str:
    return binding.queue


def _order_of(binding: Binding) -> tuple[str, str]:
    return binding.queue, binding.routing_key
