"""Numbered messages on their way through the client: published, collected, and what they should have been."""

from __future__ import annotations

import asyncio

from lbg_core.client import BasicProperties, ClientConnection, ConfirmingPublisher, Delivery

QUORUM = {"x-queue-type": "quorum", "x-single-active-consumer": True}
PERSISTENT = BasicProperties(delivery_mode=2)


class Collector:
    """A consumer that keeps what it gets, and can be waited on."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self._grown = asyncio.Event()

    def __call__(self, deliveries: list[Delivery]) -> None:
        self.deliveries += deliveries
        self._grown.set()

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries]

    async def reach(self, count: int) -> None:
        while len(self.deliveries) < count:
            self._grown.clear()
            await self._grown.wait()


async def publish_numbers(connection: ClientConnection, queue: str, count: int) -> None:
    publisher = await ConfirmingPublisher.open(connection)
    for number in range(count):
        publisher.publish_soon("", queue, b"%d" % number, properties=PERSISTENT)
    await publisher.flush()
    await publisher.channel.close()


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]
