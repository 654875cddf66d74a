"""A member for tests of its observers: it consumes queues and reports them, and decides nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lbg_core.client import Channel, ClientConnection, Delivery, connect
from lbg_core.group import TO_ALL, TO_OBSERVERS, GroupSpec, Names
from testing.admin.place import Place

REPORT_EVERY_S = 0.1


@dataclass
class FakedMember:
    """Reports the queues that it consumes to observers, and all queues to all members, as far as it has these keys; it
    acknowledges nothing by itself."""

    spec: GroupSpec
    connection: ClientConnection
    channel: Channel
    index: int = 0
    keys: Collection[str] = (TO_OBSERVERS,)
    paused: bool = False
    held: dict[int, list[Delivery]] = field(default_factory=dict)

    @property
    def in_flight(self) -> int:
        return sum(map(len, self.held.values()))

    def ack_all(self) -> None:
        for deliveries in self.held.values():
            for one in deliveries:
                self.channel.ack(one.delivery_tag)
            deliveries.clear()

    def beat(self, key: str) -> dict[str, Any]:
        queues = [
            {"queue": number, "role": "primary", "active": True, "status": "Ready", "in_flight": len(held)}
            | {"delivered": len(held), "progress": "Working"}
            for number, held in self.held.items()
        ]
        if key == TO_ALL:
            queues += [
                {"queue": number, "role": "secondary", "active": False, "status": "Unbound", "in_flight": 0}
                | {"delivered": 0, "progress": "Idle"}
                for number in range(self.spec.queue_count)
                if number not in self.held
            ]
        return {
            "v": 1,
            "type": "beat",
            "index": self.index,
            "name": f"m{self.index}",
            "incarnation": f"of {self.index}",
            "queues": queues,
            "rebalance": "Ready",
            "counts": {},
            "paused": self.paused,
        }

    async def report(self) -> None:
        """Until it is cancelled."""
        while True:
            for key in self.keys:
                body = json.dumps(self.beat(key)).encode()
                self.channel.publish(Names(self.spec.name).members, key, body)
            await asyncio.sleep(REPORT_EVERY_S)


@asynccontextmanager
async def member(
    place: Place,
    spec: GroupSpec,
    *,
    silent: bool = False,
    index: int = 0,
    keys: Collection[str] = (TO_OBSERVERS,),
    queues: Collection[int] | None = None,
) -> AsyncIterator[FakedMember]:
    """`queues`: those that it consumes; None: all. `keys`: those of its reports."""
    connection = await connect(place.settings, name="member")
    faked = FakedMember(spec, connection, await connection.open_channel(), index, keys)

    def take(number: int) -> Callable[[list[Delivery]], None]:
        return lambda deliveries: faked.held[number].extend(deliveries)

    for number in range(spec.queue_count) if queues is None else queues:
        faked.held[number] = []
        await faked.channel.consume(Names(spec.name).queue(number), take(number), prefetch_count=30)
    reporting = [] if silent else [asyncio.create_task(faked.report())]
    try:
        yield faked
    finally:
        for one in reporting:
            one.cancel()
        await connection.close()
