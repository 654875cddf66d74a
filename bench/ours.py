"""Our client at work on a queue: what `wire` and `engines` measure."""

from __future__ import annotations

import asyncio
import time

from lbg_core.client import AckBatcher, BasicProperties, ConfirmingPublisher, Delivery, connect

BODY = bytes(256)
QUEUE = "bench"
PREFETCH = 1000
UNCONFIRMED = 2000


async def lbg_consume(url: str, messages: int) -> float:
    """Seconds from basic.consume until the last acknowledgement is written and the channel closed."""
    connection = await connect(url, name="bench")
    channel = await connection.open_channel()
    acks = AckBatcher(channel)
    done = asyncio.get_running_loop().create_future()
    seen = 0

    def on_deliveries(deliveries: list[Delivery]) -> None:
        nonlocal seen
        for delivery in deliveries:
            acks.settle(delivery.delivery_tag)
        seen += len(deliveries)
        if seen >= messages and not done.done():
            done.set_result(None)

    started = time.perf_counter()
    await channel.consume(QUEUE, on_deliveries, prefetch_count=PREFETCH)
    await done
    acks.flush()
    await channel.close()
    elapsed = time.perf_counter() - started
    await connection.close()
    return elapsed


async def lbg_publish(url: str, messages: int) -> float:
    """Seconds from the first publish to the last confirm."""
    connection = await connect(url, name="bench")
    publisher = await ConfirmingPublisher.open(connection, max_unconfirmed_bytes=UNCONFIRMED * len(BODY))
    header = BasicProperties(delivery_mode=2).encode()
    started = time.perf_counter()
    for number in range(messages):
        last = publisher.publish_soon("", QUEUE, BODY, header=header)
        if number % 100 == 99:
            await publisher.drain()
    await publisher.flush()
    await last
    elapsed = time.perf_counter() - started
    await connection.close()
    return elapsed
