"""One queue of RabbitMQ's to try a fact on: classic, quorum, or as LBG declares it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from lbg_core.client import ClientConnection, ConfirmingPublisher, connect
from lbg_core.group import RABBITMQ, Engine, GroupSpec, topology_of
from testing.rabbitmq.attached import Attached

Arguments = dict[str, str | int | bool]

CLASSIC: Arguments = {"x-queue-type": "classic", "x-single-active-consumer": True}
QUORUM: Arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}

END = -1


def of_a_group(version: tuple[int, int, int]) -> Arguments:
    """Arguments of LBG's declaration of a group's queue, on this version of RabbitMQ."""
    spec = GroupSpec("g", "g", hash_count=1, queue_count=1, queue_size_mb=100, client_username="guest")
    return dict(topology_of(spec, Engine(RABBITMQ, version)).queues[0].arguments)


class TriedQueue:
    """A durable queue called `q`; its messages are numbers."""

    name = "q"

    def __init__(self, connection: ClientConnection, publisher: ConfirmingPublisher) -> None:
        self.connection = connection
        self._publisher = publisher

    async def publish(self, *numbers: int) -> None:
        """In order; returns when all are confirmed."""
        await asyncio.gather(*(self._publisher.publish("", self.name, b"%d" % number) for number in numbers))

    async def attach(self, *, prefetch: int = 100, **arguments: int) -> Attached:
        """One more consumer, behind those that are there; `arguments` are those of basic.consume, x_priority=1."""
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        return await Attached.to(self.connection, self.name, prefetch=prefetch, arguments=named)

    async def left(self) -> list[int]:
        """Messages of the queue at a new consumer. Use it when all others are gone."""
        await self.publish(END)
        last = await self.attach(prefetch=0)
        while END not in last.bodies:
            await last.wait(len(last.got) + 1)
        await last.release()
        return last.bodies[:-1]


@asynccontextmanager
async def queue_on(
    url: str, arguments: Arguments, *, holding: Iterable[int] = ()
) -> AsyncIterator[TriedQueue]:
    """The queue, in a virtual host where there is none of its name, with these numbers in it."""
    connection = await connect(url)
    channel = await connection.open_channel()
    await channel.queue_declare(TriedQueue.name, durable=True, arguments=arguments)
    queue = TriedQueue(connection, await ConfirmingPublisher.open(connection))
    await queue.publish(*holding)
    try:
        yield queue
    finally:
        await channel.queue_delete(TriedQueue.name)
        await connection.close()
