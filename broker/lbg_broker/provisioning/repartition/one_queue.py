"""Another number of partitions of the one queue that a group is on the embedded broker, in mode Partitioned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from lbg_broker.group import GroupSpec, Names

from ..actions import ActOnQueue
from ..admin import BrokerAdmin
from ..errors import Unreachable
from ..native import PartitionsSeen
from ..observed import QueueSeen
from .draining import Depth
from .ingress import QueueIngress
from .telling import repartition_done

LOOK_S = 0.2


class OneQueue:
    """The broker moves its partitions itself; members are told how many there are, so that they call them by number."""

    is_sampled = False

    def __init__(self, admin: BrokerAdmin, names: Names) -> None:
        self.ingress = QueueIngress(admin, names.parent)
        self._admin = admin
        self._names = names
        self._queue = names.parent

    async def depths(self, *, below: int | None) -> Sequence[Depth]:
        """Of the partitions with a number below `below`, or of all that there are."""
        return [
            Depth(f"{self._queue} partition {one.partition}", one.ready, one.unacked)
            for one in (await self._seen()).partitions
            if below is None or one.partition < below
        ]

    async def announce(self, queue_count: int) -> None:
        """What a partition's former consumer processed is acknowledged: there is nothing to tell."""

    async def prepare(self, spec: GroupSpec, *, discard: bool) -> None:
        """Raises Refused when a partition that goes is not empty, unless `discard`."""
        size_bytes = spec.queue_size_bytes * spec.queue_count
        told = {"count": spec.queue_count, "discard": discard, "max_length_bytes": size_bytes}
        await self._admin.perform(ActOnQueue(self._queue, "repartition", told))
        await self._admin.perform(repartition_done(self._names, spec.queue_count))

    async def settle(
        self, spec: GroupSpec, *, discard: bool, timeout_s: float, tell: Callable[[str], None]
    ) -> bool:
        """Wait until the queue is Ready; False when it is not by then."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            status = (await self._seen()).rebalance
            if status == "Ready":
                return True
            if loop.time() >= deadline:
                tell(f"not waited for any longer: {self._queue} is {status}")
                return False
            tell(f"waiting for: {self._queue} is {status}")
            await asyncio.sleep(LOOK_S)

    async def _seen(self) -> PartitionsSeen:
        seen = (await self._admin.observe(self._names.group)).queues[self._queue]
        if not isinstance(seen, QueueSeen) or not isinstance(seen.native, PartitionsSeen):
            raise Unreachable(f"the partitions of {self._queue} could not be read")
        return seen.native
