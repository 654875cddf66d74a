"""A consumer with a channel of its own, which hands its queue over by closing it: what a member does, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from lbg_broker.amqp import Table
from lbg_broker.client import Channel, ClientConnection, Delivery


class Attached:
    """One consumer of one queue; `got` is what it was handed, in the order it came."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.got: list[Delivery] = []
        self._news = asyncio.Event()

    @classmethod
    async def to(
        cls, connection: ClientConnection, queue: str, *, prefetch: int = 100, arguments: Table | None = None
    ) -> Self:
        attached = cls(await connection.open_channel())
        await attached.channel.consume(queue, attached._take, prefetch_count=prefetch, arguments=arguments)
        return attached

    @property
    def bodies(self) -> list[int]:
        return [int(delivery.body) for delivery in self.got]

    @property
    def last_tag(self) -> int:
        return self.got[-1].delivery_tag

    async def wait(self, count: int, *, timeout_s: float = 20) -> list[int]:
        """Until it was handed `count` messages; returns what it was handed so far. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self.until(lambda: len(self.got) >= count)
        return self.bodies

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def stays_at(self, count: int, *, for_s: float = 0.2) -> bool:
        """Whether nothing beyond `count` comes in a while."""
        await asyncio.sleep(for_s)
        return len(self.got) == count

    async def release(self) -> None:
        """Close the channel at once, with whatever it holds."""
        await self.channel.close()

    def _take(self, deliveries: list[Delivery]) -> None:
        self.got += deliveries
        self._news.set()
