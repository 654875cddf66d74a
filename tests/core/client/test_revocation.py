"""The client and basic.revoke of the embedded broker: a partition moves from one consumer to another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from lbg_core.client import (
    BasicProperties,
    Channel,
    ClientConnection,
    ConfirmingPublisher,
    ConnectionSettings,
    PreconditionFailed,
    connect,
)
from testing.amqp.numbered import Collector, numbers, publish_numbers
from testing.broker.embedded import in_process
from testing.waiting import until

ARGUMENTS = {
    "x-queue-type": "partitioned",
    "x-partition-count": 2,
    "x-partition-hash": "modulo",
    "x-rebalance-delay": 0,
}
OF_THE_MOVING_PARTITION = BasicProperties(headers={"lbg-key": "1"}, delivery_mode=2)


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with in_process(tmp_path / "data") as server:
        yield f"amqp://guest:guest@127.0.0.1:{server.port}/"


class Revoked:
    """Consumer that records its calls. On request it gives back all but the first `begun`."""

    def __init__(self, channel: Channel, *, begun: int) -> None:
        self.asked: list[int] = []
        self.taken: list[int] = []
        self._channel = channel
        self._begun = begun

    def __call__(self, tags: Sequence[int], taken: bool) -> None:
        if taken:
            self.taken += tags
            return
        for tag in tags:
            self.asked.append(tag)
            if len(self.asked) > self._begun:
                self._channel.nack(tag)


async def holding(
    connection: ClientConnection, count: int, *, begun: int, handoff_ms: int
) -> tuple[Channel, Revoked]:
    """A consumer that holds `count` messages of a partition which the next consumer will get."""
    channel = await connection.open_channel()
    await channel.queue_declare("q", durable=True, arguments={**ARGUMENTS, "x-max-handoff-time": handoff_ms})
    collector, revoked = Collector(), Revoked(channel, begun=begun)
    await channel.consume("q", collector, prefetch_count=0, on_revoked=revoked)
    publisher = await ConfirmingPublisher.open(connection)
    for number in range(count):
        publisher.publish_soon("", "q", b"%d" % number, properties=OF_THE_MOVING_PARTITION)
    await publisher.flush()
    await collector.reach(count)
    return channel, revoked


async def test_what_is_given_back_when_asked_goes_on_in_order_and_at_once(url: str) -> None:
    former, successor = await connect(url), await connect(url)
    channel, revoked = await holding(former, 5, begun=2, handoff_ms=60_000)
    collector = Collector()
    await (await successor.open_channel()).consume("q", collector)
    await until(lambda: revoked.asked)
    assert revoked.asked == [1, 2, 3, 4, 5]
    assert collector.bodies == []
    channel.ack(2, multiple=True)
    await collector.reach(3)
    assert collector.bodies == numbers(2, 5)
    assert revoked.taken == []
    for connection in (former, successor):
        await connection.close()


async def test_what_is_taken_cannot_be_settled_any_more_and_only_that(url: str) -> None:
    former, successor = await connect(url), await connect(url)
    channel, revoked = await holding(former, 3, begun=1, handoff_ms=50)
    collector = Collector()
    await (await successor.open_channel()).consume("q", collector)
    await collector.reach(3)
    assert collector.bodies == numbers(0, 3)
    await until(lambda: revoked.taken)
    assert revoked.taken == [1]
    channel.ack(1)  # the answer to the taking has gone out before it
    assert isinstance(await channel.closed, PreconditionFailed)
    for connection in (former, successor):
        await connection.close()


async def test_a_consumer_that_is_not_told_may_settle_late(url: str) -> None:
    former, successor = await connect(url), await connect(url)
    channel = await former.open_channel()
    await channel.queue_declare("q", durable=True, arguments={**ARGUMENTS, "x-max-handoff-time": 50})
    mine, others = Collector(), Collector()
    await channel.consume("q", mine)
    publisher = await ConfirmingPublisher.open(former)
    await publisher.publish("", "q", b"0", properties=OF_THE_MOVING_PARTITION)
    await mine.reach(1)
    await (await successor.open_channel()).consume("q", others)
    await others.reach(1)
    channel.ack(1)
    await channel.queue_declare("q", passive=True)
    assert channel.is_open
    for connection in (former, successor):
        await connection.close()


async def test_more_tags_than_a_frame_takes_come_in_several(url: str) -> None:
    small = ConnectionSettings.parse(url + "?frame_max=8192")
    former, successor = await connect(small), await connect(url)
    _, revoked = await holding(former, 2000, begun=0, handoff_ms=60_000)
    collector = Collector()
    await (await successor.open_channel()).consume("q", collector)
    await collector.reach(2000)
    assert revoked.asked == list(range(1, 2001))
    assert collector.bodies == numbers(0, 2000)
    for connection in (former, successor):
        await connection.close()


async def test_a_channel_can_be_limited_while_it_consumes(url: str) -> None:
    connection = await connect(url)
    channel = await connection.open_channel()
    await channel.queue_declare("q", durable=True)
    await publish_numbers(connection, "q", 50)
    collector = Collector()
    await channel.consume("q", collector, prefetch_count=20)
    await collector.reach(20)
    await channel.limit(5)
    channel.ack(16, multiple=True)
    await collector.reach(21)
    channel.ack(21, multiple=True)
    await collector.reach(26)
    await channel.queue_declare("q", passive=True)
    assert collector.bodies == numbers(0, 26)
    await connection.close()
