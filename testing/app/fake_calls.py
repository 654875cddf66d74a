"""A member that offers messages to a channel and records how their calls ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lbg_core.amqp import BasicProperties
from lbg_core.client import Delivery
from lbg_core.group import HEADER_KEY, HEADER_PUBLISHER, HEADER_SEQ
from lbg_sidecar import AppChannel, Message, Verdict
from lbg_sidecar.core.delivery import Attachment
from lbg_sidecar.message import in_flight_of
from testing.waiting import GUARD_S


def message(seq: int = 0, *, key: str | None = "k", body: bytes = b"hello") -> Message:
    headers = {HEADER_PUBLISHER: "p", HEADER_SEQ: seq} | ({HEADER_KEY: key} if key is not None else {})
    delivery = Delivery.__new__(Delivery)
    delivery.channel, delivery.consumer_tag, delivery.delivery_tag, delivery.redelivered = (
        1,
        "c",
        seq + 1,
        False,
    )
    delivery.exchange, delivery.routing_key = "lbg.g", "pre.5.a.b"
    delivery.header, delivery.body = BasicProperties(headers=headers).encode(), body
    held = in_flight_of(Attachment(1, 1), delivery, "pre")
    held.calls = 1
    return Message(held, "g")


class FakeCalls:
    """A member that offers messages and keeps how their calls ended."""

    def __init__(self, *messages: Message) -> None:
        self.waiting = list(messages)
        self.ended: list[tuple[Message, Verdict]] = []
        self._came = asyncio.Event()

    def take(self) -> Message | None:
        return self.waiting.pop(0) if self.waiting else None

    def end(self, message: Message, verdict: Verdict) -> None:
        self.ended.append((message, verdict))
        self._came.set()

    def more(self) -> bool:
        return bool(self.waiting)

    async def until(self, count: int) -> list[Verdict]:
        async with asyncio.timeout(GUARD_S):
            while len(self.ended) < count:
                self._came.clear()
                await self._came.wait()
        return [verdict for _, verdict in self.ended]


@asynccontextmanager
async def running(channel: AppChannel, *messages: Message) -> AsyncIterator[FakeCalls]:
    calls = FakeCalls(*messages)
    await channel.start(calls)
    try:
        channel.wake()
        yield calls
    finally:
        await channel.stop(2.0)
