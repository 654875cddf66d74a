"""The client on RabbitMQ and on the embedded broker: consuming, settling, and moving queues."""

import asyncio

import pytest

from lbg_core.client import (
    AckBatcher,
    ChannelClosed,
    ConfirmingPublisher,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    connect,
)
from testing.amqp.numbered import PERSISTENT, QUORUM, Collector, numbers, publish_numbers


async def test_quorum_queues_with_a_single_active_consumer_do_not_answer_get(rabbit_vhost):
    connection = await connect(rabbit_vhost)
    channel = await connection.open_channel()
    await channel.queue_declare("q", durable=True, arguments=QUORUM)
    with pytest.raises(ResourceLocked, match="not supported"):
        await channel.basic_get("q")
    await connection.close()


async def test_deliveries_come_in_lists_and_are_acknowledged_in_batches(connection, channel):
    await channel.queue_declare("q", durable=True, arguments=QUORUM)
    await publish_numbers(connection, "q", 2000)
    acks = AckBatcher(channel)
    collector = Collector()

    def on_deliveries(deliveries):
        collector(deliveries)
        for delivery in deliveries:
            acks.settle(delivery.delivery_tag)

    await channel.consume("q", on_deliveries, prefetch_count=200)
    await collector.reach(2000)
    acks.flush()
    await channel.close()
    assert collector.bodies == numbers(0, 2000)
    assert not any(delivery.redelivered for delivery in collector.deliveries)
    assert acks.frames_sent < 500
    other = await connection.open_channel()
    assert (await other.queue_declare("q", passive=True)).message_count == 0


@pytest.mark.parametrize("arguments", [QUORUM, {"x-single-active-consumer": True}], ids=["quorum", "classic"])
async def test_closing_the_channel_gives_everything_unsettled_to_the_next_in_order(connection, arguments):
    first, second = await connection.open_channel(), await connection.open_channel()
    await first.queue_declare("q", durable=True, arguments=arguments)
    await publish_numbers(connection, "q", 300)
    active, waiting = Collector(), Collector()
    acks = AckBatcher(first)
    await first.consume("q", active, prefetch_count=100)
    await second.consume("q", waiting, prefetch_count=1000)
    await active.reach(100)
    assert waiting.deliveries == []
    for delivery in active.deliveries[:40]:
        acks.settle(delivery.delivery_tag)
    acks.settle(active.deliveries[60].delivery_tag)  # out of order: it comes again
    acks.flush()
    await first.close()
    await waiting.reach(260)
    assert waiting.bodies == numbers(40, 300)
    redelivered = [delivery.redelivered for delivery in waiting.deliveries]
    assert redelivered == sorted(redelivered, reverse=True)
    assert redelivered.count(True) >= 60  # what the acks made room for may have been on its way, too


@pytest.mark.long
async def test_twenty_moves_under_load_lose_repeat_and_reorder_nothing(connection):
    """The load lasts until the last move is over, however long moves take: some messages always wait."""
    declaring = await connection.open_channel()
    await declaring.queue_declare("q", durable=True, arguments=QUORUM)
    moves, waiting_max = 20, 500
    publisher = await ConfirmingPublisher.open(connection)
    done: list[bytes] = []
    progressed, consumed, moved = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def publish() -> int:
        number = 0
        while not moved.is_set():
            if number - len(done) >= waiting_max:
                consumed.clear()
                await consumed.wait()
            await publisher.drain()
            publisher.publish_soon("", "q", b"%d" % number, properties=PERSISTENT)
            number += 1
            if number % 20 == 0:
                await asyncio.sleep(0.002)
        await publisher.flush()
        return number

    async def attach():
        channel = await connection.open_channel()
        acks = AckBatcher(channel)

        def on_deliveries(deliveries):
            for delivery in deliveries:
                done.append(delivery.body)
                acks.settle(delivery.delivery_tag)
            progressed.set()
            consumed.set()

        await channel.consume("q", on_deliveries, prefetch_count=50)
        return channel, acks

    publishing = asyncio.ensure_future(publish())
    active = await attach()
    waiting = await attach()
    for _ in range(moves):
        progressed.clear()
        await progressed.wait()
        await asyncio.sleep(0.01)
        channel, acks = active
        acks.flush()
        await channel.close()
        active, waiting = waiting, await attach()
    moved.set()
    total = await publishing
    while len(done) < total:
        progressed.clear()
        await progressed.wait()
    assert done == numbers(0, total)


async def test_nack_and_reject_put_back_or_drop(connection, channel):
    await channel.queue_declare("q", exclusive=True)
    await publish_numbers(connection, "q", 3)
    collector = Collector()
    await channel.consume("q", collector, prefetch_count=3)
    await collector.reach(3)
    first, second, third = collector.deliveries
    channel.nack(first.delivery_tag, requeue=True)
    channel.reject(second.delivery_tag, requeue=False)
    channel.ack(third.delivery_tag)
    await collector.reach(4)
    again = collector.deliveries[3]
    assert (again.body, again.redelivered) == (b"0", True)


async def test_a_consumer_learns_that_its_queue_is_gone(connection, channel):
    await channel.queue_declare("q")
    gone = asyncio.Event()
    await channel.consume("q", Collector(), on_cancelled=gone.set)
    await (await connection.open_channel()).queue_delete("q")
    await gone.wait()
    assert channel.is_open


async def test_cancelling_a_consumer_leaves_what_it_holds(connection, channel):
    await channel.queue_declare("q", durable=True)
    await publish_numbers(connection, "q", 10)
    collector = Collector()
    tag = await channel.consume("q", collector, prefetch_count=4)
    await collector.reach(4)
    await channel.cancel(tag)
    channel.ack(collector.deliveries[-1].delivery_tag, multiple=True)
    state = await channel.queue_declare("q", passive=True)
    assert (state.message_count, state.consumer_count) == (6, 0)
    assert len(collector.deliveries) == 4


async def test_two_consumers_of_one_channel_get_their_own(connection, channel):
    for queue in ("a", "b"):
        await channel.queue_declare(queue, exclusive=True)
    collectors = {"a": Collector(), "b": Collector()}
    for queue, collector in collectors.items():
        await channel.consume(queue, collector, prefetch_count=10)
    channel_b = await connection.open_channel()
    for number in range(50):
        channel_b.publish("", "ab"[number % 2], b"%d" % number)
    await collectors["a"].reach(10)
    await collectors["b"].reach(10)
    assert channel.prefetch_count == 20
    assert collectors["a"].bodies == [b"%d" % n for n in range(0, 20, 2)]
    assert collectors["b"].bodies == [b"%d" % n for n in range(1, 20, 2)]


async def test_an_unknown_delivery_tag_closes_the_channel(channel):
    channel.ack(99)
    error = await channel.closed
    assert isinstance(error, PreconditionFailed)
    with pytest.raises(PreconditionFailed, match="unknown delivery tag 99"):
        channel.ack(100)


async def test_consuming_a_missing_queue_fails(channel):
    with pytest.raises(NotFound):
        await channel.consume("missing", Collector())
    with pytest.raises(ChannelClosed):
        await channel.basic_get("missing")
