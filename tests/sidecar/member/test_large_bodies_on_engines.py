"""Members on real brokers with a backlog of large messages."""

from __future__ import annotations

import asyncio

from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, Message
from testing.member.place import Place
from testing.waiting import until

MESSAGES = 60
SIZE = 200_000


async def test_a_backlog_beyond_the_memory_limit_is_processed_in_order(place: Place) -> None:
    async with GroupPublisher(place.url, group=place.spec.name) as publisher:
        for number in range(MESSAGES):
            await publisher.publish(key=f"key-{number % 4}", body=bytes([number]) * SIZE)
    received: dict[str | None, list[bytes]] = {}
    go_on = asyncio.Event()

    async def handle(message: Message) -> None:
        await go_on.wait()
        received.setdefault(message.key, []).append(message.data)

    async with Member(place.settings("a", body_memory_mb=1), handle) as member:
        await until(lambda: member.state()["counts"]["delivered"] == MESSAGES)
        bodies = member.state()["bodies"]
        assert bodies["memory_bytes"] <= bodies["limit_bytes"] == 1_000_000
        assert bodies["memory_bytes"] + bodies["file_bytes"] == MESSAGES * SIZE
        go_on.set()
        await until(lambda: member.state()["counts"]["acked"] == MESSAGES)
    assert received == {
        f"key-{key}": [bytes([number]) * SIZE for number in range(key, MESSAGES, 4)] for key in range(4)
    }
