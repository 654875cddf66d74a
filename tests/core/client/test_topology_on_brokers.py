"""The client on RabbitMQ and on the embedded broker: queues, exchanges and bindings come and go."""

import asyncio

import pytest

from lbg_core.client import AccessRefused, NotFound, PreconditionFailed, ResourceLocked, connect
from lbg_core.group import Engine
from testing.amqp.numbered import QUORUM, Collector, publish_numbers
from testing.waiting import GUARD_S


def confirms_of(channel):
    """A function that waits for so many confirms."""
    upto = 0
    news = asyncio.Event()

    def on_confirm(tag, multiple, ok):
        nonlocal upto
        upto = tag if multiple else upto + 1
        news.set()

    async def confirmed(count):
        while upto < count:
            news.clear()
            await news.wait()

    channel.on_confirm = on_confirm
    return confirmed


async def test_queues_and_exchanges_come_and_go(channel):
    await channel.exchange_declare("e", "topic", durable=True)
    await channel.exchange_declare("e", passive=True)
    declared = await channel.queue_declare("q", durable=True, arguments=QUORUM)
    assert (declared.queue, declared.message_count, declared.consumer_count) == ("q", 0, 0)
    await channel.queue_bind("q", "e", "a.#")
    await channel.exchange_declare("inner", "fanout")
    await channel.exchange_bind("inner", "e", "b.#")
    await channel.confirm_select()
    confirmed = confirms_of(channel)
    channel.publish("e", "a.b", b"1")
    channel.publish("e", "a.c", b"2")
    await confirmed(2)
    await channel.queue_unbind("q", "e", "a.#")
    await channel.exchange_unbind("inner", "e", "b.#")
    assert await channel.queue_purge("q") == 2
    assert await channel.queue_delete("q") == 0
    await channel.exchange_delete("e")
    with pytest.raises(NotFound):
        await channel.exchange_declare("e", passive=True)


async def test_the_broker_makes_up_a_name_when_asked(channel):
    declared = await channel.queue_declare(exclusive=True)
    assert declared.queue.startswith("amq.gen-")


async def test_a_difference_is_a_failed_precondition_and_closes_the_channel_only(connection, channel):
    await channel.queue_declare("q", durable=True)
    with pytest.raises(PreconditionFailed, match="inequivalent arg"):
        await channel.queue_declare("q", durable=False)
    assert not channel.is_open
    other = await connection.open_channel()
    assert await other.queue_delete("q") == 0


async def test_an_exclusive_queue_of_another_connection_is_locked(connection, channel, broker_url):
    await channel.queue_declare("claim", exclusive=True)
    other = await connect(broker_url)
    with pytest.raises(ResourceLocked):
        await (await other.open_channel()).queue_declare("claim", exclusive=True)
    engine = Engine.announced(connection.server_properties)
    await connection.close()
    async with asyncio.timeout(GUARD_S):
        while True:  # RabbitMQ from 4.3 on answers the close a moment before the queue is gone
            try:
                taken = await (await other.open_channel()).queue_declare("claim", exclusive=True)
                break
            except ResourceLocked:
                assert engine.is_rabbitmq
                assert engine.version >= (4, 3, 0)
    assert taken.queue == "claim"
    await other.close()


async def test_a_name_that_is_reserved_is_refused(channel):
    with pytest.raises(AccessRefused):
        await channel.queue_declare("amq.mine")


async def test_delete_if_empty_and_if_unused(connection):
    channel = await connection.open_channel()
    await channel.queue_declare("q", durable=True)
    await publish_numbers(connection, "q", 1)
    with pytest.raises(PreconditionFailed):
        await channel.queue_delete("q", if_empty=True)
    channel = await connection.open_channel()
    await channel.consume("q", Collector())
    other = await connection.open_channel()
    with pytest.raises(PreconditionFailed):
        await other.queue_delete("q", if_unused=True)
