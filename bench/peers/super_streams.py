"""RabbitMQ's super streams with single active consumers, by rstream.

A consumer stores the offset of what is done every so many messages, when a partition is taken from it and when it
leaves; its successor begins behind the stored one. rstream calls the application for its partitions side by side.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

from rstream import (
    ConfirmationStatus,
    EventContext,
    MessageContext,
    OffsetNotFound,
    OffsetSpecification,
    OffsetType,
    Producer,
    SuperStreamConsumer,
)

from bench.peers import GROUP, PARTITIONS, Broker, MissingError, Work, leaving
from bench.workers import say
from testing.ports import free_port
from testing.rabbitmq.installation import Installation
from testing.rabbitmq.node import PASSWORD, USER, RabbitNode

STORE_EVERY = 100
UNCONFIRMED = 1000
SINCE = (3, 11, 0)
"""Release of RabbitMQ that brought super streams with single active consumers."""


@contextmanager
def broker(directory: Path) -> Iterator[Broker]:
    if Installation.of_environment().version < SINCE:
        raise MissingError(
            "super streams need RabbitMQ 3.11: run .ci/rabbitmq4 sid, and set LBG_RABBITMQ_ROOT"
        )
    port = free_port()
    config = {
        "stream.listeners.tcp.1": f"127.0.0.1:{port}",
        "stream.advertised_host": "127.0.0.1",
        "stream.advertised_port": str(port),
    }
    with RabbitNode(plugins=["rabbitmq_stream"], config=config) as node:
        yield Broker(f"rabbitmq-stream://{USER}:{PASSWORD}@127.0.0.1:{port}/", node.pid)


def _login(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port,
        "username": parts.username,
        "password": parts.password,
    }


async def declare(url: str) -> None:
    consumer = SuperStreamConsumer(**_login(url), super_stream=GROUP)
    await consumer.create_super_stream(GROUP, n_partitions=PARTITIONS)
    await consumer.close()


async def publisher(url: str) -> StreamPublisher:
    return StreamPublisher(Producer(**_login(url)))


class StreamPublisher:
    """`Producer.send_batch` for each partition: `SuperStreamProducer.send` waits up to half a second for others."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._unconfirmed = 0
        self._fewer = asyncio.Event()

    async def send(self, messages: list[tuple[str, bytes]]) -> None:
        await self._at_most(UNCONFIRMED)
        batches: dict[str, list[bytes]] = defaultdict(list)
        for key, body in messages:
            batches[f"{GROUP}-{crc32(key.encode()) % PARTITIONS}"].append(body)
        self._unconfirmed += len(messages)
        for stream, batch in batches.items():
            await self._producer.send_batch(stream, batch, on_publish_confirm=self._on_confirm)

    async def flush(self) -> None:
        await self._at_most(0)

    def _on_confirm(self, status: ConfirmationStatus) -> None:
        assert status.is_confirmed
        self._unconfirmed -= 1
        self._fewer.set()

    async def _at_most(self, unconfirmed: int) -> None:
        while self._unconfirmed > unconfirmed:
            self._fewer.clear()
            await self._fewer.wait()


async def consume(work: Work, url: str, name: str, number: int) -> None:
    left = leaving()
    consumer = SuperStreamConsumer(**_login(url), super_stream=GROUP)
    partitions = Partitions(work)
    await consumer.subscribe(
        partitions.on_message,
        subscriber_name=GROUP,
        properties={"single-active-consumer": "true", "name": GROUP, "super-stream": GROUP},
        consumer_update_listener=partitions.on_update,
    )
    say("ready")
    await left.wait()
    await partitions.leave()
    await consumer.close()


class Partitions:
    """Partitions that this consumer is the active one of, and how far each is."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._active: dict[str, Any] = {}
        self._done: dict[str, int] = {}
        self._one_at_a_time: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def on_message(self, body: bytes, context: MessageContext) -> None:
        stream = context.stream
        async with self._one_at_a_time[stream]:
            if stream not in self._active:
                return  # fetched before the partition was taken away
            await self._work.do(body)
            self._done[stream] = context.offset
            if context.offset % STORE_EVERY == 0:
                await self._store(stream, context.consumer)

    async def on_update(self, is_active: bool, context: EventContext) -> OffsetSpecification:
        stream = context.stream
        if not is_active:
            await self._give_up(stream)
            return OffsetSpecification(OffsetType.NEXT, 0)
        try:
            stored = await context.consumer.query_offset(stream=stream, subscriber_name=GROUP)
        except OffsetNotFound:
            stored = -1
        self._active[stream] = context.consumer
        return OffsetSpecification(OffsetType.OFFSET, stored + 1)

    async def leave(self) -> None:
        for stream in list(self._active):
            await self._give_up(stream)

    async def _give_up(self, stream: str) -> None:
        consumer = self._active.pop(stream, None)
        async with self._one_at_a_time[stream]:
            if consumer is not None and stream in self._done:
                await self._store(stream, consumer)

    async def _store(self, stream: str, consumer: Any) -> None:
        await consumer.store_offset(stream=stream, subscriber_name=GROUP, offset=self._done[stream])
