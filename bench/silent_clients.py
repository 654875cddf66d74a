"""Clients with the connections, channels, consumers and queues of a group's members, which send nothing: what a broker
does for these alone."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from bench.workers import say
from lbg_core.client import Channel, ClientConnection, connect
from lbg_core.group import Names, last_will_of

CONSUMERS = 3
"""Of a queue: its primary and two standbys, by default."""

AT_ONCE = 16
"""Clients that are being made."""


async def silent_clients(urls: list[str], group: str, members: int, queues: int, **_: Any) -> None:
    """Two connections for each member, until the process is killed. The group's queues must exist."""
    connections: list[ClientConnection] = []
    begun = time.monotonic()
    at_once = asyncio.Semaphore(AT_ONCE)

    async def client(member: int) -> None:
        async with at_once:
            connections.extend(await _client(urls[member % len(urls)], Names(group), member, members, queues))

    await asyncio.gather(*map(client, range(members)))
    say("ready", seconds=time.monotonic() - begun)
    await asyncio.to_thread(sys.stdin.readline)


async def _client(
    url: str, names: Names, member: int, members: int, queues: int
) -> tuple[ClientConnection, ClientConnection]:
    consuming, publishing = await connect(url, name="bench"), await connect(url, name="bench")
    for place in range(CONSUMERS):
        for queue in range((member + place) % members, queues, members):
            await _consume(await consuming.open_channel(), names.queue(queue))
    mailbox = await consuming.open_channel()
    await mailbox.queue_declare(names.mailbox(member), exclusive=True)
    await _consume(mailbox, names.mailbox(member))
    channel = await consuming.open_channel()
    for watched in (member, (member + 1) % members):
        will, _binding = last_will_of(names, watched)
        await channel.queue_declare(will.name, durable=True, auto_delete=True, arguments=will.arguments)
        await _consume(channel, will.name)
    await (await publishing.open_channel()).confirm_select()
    await consuming.open_channel()  # for counts
    return consuming, publishing


async def _consume(channel: Channel, queue: str) -> None:
    await channel.consume(queue, lambda _: None, prefetch_count=8)
