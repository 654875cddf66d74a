"""Observer of the demo: heartbeats, waiting messages, and the broker's description of the queue."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lbg_broker.admin import ProvisioningError
from lbg_broker.admin.live import LiveAdmin
from lbg_broker.admin.snapshot import QueueStatus
from lbg_broker.client import (
    BrokerAddress,
    ClientConnection,
    ClientError,
    ConnectionSettings,
    Delivery,
    connect_any,
)
from lbg_broker.group import TO_ALL, Names
from lbgroup.options import management_of

READ_EVERY_S = 0.4


class BrokerObserver:
    """A connection of its own, closed at the end of the block."""

    def __init__(
        self,
        where: Sequence[ConnectionSettings],
        names: Names,
        *,
        on_message: Callable[[Mapping[str, Any]], None],
        on_ready: Callable[[int, int | None], None],
        queue_count: int,
    ) -> None:
        self._where = where
        self._names = names
        self._on_message = on_message
        self._on_ready = on_ready
        self._queue_count = queue_count
        self._connection: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> BrokerObserver:
        self._connection = await connect_any(self._where, name="lbg demo")
        channel = await self._connection.open_channel()
        queue = (await channel.queue_declare(exclusive=True, auto_delete=True)).queue
        await channel.queue_bind(queue, self._names.members, TO_ALL)
        await channel.consume(queue, self._hear, no_ack=True)
        self._reading = asyncio.ensure_future(self._read(self._connection))
        return self

    async def __aexit__(self, *args: object) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._connection is not None:
            await self._connection.close()

    def _hear(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            with contextlib.suppress(ValueError):
                message = json.loads(bytes(delivery.body))
                if isinstance(message, dict):
                    self._on_message(message)

    async def _read(self, connection: ClientConnection) -> None:
        channel = await connection.open_channel()
        while True:
            for number in range(self._queue_count):
                try:
                    answer = await channel.queue_declare(self._names.queue(number), passive=True)
                except ClientError:
                    self._on_ready(number, None)
                    if not connection.is_open:
                        return
                    channel = await connection.open_channel()
                else:
                    self._on_ready(number, answer.message_count)
            await asyncio.sleep(READ_EVERY_S)


LOOK_EVERY_S = 0.4


async def keep_looking(address: BrokerAddress, group: str, on_seen: Callable[[QueueStatus], None]) -> None:
    """Until it is cancelled. What cannot be told now is passed over."""
    parent = Names(group).parent
    admin = LiveAdmin(address.places(), management_of(address))
    try:
        while True:
            try:
                seen = (await admin.observe(group)).queues.get(parent)
            except ProvisioningError:
                seen = None
            if isinstance(seen, QueueStatus):
                on_seen(seen)
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        await admin.close()
