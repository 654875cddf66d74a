"""A consumer with a channel of its own, which hands its queue over by closing it: what a member does, and no more."""

from __future__ import annotations

import asyncio
from typing import Self

from lbg_core.amqp import Table
from lbg_core.client import Channel, ClientConnection, Delivery
from testing.waiting import GUARD_S


class Attached:
    """One consumer of one queue; `got` is what it was handed, in the order it came.

    `cancelled` is set when the broker ends it.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.got: list[Delivery] = []
        self.cancelled = asyncio.Event()
        self._news = asyncio.Event()

    @classmethod
    async def to(
        cls, connection: ClientConnection, queue: str, *, prefetch: int, arguments: Table | None = None
    ) -> Self:
        attached = cls(await connection.open_channel())
        await attached.channel.consume(
            queue,
            attached.take,
            prefetch_count=prefetch,
            arguments=arguments,
            on_cancelled=attached.cancelled.set,
        )
        return attached

    @property
    def bodies(self) -> list[int]:
        return [int(delivery.body) for delivery in self.got]

    async def wait(self, count: int, *, timeout_s: float = GUARD_S) -> list[int]:
        """Until it was handed `count` messages; returns what it was handed so far. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while len(self.got) < count:
                self._news.clear()
                await self._news.wait()
        return self.bodies

    async def rest(self, *, quiet_s: float = 0.3) -> list[int]:
        """Until nothing has come for a while; returns what it was handed so far."""
        try:
            while True:
                await self.wait(len(self.got) + 1, timeout_s=quiet_s)
        except TimeoutError:
            return self.bodies

    def ack(self, count: int = 1) -> None:
        """The first `count` that it was handed, with one cumulative frame."""
        self.channel.ack(self.got[count - 1].delivery_tag, multiple=True)

    def ack_singly(self) -> None:
        """Everything that it was handed, with a frame for each."""
        for delivery in self.got:
            self.channel.ack(delivery.delivery_tag)

    async def release(self) -> None:
        """Close the channel at once, with whatever it holds."""
        await self.channel.close()

    def take(self, deliveries: list[Delivery]) -> None:
        """Note what it is handed."""
        self.got += deliveries
        self._news.set()
