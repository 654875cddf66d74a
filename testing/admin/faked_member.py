"""A member for tests of its observers: it consumes queues and reports them, and decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lbg_core.client import Channel, ClientConnection, Delivery, connect
from lbg_core.group import MEMBERS_VERSION, TO_OBSERVERS, GroupSpec, Names
from testing.admin.place import Place
from testing.admin.reports import beat_body

REPORT_EVERY_S = 0.1


@dataclass
class FakedMember:
    """Reports the queues that it consumes to observers; it acknowledges nothing by itself."""

    spec: GroupSpec
    connection: ClientConnection
    channel: Channel
    index: int = 0
    version: int = MEMBERS_VERSION
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

    def fields(self) -> dict[str, Any]:
        queues = [
            {"queue": number, "role": "primary", "active": True, "status": "Ready", "in_flight": len(held)}
            | {"delivered": len(held), "progress": "Working"}
            for number, held in self.held.items()
        ]
        about = {"index": self.index, "name": f"m{self.index}", "incarnation": f"of {self.index}"}
        return {**about, "queues": queues, "paused": self.paused}

    async def report(self) -> None:
        """Until it is cancelled."""
        while True:
            body = beat_body(self.fields(), version=self.version)
            self.channel.publish(Names(self.spec.name).members, TO_OBSERVERS, body)
            await asyncio.sleep(REPORT_EVERY_S)


@asynccontextmanager
async def member(
    place: Place,
    spec: GroupSpec,
    *,
    silent: bool = False,
    index: int = 0,
    version: int = MEMBERS_VERSION,
    queues: Collection[int] | None = None,
) -> AsyncIterator[FakedMember]:
    """`queues`: those that it consumes; None: all. `version`: of its reports."""
    connection = await connect(place.settings, name="member")
    faked = FakedMember(spec, connection, await connection.open_channel(), index, version)

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
