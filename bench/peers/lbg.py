"""LBG: a group in mode Exclusive on the embedded broker or on RabbitMQ, and members in the application's process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers import GROUP, PARTITIONS, Broker, Work
from bench.workers import say
from lbg_core.group import GroupSpec
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message

REBALANCE_DELAY_S = 0.5
SPEC = GroupSpec(
    GROUP, GROUP, hash_count=100, queue_count=PARTITIONS, queue_size_mb=1000, client_username="guest"
)


@contextmanager
def broker(directory: Path, engine: str) -> Iterator[Broker]:
    from testing.broker.embedded import EmbeddedBroker  # with aiohttp, which a consumer does without
    from testing.rabbitmq.node import RabbitNode

    started = EmbeddedBroker(directory / "data") if engine == "embedded" else RabbitNode()
    with started:
        yield Broker(started.url if isinstance(started, EmbeddedBroker) else started.amqp_url, started.pid)


async def declare(url: str) -> None:
    from testing.admin.group_on_broker import declare_group

    await declare_group(url, SPEC)


async def publisher(url: str) -> LbgPublisher:
    opened = GroupPublisher(url, group=GROUP)
    await opened.__aenter__()
    return LbgPublisher(opened)


class LbgPublisher:
    def __init__(self, publisher: GroupPublisher) -> None:
        self._publisher = publisher
        self.flush = publisher.flush

    async def send(self, messages: list[tuple[str, bytes]]) -> None:
        for key, body in messages:
            await self._publisher.publish(key=key, body=body, topic="task")


async def consume(work: Work, url: str, name: str, number: int, concurrency: int) -> None:
    async def handle(message: Message) -> None:
        await work.do(message.data)

    settings = MemberSettings(
        broker=url, group=GROUP, name=name, rebalance_delay_s=REBALANCE_DELAY_S, concurrency=concurrency
    )
    async with Member(settings, handle) as member:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, member.stop, "SIGTERM")
        say("ready")
        await member.run()
