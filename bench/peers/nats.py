"""NATS JetStream: an elastic partitioned consumer group, by natsio-pcgroups.

A member adds itself to the group and removes itself when it leaves. One that is killed remains a member: its partitions
wait for an instance of the same name. One message is unacknowledged at a time: strict order by its documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import natsio
from natsio.client import Client
from natsio.jetstream import AckPolicy, ConsumerConfig, JetStreamContext, StreamConfig
from natsio.pcgroups import (
    PartitionedMsg,
    PartitioningFilter,
    add_members,
    create_elastic,
    delete_members,
    elastic_consume,
    get_elastic_config,
)

from bench.peers import CONSUMERS, GROUP, PARTITIONS, Broker, Work, leaving, process, program
from bench.workers import say
from testing.ports import free_port

STREAM = "COMPARE"
KEY = PartitioningFilter(filter="compare.*", partitioning_wildcards=[1])


@contextmanager
def broker(directory: Path) -> Iterator[Broker]:
    server = program(
        "nats-server", "LBG_NATS_SERVER", "apt-get install nats-server, 2.11 or newer (Debian sid)"
    )
    port = free_port()
    command = [server, "-js", "-sd", str(directory / "data"), "-a", "127.0.0.1", "-p", str(port)]
    with process(command, port, directory) as pid:
        yield Broker(f"nats://127.0.0.1:{port}", pid)


async def declare(url: str) -> None:
    client = await natsio.connect(url)
    js = client.jetstream()
    await js.create_stream(StreamConfig(name=STREAM, subjects=["compare.*"]))
    await create_elastic(js, STREAM, GROUP, PARTITIONS, [KEY])
    # Together: a change made from what another one has changed meanwhile is refused.
    await add_members(js, STREAM, GROUP, [f"consumer-{number}" for number in range(CONSUMERS)])
    await client.close()


async def publisher(url: str) -> NatsPublisher:
    client = await natsio.connect(url)
    return NatsPublisher(client, client.jetstream())


class NatsPublisher:
    def __init__(self, client: Client, js: JetStreamContext) -> None:
        self._client = client
        self._js = js

    async def send(self, messages: list[tuple[str, bytes]]) -> None:
        for key, body in messages:
            await self._js.publish_async(f"compare.{key}", body)

    async def flush(self) -> None:
        await self._js.publish_async_complete()


async def consume(work: Work, url: str, name: str, number: int) -> None:
    async def handle(message: PartitionedMsg) -> None:
        await work.do(message.data)
        await message.ack()

    left = leaving()
    client = await natsio.connect(url)
    js = client.jetstream()
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=1)
    session = await elastic_consume(js, STREAM, GROUP, name, handle, config)
    if name not in ((await get_elastic_config(js, STREAM, GROUP)).members or []):
        await add_members(js, STREAM, GROUP, [name])
    say("ready")
    await left.wait()
    await delete_members(js, STREAM, GROUP, [name])
    await session.stop()
    await client.close()
